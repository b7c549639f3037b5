#include "show.h"

#include <stdarg.h>
#include <stdio.h>

#include "mig.h"

/* Writes JSON into a buffer that may be too small, counting what would be needed. `first` tells where no comma goes. */
struct writer {
    char *text;
    uint64_t size, length;
    bool first;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *writer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    uint64_t left = writer->length < writer->size ? writer->size - writer->length : 0;
    writer->length += (uint64_t)vsnprintf(left > 0 ? writer->text + writer->length : NULL, left, format, arguments);
    va_end(arguments);
}

static void comma(struct writer *writer)
{
    if (!writer->first)
        put(writer, ",");
    writer->first = false;
}

static void open_with(struct writer *writer, char bracket)
{
    put(writer, "%c", bracket);
    writer->first = true;
}

static void close_with(struct writer *writer, char bracket)
{
    put(writer, "%c", bracket);
    writer->first = false;
}

static void key(struct writer *writer, const char *name)
{
    comma(writer);
    put(writer, "\"%s\":", name);
}

static void number(struct writer *writer, const char *name, int64_t value)
{
    key(writer, name);
    put(writer, "%lld", (long long)value);
}

/* Bytes that are not ASCII are shown as the code point of the same number: names need not be UTF-8. */
static void text(struct writer *writer, const char *name, const char *value)
{
    key(writer, name);
    put(writer, "\"");
    for (const unsigned char *byte = (const unsigned char *)value; *byte != 0; byte++)
        if (*byte < 0x20 || *byte > 0x7e || *byte == '"' || *byte == '\\')
            put(writer, "\\u%04x", *byte);
        else
            put(writer, "%c", *byte);
    put(writer, "\"");
}

static void begin_list(struct writer *writer, const char *name)
{
    key(writer, name);
    open_with(writer, '[');
}

static void begin_item(struct writer *writer)
{
    comma(writer);
    open_with(writer, '{');
}

static void show_gpu_instance(struct writer *writer, const struct model *model, const struct gpu_instance *gi,
                              uint32_t id)
{
    const struct gi_profile *profile = mig_profile_of(model, gi);
    begin_item(writer);
    number(writer, "id", id);
    text(writer, "profile", profile->name);
    number(writer, "profile_id", profile->id);
    number(writer, "start", gi->start);
    number(writer, "size", profile->size);
    begin_list(writer, "compute_instances");
    for (uint32_t i = 0; i < MAX_CI; i++) {
        const struct compute_instance *ci = &gi->ci[i];
        if (!ci->used)
            continue;
        char name[48];
        mig_ci_name(profile, &profile->ci[ci->profile], name);
        begin_item(writer);
        number(writer, "id", i);
        text(writer, "profile", name);
        number(writer, "start", ci->start);
        number(writer, "slices", profile->ci[ci->profile].slices);
        number(writer, "mig_index", ci->mig_index);
        text(writer, "uuid", ci->uuid);
        close_with(writer, '}');
    }
    close_with(writer, ']');
    close_with(writer, '}');
}

static void show_links(struct writer *writer, const struct gpu *gpu)
{
    begin_list(writer, "nvlinks");
    for (uint32_t i = 0; i < MAX_LINKS; i++) {
        const struct link *link = &gpu->links[i];
        if (!link->present)
            continue;
        char remote[32];
        snprintf(remote, sizeof remote, "%04x:%02x:%02x.0", link->remote_domain, link->remote_bus & 0xff,
                 link->remote_device & 0xff);
        begin_item(writer);
        number(writer, "link", i);
        number(writer, "active", link->active);
        number(writer, "remote_type", link->remote_type);
        text(writer, "remote", remote);
        close_with(writer, '}');
    }
    close_with(writer, ']');
}

static void show_gpu(struct writer *writer, const struct model *model, const struct gpu *gpu, uint32_t slot)
{
    char pci[32];
    snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", gpu->domain, gpu->bus & 0xff, gpu->device & 0xff);
    begin_item(writer);
    number(writer, "gpu", slot);
    number(writer, "present", gpu->present);
    number(writer, "lost", gpu->lost);
    text(writer, "model", model->key);
    text(writer, "name", gpu->name);
    text(writer, "uuid", gpu->uuid);
    text(writer, "serial", gpu->serial);
    text(writer, "pci_bus_id", pci);
    text(writer, "pcie_root", gpu->pcie_root);
    number(writer, "pcie_switch", gpu->pcie_switch);
    number(writer, "pci_device_id", model->pci_device_id);
    number(writer, "minor", gpu->minor);
    number(writer, "rank", gpu->rank);
    number(writer, "numa_node", gpu->numa_node);
    number(writer, "memory_mib", (int64_t)model->memory_mib);
    number(writer, "mig_mode", gpu->mig_current);
    number(writer, "mig_pending", gpu->mig_pending);
    number(writer, "compute_mode", gpu->compute_mode);
    number(writer, "timeslice", gpu->timeslice);
    number(writer, "persistence_mode", gpu->persistence);
    number(writer, "virtualization_mode", gpu->virtualization);
    begin_list(writer, "gpu_instances");
    for (uint32_t i = 0; i < MAX_GI; i++)
        if (gpu->gi[i].used)
            show_gpu_instance(writer, model, &gpu->gi[i], i);
    close_with(writer, ']');
    show_links(writer, gpu);
    close_with(writer, '}');
}

static void show_processes(struct writer *writer, const struct node *node)
{
    begin_list(writer, "processes");
    for (uint32_t i = 0; i < node->process_count; i++) {
        const struct process *process = &node->processes[i];
        begin_item(writer);
        number(writer, "pid", process->pid);
        number(writer, "gpu", process->gpu);
        number(writer, "gi", process->gi == NO_INSTANCE ? -1 : (int64_t)process->gi);
        number(writer, "ci", process->ci == NO_INSTANCE ? -1 : (int64_t)process->ci);
        number(writer, "memory_mib", (int64_t)process->memory_mib);
        close_with(writer, '}');
    }
    close_with(writer, ']');
}

static void show_calls(struct writer *writer, const struct live *live)
{
    key(writer, "calls");
    open_with(writer, '{');
    for (int i = 0; i < SYMBOL_COUNT; i++)
        if (live->calls[i] > 0)
            number(writer, symbol_name((enum symbol)i), (int64_t)live->calls[i]);
    if (live->smi_calls > 0)
        number(writer, "nvidia-smi", (int64_t)live->smi_calls);
    close_with(writer, '}');
}

uint64_t show_json(const struct store *store, const struct node *node, char *buffer, uint64_t size)
{
    struct writer writer = {.text = buffer, .size = size, .first = true};
    open_with(&writer, '{');
    text(&writer, "machine", node->machine);
    text(&writer, "driver_version", node->driver_version);
    text(&writer, "kernel_version", node->kernel_version);
    number(&writer, "cuda_version", node->cuda_version);
    number(&writer, "driver_loaded", node->driver_loaded);
    number(&writer, "generation", store->file->generation);
    begin_list(&writer, "gpus");
    for (uint32_t i = 0; i < node->gpu_count; i++)
        show_gpu(&writer, &store->file->models[node->gpus[i].model], &node->gpus[i], i);
    close_with(&writer, ']');
    show_processes(&writer, node);
    show_calls(&writer, &store->file->live);
    close_with(&writer, '}');
    return writer.length;
}
