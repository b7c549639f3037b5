/* What happens to a GPU: settings, loss, reset, events, processes. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "request.h"

enum { XID_FALLEN_OFF_THE_BUS = 79 };

#define NUMBER_FIELD(field) {#field, offsetof(struct gpu, field)}

static const struct {
    const char *key;
    size_t offset;
} number_fields[] = {
    NUMBER_FIELD(rank),
    NUMBER_FIELD(minor),
    NUMBER_FIELD(numa_node),
    NUMBER_FIELD(memory_numa_node),
    NUMBER_FIELD(module_id),
    NUMBER_FIELD(compute_mode),
    NUMBER_FIELD(timeslice),
    NUMBER_FIELD(timeslice_code),
    NUMBER_FIELD(timeslice_delay_ms),
    NUMBER_FIELD(persistence),
    NUMBER_FIELD(virtualization),
    NUMBER_FIELD(addressing_mode),
    NUMBER_FIELD(ecc_current),
    NUMBER_FIELD(ecc_pending),
    NUMBER_FIELD(events_supported),
    NUMBER_FIELD(memory_unreported),
    NUMBER_FIELD(remapped_correctable),
    NUMBER_FIELD(remapped_uncorrectable),
    NUMBER_FIELD(remap_pending),
    NUMBER_FIELD(remap_failed),
    NUMBER_FIELD(recovery_action),
    NUMBER_FIELD(fabric_supported),
    NUMBER_FIELD(fabric_state),
    NUMBER_FIELD(fabric_status),
    NUMBER_FIELD(fabric_clique),
    NUMBER_FIELD(fabric_health),
};

static bool set_number(struct gpu *gpu, const char *key, const char *value)
{
    for (size_t i = 0; i < sizeof number_fields / sizeof *number_fields; i++) {
        if (strcmp(number_fields[i].key, key) != 0)
            continue;
        uint32_t number = (uint32_t)strtol(value, NULL, 0);
        memcpy((char *)gpu + number_fields[i].offset, &number, sizeof number);
        return true;
    }
    return false;
}

static bool set_text(struct gpu *gpu, const struct words *words, const char *key)
{
    if (strcmp(key, "name") == 0)
        words_copy(words, key, gpu->name, sizeof gpu->name);
    else if (strcmp(key, "uuid") == 0)
        words_copy(words, key, gpu->uuid, sizeof gpu->uuid);
    else if (strcmp(key, "serial") == 0)
        words_copy(words, key, gpu->serial, sizeof gpu->serial);
    else
        return false;
    return true;
}

const char *command_gpu_set(struct request *request)
{
    const struct words *words = request->words;
    for (uint32_t i = 0; i < words->count; i++)
        if (strcmp(words->keys[i], "gpu") != 0 && !set_text(request->gpu, words, words->keys[i]) &&
            !set_number(request->gpu, words->keys[i], words->values[i]))
            return "a GPU has no such setting";
    return NULL;
}

const char *command_lose(struct request *request)
{
    request->gpu->lost = words_number(request->words, "lost", 1) != 0;
    return NULL;
}

static void forget_processes(struct node *node, uint32_t slot, uint32_t pid)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < node->process_count; i++)
        if ((slot != NO_GPU && node->processes[i].gpu != slot) || (pid != 0 && node->processes[i].pid != pid))
            node->processes[kept++] = node->processes[i];
    node->process_count = kept;
}

const char *command_unplug(struct request *request)
{
    forget_processes(request->node, request->slot, 0);
    mig_forget_instances(request->gpu);
    request->gpu->present = 0;
    return NULL;
}

static void reset(struct node *node, uint32_t slot)
{
    struct gpu *gpu = &node->gpus[slot];
    forget_processes(node, slot, 0);
    mig_reset(gpu);
    gpu->lost = 0;
    gpu->ecc_current = gpu->ecc_pending;
    gpu->ecc_corrected = gpu->ecc_uncorrected = 0;
    gpu->remap_pending = gpu->recovery_action = 0;
}

/*
 * A reset of one GPU, or (without the word "gpu") a reboot of the node: then settings that the kernel module holds go
 * too, and MIG mode stays only where the GPU itself keeps it (Ampere's InfoROM bit; Hopper and later lose it).
 */
const char *command_reset(struct request *request)
{
    if (request->gpu != NULL) {
        reset(request->node, request->slot);
        return NULL;
    }
    for (uint32_t slot = 0; slot < request->node->gpu_count; slot++) {
        struct gpu *gpu = &request->node->gpus[slot];
        if (request->store->file->models[gpu->model].architecture >= NVML_ARCH_HOPPER)
            gpu->mig_pending = 0;
        reset(request->node, slot);
        gpu->compute_mode = gpu->timeslice = 0;
        gpu->persistence = 1;
    }
    return NULL;
}

static uint64_t event_type(const char *name)
{
    if (strcmp(name, "single_bit_ecc") == 0)
        return NVML_EVENT_SINGLE_BIT_ECC;
    return strcmp(name, "double_bit_ecc") == 0 ? NVML_EVENT_DOUBLE_BIT_ECC : NVML_EVENT_XID;
}

const char *command_event(struct request *request)
{
    struct node *node = request->node;
    struct event event = {
        .number = node->event_count + 1,
        .type = event_type(words_text(request->words, "type", "xid")),
        .data = words_number(request->words, "data", 0),
        .gpu = request->slot,
        .gi = (uint32_t)words_number(request->words, "gi", NO_INSTANCE),
        .ci = (uint32_t)words_number(request->words, "ci", NO_INSTANCE),
    };
    node->events[node->event_count++ % MAX_EVENTS] = event;
    if (event.type == NVML_EVENT_XID && event.data == XID_FALLEN_OFF_THE_BUS)
        request->gpu->lost = 1;
    if (event.type == NVML_EVENT_SINGLE_BIT_ECC)
        request->gpu->ecc_corrected++;
    if (event.type == NVML_EVENT_DOUBLE_BIT_ECC)
        request->gpu->ecc_uncorrected++;
    return NULL;
}

static bool has_instance(const struct gpu *gpu, uint32_t gi, uint32_t ci)
{
    if (gi == NO_INSTANCE)
        return ci == NO_INSTANCE;
    return gi < MAX_GI && ci < MAX_CI && gpu->gi[gi].used && gpu->gi[gi].ci[ci].used;
}

const char *command_process_add(struct request *request)
{
    struct node *node = request->node;
    struct process process = {
        .pid = (uint32_t)words_number(request->words, "pid", 0),
        .gpu = request->slot,
        .gi = (uint32_t)words_number(request->words, "gi", NO_INSTANCE),
        .ci = (uint32_t)words_number(request->words, "ci", NO_INSTANCE),
        .type = (uint32_t)words_number(request->words, "type", PROCESS_COMPUTE),
        .memory_mib = words_number(request->words, "memory_mib", 0),
    };
    if (process.pid == 0)
        return "the word pid=<process id> is missing";
    if (!has_instance(request->gpu, process.gi, process.ci))
        return "this GPU has no such compute instance";
    if (node->process_count == MAX_PROCESSES)
        return "too many processes";
    node->processes[node->process_count++] = process;
    return NULL;
}

const char *command_process_remove(struct request *request)
{
    uint32_t pid = (uint32_t)words_number(request->words, "pid", 0), before = request->node->process_count;
    if (pid == 0)
        return "the word pid=<process id> is missing";
    forget_processes(request->node, NO_GPU, pid);
    return request->node->process_count < before ? NULL : "no such process";
}
