/* MIG mode, GPU instance profiles and GPU instances. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

/* A call on a GPU that can do MIG at all; with `on`, only while MIG mode is on. */
static nvmlReturn_t begin_mig(struct call *call, enum symbol symbol, nvmlDevice_t device, bool on, bool write)
{
    nvmlReturn_t code = write ? call_begin_write(call, symbol, device.handle) : call_begin(call, symbol, device.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = call_gpu(call, device);
    if (code == NVML_SUCCESS && !mig_supported(call_model(call), call->target.gpu))
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && on && !call->target.gpu->mig_current)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && write && !call_privileged())
        code = NVML_ERROR_NO_PERMISSION;
    return code == NVML_SUCCESS ? code : call_end(call, code);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceGetMigMode, device, false, false);
    if (code != NVML_SUCCESS)
        return code;
    if (current == NULL || pending == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *current = call.target.gpu->mig_current;
    *pending = call.target.gpu->mig_pending;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceSetMigMode, device, false, true);
    if (code != NVML_SUCCESS)
        return code;
    if (activation == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    return call_end(&call, mig_set_mode(call.writable, call_model(&call), call.target.slot, mode, activation));
}

static void describe(const struct gi_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    uint32_t version = info->version;
    *info = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = version,
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->sm,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpeg,
        .ofaCount = profile->ofa,
        .memorySizeMB = profile->memory_mib,
    };
    snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int number,
                                                        nvmlGpuInstanceProfileInfo_t *info)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceGetGpuInstanceProfileInfo, device, false, false);
    if (code != NVML_SUCCESS)
        return code;
    if (info == NULL || number >= NVML_GI_PROFILE_COUNT)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    const struct gi_profile *profile = mig_profile_by_number(call_model(&call), number);
    if (profile == NULL)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    nvmlGpuInstanceProfileInfo_v2_t whole = {0};
    describe(profile, &whole);
    memcpy(info, &whole.id, 10 * sizeof(uint32_t));
    info->memorySizeMB = whole.memorySizeMB;
    return call_end(&call, NVML_SUCCESS);
}

/* Versions 2 and 3 have one size but not one layout: the version byte decides. */
static nvmlReturn_t fill_profile(const struct gi_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    if (info->version == NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
        describe(profile, info);
        return NVML_SUCCESS;
    }
    if (info->version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlGpuInstanceProfileInfo_v2_t whole = {0};
    describe(profile, &whole);
    nvmlGpuInstanceProfileInfo_v3_t newer = {
        .version = info->version,
        .id = whole.id,
        .sliceCount = whole.sliceCount,
        .instanceCount = whole.instanceCount,
        .multiprocessorCount = whole.multiprocessorCount,
        .copyEngineCount = whole.copyEngineCount,
        .decoderCount = whole.decoderCount,
        .encoderCount = whole.encoderCount,
        .jpegCount = whole.jpegCount,
        .ofaCount = whole.ofaCount,
        .memorySizeMB = whole.memorySizeMB,
        .capabilities = profile->graphics ? NVML_GI_PROFILE_CAPS_GFX : 0,
    };
    memcpy(newer.name, whole.name, sizeof newer.name);
    memcpy((void *)info, &newer, sizeof newer);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int number,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceGetGpuInstanceProfileInfoV, device, false, false);
    if (code != NVML_SUCCESS)
        return code;
    if (info == NULL || number >= NVML_GI_PROFILE_COUNT)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    const struct gi_profile *profile = mig_profile_by_number(call_model(&call), number);
    return call_end(&call, profile == NULL ? NVML_ERROR_NOT_SUPPORTED : fill_profile(profile, info));
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                             nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceGetGpuInstanceProfileInfoByIdV, device, false, false);
    if (code != NVML_SUCCESS)
        return code;
    if (info == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    const struct gi_profile *profile = mig_profile_by_id(call_model(&call), id);
    return call_end(&call, profile == NULL ? NVML_ERROR_NOT_SUPPORTED : fill_profile(profile, info));
}

