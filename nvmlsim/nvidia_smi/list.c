#include <stdio.h>
#include <string.h>

#include "smi.h"

int smi_no_driver(nvmlReturn_t code)
{
    if (code == NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        printf("Failed to initialize NVML: Driver/library version mismatch\n");
    else if (code == NVML_ERROR_DRIVER_NOT_LOADED)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
               "latest NVIDIA driver is installed and running.\n\n");
    else if (code == NVML_ERROR_NOT_FOUND)
        printf("No devices were found\n");
    else
        printf("Failed to initialize NVML: %s\n", nvmlErrorString(code));
    return (int)code;
}

static void list_mig_devices(nvmlDevice_t gpu)
{
    unsigned int count = 0;
    nvmlDeviceGetMaxMigDeviceCount(gpu, &count);
    for (unsigned int index = 0; index < count; index++) {
        nvmlDevice_t device;
        if (nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, &device) != NVML_SUCCESS)
            continue;
        char name[160] = "", uuid[96] = "";
        nvmlDeviceGetName(device, name, sizeof name);
        nvmlDeviceGetUUID(device, uuid, sizeof uuid);
        const char *profile = strstr(name, " MIG ");
        printf("  MIG %-12sDevice %2u: (UUID: %s)\n", profile == NULL ? "" : profile + 5, index, uuid);
    }
}

int smi_list(const struct selection *selection)
{
    for (unsigned int i = 0; i < selection->count; i++) {
        char name[96] = "", uuid[96] = "";
        nvmlDeviceGetName(selection->gpus[i], name, sizeof name);
        nvmlDeviceGetUUID(selection->gpus[i], uuid, sizeof uuid);
        printf("GPU %u: %s (UUID: %s)\n", selection->indexes[i], name, uuid);
        list_mig_devices(selection->gpus[i]);
    }
    return 0;
}
