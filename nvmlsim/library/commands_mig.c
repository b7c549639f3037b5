#include <stdio.h>
#include <string.h>

#include "request.h"

static const char *refusal(nvmlReturn_t code)
{
    return code == NVML_SUCCESS ? NULL : nvmlErrorString(code);
}

static const struct ci_profile *ci_of_slices(const struct gi_profile *profile, uint32_t slices)
{
    for (uint32_t i = 0; i < profile->ci_count; i++)
        if (profile->ci[i].slices == slices)
            return &profile->ci[i];
    return NULL;
}

static const char *no_such_profile(const struct model *model)
{
    static _Thread_local char message[MAX_MESSAGE];
    snprintf(message, sizeof message, "this GPU has no such profile; it has %s",
             model->gi_profile_count == 0 ? "none, it cannot be partitioned" : "");
    for (uint32_t i = 0; i < model->gi_profile_count; i++) {
        size_t length = strlen(message);
        snprintf(message + length, sizeof message - length, "%s%s", i == 0 ? "" : ", ", model->gi_profiles[i].name);
    }
    return message;
}

/* A GPU instance as an administrator makes it; `ci` lists the slices of its compute instances (default: all in one). */
const char *command_mig_create(struct request *request)
{
    const struct words *words = request->words;
    const struct gi_profile *profile = mig_profile_by_name(request->model, words_text(words, "profile", ""));
    if (profile == NULL)
        return no_such_profile(request->model);
    uint32_t slices[MAX_CI] = {profile->slices}, count = 1, gi;
    if (words_text(words, "ci", NULL) != NULL)
        count = words_numbers(words, "ci", slices, MAX_CI);
    uint32_t start = (uint32_t)words_number(words, "start", ANY_START);
    nvmlReturn_t code = mig_create_gpu_instance(request->node, request->model, request->slot, profile, start, &gi);
    for (uint32_t i = 0; code == NVML_SUCCESS && i < count; i++) {
        const struct ci_profile *ci = ci_of_slices(profile, slices[i]);
        if (ci == NULL)
            return "this profile has no compute instance of that many slices";
        uint32_t id;
        code = mig_create_compute_instance(request->node, request->model, request->slot, gi, ci, ANY_START, &id);
    }
    return refusal(code);
}

const char *command_mig_destroy(struct request *request)
{
    uint32_t gi = (uint32_t)words_number(request->words, "gi", MAX_GI);
    if (gi >= MAX_GI)
        return "the GPU instance id is missing or above 14";
    uint32_t only = (uint32_t)words_number(request->words, "ci", NO_INSTANCE);
    if (only != NO_INSTANCE && only >= MAX_CI)
        return "the compute instance id is above 7";
    nvmlReturn_t code = NVML_SUCCESS;
    for (uint32_t ci = 0; ci < MAX_CI && code == NVML_SUCCESS; ci++)
        if (only == NO_INSTANCE ? request->gpu->gi[gi].ci[ci].used : only == ci)
            code = mig_destroy_compute_instance(request->node, request->slot, gi, ci);
    if (code == NVML_SUCCESS && only == NO_INSTANCE)
        code = mig_destroy_gpu_instance(request->node, request->slot, gi);
    return refusal(code);
}

const char *command_mig_mode(struct request *request)
{
    if (!mig_supported(request->model, request->gpu))
        return refusal(NVML_ERROR_NOT_SUPPORTED);
    request->gpu->mig_pending = words_number(request->words, "mode", 1) != 0;
    if (words_number(request->words, "pending_only", 0) == 0)
        mig_reset(request->gpu);
    return NULL;
}
