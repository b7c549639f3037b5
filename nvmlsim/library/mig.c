#include "mig.h"

#include <stdio.h>
#include <string.h>

const struct gi_profile *mig_profile_by_id(const struct model *model, uint32_t id)
{
    for (uint32_t i = 0; i < model->gi_profile_count; i++)
        if (model->gi_profiles[i].id == id)
            return &model->gi_profiles[i];
    return NULL;
}

const struct gi_profile *mig_profile_by_number(const struct model *model, uint32_t number)
{
    for (uint32_t i = 0; i < model->gi_profile_count; i++)
        if (model->gi_profiles[i].number == number)
            return &model->gi_profiles[i];
    return NULL;
}

const struct gi_profile *mig_profile_by_name(const struct model *model, const char *name)
{
    for (uint32_t i = 0; i < model->gi_profile_count; i++)
        if (strcmp(model->gi_profiles[i].name, name) == 0)
            return &model->gi_profiles[i];
    return NULL;
}

const struct ci_profile *mig_ci_profile_by_id(const struct gi_profile *profile, uint32_t id)
{
    for (uint32_t i = 0; i < profile->ci_count; i++)
        if (profile->ci[i].id == id)
            return &profile->ci[i];
    return NULL;
}

const struct gi_profile *mig_profile_of(const struct model *model, const struct gpu_instance *gi)
{
    return &model->gi_profiles[gi->profile];
}

void mig_ci_name(const struct gi_profile *gi, const struct ci_profile *ci, char name[48])
{
    if (ci->slices < gi->slices)
        snprintf(name, 48, "%uc.%s", ci->slices, gi->name);
    else
        snprintf(name, 48, "%s", gi->name);
}

static bool overlap(uint32_t start_a, uint32_t size_a, uint32_t start_b, uint32_t size_b)
{
    return start_a < start_b + size_b && start_b < start_a + size_a;
}

static bool lists(uint32_t count, const uint32_t *starts, uint32_t start)
{
    for (uint32_t i = 0; i < count; i++)
        if (starts[i] == start)
            return true;
    return false;
}

static bool engines_left(const struct model *model, const struct gpu *gpu, const struct gi_profile *wanted)
{
    uint32_t decoders = wanted->decoders, encoders = wanted->encoders, jpeg = wanted->jpeg, ofa = wanted->ofa;
    for (uint32_t i = 0; i < MAX_GI; i++) {
        if (!gpu->gi[i].used)
            continue;
        const struct gi_profile *profile = mig_profile_of(model, &gpu->gi[i]);
        decoders += profile->decoders;
        encoders += profile->encoders;
        jpeg += profile->jpeg;
        ofa += profile->ofa;
    }
    return decoders <= model->decoders && encoders <= model->encoders && jpeg <= model->jpeg && ofa <= model->ofa;
}

static bool span_free(const struct model *model, const struct gpu *gpu, uint32_t start, uint32_t size)
{
    for (uint32_t i = 0; i < MAX_GI; i++)
        if (gpu->gi[i].used && overlap(start, size, gpu->gi[i].start, mig_profile_of(model, &gpu->gi[i])->size))
            return false;
    return true;
}

/* The id is the memory span: whole GPU 0, halves 1-2, quarters 3-6, eighths 7-14 (open kernel driver, kmigmgr). */
static uint32_t gpu_instance_id(const struct model *model, uint32_t start, uint32_t size)
{
    uint32_t units = model->placement_units;
    if (size == units)
        return 0;
    if (model->gi_id_rule == GI_ID_A100)
        start = (start + 4) % 8;
    return units / size - 1 + start / size;
}

static void place(const struct gi_profile *profile, struct gpu_instance *gi, const struct model *model, uint32_t start)
{
    memset(gi, 0, sizeof *gi);
    gi->used = 1;
    gi->profile = (uint32_t)(profile - model->gi_profiles);
    gi->start = start;
}

uint32_t mig_free_gpu_instances(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile)
{
    struct gpu trial = *gpu;
    uint32_t count = 0;
    for (uint32_t i = 0; i < profile->start_count; i++) {
        uint32_t start = profile->starts[i];
        if (!span_free(model, &trial, start, profile->size) || !engines_left(model, &trial, profile))
            continue;
        place(profile, &trial.gi[gpu_instance_id(model, start, profile->size)], model, start);
        count++;
    }
    return count;
}

