#ifndef NVMLSIM_SMI_H
#define NVMLSIM_SMI_H

#include "nvml.h"

/* Exit statuses of NVIDIA's program are NVML's return codes. */
int smi_no_driver(nvmlReturn_t code);
int smi_list(void);

#endif
