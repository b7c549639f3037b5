/* nvidia-smi for a simulated node: the same options and wording as NVIDIA's, for what the product and its users run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "smi.h"

struct options {
    const char *gpus, *query, *format, *compute_mode;
    bool list;
    int mig_mode;
};

static int refuse(const char *argument)
{
    printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
    if (argument != NULL)
        fprintf(stderr, "not understood: %s\n", argument);
    return EXIT_BAD_ARGUMENTS;
}

static int help(void)
{
    printf("NVIDIA System Management Interface, simulated\n\n"
           "nvidia-smi [-i GPUS] [-L | --query-gpu=FIELDS --format=csv[,noheader][,nounits] | -mig 0|1 | -c MODE]\n"
           "nvidia-smi mig [-i GPUS] [-gi IDS] [-ci IDS] -lgip | -lgipp | -lgi | -lcip | -lci\n"
           "                | -cgi PROFILES [-C] | -cci [PROFILES] | -dgi | -dci\n"
           "nvidia-smi compute-policy [-i GPUS] --list | --set-timeslice 0|1|2|3\n");
    return 0;
}

/* The value of an option given as "--name=value" or as "--name value"; NULL when this is another option. */
static const char *value_of(const char *name, int count, char **arguments, int *at)
{
    size_t length = strlen(name);
    if (strcmp(arguments[*at], name) == 0)
        return *at + 1 < count ? arguments[++*at] : NULL;
    if (strncmp(arguments[*at], name, length) == 0 && arguments[*at][length] == '=')
        return arguments[*at] + length + 1;
    return NULL;
}

static bool parse(int count, char **arguments, struct options *options, const char **unknown)
{
    for (int i = 1; i < count; i++) {
        const char *value;
        if (strcmp(arguments[i], "-L") == 0 || strcmp(arguments[i], "--list-gpus") == 0)
            options->list = true;
        else if ((value = value_of("-i", count, arguments, &i)) || (value = value_of("--id", count, arguments, &i)))
            options->gpus = value;
        else if ((value = value_of("--query-gpu", count, arguments, &i)))
            options->query = value;
        else if ((value = value_of("--format", count, arguments, &i)))
            options->format = value;
        else if ((value = value_of("-c", count, arguments, &i)) ||
                 (value = value_of("--compute-mode", count, arguments, &i)))
            options->compute_mode = value;
        else if ((value = value_of("-mig", count, arguments, &i)) ||
                 (value = value_of("--multi-instance-gpu", count, arguments, &i)))
            options->mig_mode = strcmp(value, "1") == 0 || strcmp(value, "ENABLED") == 0;
        else {
            *unknown = arguments[i];
            return false;
        }
    }
    return true;
}

static int run(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "mig") == 0)
        return smi_mig(count - 2, arguments + 2);
    if (count > 1 && strcmp(arguments[1], "compute-policy") == 0)
        return smi_compute_policy(count - 2, arguments + 2);
    struct options options = {.mig_mode = -1};
    const char *unknown = NULL;
    if (!parse(count, arguments, &options, &unknown))
        return refuse(unknown);
    struct selection selection;
    if (!select_gpus(options.gpus, &selection))
        return NVML_ERROR_NOT_FOUND;
    if (options.list)
        return smi_list(&selection);
    if (options.query != NULL)
        return smi_query(&selection, options.query, options.format == NULL ? "" : options.format);
    if (options.mig_mode >= 0)
        return smi_set_mig_mode(&selection, (unsigned int)options.mig_mode);
    if (options.compute_mode != NULL)
        return smi_set_compute_mode(&selection, options.compute_mode);
    return smi_table(&selection);
}

/* Counts this run, and fails or hangs where the node is set so; returns the exit status, 0 to go on. */
static int planned_failure(void)
{
    char path[PATH_MAX];
    struct store store;
    if (!store_locate(path) || store_open(&store, path) != NULL)
        return 0;
    if (store.writable)
        __atomic_add_fetch(&store.file->live.smi_calls, 1, __ATOMIC_RELAXED);
    const struct node *node = store_begin_read(&store);
    uint32_t delay_ms = node->smi_delay_ms, status = node->smi_exit_code;
    store_end(&store);
    store_close(&store);
    if (delay_ms > 0)
        usleep(delay_ms * 1000u);
    return (int)status;
}

int main(int count, char **arguments)
{
    if (count > 1 && (strcmp(arguments[1], "-h") == 0 || strcmp(arguments[1], "--help") == 0))
        return help();
    int status = planned_failure();
    if (status != 0) {
        printf("Unable to determine the device handle for GPU: %s\n", nvmlErrorString((nvmlReturn_t)status));
        return status;
    }
    nvmlReturn_t code = nvmlInit_v2();
    if (code != NVML_SUCCESS)
        return smi_no_driver(code);
    status = run(count, arguments);
    nvmlShutdown();
    return status;
}
