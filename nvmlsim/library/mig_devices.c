/* MIG devices: the handles under which CUDA and discovery see compute instances. */
#include "nvml.h"

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *answer)
{
    BEGIN_DEVICE(call, nvmlDeviceIsMigDeviceHandle, device);
    if (answer == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *answer = call.target.ci != NULL;
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t answer_id(struct call *call, unsigned int *to, uint32_t id)
{
    if (to == NULL)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    if (call->target.ci == NULL)
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    *to = id;
    return call_end(call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    BEGIN_DEVICE(call, nvmlDeviceGetGpuInstanceId, device);
    return answer_id(&call, id, call.target.gi_id);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    BEGIN_DEVICE(call, nvmlDeviceGetComputeInstanceId, device);
    return answer_id(&call, id, call.target.ci_id);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    BEGIN_GPU(call, nvmlDeviceGetMaxMigDeviceCount, device, NVML_ERROR_INVALID_ARGUMENT);
    if (count == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *count = call.target.gpu->mig_current ? call_model(&call)->max_mig_devices : 0;
    return call_end(&call, NVML_SUCCESS);
}

static bool find_index(const struct call *call, unsigned int index, uint32_t *gi, uint32_t *ci)
{
    for (*gi = 0; *gi < MAX_GI; ++*gi)
        for (*ci = 0; *ci < MAX_CI; ++*ci) {
            const struct gpu_instance *one = &call->target.gpu->gi[*gi];
            if (one->used && one->ci[*ci].used && one->ci[*ci].mig_index == index)
                return mig_device_visible(call->node, call->target.slot, *gi, *ci);
        }
    return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                        nvmlDevice_t *mig_device)
{
    BEGIN_GPU(call, nvmlDeviceGetMigDeviceHandleByIndex, device, NVML_ERROR_INVALID_ARGUMENT);
    if (!mig_supported(call_model(&call), call.target.gpu))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    uint32_t gi, ci;
    if (mig_device == NULL || index >= call_model(&call)->max_mig_devices)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (!find_index(&call, index, &gi, &ci))
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    mig_device->handle = handle_instance(call.node, HANDLE_MIG_DEVICE, call.target.slot, gi, ci);
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig_device, nvmlDevice_t *device)
{
    BEGIN_DEVICE(call, nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig_device);
    if (device == NULL || call.target.ci == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    device->handle = handle_device(call.node, call.target.slot);
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t attributes(struct call *call, nvmlDeviceAttributes_t *to)
{
    if (to == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (call->target.ci == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct gi_profile *gi = mig_profile_of(call_model(call), call->target.gi);
    const struct ci_profile *ci = &gi->ci[call->target.ci->profile];
    *to = (nvmlDeviceAttributes_t){
        .multiprocessorCount = ci->sm,
        .sharedCopyEngineCount = gi->copy_engines,
        .sharedDecoderCount = gi->decoders,
        .sharedEncoderCount = gi->encoders,
        .sharedJpegCount = gi->jpeg,
        .sharedOfaCount = gi->ofa,
        .gpuInstanceSliceCount = gi->slices,
        .computeInstanceSliceCount = ci->slices,
        .memorySizeMB = gi->memory_mib,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *to)
{
    BEGIN_DEVICE(call, nvmlDeviceGetAttributes, device);
    return call_end(&call, attributes(&call, to));
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *to)
{
    BEGIN_DEVICE(call, nvmlDeviceGetAttributes_v2, device);
    return call_end(&call, attributes(&call, to));
}
