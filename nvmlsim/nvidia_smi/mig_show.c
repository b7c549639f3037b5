#include <stdio.h>
#include <string.h>

#include "smi.h"

static nvmlReturn_t profile_by_number(nvmlDevice_t gpu, unsigned int number, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    info->version = NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2);
    return nvmlDeviceGetGpuInstanceProfileInfoV(gpu, number, info);
}

static unsigned int remaining(nvmlDevice_t gpu, const nvmlGpuInstanceProfileInfo_v2_t *info)
{
    unsigned int count;
    nvmlReturn_t code = nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, info->id, &count);
    return code == NVML_SUCCESS ? count : 0;
}

int mig_list_profiles(const struct selection *selection)
{
    static const char rule[] = "+-----------------------------------------------------------------------------+";
    bool any = false;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int number = 0; number < NVML_GI_PROFILE_COUNT; number++) {
            nvmlGpuInstanceProfileInfo_v2_t info;
            if (profile_by_number(selection->gpus[i], number, &info) != NVML_SUCCESS)
                continue;
            if (!any)
                printf("%s\n| GPU instance profiles:                                                      |\n"
                       "| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
                       "|                              Free/Total   GiB              CE    JPEG  OFA  |\n"
                       "|=============================================================================|\n",
                       rule);
            any = true;
            char free_total[16];
            snprintf(free_total, sizeof free_total, "%u/%u", remaining(selection->gpus[i], &info),
                     info.instanceCount);
            printf("| %3u  %-18s %2u    %-8s %6.2f       %-3s %5u %5u %5u   |\n", selection->indexes[i], info.name,
                   info.id, free_total, (double)info.memorySizeMB / 1024, info.isP2pSupported ? "Yes" : "No",
                   info.multiprocessorCount, info.decoderCount, info.encoderCount);
            printf("|                                                         %5u %5u %5u   |\n%s\n",
                   info.copyEngineCount, info.jpegCount, info.ofaCount, rule);
        }
    if (any)
        return 0;
    printf("No MIG-supported devices found.\n");
    return NVML_ERROR_NOT_SUPPORTED;
}

int mig_list_placements(const struct selection *selection)
{
    bool any = false;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int number = 0; number < NVML_GI_PROFILE_COUNT; number++) {
            nvmlGpuInstanceProfileInfo_v2_t info;
            nvmlGpuInstancePlacement_t placements[MAX_STARTS];
            unsigned int count = MAX_STARTS;
            if (profile_by_number(selection->gpus[i], number, &info) != NVML_SUCCESS ||
                nvmlDeviceGetGpuInstancePossiblePlacements_v2(selection->gpus[i], info.id, placements, &count) !=
                    NVML_SUCCESS)
                continue;
            any = true;
            printf("GPU %2u Profile ID %2u Placement%s: {", selection->indexes[i], info.id, count == 1 ? " " : "s");
            for (unsigned int p = 0; p < count; p++)
                printf("%s%u", p > 0 ? "," : "", placements[p].start);
            printf("}:%u\n", placements[0].size);
        }
    if (any)
        return 0;
    printf("No MIG-supported devices found.\n");
    return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t info_of(nvmlDevice_t gpu, const nvmlGpuInstanceInfo_t *gi, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    info->version = NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2);
    return nvmlDeviceGetGpuInstanceProfileInfoByIdV(gpu, gi->profileId, info);
}

static bool gi_by_id(nvmlDevice_t gpu, unsigned int id, nvmlGpuInstance_t *gi, nvmlGpuInstanceInfo_t *info)
{
    return nvmlDeviceGetGpuInstanceById(gpu, id, gi) == NVML_SUCCESS &&
           nvmlGpuInstanceGetInfo(*gi, info) == NVML_SUCCESS;
}

