#include "nvml.h"

static bool listed(const struct call *call, const struct process *process, uint32_t type)
{
    const struct target *target = &call->target;
    return process->gpu == target->slot && process->type == type &&
           (target->ci == NULL || (process->gi == target->gi_id && process->ci == target->ci_id));
}

/* Fills `newer` or `oldest`, whichever is not NULL. The list of a whole GPU in MIG mode needs privilege. */
static nvmlReturn_t list(const struct call *call, uint32_t type, unsigned int *count, nvmlProcessInfo_t *newer,
                         nvmlProcessInfo_v1_t *oldest)
{
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (call->target.ci == NULL && call->target.gpu->mig_current && !call_privileged())
        return NVML_ERROR_NO_PERMISSION;
    uint32_t found = 0, room = newer == NULL && oldest == NULL ? 0 : *count;
    for (uint32_t i = 0; i < call->node->process_count; i++) {
        const struct process *process = &call->node->processes[i];
        if (!listed(call, process, type))
            continue;
        uint64_t bytes = process->memory_mib * 1024 * 1024;
        if (newer != NULL && found < room)
            newer[found] = (nvmlProcessInfo_t){process->pid, bytes, process->gi, process->ci};
        if (oldest != NULL && found < room)
            oldest[found] = (nvmlProcessInfo_v1_t){process->pid, bytes};
        found++;
    }
    *count = found;
    return found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_t *processes)
{
    BEGIN_DEVICE(call, nvmlDeviceGetComputeRunningProcesses_v3, device);
    return call_end(&call, list(&call, PROCESS_COMPUTE, count, processes, NULL));
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_t *processes)
{
    BEGIN_DEVICE(call, nvmlDeviceGetComputeRunningProcesses_v2, device);
    return call_end(&call, list(&call, PROCESS_COMPUTE, count, processes, NULL));
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v1_t *processes)
{
    BEGIN_DEVICE(call, nvmlDeviceGetComputeRunningProcesses, device);
    return call_end(&call, list(&call, PROCESS_COMPUTE, count, NULL, processes));
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_t *processes)
{
    BEGIN_DEVICE(call, nvmlDeviceGetGraphicsRunningProcesses_v3, device);
    return call_end(&call, list(&call, PROCESS_GRAPHICS, count, processes, NULL));
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                               nvmlProcessInfo_t *processes)
{
    BEGIN_DEVICE(call, nvmlDeviceGetMPSComputeRunningProcesses_v3, device);
    return call_end(&call, list(&call, PROCESS_MPS, count, processes, NULL));
}
