/* nvidia-smi for a simulated node: the same options and wording as NVIDIA's, for what the product and its users run. */
#include <stdio.h>
#include <string.h>

#include "smi.h"

int main(int argc, char **argv)
{
    nvmlReturn_t code = nvmlInit_v2();
    if (code != NVML_SUCCESS)
        return smi_no_driver(code);
    if (argc > 1 && (strcmp(argv[1], "-L") == 0 || strcmp(argv[1], "--list-gpus") == 0))
        return smi_list();
    fprintf(stderr, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
    return 1;
}
