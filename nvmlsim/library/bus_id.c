#include <stdio.h>

#include "nvml.h"

void fill_bus_ids(uint32_t domain, uint32_t bus, uint32_t device, char legacy[16], char bus_id[32])
{
    snprintf(legacy, 16, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, device & 0xff);
    snprintf(bus_id, 32, "%08X:%02X:%02X.0", domain, bus & 0xff, device & 0xff);
}