static nvmlReturn_t placements(enum symbol symbol, nvmlDevice_t device, unsigned int id,
                               nvmlGpuInstancePlacement_t *array, unsigned int *count)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, symbol, device, false, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct gi_profile *profile = mig_profile_by_id(call_model(&call), id);
    if (count == NULL || profile == NULL)
        return call_end(&call, profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
    bool fits = array == NULL || *count >= profile->start_count;
    *count = profile->start_count;
    for (uint32_t i = 0; array != NULL && fits && i < profile->start_count; i++)
        array[i] = (nvmlGpuInstancePlacement_t){profile->starts[i], profile->size};
    return call_end(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                               nvmlGpuInstancePlacement_t *array,
                                                               unsigned int *count)
{
    return placements(SYMBOL_nvmlDeviceGetGpuInstancePossiblePlacements, device, id, array, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                                  nvmlGpuInstancePlacement_t *array,
                                                                  unsigned int *count)
{
    return placements(SYMBOL_nvmlDeviceGetGpuInstancePossiblePlacements_v2, device, id, array, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                              unsigned int *count)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceGetGpuInstanceRemainingCapacity, device, true, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct gi_profile *profile = mig_profile_by_id(call_model(&call), id);
    if (count == NULL || profile == NULL)
        return call_end(&call, profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
    *count = mig_free_gpu_instances(call_model(&call), call.target.gpu, profile);
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t create(enum symbol symbol, nvmlDevice_t device, unsigned int id, uint32_t start,
                           nvmlGpuInstance_t *instance)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, symbol, device, true, true);
    if (code != NVML_SUCCESS)
        return code;
    const struct model *model = call_model(&call);
    const struct gi_profile *profile = mig_profile_by_id(model, id);
    if (instance == NULL || profile == NULL)
        return call_end(&call, instance == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    uint32_t gi, slot = call.target.slot;
    code = mig_create_gpu_instance(call.writable, model, slot, profile, start, &gi);
    if (code == NVML_SUCCESS)
        instance->handle = handle_instance(call.node, HANDLE_GPU_INSTANCE, slot, gi, 0);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    return create(SYMBOL_nvmlDeviceCreateGpuInstance, device, id, ANY_START, instance);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                             const nvmlGpuInstancePlacement_t *placement,
                                                             nvmlGpuInstance_t *instance)
{
    uint32_t start = placement == NULL || placement->start == ANY_START ? ANY_START - 1 : placement->start;
    return create(SYMBOL_nvmlDeviceCreateGpuInstanceWithPlacement, device, id, start, instance);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct call call;
    nvmlReturn_t code = call_begin_write(&call, SYMBOL_nvmlGpuInstanceDestroy, instance.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = handle_resolve(call.node, instance.handle, HANDLE_GPU_INSTANCE, &call.target);
    if (code == NVML_SUCCESS && !call_privileged())
        code = NVML_ERROR_NO_PERMISSION;
    if (code == NVML_SUCCESS)
        code = mig_destroy_gpu_instance(call.writable, call.target.slot, call.target.gi_id);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *array,
                                              unsigned int *count)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceGetGpuInstances, device, true, false);
    if (code != NVML_SUCCESS)
        return code;
    const struct gi_profile *profile = mig_profile_by_id(call_model(&call), id);
    if (count == NULL || profile == NULL)
        return call_end(&call, profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (uint32_t gi = 0; gi < MAX_GI; gi++) {
        const struct gpu_instance *one = &call.target.gpu->gi[gi];
        if (!one->used || mig_profile_of(call_model(&call), one) != profile)
            continue;
        if (array != NULL)
            array[*count].handle = handle_instance(call.node, HANDLE_GPU_INSTANCE, call.target.slot, gi, 0);
        ++*count;
    }
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    struct call call;
    nvmlReturn_t code = begin_mig(&call, SYMBOL_nvmlDeviceGetGpuInstanceById, device, true, false);
    if (code != NVML_SUCCESS)
        return code;
    if (instance == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (id >= MAX_GI || !call.target.gpu->gi[id].used)
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    instance->handle = handle_instance(call.node, HANDLE_GPU_INSTANCE, call.target.slot, id, 0);
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlGpuInstanceGetInfo, instance.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = handle_resolve(call.node, instance.handle, HANDLE_GPU_INSTANCE, &call.target);
    if (code == NVML_SUCCESS && info == NULL)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    const struct gi_profile *profile = mig_profile_of(call_model(&call), call.target.gi);
    info->device.handle = handle_device(call.node, call.target.slot);
    info->id = call.target.gi_id;
    info->profileId = profile->id;
    info->placement = (nvmlGpuInstancePlacement_t){call.target.gi->start, profile->size};
    return call_end(&call, NVML_SUCCESS);
}
