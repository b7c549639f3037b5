/* `nvidia-smi mig`: which action, and what it needs. */
#include <stdio.h>
#include <string.h>

#include "smi.h"

struct options {
    const char *gpus, *gpu_instances, *compute_instances, *action, *profiles;
    bool with_compute;
};

static bool takes_profiles(const char *action)
{
    return strcmp(action, "-cgi") == 0 || strcmp(action, "-cci") == 0;
}

static void parse(int count, char **arguments, struct options *options)
{
    for (int i = 0; i < count; i++) {
        const char *argument = arguments[i], *next = i + 1 < count ? arguments[i + 1] : NULL;
        if (strcmp(argument, "-C") == 0 || strcmp(argument, "--default-compute-instance") == 0) {
            options->with_compute = true;
        } else if (strcmp(argument, "-i") == 0 || strcmp(argument, "--id") == 0) {
            options->gpus = next;
            i++;
        } else if (strcmp(argument, "-gi") == 0 || strcmp(argument, "--gpu-instance-id") == 0) {
            options->gpu_instances = next;
            i++;
        } else if (strcmp(argument, "-ci") == 0 || strcmp(argument, "--compute-instance-id") == 0) {
            options->compute_instances = next;
            i++;
        } else {
            options->action = argument;
            if (takes_profiles(argument) && next != NULL && next[0] != '-') {
                options->profiles = next;
                i++;
            }
        }
    }
}

static void keep_mig_enabled(struct selection *selection)
{
    unsigned int kept = 0;
    for (unsigned int i = 0; i < selection->count; i++) {
        unsigned int current = 0, pending;
        nvmlDeviceGetMigMode(selection->gpus[i], &current, &pending);
        if (!current)
            continue;
        selection->gpus[kept] = selection->gpus[i];
        selection->indexes[kept++] = selection->indexes[i];
    }
    selection->count = kept;
}

static int carry_out(const struct options *options, struct selection *selection)
{
    const char *action = options->action;
    if (strcmp(action, "-lgip") == 0 || strcmp(action, "--list-gpu-instance-profiles") == 0)
        return mig_list_profiles(selection);
    if (strcmp(action, "-lgipp") == 0 || strcmp(action, "--list-gpu-instance-possible-placements") == 0)
        return mig_list_placements(selection);
    keep_mig_enabled(selection);
    if (selection->count == 0) {
        printf("No MIG-enabled devices found.\n");
        return NVML_ERROR_NOT_FOUND;
    }
    if (strcmp(action, "-lgi") == 0 || strcmp(action, "--list-gpu-instances") == 0)
        return mig_list_gpu_instances(selection);
    if (strcmp(action, "-lcip") == 0 || strcmp(action, "--list-compute-instance-profiles") == 0)
        return mig_list_compute_profiles(selection);
    if (strcmp(action, "-lci") == 0 || strcmp(action, "--list-compute-instances") == 0)
        return mig_list_compute_instances(selection);
    if (strcmp(action, "-cgi") == 0 && options->profiles != NULL)
        return mig_create_gpu_instances(selection, options->profiles, options->with_compute);
    if (strcmp(action, "-cci") == 0)
        return mig_create_compute_instances(selection, options->gpu_instances, options->profiles);
    if (strcmp(action, "-dgi") == 0)
        return mig_destroy_gpu_instances(selection, options->gpu_instances);
    if (strcmp(action, "-dci") == 0)
        return mig_destroy_compute_instances(selection, options->gpu_instances, options->compute_instances);
    printf("Option %s is not recognized. Please run 'nvidia-smi -h' for help.\n", action);
    return EXIT_BAD_ARGUMENTS;
}

int smi_mig(int count, char **arguments)
{
    struct options options = {.action = ""};
    parse(count, arguments, &options);
    struct selection selection;
    if (!select_gpus(options.gpus, &selection))
        return NVML_ERROR_NOT_FOUND;
    return carry_out(&options, &selection);
}
