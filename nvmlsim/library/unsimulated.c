/* Calls that a driver of this age has, but whose subject no simulated GPU has: tools may ask and must hear "no". */
#include "nvml.h"

static nvmlReturn_t refuse(struct call *call)
{
    return call_end(call, NVML_ERROR_NOT_SUPPORTED);
}

EXPORT nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, void *info)
{
    (void)info;
    BEGIN_DEVICE(call, nvmlDeviceGetPlatformInfo, device);
    return refuse(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkInfo(nvmlDevice_t device, void *info)
{
    (void)info;
    BEGIN_DEVICE(call, nvmlDeviceGetNvLinkInfo, device);
    return refuse(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, void *status)
{
    (void)status;
    BEGIN_DEVICE(call, nvmlDeviceGetSramEccErrorStatus, device);
    return refuse(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, void *list)
{
    (void)list;
    BEGIN_DEVICE(call, nvmlDeviceGetRunningProcessDetailList, device);
    return refuse(&call);
}
