#include "call.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "capability_files.h"

static struct store store;
static bool store_is_open;
static uint32_t references;
static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER;

struct store *call_store(void)
{
    return &store;
}

static void count(enum symbol symbol)
{
    if (store.writable)
        __atomic_add_fetch(&store.file->live.calls[symbol], 1, __ATOMIC_RELAXED);
}

static bool take_one(uint32_t fault)
{
    if (!store.writable)
        return true;
    uint32_t *remaining = &store.file->live.fault_remaining[fault];
    uint32_t left = __atomic_load_n(remaining, __ATOMIC_RELAXED);
    while (left > 0)
        if (__atomic_compare_exchange_n(remaining, &left, left - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return true;
    return false;
}

static nvmlReturn_t planned_fault(const struct node *node, enum symbol symbol, uint32_t slot, bool any_gpu,
                                  uint32_t *delay_ms)
{
    nvmlReturn_t code = NVML_SUCCESS;
    *delay_ms = 0;
    for (uint32_t i = 0; i < MAX_FAULTS; i++) {
        const struct fault *fault = &node->faults[i];
        bool symbol_fits = fault->symbol == symbol || fault->symbol == SYMBOL_COUNT;
        bool gpu_fits = fault->gpu == NO_GPU ? any_gpu : fault->gpu == slot;
        if (!fault->used || !symbol_fits || !gpu_fits || (fault->limited && !take_one(i)))
            continue;
        *delay_ms += fault->delay_ms;
        if (fault->has_code && code == NVML_SUCCESS)
            code = (nvmlReturn_t)fault->code;
    }
    return code;
}

static void sleep_ms(uint32_t milliseconds)
{
    struct timespec rest = {.tv_sec = milliseconds / 1000, .tv_nsec = (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
        continue;
}

static nvmlReturn_t begin(struct call *call, enum symbol symbol, const void *handle, bool write)
{
    memset(call, 0, sizeof *call);
    if (__atomic_load_n(&references, __ATOMIC_ACQUIRE) == 0)
        return NVML_ERROR_UNINITIALIZED;
    count(symbol);
    call->symbol = symbol;
    call->file = store.file;
    const struct node *node = store_begin_read(&store);
    uint32_t delay_ms;
    nvmlReturn_t code = planned_fault(node, symbol, handle_slot(handle), true, &delay_ms);
    if (code == NVML_SUCCESS && !node->driver_loaded)
        code = NVML_ERROR_DRIVER_NOT_LOADED;
    if (delay_ms > 0 || write || code != NVML_SUCCESS)
        store_end(&store);
    if (delay_ms > 0)
        sleep_ms(delay_ms);
    if (code != NVML_SUCCESS)
        return code;
    if (write) {
        call->writable = store_begin_write(&store);
        call->node = call->writable;
        return call->writable == NULL ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
    }
    call->node = delay_ms > 0 ? store_begin_read(&store) : node;
    return NVML_SUCCESS;
}

nvmlReturn_t call_begin(struct call *call, enum symbol symbol, const void *handle)
{
    return begin(call, symbol, handle, false);
}

nvmlReturn_t call_begin_write(struct call *call, enum symbol symbol, const void *handle)
{
    return begin(call, symbol, handle, true);
}

nvmlReturn_t call_found(struct call *call, uint32_t slot)
{
    uint32_t delay_ms;
    nvmlReturn_t code = planned_fault(call->node, call->symbol, slot, false, &delay_ms);
    if (delay_ms > 0) {
        store_end(&store);
        sleep_ms(delay_ms);
        call->node = store_begin_read(&store);
    }
    if (code != NVML_SUCCESS)
        return code;
    return call->node->gpus[slot].lost || !call->node->gpus[slot].present ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t call_end(struct call *call, nvmlReturn_t code)
{
    if (call->writable != NULL && code == NVML_SUCCESS)
        store_commit(&store);
    store_end(&store);
    return code;
}

nvmlReturn_t call_gpu(struct call *call, nvmlDevice_t device)
{
    return handle_resolve(call->node, device.handle, HANDLE_DEVICE, &call->target);
}

nvmlReturn_t call_device(struct call *call, nvmlDevice_t device)
{
    if (handle_is(device.handle, HANDLE_MIG_DEVICE))
        return handle_resolve(call->node, device.handle, HANDLE_MIG_DEVICE, &call->target);
    return call_gpu(call, device);
}

const struct model *call_model(const struct call *call)
{
    return &call->file->models[call->target.gpu->model];
}

bool call_privileged(void)
{
    if (!store.writable)
        return false;
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%u", store.root, CAPABILITY_MIG_CONFIG);
    return geteuid() == 0 || access(path, R_OK) == 0;
}

bool gpu_visible(const struct node *node, uint32_t slot)
{
    if (!node->gpus[slot].present)
        return false;
    if (store.root[0] != 0)
        return true;
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia%u", node->gpus[slot].minor);
    return access(path, F_OK) == 0;
}

bool mig_device_visible(const struct node *node, uint32_t slot, uint32_t gi, uint32_t ci)
{
    uint32_t minor = node->gpus[slot].minor;
    return store.root[0] != 0 || (capability_node_exists(store.root, capability_minor_gi(minor, gi)) &&
                                  capability_node_exists(store.root, capability_minor_ci(minor, gi, ci)));
}

static bool comes_before(const struct gpu *a, const struct gpu *b)
{
    if (a->rank != b->rank)
        return a->rank < b->rank;
    if (a->domain != b->domain)
        return a->domain < b->domain;
    if (a->bus != b->bus)
        return a->bus < b->bus;
    return a->device < b->device;
}

static uint32_t visible_slots(const struct node *node, uint32_t slots[MAX_GPUS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->gpu_count; i++) {
        if (!gpu_visible(node, i))
            continue;
        uint32_t at = count++;
        for (; at > 0 && comes_before(&node->gpus[i], &node->gpus[slots[at - 1]]); at--)
            slots[at] = slots[at - 1];
        slots[at] = i;
    }
    return count;
}

uint32_t visible_count(const struct node *node)
{
    uint32_t slots[MAX_GPUS];
    return visible_slots(node, slots);
}

uint32_t visible_slot(const struct node *node, uint32_t index)
{
    uint32_t slots[MAX_GPUS];
    return index < visible_slots(node, slots) ? slots[index] : NO_GPU;
}

uint32_t visible_index(const struct node *node, uint32_t slot)
{
    uint32_t slots[MAX_GPUS], count = visible_slots(node, slots);
    for (uint32_t index = 0; index < count; index++)
        if (slots[index] == slot)
            return index;
    return NO_GPU;
}

nvmlReturn_t copy_text(char *to, uint32_t length, const char *text)
{
    if (to == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    size_t size = strlen(text) + 1;
    if (size > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, size);
    return NVML_SUCCESS;
}

static nvmlReturn_t driver_answer(const struct node *node)
{
    if (!node->driver_loaded)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return strcmp(node->driver_version, node->kernel_version) == 0 ? NVML_SUCCESS
                                                                   : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

static nvmlReturn_t attach(enum symbol symbol, uint32_t flags)
{
    char path[PATH_MAX];
    if (!store_is_open && (!store_locate(path) || store_open(&store, path) != NULL))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    store_is_open = true;
    count(symbol);
    const struct node *node = store_begin_read(&store);
    uint32_t delay_ms;
    nvmlReturn_t code = planned_fault(node, symbol, NO_GPU, true, &delay_ms);
    if (code == NVML_SUCCESS)
        code = driver_answer(node);
    if (code == NVML_SUCCESS && visible_count(node) == 0 && (flags & NVML_INIT_FLAG_NO_GPUS) == 0)
        code = NVML_ERROR_NOT_FOUND;
    store_end(&store);
    if (delay_ms > 0)
        sleep_ms(delay_ms);
    return code;
}

nvmlReturn_t call_attach(enum symbol symbol, uint32_t flags)
{
    pthread_mutex_lock(&attach_mutex);
    nvmlReturn_t code = attach(symbol, flags);
    if (code == NVML_SUCCESS)
        __atomic_add_fetch(&references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&attach_mutex);
    return code;
}

nvmlReturn_t call_detach(void)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlShutdown, NULL);
    if (code == NVML_SUCCESS)
        call_end(&call, code);
    else if (code != NVML_ERROR_DRIVER_NOT_LOADED)
        return code;
    pthread_mutex_lock(&attach_mutex);
    code = references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references > 0)
        __atomic_sub_fetch(&references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&attach_mutex);
    return code;
}
