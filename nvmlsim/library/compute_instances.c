/* Compute instance profiles and compute instances. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

static nvmlReturn_t begin_gi(struct call *call, enum symbol symbol, nvmlGpuInstance_t instance, bool write)
{
    nvmlReturn_t code =
        write ? call_begin_write(call, symbol, instance.handle) : call_begin(call, symbol, instance.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = handle_resolve(call->node, instance.handle, HANDLE_GPU_INSTANCE, &call->target);
    if (code == NVML_SUCCESS && write && !call_privileged())
        code = NVML_ERROR_NO_PERMISSION;
    return code == NVML_SUCCESS ? code : call_end(call, code);
}

static const struct gi_profile *gi_profile(const struct call *call)
{
    return mig_profile_of(call_model(call), call->target.gi);
}

static nvmlReturn_t find_profile(const struct call *call, unsigned int number, unsigned int engine,
                                 const struct ci_profile **profile)
{
    if (number >= NVML_CI_PROFILE_COUNT || engine != NVML_CI_ENGINE_PROFILE_SHARED)
        return NVML_ERROR_INVALID_ARGUMENT;
    *profile = mig_ci_profile_by_id(gi_profile(call), number);
    return *profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlComputeInstanceProfileInfo_t describe(const struct gi_profile *gi, const struct ci_profile *ci)
{
    return (nvmlComputeInstanceProfileInfo_t){
        .id = ci->id,
        .sliceCount = ci->slices,
        .instanceCount = ci->max_instances,
        .multiprocessorCount = ci->sm,
        .sharedCopyEngineCount = gi->copy_engines,
        .sharedDecoderCount = gi->decoders,
        .sharedEncoderCount = gi->encoders,
        .sharedJpegCount = gi->jpeg,
        .sharedOfaCount = gi->ofa,
    };
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int number,
                                                                 unsigned int engine,
                                                                 nvmlComputeInstanceProfileInfo_t *info)
{
    struct call call;
    nvmlReturn_t code = begin_gi(&call, SYMBOL_nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct ci_profile *profile;
    code = info == NULL ? NVML_ERROR_INVALID_ARGUMENT : find_profile(&call, number, engine, &profile);
    if (code == NVML_SUCCESS)
        *info = describe(gi_profile(&call), profile);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int number,
                                                                  unsigned int engine,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct call call;
    nvmlReturn_t code = begin_gi(&call, SYMBOL_nvmlGpuInstanceGetComputeInstanceProfileInfoV, instance, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct ci_profile *profile;
    code = info == NULL ? NVML_ERROR_INVALID_ARGUMENT : find_profile(&call, number, engine, &profile);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    bool newest = info->version == NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3);
    if (!newest && info->version != NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlComputeInstanceProfileInfo_t base = describe(gi_profile(&call), profile);
    memcpy(&info->id, &base, sizeof base);
    char name[48];
    mig_ci_name(gi_profile(&call), profile, name);
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    if (newest)
        ((nvmlComputeInstanceProfileInfo_v3_t *)info)->capabilities = 0;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int id,
                                                                       unsigned int *count)
{
    struct call call;
    nvmlReturn_t code = begin_gi(&call, SYMBOL_nvmlGpuInstanceGetComputeInstanceRemainingCapacity, instance, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct ci_profile *profile;
    code = count == NULL ? NVML_ERROR_INVALID_ARGUMENT : find_profile(&call, id, 0, &profile);
    if (code == NVML_SUCCESS)
        *count = mig_free_compute_instances(call.target.gi, gi_profile(&call), profile);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int id,
                                                                        nvmlComputeInstancePlacement_t *array,
                                                                        unsigned int *count)
{
    struct call call;
    nvmlReturn_t code = begin_gi(&call, SYMBOL_nvmlGpuInstanceGetComputeInstancePossiblePlacements, instance, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct ci_profile *profile;
    code = count == NULL ? NVML_ERROR_INVALID_ARGUMENT : find_profile(&call, id, 0, &profile);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    bool fits = array == NULL || *count >= profile->start_count;
    *count = profile->start_count;
    for (uint32_t i = 0; array != NULL && fits && i < profile->start_count; i++)
        array[i] = (nvmlComputeInstancePlacement_t){profile->starts[i], profile->slices};
    return call_end(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

static nvmlReturn_t create(enum symbol symbol, nvmlGpuInstance_t gi, unsigned int id, uint32_t start,
                           nvmlComputeInstance_t *instance)
{
    struct call call;
    nvmlReturn_t code = begin_gi(&call, symbol, gi, true);
    if (code != NVML_SUCCESS)
        return code;
    const struct ci_profile *profile;
    code = instance == NULL ? NVML_ERROR_INVALID_ARGUMENT : find_profile(&call, id, 0, &profile);
    uint32_t ci, slot = call.target.slot, gi_id = call.target.gi_id;
    if (code == NVML_SUCCESS)
        code = mig_create_compute_instance(call.writable, call_model(&call), slot, gi_id, profile, start, &ci);
    if (code == NVML_SUCCESS)
        instance->handle = handle_instance(call.node, HANDLE_COMPUTE_INSTANCE, slot, gi_id, ci);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gi, unsigned int id,
                                                         nvmlComputeInstance_t *instance)
{
    return create(SYMBOL_nvmlGpuInstanceCreateComputeInstance, gi, id, ANY_START, instance);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gi, unsigned int id,
                                                                      const nvmlComputeInstancePlacement_t *placement,
                                                                      nvmlComputeInstance_t *instance)
{
    uint32_t start = placement == NULL || placement->start == ANY_START ? ANY_START - 1 : placement->start;
    return create(SYMBOL_nvmlGpuInstanceCreateComputeInstanceWithPlacement, gi, id, start, instance);
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    struct call call;
    nvmlReturn_t code = call_begin_write(&call, SYMBOL_nvmlComputeInstanceDestroy, instance.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = handle_resolve(call.node, instance.handle, HANDLE_COMPUTE_INSTANCE, &call.target);
    if (code == NVML_SUCCESS && !call_privileged())
        code = NVML_ERROR_NO_PERMISSION;
    if (code == NVML_SUCCESS)
        code = mig_destroy_compute_instance(call.writable, call.target.slot, call.target.gi_id, call.target.ci_id);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int id,
                                                       nvmlComputeInstance_t *array, unsigned int *count)
{
    struct call call;
    nvmlReturn_t code = begin_gi(&call, SYMBOL_nvmlGpuInstanceGetComputeInstances, instance, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct ci_profile *profile;
    code = count == NULL ? NVML_ERROR_INVALID_ARGUMENT : find_profile(&call, id, 0, &profile);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    *count = 0;
    for (uint32_t ci = 0; ci < MAX_CI; ci++) {
        const struct compute_instance *one = &call.target.gi->ci[ci];
        if (!one->used || &gi_profile(&call)->ci[one->profile] != profile)
            continue;
        if (array != NULL)
            array[*count].handle =
                handle_instance(call.node, HANDLE_COMPUTE_INSTANCE, call.target.slot, call.target.gi_id, ci);
        ++*count;
    }
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned int id,
                                                          nvmlComputeInstance_t *instance)
{
    struct call call;
    nvmlReturn_t code = begin_gi(&call, SYMBOL_nvmlGpuInstanceGetComputeInstanceById, gi, false);
    if (code != NVML_SUCCESS)
        return code;
    if (instance == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (id >= MAX_CI || !call.target.gi->ci[id].used)
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    instance->handle = handle_instance(call.node, HANDLE_COMPUTE_INSTANCE, call.target.slot, call.target.gi_id, id);
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t get_info(enum symbol symbol, nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, symbol, instance.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = handle_resolve(call.node, instance.handle, HANDLE_COMPUTE_INSTANCE, &call.target);
    if (code == NVML_SUCCESS && info == NULL)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    const struct target *target = &call.target;
    const struct ci_profile *profile = &gi_profile(&call)->ci[target->ci->profile];
    info->device.handle = handle_instance(call.node, HANDLE_MIG_DEVICE, target->slot, target->gi_id, target->ci_id);
    info->gpuInstance.handle = handle_instance(call.node, HANDLE_GPU_INSTANCE, target->slot, target->gi_id, 0);
    info->id = target->ci_id;
    info->profileId = profile->id;
    info->placement = (nvmlComputeInstancePlacement_t){target->ci->start, profile->slices};
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    return get_info(SYMBOL_nvmlComputeInstanceGetInfo_v2, instance, info);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_v1_t *info)
{
    nvmlComputeInstanceInfo_t whole;
    nvmlReturn_t code = get_info(SYMBOL_nvmlComputeInstanceGetInfo, instance, info == NULL ? NULL : &whole);
    if (code == NVML_SUCCESS)
        memcpy(info, &whole, sizeof *info);
    return code;
}