int mig_list_gpu_instances(const struct selection *selection)
{
    static const char rule[] = "+-------------------------------------------------------+";
    bool any = false;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int id = 0; id < MAX_GI; id++) {
            nvmlGpuInstance_t handle;
            nvmlGpuInstanceInfo_t gi;
            nvmlGpuInstanceProfileInfo_v2_t profile;
            if (!gi_by_id(selection->gpus[i], id, &handle, &gi) ||
                info_of(selection->gpus[i], &gi, &profile) != NVML_SUCCESS)
                continue;
            if (!any)
                printf("%s\n| GPU instances:                                        |\n"
                       "| GPU   Name             Profile  Instance   Placement  |\n"
                       "|                          ID       ID       Start:Size |\n"
                       "|=======================================================|\n",
                       rule);
            any = true;
            printf("| %3u  %-19s %3u %8u %9u:%-5u |\n%s\n", selection->indexes[i], profile.name, profile.id, id,
                   gi.placement.start, gi.placement.size, rule);
        }
    if (any)
        return 0;
    printf("No GPU instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}

static bool ci_profile(nvmlGpuInstance_t gi, unsigned int number, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    info->version = NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2);
    return nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, number, NVML_CI_ENGINE_PROFILE_SHARED, info) ==
           NVML_SUCCESS;
}

static bool print_compute_profiles(unsigned int index, unsigned int gi_id, nvmlGpuInstance_t gi, bool any)
{
    static const char rule[] =
        "+--------------------------------------------------------------------------------------+";
    for (unsigned int number = 0; number < NVML_CI_PROFILE_COUNT; number++) {
        nvmlComputeInstanceProfileInfo_v2_t info;
        if (!ci_profile(gi, number, &info))
            continue;
        if (!any)
            printf("%s\n| Compute instance profiles:                                                           |\n"
                   "| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |\n"
                   "|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |\n"
                   "|         ID                                                          CE    JPEG       |\n"
                   "|======================================================================================|\n",
                   rule);
        any = true;
        unsigned int left = 0;
        nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, info.id, &left);
        char free_total[16];
        snprintf(free_total, sizeof free_total, "%u/%u", left, info.instanceCount);
        printf("| %3u    %3u       %-18s %3u     %-10s %5u     %5u %5u %5u   |\n", index, gi_id, info.name, info.id,
               free_total, info.multiprocessorCount, info.sharedDecoderCount, info.sharedEncoderCount,
               info.sharedOfaCount);
        printf("|                                                                  %5u %5u         |\n%s\n",
               info.sharedCopyEngineCount, info.sharedJpegCount, rule);
    }
    return any;
}

int mig_list_compute_profiles(const struct selection *selection)
{
    bool any = false;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int id = 0; id < MAX_GI; id++) {
            nvmlGpuInstance_t gi;
            if (nvmlDeviceGetGpuInstanceById(selection->gpus[i], id, &gi) == NVML_SUCCESS)
                any = print_compute_profiles(selection->indexes[i], id, gi, any);
        }
    if (any)
        return 0;
    printf("No GPU instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}

static bool print_compute_instances(unsigned int index, unsigned int gi_id, nvmlGpuInstance_t gi, bool any)
{
    static const char rule[] = "+--------------------------------------------------------------------+";
    for (unsigned int id = 0; id < MAX_CI; id++) {
        nvmlComputeInstance_t handle;
        nvmlComputeInstanceInfo_t ci;
        nvmlComputeInstanceProfileInfo_v2_t profile;
        if (nvmlGpuInstanceGetComputeInstanceById(gi, id, &handle) != NVML_SUCCESS ||
            nvmlComputeInstanceGetInfo_v2(handle, &ci) != NVML_SUCCESS || !ci_profile(gi, ci.profileId, &profile))
            continue;
        if (!any)
            printf("%s\n| Compute instances:                                                 |\n"
                   "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
                   "|       Instance                       ID        ID       Start:Size |\n"
                   "|         ID                                                         |\n"
                   "|====================================================================|\n",
                   rule);
        any = true;
        printf("| %3u    %3u       %-18s %3u %9u %9u:%-6u |\n%s\n", index, gi_id, profile.name, profile.id, id,
               ci.placement.start, ci.placement.size, rule);
    }
    return any;
}

int mig_list_compute_instances(const struct selection *selection)
{
    bool any = false;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int id = 0; id < MAX_GI; id++) {
            nvmlGpuInstance_t gi;
            if (nvmlDeviceGetGpuInstanceById(selection->gpus[i], id, &gi) == NVML_SUCCESS)
                any = print_compute_instances(selection->indexes[i], id, gi, any);
        }
    if (any)
        return 0;
    printf("No compute instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}
