/* What a GPU or MIG device is: identity, memory, PCI, modes. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

static const uint64_t mib = 1024 * 1024;

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    BEGIN_DEVICE(call, nvmlDeviceGetName, device);
    const char *gpu_name = call.target.gpu->name;
    if (call.target.ci == NULL)
        return call_end(&call, copy_text(name, length, gpu_name));
    const struct gi_profile *gi = mig_profile_of(call_model(&call), call.target.gi);
    char profile[48], whole[160];
    mig_ci_name(gi, &gi->ci[call.target.ci->profile], profile);
    snprintf(whole, sizeof whole, "%s MIG %s", gpu_name, profile);
    return call_end(&call, copy_text(name, length, whole));
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    BEGIN_DEVICE(call, nvmlDeviceGetUUID, device);
    const char *text = call.target.ci != NULL ? call.target.ci->uuid : call.target.gpu->uuid;
    return call_end(&call, copy_text(uuid, length, text));
}

static nvmlReturn_t answer(struct call *call, unsigned int *to, uint32_t value)
{
    if (to == NULL)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    *to = value;
    return call_end(call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    BEGIN_DEVICE(call, nvmlDeviceGetIndex, device);
    return answer(&call, index, call.target.ci != NULL ? call.target.ci->mig_index
                                                       : visible_index(call.node, call.target.slot));
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    BEGIN_GPU(call, nvmlDeviceGetMinorNumber, device, NVML_ERROR_NOT_SUPPORTED);
    return answer(&call, minor, call.target.gpu->minor);
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand)
{
    BEGIN_DEVICE(call, nvmlDeviceGetBrand, device);
    return answer(&call, brand, call_model(&call)->brand);
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture)
{
    BEGIN_DEVICE(call, nvmlDeviceGetArchitecture, device);
    return answer(&call, architecture, call_model(&call)->architecture);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    BEGIN_DEVICE(call, nvmlDeviceGetCudaComputeCapability, device);
    if (major == NULL || minor == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)call_model(&call)->cc_major;
    *minor = (int)call_model(&call)->cc_minor;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    BEGIN_DEVICE(call, nvmlDeviceGetSerial, device);
    const char *text = call.target.gpu->serial;
    return call_end(&call, *text == 0 ? NVML_ERROR_NOT_SUPPORTED : copy_text(serial, length, text));
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length)
{
    BEGIN_DEVICE(call, nvmlDeviceGetBoardPartNumber, device);
    const char *text = call_model(&call)->part_number;
    return call_end(&call, *text == 0 ? NVML_ERROR_NOT_SUPPORTED : copy_text(number, length, text));
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board)
{
    BEGIN_DEVICE(call, nvmlDeviceGetBoardId, device);
    const struct gpu *gpu = call.target.gpu;
    return answer(&call, board, gpu->domain << 16 | gpu->bus << 8 | gpu->device);
}

EXPORT nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *module)
{
    BEGIN_DEVICE(call, nvmlDeviceGetModuleId, device);
    if (call.target.gpu->module_id == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    return answer(&call, module, call.target.gpu->module_id);
}

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
    BEGIN_GPU(call, nvmlDeviceGetNumGpuCores, device, NVML_ERROR_NOT_SUPPORTED);
    return answer(&call, cores, call_model(&call)->sm * call_model(&call)->cores_per_sm);
}

static uint64_t memory_in_use(const struct call *call)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < call->node->process_count; i++) {
        const struct process *process = &call->node->processes[i];
        if (process->gpu == call->target.slot && (call->target.gi == NULL || process->gi == call->target.gi_id))
            used += process->memory_mib;
    }
    return used;
}

static uint64_t memory_total(const struct call *call)
{
    if (call->target.gi != NULL)
        return mig_profile_of(call_model(call), call->target.gi)->memory_mib;
    return call_model(call)->memory_mib;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    BEGIN_DEVICE(call, nvmlDeviceGetMemoryInfo, device);
    if (memory == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (call.target.gpu->memory_unreported)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    memory->total = memory_total(&call) * mib;
    memory->used = memory_in_use(&call) * mib;
    memory->free = memory->total - memory->used;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    BEGIN_DEVICE(call, nvmlDeviceGetMemoryInfo_v2, device);
    if (memory == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (call.target.gpu->memory_unreported)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    memory->total = memory_total(&call) * mib;
    memory->reserved = 0;
    memory->used = memory_in_use(&call) * mib;
    memory->free = memory->total - memory->used;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    BEGIN_DEVICE(call, nvmlDeviceGetBAR1MemoryInfo, device);
    if (memory == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    memory->total = memory->free = call_model(&call)->bar1_mib * mib;
    memory->used = 0;
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t pci_info(enum symbol symbol, nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, symbol, device.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = pci == NULL ? NVML_ERROR_INVALID_ARGUMENT : call_device(&call, device);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    const struct gpu *gpu = call.target.gpu;
    memset(pci, 0, sizeof *pci);
    fill_bus_ids(gpu->domain, gpu->bus, gpu->device, pci->busIdLegacy, pci->busId);
    pci->domain = gpu->domain;
    pci->bus = gpu->bus;
    pci->device = gpu->device;
    pci->pciDeviceId = call_model(&call)->pci_device_id;
    pci->pciSubSystemId = call_model(&call)->pci_subsystem_id;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(SYMBOL_nvmlDeviceGetPciInfo_v3, device, pci);
}

/* The struct of the older calls is the head of today's. */
static nvmlReturn_t legacy_pci_info(enum symbol symbol, nvmlDevice_t device, nvmlPciInfoLegacy_t *pci)
{
    nvmlPciInfo_t whole;
    nvmlReturn_t code = pci_info(symbol, device, pci == NULL ? NULL : &whole);
    if (code == NVML_SUCCESS)
        memcpy(pci, &whole, sizeof *pci);
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfoLegacy_t *pci)
{
    return legacy_pci_info(SYMBOL_nvmlDeviceGetPciInfo, device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfoLegacy_t *pci)
{
    return legacy_pci_info(SYMBOL_nvmlDeviceGetPciInfo_v2, device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci)
{
    BEGIN_DEVICE(call, nvmlDeviceGetPciInfoExt, device);
    if (pci == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (pci->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    const struct gpu *gpu = call.target.gpu;
    char legacy[16];
    fill_bus_ids(gpu->domain, gpu->bus, gpu->device, legacy, pci->busId);
    pci->domain = gpu->domain;
    pci->bus = gpu->bus;
    pci->device = gpu->device;
    pci->pciDeviceId = call_model(&call)->pci_device_id;
    pci->pciSubSystemId = call_model(&call)->pci_subsystem_id;
    pci->baseClass = 0x03;
    pci->subClass = 0x02;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *numa_node)
{
    BEGIN_DEVICE(call, nvmlDeviceGetNumaNodeId, device);
    if (call.target.gpu->memory_numa_node < 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    return answer(&call, numa_node, (uint32_t)call.target.gpu->memory_numa_node);
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    BEGIN_DEVICE(call, nvmlDeviceGetAddressingMode, device);
    if (mode == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (mode->version != NVML_STRUCT_VERSION(nvmlDeviceAddressingMode_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    mode->value = call.target.gpu->addressing_mode;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode)
{
    BEGIN_DEVICE(call, nvmlDeviceGetPersistenceMode, device);
    return answer(&call, mode, call.target.gpu->persistence);
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *mode)
{
    BEGIN_DEVICE(call, nvmlDeviceGetVirtualizationMode, device);
    return answer(&call, mode, call.target.gpu->virtualization);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
    BEGIN_DEVICE(call, nvmlDeviceGetComputeMode, device);
    return answer(&call, mode, call.target.gpu->compute_mode);
}

static nvmlReturn_t begin_setting(struct call *call, enum symbol symbol, nvmlDevice_t device)
{
    nvmlReturn_t code = call_begin_write(call, symbol, device.handle);
    if (code != NVML_SUCCESS)
        return code;
    code = call_device(call, device);
    if (code == NVML_SUCCESS && !call_privileged())
        code = NVML_ERROR_NO_PERMISSION;
    return code == NVML_SUCCESS ? code : call_end(call, code);
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    struct call call;
    nvmlReturn_t code = begin_setting(&call, SYMBOL_nvmlDeviceSetPersistenceMode, device);
    if (code != NVML_SUCCESS)
        return code;
    if (mode > NVML_FEATURE_ENABLED)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    call.writable->gpus[call.target.slot].persistence = mode;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
    struct call call;
    nvmlReturn_t code = begin_setting(&call, SYMBOL_nvmlDeviceSetComputeMode, device);
    if (code != NVML_SUCCESS)
        return code;
    if (mode > 3)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (mode == 1)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    call.writable->gpus[call.target.slot].compute_mode = mode;
    return call_end(&call, NVML_SUCCESS);
}
