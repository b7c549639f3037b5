#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *read_node(struct node *node, const struct words *words)
{
    words_copy(words, "machine", node->machine, sizeof node->machine);
    words_copy(words, "driver_version", node->driver_version, sizeof node->driver_version);
    words_copy(words, "kernel_version", node->kernel_version, sizeof node->kernel_version);
    words_copy(words, "nvml_version", node->nvml_version, sizeof node->nvml_version);
    node->cuda_version = (uint32_t)words_number(words, "cuda_version", node->cuda_version);
    node->derived_uuids = (uint32_t)words_number(words, "derived_uuids", node->derived_uuids);
    node->driver_loaded = (uint32_t)words_number(words, "driver_loaded", node->driver_loaded);
    node->smi_exit_code = (uint32_t)words_number(words, "smi_exit_code", node->smi_exit_code);
    node->smi_delay_ms = (uint32_t)words_number(words, "smi_delay_ms", node->smi_delay_ms);
    return NULL;
}

static uint32_t model_by_key(const struct state_file *file, const char *key)
{
    uint32_t model = 0;
    while (model < file->model_count && strcmp(file->models[model].key, key) != 0)
        model++;
    return model;
}

/* Models lie outside the slots and only grow: one being read is not counted before its "model_end" line. */
static const char *read_model(struct state_file *file, const struct words *words)
{
    if (file->model_count == MAX_MODELS)
        return "too many GPU models";
    struct model *model = &file->models[file->model_count];
    memset(model, 0, sizeof *model);
    words_copy(words, "key", model->key, sizeof model->key);
    words_copy(words, "name", model->name, sizeof model->name);
    words_copy(words, "part_number", model->part_number, sizeof model->part_number);
    model->architecture = (uint32_t)words_number(words, "architecture", 0);
    model->cc_major = (uint32_t)words_number(words, "cc_major", 0);
    model->cc_minor = (uint32_t)words_number(words, "cc_minor", 0);
    model->brand = (uint32_t)words_number(words, "brand", 0);
    model->pci_device_id = (uint32_t)words_number(words, "pci_device_id", 0);
    model->pci_subsystem_id = (uint32_t)words_number(words, "pci_subsystem_id", 0);
    model->memory_mib = words_number(words, "memory_mib", 0);
    model->bar1_mib = words_number(words, "bar1_mib", 0);
    model->sm = (uint32_t)words_number(words, "sm", 0);
    model->cores_per_sm = (uint32_t)words_number(words, "cores_per_sm", 0);
    model->link_count = (uint32_t)words_number(words, "links", 0);
    model->link_version = (uint32_t)words_number(words, "link_version", 0);
    model->link_speed_mbps = (uint32_t)words_number(words, "link_speed", 0);
    model->c2c_links = (uint32_t)words_number(words, "c2c_links", 0);
    model->mig_capable = (uint32_t)words_number(words, "mig_capable", 0);
    model->placement_units = (uint32_t)words_number(words, "placement_units", 0);
    model->max_mig_devices = (uint32_t)words_number(words, "max_mig_devices", 0);
    model->gi_id_rule = (uint32_t)words_number(words, "gi_id_rule", GI_ID_IDENTITY);
    model->decoders = (uint32_t)words_number(words, "decoders", 0);
    model->encoders = (uint32_t)words_number(words, "encoders", 0);
    model->jpeg = (uint32_t)words_number(words, "jpeg", 0);
    model->ofa = (uint32_t)words_number(words, "ofa", 0);
    return NULL;
}

static const char *end_model(struct state_file *file)
{
    if (model_by_key(file, file->models[file->model_count].key) == file->model_count)
        __atomic_add_fetch(&file->model_count, 1, __ATOMIC_RELEASE);
    return NULL;
}

static const char *read_gi_profile(struct state_file *file, const struct words *words)
{
    struct model *model = &file->models[file->model_count];
    if (file->model_count == MAX_MODELS || model->gi_profile_count == NVML_GI_PROFILE_COUNT)
        return "too many GPU instance profiles";
    struct gi_profile *profile = &model->gi_profiles[model->gi_profile_count++];
    words_copy(words, "name", profile->name, sizeof profile->name);
    profile->number = (uint32_t)words_number(words, "number", 0);
    profile->id = (uint32_t)words_number(words, "id", 0);
    profile->slices = (uint32_t)words_number(words, "slices", 0);
    profile->size = (uint32_t)words_number(words, "size", 0);
    profile->max_instances = (uint32_t)words_number(words, "max_instances", 0);
    profile->graphics = (uint32_t)words_number(words, "graphics", 0);
    profile->sm = (uint32_t)words_number(words, "sm", 0);
    profile->copy_engines = (uint32_t)words_number(words, "copy_engines", 0);
    profile->decoders = (uint32_t)words_number(words, "decoders", 0);
    profile->encoders = (uint32_t)words_number(words, "encoders", 0);
    profile->jpeg = (uint32_t)words_number(words, "jpeg", 0);
    profile->ofa = (uint32_t)words_number(words, "ofa", 0);
    profile->memory_mib = words_number(words, "memory_mib", 0);
    profile->start_count = words_numbers(words, "starts", profile->starts, MAX_STARTS);
    return NULL;
}

