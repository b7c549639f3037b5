#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

/* A profile as users write it: id, "1g.10gb" or "MIG 1g.10gb", with an optional ":start". */
static bool find_profile(nvmlDevice_t gpu, const char *text, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    char *end;
    unsigned long id = strtoul(text, &end, 10);
    for (unsigned int number = 0; number < NVML_GI_PROFILE_COUNT; number++) {
        info->version = NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2);
        if (nvmlDeviceGetGpuInstanceProfileInfoV(gpu, number, info) != NVML_SUCCESS)
            continue;
        if ((*end == 0 && info->id == id) || strcmp(info->name + 4, text) == 0 || strcmp(info->name, text) == 0)
            return true;
    }
    return false;
}

static int failed(const char *what, nvmlReturn_t code)
{
    printf("Failed to %s: %s\n", what, nvmlErrorString(code));
    return (int)code;
}

static nvmlReturn_t find_ci_profile(nvmlGpuInstance_t gi, const char *text, unsigned int slices,
                                    nvmlComputeInstanceProfileInfo_v2_t *info)
{
    char *end;
    unsigned long id = text == NULL ? 0 : strtoul(text, &end, 10);
    for (unsigned int number = 0; number < NVML_CI_PROFILE_COUNT; number++) {
        info->version = NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2);
        nvmlReturn_t code = nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, number, 0, info);
        if (code != NVML_SUCCESS)
            continue;
        if (text == NULL ? info->sliceCount == slices
                         : (*end == 0 && info->id == id) || strcmp(info->name + 4, text) == 0)
            return NVML_SUCCESS;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t create_compute(unsigned int gpu, unsigned int gi_id, nvmlGpuInstance_t gi, const char *text,
                                   unsigned int slices)
{
    nvmlComputeInstanceProfileInfo_v2_t profile;
    nvmlComputeInstance_t ci;
    nvmlComputeInstanceInfo_t info;
    nvmlReturn_t code = find_ci_profile(gi, text, slices, &profile);
    if (code == NVML_SUCCESS)
        code = nvmlGpuInstanceCreateComputeInstance(gi, profile.id, &ci);
    if (code == NVML_SUCCESS)
        code = nvmlComputeInstanceGetInfo_v2(ci, &info);
    if (code == NVML_SUCCESS)
        printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s "
               "(ID %2u)\n",
               info.id, gpu, gi_id, profile.name, profile.id);
    else
        printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\n", gpu, gi_id,
               text == NULL ? "default" : text, nvmlErrorString(code));
    return code;
}

static nvmlReturn_t create_one(nvmlDevice_t gpu, unsigned int index, char *text, bool with_compute)
{
    nvmlGpuInstancePlacement_t placement = {0};
    char *colon = strchr(text, ':');
    if (colon != NULL) {
        *colon = 0;
        placement.start = (uint32_t)strtoul(colon + 1, NULL, 10);
    }
    nvmlGpuInstanceProfileInfo_v2_t profile;
    nvmlGpuInstance_t gi;
    nvmlGpuInstanceInfo_t info;
    nvmlReturn_t code = find_profile(gpu, text, &profile) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        code = colon == NULL ? nvmlDeviceCreateGpuInstance(gpu, profile.id, &gi)
                             : nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile.id, &placement, &gi);
    if (code == NVML_SUCCESS)
        code = nvmlGpuInstanceGetInfo(gi, &info);
    if (code != NVML_SUCCESS) {
        printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", index, text, nvmlErrorString(code));
        return code;
    }
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", info.id, index,
           profile.name, profile.id);
    return with_compute ? create_compute(index, info.id, gi, NULL, profile.sliceCount) : NVML_SUCCESS;
}

int mig_create_gpu_instances(const struct selection *selection, const char *profiles, bool with_compute)
{
    for (unsigned int i = 0; i < selection->count; i++) {
        char copy[512];
        snprintf(copy, sizeof copy, "%s", profiles);
        for (char *rest = copy, *text; (text = strsep(&rest, ",")) != NULL;) {
            nvmlReturn_t code = create_one(selection->gpus[i], selection->indexes[i], text, with_compute);
            if (code != NVML_SUCCESS)
                return failed("create GPU instances", code);
        }
    }
    return 0;
}

