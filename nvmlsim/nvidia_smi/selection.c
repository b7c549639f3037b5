#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

bool in_list(const char *list, unsigned int id)
{
    while (list != NULL && *list != 0) {
        char *end;
        if (strtoul(list, &end, 10) == id && end != list)
            return true;
        list = strchr(end, ',');
        if (list != NULL)
            list++;
        else
            return false;
    }
    return list == NULL;
}

void bus_id_of(nvmlDevice_t gpu, char bus_id[32])
{
    nvmlPciInfo_t pci = {0};
    nvmlDeviceGetPciInfo_v3(gpu, &pci);
    memcpy(bus_id, pci.busId, 32);
}

static nvmlReturn_t find(const char *name, nvmlDevice_t *gpu)
{
    char *end;
    unsigned long index = strtoul(name, &end, 10);
    if (*end == 0 && end != name)
        return nvmlDeviceGetHandleByIndex_v2((unsigned int)index, gpu);
    if (strchr(name, ':') != NULL)
        return nvmlDeviceGetHandleByPciBusId_v2(name, gpu);
    return nvmlDeviceGetHandleByUUID(name, gpu);
}

static void add(struct selection *selection, nvmlDevice_t gpu)
{
    unsigned int index = 0;
    nvmlDeviceGetIndex(gpu, &index);
    selection->gpus[selection->count] = gpu;
    selection->indexes[selection->count++] = index;
}

static void select_all(struct selection *selection)
{
    unsigned int count = 0;
    nvmlDeviceGetCount_v2(&count);
    for (unsigned int index = 0; index < count; index++) {
        nvmlDevice_t gpu;
        nvmlReturn_t code = nvmlDeviceGetHandleByIndex_v2(index, &gpu);
        if (code == NVML_SUCCESS)
            add(selection, gpu);
        else
            printf("Unable to determine the device handle for gpu %u: %s\n", index, nvmlErrorString(code));
    }
}

bool select_gpus(const char *list, struct selection *selection)
{
    selection->count = 0;
    if (list == NULL) {
        select_all(selection);
        return true;
    }
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", list);
    for (char *rest = copy, *name; (name = strsep(&rest, ",")) != NULL && selection->count < MAX_SELECTED;) {
        nvmlDevice_t gpu;
        if (find(name, &gpu) != NVML_SUCCESS) {
            printf("No devices were found\n");
            return false;
        }
        add(selection, gpu);
    }
    return true;
}
