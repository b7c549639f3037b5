#include <string.h>

#include "request.h"

static uint32_t symbol_of(const struct request *request, bool *known)
{
    const char *name = words_text(request->words, "symbol", "*");
    uint32_t symbol = strcmp(name, "*") == 0 ? SYMBOL_COUNT : (uint32_t)symbol_by_name(name);
    *known = symbol < SYMBOL_COUNT || strcmp(name, "*") == 0;
    return symbol;
}

const char *command_fault(struct request *request)
{
    bool known;
    struct fault fault = {.used = 1, .symbol = symbol_of(request, &known), .gpu = request->slot};
    if (!known)
        return "the library has no such symbol";
    fault.has_code = words_text(request->words, "code", NULL) != NULL;
    fault.code = (uint32_t)words_number(request->words, "code", 0);
    fault.delay_ms = (uint32_t)words_number(request->words, "delay_ms", 0);
    fault.limited = words_text(request->words, "times", NULL) != NULL;
    for (uint32_t i = 0; i < MAX_FAULTS; i++) {
        if (request->node->faults[i].used)
            continue;
        request->node->faults[i] = fault;
        request->store->file->live.fault_remaining[i] = (uint32_t)words_number(request->words, "times", 0);
        return NULL;
    }
    return "too many faults are set; clear some";
}

/* Those of one symbol, or all. */
const char *command_clear_faults(struct request *request)
{
    bool known;
    uint32_t symbol = symbol_of(request, &known);
    if (!known)
        return "the library has no such symbol";
    for (uint32_t i = 0; i < MAX_FAULTS; i++)
        if (symbol == SYMBOL_COUNT || request->node->faults[i].symbol == symbol)
            request->node->faults[i].used = 0;
    return NULL;
}