int mig_destroy_gpu_instances(const struct selection *selection, const char *ids)
{
    unsigned int destroyed = 0;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int id = 0; id < MAX_GI; id++) {
            nvmlGpuInstance_t gi;
            if (!in_list(ids, id) || nvmlDeviceGetGpuInstanceById(selection->gpus[i], id, &gi) != NVML_SUCCESS)
                continue;
            nvmlReturn_t code = nvmlGpuInstanceDestroy(gi);
            if (code != NVML_SUCCESS) {
                printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", id, selection->indexes[i],
                       nvmlErrorString(code));
                return failed("destroy GPU instances", code);
            }
            destroyed++;
            printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", id, selection->indexes[i]);
        }
    if (destroyed > 0)
        return 0;
    printf("No GPU instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t create_compute_list(unsigned int gpu, unsigned int gi_id, nvmlGpuInstance_t gi,
                                        unsigned int slices, const char *profiles)
{
    if (profiles == NULL)
        return create_compute(gpu, gi_id, gi, NULL, slices);
    char copy[512];
    snprintf(copy, sizeof copy, "%s", profiles);
    nvmlReturn_t code = NVML_SUCCESS;
    for (char *rest = copy, *text; code == NVML_SUCCESS && (text = strsep(&rest, ",")) != NULL;)
        code = create_compute(gpu, gi_id, gi, text, slices);
    return code;
}

int mig_create_compute_instances(const struct selection *selection, const char *gpu_instances, const char *profiles)
{
    unsigned int seen = 0;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int id = 0; id < MAX_GI; id++) {
            nvmlGpuInstance_t gi;
            nvmlGpuInstanceInfo_t info;
            nvmlGpuInstanceProfileInfo_v2_t profile = {
                .version = NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)};
            if (!in_list(gpu_instances, id) ||
                nvmlDeviceGetGpuInstanceById(selection->gpus[i], id, &gi) != NVML_SUCCESS ||
                nvmlGpuInstanceGetInfo(gi, &info) != NVML_SUCCESS ||
                nvmlDeviceGetGpuInstanceProfileInfoByIdV(selection->gpus[i], info.profileId, &profile) != NVML_SUCCESS)
                continue;
            seen++;
            nvmlReturn_t code =
                create_compute_list(selection->indexes[i], id, gi, profile.sliceCount, profiles);
            if (code != NVML_SUCCESS)
                return failed("create compute instances", code);
        }
    if (seen > 0)
        return 0;
    printf("No GPU instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t destroy_compute_of(unsigned int gpu, unsigned int gi_id, nvmlGpuInstance_t gi, const char *ids,
                                       unsigned int *destroyed)
{
    for (unsigned int id = 0; id < MAX_CI; id++) {
        nvmlComputeInstance_t ci;
        if (!in_list(ids, id) || nvmlGpuInstanceGetComputeInstanceById(gi, id, &ci) != NVML_SUCCESS)
            continue;
        nvmlReturn_t code = nvmlComputeInstanceDestroy(ci);
        if (code != NVML_SUCCESS) {
            printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", id, gpu, gi_id,
                   nvmlErrorString(code));
            return code;
        }
        ++*destroyed;
        printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", id, gpu, gi_id);
    }
    return NVML_SUCCESS;
}

int mig_destroy_compute_instances(const struct selection *selection, const char *gpu_instances, const char *ids)
{
    unsigned int destroyed = 0;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int gi_id = 0; gi_id < MAX_GI; gi_id++) {
            nvmlGpuInstance_t gi;
            if (!in_list(gpu_instances, gi_id) ||
                nvmlDeviceGetGpuInstanceById(selection->gpus[i], gi_id, &gi) != NVML_SUCCESS)
                continue;
            nvmlReturn_t code = destroy_compute_of(selection->indexes[i], gi_id, gi, ids, &destroyed);
            if (code != NVML_SUCCESS)
                return failed("destroy compute instances", code);
        }
    if (destroyed > 0)
        return 0;
    printf("No compute instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}
