#include <string.h>

#include "nvml.h"

static nvmlReturn_t describe(const struct gpu *gpu, nvmlGpuFabricInfo_t *info)
{
    if (!gpu->fabric_supported)
        return NVML_ERROR_NOT_SUPPORTED;
    memcpy(info->clusterUuid, gpu->fabric_cluster, sizeof info->clusterUuid);
    info->status = (nvmlReturn_t)gpu->fabric_status;
    info->cliqueId = gpu->fabric_clique;
    info->state = (uint8_t)gpu->fabric_state;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    BEGIN_GPU(call, nvmlDeviceGetGpuFabricInfo, device, NVML_ERROR_NOT_SUPPORTED);
    return call_end(&call, info == NULL ? NVML_ERROR_INVALID_ARGUMENT : describe(call.target.gpu, info));
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
    BEGIN_GPU(call, nvmlDeviceGetGpuFabricInfoV, device, NVML_ERROR_NOT_SUPPORTED);
    if (info == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    bool newest = info->version == NVML_STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3);
    if (!newest && info->version != NVML_STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlGpuFabricInfo_t base;
    nvmlReturn_t code = describe(call.target.gpu, &base);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    memcpy(info->clusterUuid, base.clusterUuid, sizeof info->clusterUuid);
    info->status = base.status;
    info->cliqueId = base.cliqueId;
    info->state = base.state;
    info->healthMask = call.target.gpu->fabric_health;
    if (newest)
        info->healthSummary = 0;
    return call_end(&call, NVML_SUCCESS);
}
