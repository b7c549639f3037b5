#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "nvml.h"

enum { MAX_EVENT_SETS = 64 };

static const uint64_t supported_types = NVML_EVENT_SINGLE_BIT_ECC | NVML_EVENT_DOUBLE_BIT_ECC | NVML_EVENT_XID;

/* What one GPU has to tell this set: nothing from before it was registered, and nothing of another GPU in its slot. */
struct registration {
    uint64_t types, since;
    uint32_t generation;
};

struct event_set {
    bool used;
    uint64_t seen;
    struct registration gpus[MAX_GPUS];
};

static struct event_set sets[MAX_EVENT_SETS];
static pthread_mutex_t sets_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct event_set *find_set(nvmlEventSet_t handle)
{
    ptrdiff_t offset = (char *)handle.handle - (char *)sets;
    if (offset < 0 || offset >= (ptrdiff_t)sizeof sets || offset % (ptrdiff_t)sizeof *sets != 0)
        return NULL;
    struct event_set *set = handle.handle;
    return set->used ? set : NULL;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *handle)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlEventSetCreate, NULL);
    if (code != NVML_SUCCESS)
        return code;
    code = handle == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_MEMORY;
    pthread_mutex_lock(&sets_mutex);
    for (int i = 0; code == NVML_ERROR_MEMORY && i < MAX_EVENT_SETS; i++) {
        if (sets[i].used)
            continue;
        sets[i] = (struct event_set){.used = true, .seen = call.node->event_count};
        handle->handle = &sets[i];
        code = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&sets_mutex);
    return call_end(&call, code);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlEventSetFree, NULL);
    if (code != NVML_SUCCESS)
        return code;
    pthread_mutex_lock(&sets_mutex);
    struct event_set *set = find_set(handle);
    if (set != NULL)
        set->used = false;
    pthread_mutex_unlock(&sets_mutex);
    return call_end(&call, set == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    BEGIN_GPU(call, nvmlDeviceGetSupportedEventTypes, device, NVML_ERROR_NOT_SUPPORTED);
    if (types == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (!call.target.gpu->events_supported)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    *types = supported_types;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle)
{
    BEGIN_GPU(call, nvmlDeviceRegisterEvents, device, NVML_ERROR_NOT_SUPPORTED);
    if (!call.target.gpu->events_supported || (types & ~supported_types) != 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    pthread_mutex_lock(&sets_mutex);
    struct event_set *set = find_set(handle);
    if (set != NULL)
        set->gpus[call.target.slot] =
            (struct registration){types, call.node->event_count, call.target.gpu->generation};
    pthread_mutex_unlock(&sets_mutex);
    return call_end(&call, set == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS);
}

static bool wanted(const struct event_set *set, const struct node *node, const struct event *event)
{
    const struct registration *gpu = &set->gpus[event->gpu];
    return (gpu->types & event->type) != 0 && event->number > gpu->since &&
           gpu->generation == node->gpus[event->gpu].generation;
}

static bool any_lost(const struct event_set *set, const struct node *node)
{
    for (uint32_t slot = 0; slot < node->gpu_count; slot++) {
        const struct gpu *gpu = &node->gpus[slot];
        if (set->gpus[slot].types != 0 &&
            (gpu->lost || !gpu->present || gpu->generation != set->gpus[slot].generation))
            return true;
    }
    return false;
}

/* SUCCESS with the oldest event not yet taken, GPU_IS_LOST, or TIMEOUT when there is nothing now. */
static nvmlReturn_t take(struct event_set *set, const struct node *node, nvmlEventData_t *data)
{
    if (node->event_count > MAX_EVENTS && set->seen < node->event_count - MAX_EVENTS)
        set->seen = node->event_count - MAX_EVENTS;
    while (set->seen < node->event_count) {
        const struct event *event = &node->events[set->seen++ % MAX_EVENTS];
        if (!wanted(set, node, event))
            continue;
        data->device.handle = handle_device(node, event->gpu);
        data->eventType = event->type;
        data->eventData = event->data;
        data->gpuInstanceId = event->gi;
        data->computeInstanceId = event->ci;
        return NVML_SUCCESS;
    }
    return any_lost(set, node) ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

static nvmlReturn_t wait_for_event(enum symbol symbol, nvmlEventSet_t handle, nvmlEventData_t *data,
                                   unsigned int timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    struct call call;
    nvmlReturn_t code = call_begin(&call, symbol, NULL);
    if (code != NVML_SUCCESS)
        return code;
    const struct node *node = call.node;
    while (true) {
        uint32_t generation = call.file->generation;
        pthread_mutex_lock(&sets_mutex);
        struct event_set *set = find_set(handle);
        code = set == NULL || data == NULL ? NVML_ERROR_INVALID_ARGUMENT : take(set, node, data);
        pthread_mutex_unlock(&sets_mutex);
        call_end(&call, code);
        int64_t left = end - now_ms();
        if (code != NVML_ERROR_TIMEOUT || left <= 0)
            return code;
        store_wait(call_store(), generation, left);
        node = store_begin_read(call_store());
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return wait_for_event(SYMBOL_nvmlEventSetWait_v2, set, data, timeout_ms);
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return wait_for_event(SYMBOL_nvmlEventSetWait, set, data, timeout_ms);
}