static const char *read_ci_profile(struct state_file *file, const struct words *words)
{
    struct model *model = &file->models[file->model_count];
    if (file->model_count == MAX_MODELS || model->gi_profile_count == 0)
        return "a compute instance profile comes before its GPU instance profile";
    struct gi_profile *gi = &model->gi_profiles[model->gi_profile_count - 1];
    if (gi->ci_count == MAX_CI)
        return "too many compute instance profiles";
    struct ci_profile *profile = &gi->ci[gi->ci_count++];
    profile->id = (uint32_t)words_number(words, "id", 0);
    profile->slices = (uint32_t)words_number(words, "slices", 0);
    profile->max_instances = (uint32_t)words_number(words, "max_instances", 0);
    profile->sm = (uint32_t)words_number(words, "sm", 0);
    profile->start_count = words_numbers(words, "starts", profile->starts, MAX_STARTS);
    return NULL;
}

static void read_cluster(const char *text, uint8_t cluster[16])
{
    for (int i = 0; i < 16 && *text != 0; text++) {
        char pair[3] = {text[0], text[1], 0};
        if (*text == '-')
            continue;
        cluster[i++] = (uint8_t)strtoul(pair, NULL, 16);
        if (*++text == 0)
            return;
    }
}

static uint32_t free_slot(const struct node *node)
{
    uint32_t slot = 0;
    while (slot < node->gpu_count && node->gpus[slot].present)
        slot++;
    return slot;
}

static const char *read_gpu(const struct state_file *file, struct node *node, const struct words *words)
{
    uint32_t model = model_by_key(file, words_text(words, "model", ""));
    uint32_t slot = free_slot(node);
    if (model == file->model_count)
        return "a GPU names an unknown model";
    if (slot == MAX_GPUS)
        return "a node holds at most 32 GPUs";
    struct gpu *gpu = &node->gpus[slot];
    memset(gpu, 0, sizeof *gpu);
    gpu->present = 1;
    gpu->model = model;
    gpu->generation = ++node->next_generation;
    words_copy(words, "uuid", gpu->uuid, sizeof gpu->uuid);
    words_copy(words, "name", gpu->name, sizeof gpu->name);
    words_copy(words, "serial", gpu->serial, sizeof gpu->serial);
    words_copy(words, "pcie_root", gpu->pcie_root, sizeof gpu->pcie_root);
    words_copy(words, "cpu_affinity", gpu->cpu_affinity, sizeof gpu->cpu_affinity);
    gpu->minor = (uint32_t)words_number(words, "minor", slot);
    gpu->domain = (uint32_t)words_number(words, "domain", 0);
    gpu->bus = (uint32_t)words_number(words, "bus", 0);
    gpu->device = (uint32_t)words_number(words, "device", 0);
    gpu->pcie_switch = (uint32_t)words_number(words, "pcie_switch", 0);
    gpu->module_id = (uint32_t)words_number(words, "module_id", 0);
    gpu->numa_node = atoi(words_text(words, "numa_node", "-1"));
    gpu->memory_numa_node = atoi(words_text(words, "memory_numa_node", "-1"));
    gpu->addressing_mode = (uint32_t)words_number(words, "addressing_mode", 0);
    gpu->persistence = (uint32_t)words_number(words, "persistence", 1);
    gpu->ecc_current = gpu->ecc_pending = (uint32_t)words_number(words, "ecc", 1);
    gpu->events_supported = (uint32_t)words_number(words, "events", 1);
    gpu->mig_current = gpu->mig_pending = (uint32_t)words_number(words, "mig_mode", 0);
    gpu->fabric_supported = (uint32_t)words_number(words, "fabric", 0);
    gpu->fabric_state = (uint32_t)words_number(words, "fabric_state", 3);
    gpu->fabric_clique = (uint32_t)words_number(words, "fabric_clique", 0);
    read_cluster(words_text(words, "fabric_cluster", ""), gpu->fabric_cluster);
    if (slot == node->gpu_count)
        node->gpu_count++;
    return NULL;
}

static const char *read_link(struct node *node, const struct words *words)
{
    uint32_t slot = (uint32_t)words_number(words, "gpu", NO_GPU);
    uint32_t number = (uint32_t)words_number(words, "link", MAX_LINKS);
    if (slot >= node->gpu_count || number >= MAX_LINKS)
        return "a link names an unknown GPU or link number";
    struct link *link = &node->gpus[slot].links[number];
    link->active = (uint32_t)words_number(words, "active", link->present ? link->active : 1);
    link->present = 1;
    link->remote_type = (uint32_t)words_number(words, "remote_type", link->remote_type);
    link->remote_domain = (uint32_t)words_number(words, "domain", link->remote_domain);
    link->remote_bus = (uint32_t)words_number(words, "bus", link->remote_bus);
    link->remote_device = (uint32_t)words_number(words, "device", link->remote_device);
    link->errors = (uint32_t)words_number(words, "errors", link->errors);
    return NULL;
}

const char *machine_line(struct store *store, struct node *node, const struct words *words, bool *known)
{
    *known = true;
    if (strcmp(words->verb, "node") == 0)
        return read_node(node, words);
    if (strcmp(words->verb, "model") == 0)
        return read_model(store->file, words);
    if (strcmp(words->verb, "gi_profile") == 0)
        return read_gi_profile(store->file, words);
    if (strcmp(words->verb, "ci_profile") == 0)
        return read_ci_profile(store->file, words);
    if (strcmp(words->verb, "model_end") == 0)
        return end_model(store->file);
    if (strcmp(words->verb, "gpu") == 0)
        return read_gpu(store->file, node, words);
    if (strcmp(words->verb, "link") == 0)
        return read_link(node, words);
    *known = false;
    return NULL;
}
