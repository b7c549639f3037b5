/* The NVML functions themselves, for each other and for nvidia-smi; and what several of them share. */
#ifndef NVMLSIM_NVML_H
#define NVMLSIM_NVML_H

#include "call.h"
#include "mig.h"

nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlShutdown(void);
const char *nvmlErrorString(nvmlReturn_t code);

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig_device);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);

/* busIdLegacy "0000:1B:00.0" and busId "00000000:1B:00.0". */
void fill_bus_ids(uint32_t domain, uint32_t bus, uint32_t device, char legacy[16], char bus_id[32]);

#endif
