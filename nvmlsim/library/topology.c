/* How near GPUs, CPUs and memory are to each other. */
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

enum { LEVEL_INTERNAL = 0, LEVEL_MULTIPLE = 20, LEVEL_HOSTBRIDGE = 30, LEVEL_NODE = 40, LEVEL_SYSTEM = 50 };
enum { P2P_INDEX_NVLINK = 2, P2P_INDEX_COUNT = 5 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

static uint32_t common_ancestor(const struct gpu *a, const struct gpu *b)
{
    if (a == b)
        return LEVEL_INTERNAL;
    if (strcmp(a->pcie_root, b->pcie_root) == 0)
        return a->pcie_switch == b->pcie_switch ? LEVEL_MULTIPLE : LEVEL_HOSTBRIDGE;
    return a->numa_node == b->numa_node ? LEVEL_NODE : LEVEL_SYSTEM;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned int *level)
{
    BEGIN_GPU(call, nvmlDeviceGetTopologyCommonAncestor, first, NVML_ERROR_INVALID_ARGUMENT);
    struct target other;
    nvmlReturn_t code = handle_resolve(call.node, second.handle, HANDLE_DEVICE, &other);
    if (code == NVML_SUCCESS && level == NULL)
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        *level = common_ancestor(call.target.gpu, other.gpu);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                                     nvmlDevice_t *array)
{
    BEGIN_GPU(call, nvmlDeviceGetTopologyNearestGpus, device, NVML_ERROR_INVALID_ARGUMENT);
    if (count == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    uint32_t found = 0, room = array == NULL ? 0 : *count;
    for (uint32_t slot = 0; slot < call.node->gpu_count; slot++) {
        const struct gpu *gpu = &call.node->gpus[slot];
        if (slot == call.target.slot || !gpu_visible(call.node, slot) ||
            common_ancestor(call.target.gpu, gpu) > level)
            continue;
        if (found < room)
            array[found].handle = handle_device(call.node, slot);
        found++;
    }
    *count = found;
    return call_end(&call, NVML_SUCCESS);
}

/* Reads a list such as "0-55,112-167" into a bit set of `words` 64-bit words. */
static void read_list(const char *list, unsigned long *set, uint32_t words)
{
    memset(set, 0, words * sizeof *set);
    while (*list != 0) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < words * 64ul; i++)
            set[i / 64] |= 1ul << i % 64;
        if (end == list)
            return;
        list = *end == ',' ? end + 1 : end;
    }
}

static bool holds(const char *list, uint32_t cpu)
{
    unsigned long set[32];
    read_list(list, set, 32);
    return cpu < 32 * 64 && (set[cpu / 64] >> cpu % 64 & 1) != 0;
}

EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *array)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlSystemGetTopologyGpuSet, NULL);
    if (code != NVML_SUCCESS)
        return code;
    if (count == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    uint32_t found = 0, room = array == NULL ? 0 : *count;
    for (uint32_t slot = 0; slot < call.node->gpu_count; slot++) {
        if (!gpu_visible(call.node, slot) || !holds(call.node->gpus[slot].cpu_affinity, cpu))
            continue;
        if (found < room)
            array[found].handle = handle_device(call.node, slot);
        found++;
    }
    *count = found;
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t cpu_set(const struct call *call, unsigned int words, unsigned long *set)
{
    if (set == NULL || words == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (call->target.gpu->cpu_affinity[0] == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    read_list(call->target.gpu->cpu_affinity, set, words);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    BEGIN_DEVICE(call, nvmlDeviceGetCpuAffinity, device);
    return call_end(&call, cpu_set(&call, words, set));
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                        unsigned int scope)
{
    BEGIN_DEVICE(call, nvmlDeviceGetCpuAffinityWithinScope, device);
    return call_end(&call, scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : cpu_set(&call, words, set));
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                unsigned int scope)
{
    BEGIN_DEVICE(call, nvmlDeviceGetMemoryAffinity, device);
    if (set == NULL || words == 0 || scope > 1)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    int32_t numa_node = call.target.gpu->numa_node;
    if (numa_node < 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    memset(set, 0, words * sizeof *set);
    if ((uint32_t)numa_node < words * 64)
        set[numa_node / 64] = 1ul << numa_node % 64;
    return call_end(&call, NVML_SUCCESS);
}

static bool linked(const struct gpu *a, const struct gpu *b)
{
    for (uint32_t i = 0; i < MAX_LINKS; i++) {
        const struct link *one = &a->links[i];
        if (!one->present || !one->active)
            continue;
        if (one->remote_type == NVML_LINK_REMOTE_GPU && one->remote_domain == b->domain && one->remote_bus == b->bus)
            return true;
        for (uint32_t j = 0; one->remote_type == NVML_LINK_REMOTE_SWITCH && j < MAX_LINKS; j++) {
            const struct link *other = &b->links[j];
            if (other->present && other->active && other->remote_domain == one->remote_domain &&
                other->remote_bus == one->remote_bus && other->remote_device == one->remote_device)
                return true;
        }
    }
    return false;
}

/* While MIG mode is on, a GPU has no peers. */
EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned int index,
                                           unsigned int *status)
{
    BEGIN_GPU(call, nvmlDeviceGetP2PStatus, first, NVML_ERROR_INVALID_ARGUMENT);
    struct target other;
    nvmlReturn_t code = handle_resolve(call.node, second.handle, HANDLE_DEVICE, &other);
    if (code == NVML_SUCCESS && (status == NULL || index >= P2P_INDEX_COUNT))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    bool possible = !call.target.gpu->mig_current && !other.gpu->mig_current && call.target.gpu != other.gpu;
    bool reachable = index != P2P_INDEX_NVLINK || linked(call.target.gpu, other.gpu);
    *status = possible && reachable ? P2P_OK : P2P_NOT_SUPPORTED;
    return call_end(&call, NVML_SUCCESS);
}
