#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "nvml.h"

struct request {
    struct store *store;
    struct node *node;
    const struct words *words;
    struct gpu *gpu; /* of the word "gpu", or NULL */
    const struct model *model;
    uint32_t slot;
};

static const char *refusal(nvmlReturn_t code)
{
    return code == NVML_SUCCESS ? NULL : nvmlErrorString(code);
}

/* A MIG instance as an administrator makes it: `ci` gives slices of each compute instance, default one of full size. */
static const char *mig_create(struct request *request)
{
    const struct words *words = request->words;
    const struct gi_profile *profile = mig_profile_by_name(request->model, words_text(words, "profile", ""));
    if (profile == NULL)
        return "this GPU has no such profile";
    uint32_t start = (uint32_t)words_number(words, "start", ANY_START), gi;
    nvmlReturn_t code =
        mig_create_gpu_instance(request->node, request->model, request->slot, profile, start, &gi);
    uint32_t slices[MAX_CI] = {profile->slices}, count = words_numbers(words, "ci", slices, MAX_CI);
    if (words_text(words, "ci", NULL) == NULL)
        count = 1;
    for (uint32_t i = 0; code == NVML_SUCCESS && i < count; i++) {
        uint32_t c = 0, ci;
        while (c < profile->ci_count && profile->ci[c].slices != slices[i])
            c++;
        if (c == profile->ci_count)
            return "this profile has no compute instance of that many slices";
        code = mig_create_compute_instance(request->node, request->model, request->slot, gi, &profile->ci[c],
                                           ANY_START, &ci);
    }
    return refusal(code);
}

static const char *mig_destroy(struct request *request)
{
    uint32_t gi = (uint32_t)words_number(request->words, "gi", MAX_GI);
    if (gi >= MAX_GI)
        return "the GPU instance id is missing or above 14";
    uint32_t only = (uint32_t)words_number(request->words, "ci", NO_INSTANCE);
    if (only != NO_INSTANCE && only >= MAX_CI)
        return "the compute instance id is above 7";
    nvmlReturn_t code = NVML_SUCCESS;
    for (uint32_t ci = 0; ci < MAX_CI && code == NVML_SUCCESS; ci++)
        if ((only == NO_INSTANCE && request->gpu->gi[gi].ci[ci].used) || only == ci)
            code = mig_destroy_compute_instance(request->node, request->slot, gi, ci);
    if (code == NVML_SUCCESS && only == NO_INSTANCE)
        code = mig_destroy_gpu_instance(request->node, request->slot, gi);
    return refusal(code);
}

static const char *mig_mode(struct request *request)
{
    if (!mig_supported(request->model, request->gpu))
        return refusal(NVML_ERROR_NOT_SUPPORTED);
    request->gpu->mig_pending = words_number(request->words, "mode", 1) != 0;
    if (words_number(request->words, "pending_only", 0) == 0)
        mig_reset(request->gpu);
    return NULL;
}

struct command {
    const char *verb;
    bool needs_gpu;
    const char *(*carry_out)(struct request *);
};

static const struct command commands[] = {
    {"mig_create", true, mig_create},
    {"mig_destroy", true, mig_destroy},
    {"mig_mode", true, mig_mode},
};

const char *command_line(struct store *store, struct node *node, const struct words *words)
{
    struct request request = {.store = store, .node = node, .words = words, .slot = NO_GPU};
    request.slot = (uint32_t)words_number(words, "gpu", NO_GPU);
    if (request.slot != NO_GPU) {
        if (request.slot >= node->gpu_count || !node->gpus[request.slot].present)
            return "there is no such GPU";
        request.gpu = &node->gpus[request.slot];
        request.model = &store->file->models[request.gpu->model];
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].verb, words->verb) == 0)
            return commands[i].needs_gpu && request.gpu == NULL ? "the word gpu=<slot> is missing"
                                                                : commands[i].carry_out(&request);
    return "unknown command";
}
