#include <string.h>

#include "nvml.h"

enum { CAP_VALID = 5, CAP_COUNT = 6, ERROR_COUNTER_COUNT = 6 };

/* NOT_SUPPORTED: the GPU has no NVLink, or is a MIG device. INVALID_ARGUMENT: no such link, so callers can count. */
static nvmlReturn_t find_link(const struct call *call, unsigned int number, const struct link **link)
{
    if (call->target.ci != NULL || call_model(call)->link_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (number >= call_model(call)->link_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *link = &call->target.gpu->links[number];
    return NVML_SUCCESS;
}

static bool is_active(const struct link *link)
{
    return link->present && link->active;
}

#define BEGIN_LINK(call, name, device, number, pointer)                         \
    BEGIN_DEVICE(call, name, device);                                           \
    const struct link *link;                                                    \
    nvmlReturn_t code = find_link(&call, number, &link);                        \
    if (code == NVML_SUCCESS && (pointer) == NULL)                              \
        code = NVML_ERROR_INVALID_ARGUMENT;                                     \
    if (code != NVML_SUCCESS)                                                   \
    return call_end(&call, code)

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int number, unsigned int *state)
{
    BEGIN_LINK(call, nvmlDeviceGetNvLinkState, device, number, state);
    *state = is_active(link);
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int number, unsigned int *version)
{
    BEGIN_LINK(call, nvmlDeviceGetNvLinkVersion, device, number, version);
    *version = call_model(&call)->link_version;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int number, unsigned int capability,
                                                  unsigned int *result)
{
    BEGIN_LINK(call, nvmlDeviceGetNvLinkCapability, device, number, result);
    if (capability >= CAP_COUNT)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *result = is_active(link) || capability == CAP_VALID;
    return call_end(&call, NVML_SUCCESS);
}

static void fill_remote(const struct link *link, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    fill_bus_ids(link->remote_domain, link->remote_bus, link->remote_device, pci->busIdLegacy, pci->busId);
    pci->domain = link->remote_domain;
    pci->bus = link->remote_bus;
    pci->device = link->remote_device;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int number, nvmlPciInfo_t *pci)
{
    BEGIN_LINK(call, nvmlDeviceGetNvLinkRemotePciInfo_v2, device, number, pci);
    if (!is_active(link))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    fill_remote(link, pci);
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int number,
                                                     nvmlPciInfoLegacy_t *pci)
{
    BEGIN_LINK(call, nvmlDeviceGetNvLinkRemotePciInfo, device, number, pci);
    if (!is_active(link))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    nvmlPciInfo_t whole;
    fill_remote(link, &whole);
    memcpy(pci, &whole, sizeof *pci);
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int number, unsigned int *type)
{
    BEGIN_LINK(call, nvmlDeviceGetNvLinkRemoteDeviceType, device, number, type);
    if (!is_active(link))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    *type = link->remote_type;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int number, unsigned int counter,
                                                    unsigned long long *value)
{
    BEGIN_LINK(call, nvmlDeviceGetNvLinkErrorCounter, device, number, value);
    if (counter >= ERROR_COUNTER_COUNT)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *value = link->errors;
    return call_end(&call, NVML_SUCCESS);
}