static bool slices_free(const struct gpu_instance *gi, const struct gi_profile *profile, uint32_t start, uint32_t size)
{
    for (uint32_t i = 0; i < MAX_CI; i++)
        if (gi->ci[i].used && overlap(start, size, gi->ci[i].start, profile->ci[gi->ci[i].profile].slices))
            return false;
    return true;
}

uint32_t mig_free_compute_instances(const struct gpu_instance *gi, const struct gi_profile *profile,
                                    const struct ci_profile *wanted)
{
    uint32_t count = 0, next = 0;
    for (uint32_t i = 0; i < wanted->start_count; i++) {
        uint32_t start = wanted->starts[i];
        if (start < next || !slices_free(gi, profile, start, wanted->slices))
            continue;
        next = start + wanted->slices;
        count++;
    }
    return count;
}

uint32_t mig_instance_count(const struct gpu *gpu)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < MAX_GI; i++)
        count += gpu->gi[i].used != 0;
    return count;
}

static bool process_runs(const struct node *node, uint32_t slot, uint32_t gi, uint32_t ci)
{
    for (uint32_t i = 0; i < node->process_count; i++) {
        const struct process *process = &node->processes[i];
        if (process->gpu == slot && (gi == NO_INSTANCE || process->gi == gi) &&
            (ci == NO_INSTANCE || process->ci == ci))
            return true;
    }
    return false;
}

bool mig_gpu_busy(const struct node *node, uint32_t slot)
{
    return process_runs(node, slot, NO_INSTANCE, NO_INSTANCE);
}

bool mig_supported(const struct model *model, const struct gpu *gpu)
{
    return model->mig_capable && gpu->virtualization != NVML_VIRTUALIZATION_VGPU;
}

nvmlReturn_t mig_create_gpu_instance(struct node *node, const struct model *model, uint32_t slot,
                                     const struct gi_profile *profile, uint32_t start, uint32_t *id)
{
    struct gpu *gpu = &node->gpus[slot];
    if (!gpu->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    if (start != ANY_START && !lists(profile->start_count, profile->starts, start))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mig_instance_count(gpu) == 0 && mig_gpu_busy(node, slot))
        return NVML_ERROR_IN_USE;
    for (uint32_t i = 0; start == ANY_START && i < profile->start_count; i++)
        if (span_free(model, gpu, profile->starts[i], profile->size))
            start = profile->starts[i];
    if (start == ANY_START || !span_free(model, gpu, start, profile->size) || !engines_left(model, gpu, profile))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *id = gpu_instance_id(model, start, profile->size);
    place(profile, &gpu->gi[*id], model, start);
    gpu->gi[*id].generation = ++node->next_generation;
    return NVML_SUCCESS;
}

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    for (const uint8_t *byte = data; size > 0; size--, byte++)
        hash = (hash ^ *byte) * 0x100000001b3ull;
    hash ^= hash >> 29;
    return hash * 0xbf58476d1ce4e5b9ull;
}

/* Real MIG UUIDs have the shape of RFC 4122 version 5; what they are derived from is not documented. */
static void mig_uuid(const struct gpu *gpu, uint32_t gi, uint32_t ci, uint32_t generation, char uuid[48])
{
    uint64_t half[2] = {0xcbf29ce484222325ull, 0x9ae16a3b2f90404full};
    uint32_t parts[3] = {gi, ci, generation};
    for (int i = 0; i < 2; i++) {
        half[i] = mix(half[i], gpu->uuid, strlen(gpu->uuid));
        half[i] = mix(half[i], parts, sizeof parts);
    }
    snprintf(uuid, 48, "MIG-%08x-%04x-5%03x-%04x-%012llx", (uint32_t)half[0], (uint32_t)(half[0] >> 32) & 0xffff,
             (uint32_t)(half[0] >> 48) & 0xfff, 0x8000u | ((uint32_t)(half[1] >> 48) & 0x3fff),
             (unsigned long long)(half[1] & 0xffffffffffffull));
}

