#include "symbols.h"

#include <string.h>

#define NVML_SYMBOL_TEXT(name) #name,
static const char *const names[] = {NVML_SYMBOLS(NVML_SYMBOL_TEXT)};

enum symbol symbol_by_name(const char *name)
{
    int symbol = 0;
    while (symbol < SYMBOL_COUNT && strcmp(names[symbol], name) != 0)
        symbol++;
    return (enum symbol)symbol;
}

const char *symbol_name(enum symbol symbol)
{
    return names[symbol];
}
