#include "handles.h"

#include <string.h>

struct parts {
    uint32_t kind, slot, gi, ci, generation;
};

static void *pack(struct parts parts)
{
    uintptr_t number = parts.kind;
    number = number << 5 | parts.slot;
    number = number << 4 | (parts.gi & 15);
    number = number << 3 | (parts.ci & 7);
    number = number << 24 | (parts.generation & 0xffffff);
    return (void *)(number << 4);
}

static struct parts unpack(const void *handle)
{
    uintptr_t number = (uintptr_t)handle >> 4;
    struct parts parts = {
        .generation = number & 0xffffff,
        .ci = number >> 24 & 7,
        .gi = number >> 27 & 15,
        .slot = number >> 31 & 31,
        .kind = (uint32_t)(number >> 36),
    };
    return parts;
}

void *handle_device(const struct node *node, uint32_t slot)
{
    return pack((struct parts){.kind = HANDLE_DEVICE, .slot = slot, .generation = node->gpus[slot].generation});
}

void *handle_instance(const struct node *node, enum handle_kind kind, uint32_t slot, uint32_t gi, uint32_t ci)
{
    const struct gpu_instance *instance = &node->gpus[slot].gi[gi];
    uint32_t generation = kind == HANDLE_GPU_INSTANCE ? instance->generation : instance->ci[ci].generation;
    return pack((struct parts){.kind = kind, .slot = slot, .gi = gi, .ci = ci, .generation = generation});
}

uint32_t handle_slot(const void *handle)
{
    struct parts parts = unpack(handle);
    return parts.kind >= HANDLE_DEVICE && parts.kind <= HANDLE_COMPUTE_INSTANCE ? parts.slot : NO_GPU;
}

bool handle_is(const void *handle, enum handle_kind kind)
{
    return unpack(handle).kind == (uint32_t)kind;
}

nvmlReturn_t handle_resolve(const struct node *node, const void *handle, enum handle_kind kind,
                            struct target *target)
{
    struct parts parts = unpack(handle);
    memset(target, 0, sizeof *target);
    if (parts.kind != (uint32_t)kind || parts.slot >= node->gpu_count || parts.gi >= MAX_GI)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct gpu *gpu = &node->gpus[parts.slot];
    if (!gpu->present || gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    target->gpu = gpu;
    target->slot = parts.slot;
    target->gi_id = target->ci_id = NO_INSTANCE;
    if (kind == HANDLE_DEVICE)
        return (gpu->generation & 0xffffff) == parts.generation ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
    const struct gpu_instance *gi = &gpu->gi[parts.gi];
    const struct compute_instance *ci = &gi->ci[parts.ci];
    uint32_t generation = kind == HANDLE_GPU_INSTANCE ? gi->generation : ci->generation;
    if (!gi->used || (kind != HANDLE_GPU_INSTANCE && !ci->used) || (generation & 0xffffff) != parts.generation)
        return NVML_ERROR_NOT_FOUND;
    target->gi = gi;
    target->gi_id = parts.gi;
    if (kind != HANDLE_GPU_INSTANCE) {
        target->ci = ci;
        target->ci_id = parts.ci;
    }
    return NVML_SUCCESS;
}
