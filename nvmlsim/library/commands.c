#include "commands.h"

#include <string.h>

#include "request.h"

static const char *reset_calls(struct request *request)
{
    struct live *live = &request->store->file->live;
    for (int i = 0; i < SYMBOL_COUNT; i++)
        __atomic_store_n(&live->calls[i], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&live->smi_calls, 0, __ATOMIC_RELAXED);
    return NULL;
}

static const struct command {
    const char *verb;
    bool needs_gpu;
    const char *(*carry_out)(struct request *);
} commands[] = {
    {"mig_create", true, command_mig_create},
    {"mig_destroy", true, command_mig_destroy},
    {"mig_mode", true, command_mig_mode},
    {"fault", false, command_fault},
    {"clear_faults", false, command_clear_faults},
    {"gpu_set", true, command_gpu_set},
    {"lose", true, command_lose},
    {"unplug", true, command_unplug},
    {"reset", false, command_reset},
    {"event", true, command_event},
    {"process_add", true, command_process_add},
    {"process_remove", false, command_process_remove},
    {"reset_calls", false, reset_calls},
};

const char *command_line(struct store *store, struct node *node, const struct words *words)
{
    struct request request = {.store = store, .node = node, .words = words};
    request.slot = (uint32_t)words_number(words, "gpu", NO_GPU);
    if (request.slot != NO_GPU) {
        if (request.slot >= node->gpu_count || !node->gpus[request.slot].present)
            return "there is no such GPU";
        request.gpu = &node->gpus[request.slot];
        request.model = &store->file->models[request.gpu->model];
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].verb, words->verb) == 0)
            return commands[i].needs_gpu && request.gpu == NULL ? "the word gpu=<number> is missing"
                                                                : commands[i].carry_out(&request);
    return "unknown command";
}
