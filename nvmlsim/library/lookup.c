/* How a GPU or a MIG device is found: by index, UUID, PCI address, serial. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml.h"

static nvmlReturn_t device_count(enum symbol symbol, unsigned int *count)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, symbol, NULL);
    if (code != NVML_SUCCESS)
        return code;
    if (count == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *count = visible_count(call.node);
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return device_count(SYMBOL_nvmlDeviceGetCount, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    return device_count(SYMBOL_nvmlDeviceGetCount_v2, count);
}

static nvmlReturn_t answer(struct call *call, uint32_t slot, nvmlReturn_t missing, nvmlDevice_t *device)
{
    if (device == NULL)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    if (slot == NO_GPU)
        return call_end(call, missing);
    nvmlReturn_t code = call_found(call, slot);
    if (code == NVML_SUCCESS)
        device->handle = handle_device(call->node, slot);
    return call_end(call, code);
}

static nvmlReturn_t by_index(enum symbol symbol, unsigned int index, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, symbol, NULL);
    if (code != NVML_SUCCESS)
        return code;
    return answer(&call, visible_slot(call.node, index), NVML_ERROR_INVALID_ARGUMENT, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return by_index(SYMBOL_nvmlDeviceGetHandleByIndex, index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return by_index(SYMBOL_nvmlDeviceGetHandleByIndex_v2, index, device);
}

static uint32_t slot_by_uuid(const struct node *node, const char *uuid)
{
    for (uint32_t slot = 0; slot < node->gpu_count; slot++)
        if (gpu_visible(node, slot) && strcasecmp(node->gpus[slot].uuid, uuid) == 0)
            return slot;
    return NO_GPU;
}

struct mig_location {
    uint32_t slot, gi, ci;
};

static struct mig_location mig_by_uuid(const struct node *node, const char *uuid)
{
    for (uint32_t slot = 0; slot < node->gpu_count; slot++)
        for (uint32_t gi = 0; node->gpus[slot].present && gi < MAX_GI; gi++)
            for (uint32_t ci = 0; node->gpus[slot].gi[gi].used && ci < MAX_CI; ci++)
                if (node->gpus[slot].gi[gi].ci[ci].used &&
                    strcasecmp(node->gpus[slot].gi[gi].ci[ci].uuid, uuid) == 0)
                    return (struct mig_location){slot, gi, ci};
    return (struct mig_location){.slot = NO_GPU};
}

/* The form of drivers before R470: MIG-GPU-<uuid>/<gi>/<ci>. */
static struct mig_location mig_by_old_name(const struct node *node, const char *name)
{
    struct mig_location none = {.slot = NO_GPU}, found;
    char uuid[48];
    if (sscanf(name, "MIG-%47[^/]/%u/%u", uuid, &found.gi, &found.ci) != 3)
        return none;
    found.slot = slot_by_uuid(node, uuid);
    bool exists = found.slot != NO_GPU && found.gi < MAX_GI && found.ci < MAX_CI &&
                  node->gpus[found.slot].gi[found.gi].used && node->gpus[found.slot].gi[found.gi].ci[found.ci].used;
    return exists ? found : none;
}

static nvmlReturn_t answer_mig(struct call *call, const char *uuid, nvmlDevice_t *device)
{
    struct mig_location at = strncmp(uuid, "MIG-GPU-", 8) == 0 ? mig_by_old_name(call->node, uuid)
                                                              : mig_by_uuid(call->node, uuid);
    if (at.slot == NO_GPU || !gpu_visible(call->node, at.slot) ||
        !mig_device_visible(call->node, at.slot, at.gi, at.ci))
        return call_end(call, NVML_ERROR_NOT_FOUND);
    nvmlReturn_t code = call_found(call, at.slot);
    if (code == NVML_SUCCESS)
        device->handle = handle_instance(call->node, HANDLE_MIG_DEVICE, at.slot, at.gi, at.ci);
    return call_end(call, code);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlDeviceGetHandleByUUID, NULL);
    if (code != NVML_SUCCESS)
        return code;
    if (uuid == NULL || device == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (strncmp(uuid, "MIG-", 4) == 0)
        return answer_mig(&call, uuid, device);
    bool well_formed = strncmp(uuid, "GPU-", 4) == 0 && strlen(uuid) == 40;
    return answer(&call, well_formed ? slot_by_uuid(call.node, uuid) : NO_GPU,
                  well_formed ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT, device);
}

static nvmlReturn_t by_pci(enum symbol symbol, const char *bus_id, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, symbol, NULL);
    if (code != NVML_SUCCESS)
        return code;
    uint32_t domain = 0, bus, dev, function = 0;
    if (bus_id == NULL || (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &dev, &function) < 3 &&
                           (domain = 0, sscanf(bus_id, "%x:%x.%x", &bus, &dev, &function) < 2)))
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    uint32_t found = NO_GPU;
    for (uint32_t slot = 0; slot < call.node->gpu_count; slot++) {
        const struct gpu *gpu = &call.node->gpus[slot];
        if (gpu->domain == domain && gpu->bus == bus && gpu->device == dev && gpu_visible(call.node, slot))
            found = slot;
    }
    return answer(&call, found, NVML_ERROR_NOT_FOUND, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return by_pci(SYMBOL_nvmlDeviceGetHandleByPciBusId, bus_id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return by_pci(SYMBOL_nvmlDeviceGetHandleByPciBusId_v2, bus_id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlDeviceGetHandleBySerial, NULL);
    if (code != NVML_SUCCESS)
        return code;
    uint32_t found = NO_GPU;
    for (uint32_t slot = 0; serial != NULL && slot < call.node->gpu_count; slot++)
        if (gpu_visible(call.node, slot) && strcmp(call.node->gpus[slot].serial, serial) == 0)
            found = slot;
    return answer(&call, found, serial == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_FOUND, device);
}