static uint32_t next_mig_index(const struct gpu *gpu)
{
    uint64_t taken = 0;
    for (uint32_t g = 0; g < MAX_GI; g++)
        for (uint32_t c = 0; c < MAX_CI; c++)
            if (gpu->gi[g].used && gpu->gi[g].ci[c].used)
                taken |= 1ull << gpu->gi[g].ci[c].mig_index;
    uint32_t index = 0;
    while (taken >> index & 1)
        index++;
    return index;
}

nvmlReturn_t mig_create_compute_instance(struct node *node, const struct model *model, uint32_t slot, uint32_t gi_id,
                                         const struct ci_profile *profile, uint32_t start, uint32_t *id)
{
    struct gpu *gpu = &node->gpus[slot];
    struct gpu_instance *gi = &gpu->gi[gi_id];
    const struct gi_profile *gi_profile = mig_profile_of(model, gi);
    if (start != ANY_START && !lists(profile->start_count, profile->starts, start))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; start == ANY_START && i < profile->start_count; i++)
        if (slices_free(gi, gi_profile, profile->starts[i], profile->slices))
            start = profile->starts[i];
    if (start == ANY_START || !slices_free(gi, gi_profile, start, profile->slices))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (*id = 0; gi->ci[*id].used; ++*id)
        continue;
    struct compute_instance ci = {
        .used = 1,
        .generation = ++node->next_generation,
        .profile = (uint32_t)(profile - gi_profile->ci),
        .start = start,
        .mig_index = next_mig_index(gpu),
    };
    mig_uuid(gpu, gi_id, *id, node->derived_uuids ? 0 : ci.generation, ci.uuid);
    gi->ci[*id] = ci;
    return NVML_SUCCESS;
}

nvmlReturn_t mig_destroy_gpu_instance(struct node *node, uint32_t slot, uint32_t gi)
{
    struct gpu_instance *instance = &node->gpus[slot].gi[gi];
    if (!instance->used)
        return NVML_ERROR_NOT_FOUND;
    for (uint32_t i = 0; i < MAX_CI; i++)
        if (instance->ci[i].used)
            return NVML_ERROR_IN_USE;
    if (process_runs(node, slot, gi, NO_INSTANCE))
        return NVML_ERROR_IN_USE;
    memset(instance, 0, sizeof *instance);
    return NVML_SUCCESS;
}

nvmlReturn_t mig_destroy_compute_instance(struct node *node, uint32_t slot, uint32_t gi, uint32_t ci)
{
    struct compute_instance *instance = &node->gpus[slot].gi[gi].ci[ci];
    if (!node->gpus[slot].gi[gi].used || !instance->used)
        return NVML_ERROR_NOT_FOUND;
    if (process_runs(node, slot, gi, ci))
        return NVML_ERROR_IN_USE;
    memset(instance, 0, sizeof *instance);
    return NVML_SUCCESS;
}

void mig_forget_instances(struct gpu *gpu)
{
    memset(gpu->gi, 0, sizeof gpu->gi);
}

void mig_reset(struct gpu *gpu)
{
    mig_forget_instances(gpu);
    gpu->mig_current = gpu->mig_pending;
}

/*
 * Hopper and later switch at once when idle; Ampere is reset for it, which needs the GPU idle too. On a busy GPU the
 * call succeeds, the mode stays pending, and the activation status says why (nvml.h, MIG user guide).
 */
nvmlReturn_t mig_set_mode(struct node *node, const struct model *model, uint32_t slot, uint32_t mode,
                          nvmlReturn_t *activation)
{
    struct gpu *gpu = &node->gpus[slot];
    *activation = NVML_SUCCESS;
    if (!mig_supported(model, gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (mode > NVML_FEATURE_ENABLED)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mode == NVML_FEATURE_DISABLED && mig_instance_count(gpu) > 0) {
        *activation = NVML_ERROR_IN_USE;
        return NVML_SUCCESS;
    }
    gpu->mig_pending = mode;
    if (gpu->mig_current == mode)
        return NVML_SUCCESS;
    if (gpu->virtualization == NVML_VIRTUALIZATION_PASSTHROUGH && model->architecture < NVML_ARCH_HOPPER)
        *activation = NVML_ERROR_RESET_REQUIRED;
    else if (mig_gpu_busy(node, slot))
        *activation = NVML_ERROR_IN_USE;
    else
        mig_reset(gpu);
    return NVML_SUCCESS;
}
