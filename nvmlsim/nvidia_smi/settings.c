/* Changing a GPU's MIG mode, compute mode and time-slice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "smi.h"

int smi_set_mig_mode(const struct selection *selection, unsigned int mode)
{
    nvmlReturn_t worst = NVML_SUCCESS;
    for (unsigned int i = 0; i < selection->count; i++) {
        char bus_id[32];
        bus_id_of(selection->gpus[i], bus_id);
        nvmlReturn_t activation, code = nvmlDeviceSetMigMode(selection->gpus[i], mode, &activation);
        if (code == NVML_ERROR_NOT_SUPPORTED) {
            printf("Unable to %s MIG Mode for GPU %s: %s\nTreating as warning and moving on.\n",
                   mode ? "enable" : "disable", bus_id, nvmlErrorString(code));
        } else if (code != NVML_SUCCESS) {
            printf("Unable to %s MIG Mode for GPU %s: %s\n", mode ? "enable" : "disable", bus_id,
                   nvmlErrorString(code));
            worst = code;
        } else if (activation != NVML_SUCCESS) {
            printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", mode ? "enable" : "disable", bus_id,
                   nvmlErrorString(activation));
        } else {
            printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", bus_id);
        }
    }
    if (worst == NVML_SUCCESS)
        printf("All done.\n");
    return (int)worst;
}

int smi_set_compute_mode(const struct selection *selection, const char *text)
{
    static const char *const names[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
    unsigned int mode = 0;
    while (mode < 4 && strcasecmp(text, names[mode]) != 0 && (text[0] != (char)('0' + mode) || text[1] != 0))
        mode++;
    if (mode == 4) {
        printf("Invalid compute mode: %s\n", text);
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned int i = 0; i < selection->count; i++) {
        char bus_id[32];
        bus_id_of(selection->gpus[i], bus_id);
        nvmlReturn_t code = nvmlDeviceSetComputeMode(selection->gpus[i], mode);
        if (code != NVML_SUCCESS) {
            printf("Unable to set the compute mode for GPU %s: %s\n", bus_id, nvmlErrorString(code));
            return (int)code;
        }
        printf("Set compute mode to %s for GPU %s.\n", names[mode], bus_id);
    }
    printf("All done.\n");
    return 0;
}

static const char *const timeslices[] = {"Default", "Short", "Medium", "Long"};

/* Waits as long as the GPU is set to take, and returns the code that it is set to answer. */
static nvmlReturn_t planned_answer(nvmlDevice_t gpu)
{
    struct store *store = call_store();
    struct target target;
    nvmlReturn_t code = handle_resolve(store_begin_read(store), gpu.handle, HANDLE_DEVICE, &target);
    uint32_t delay_ms = code == NVML_SUCCESS ? target.gpu->timeslice_delay_ms : 0;
    if (code == NVML_SUCCESS)
        code = (nvmlReturn_t)target.gpu->timeslice_code;
    store_end(store);
    usleep(delay_ms * 1000u);
    return code;
}

static nvmlReturn_t change_timeslice(nvmlDevice_t gpu, uint32_t value)
{
    if (!call_privileged())
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t code = planned_answer(gpu);
    if (code != NVML_SUCCESS)
        return code;
    struct store *store = call_store();
    struct node *node = store_begin_write(store);
    if (node == NULL)
        return NVML_ERROR_NO_PERMISSION;
    struct target target;
    code = handle_resolve(node, gpu.handle, HANDLE_DEVICE, &target);
    if (code == NVML_SUCCESS) {
        node->gpus[target.slot].timeslice = value;
        store_commit(store);
    }
    store_end(store);
    return code;
}

static int set_timeslice(const struct selection *selection, const char *text)
{
    if (text[0] < '0' || text[0] > '3' || text[1] != 0) {
        printf("Invalid timeslice %s: use 0 (Default), 1 (Short), 2 (Medium) or 3 (Long)\n", text);
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    uint32_t value = (uint32_t)(text[0] - '0');
    for (unsigned int i = 0; i < selection->count; i++) {
        nvmlReturn_t code = change_timeslice(selection->gpus[i], value);
        if (code != NVML_SUCCESS) {
            printf("Failed to set timeslice policy for GPU %u: %s\n", selection->indexes[i], nvmlErrorString(code));
            return (int)code;
        }
        printf("Successfully set timeslice policy for GPU %u to %s\n", selection->indexes[i], timeslices[value]);
    }
    return 0;
}

static uint32_t timeslice_of(nvmlDevice_t gpu)
{
    struct store *store = call_store();
    struct target target;
    const struct node *node = store_begin_read(store);
    nvmlReturn_t code = handle_resolve(node, gpu.handle, HANDLE_DEVICE, &target);
    uint32_t value = code == NVML_SUCCESS ? target.gpu->timeslice : 0;
    store_end(store);
    return value;
}

static int list_policies(const struct selection *selection)
{
    static const char rule[] = "+-------------------------------------+";
    printf("%s\n| GPU compute policies:               |\n| GPU     Name             Value      |\n"
           "|=====================================|\n",
           rule);
    for (unsigned int i = 0; i < selection->count; i++)
        printf("| %3u     Timeslice        %-11s|\n", selection->indexes[i],
               timeslices[timeslice_of(selection->gpus[i]) & 3]);
    printf("%s\n", rule);
    return 0;
}

int smi_compute_policy(int count, char **arguments)
{
    const char *gpus = NULL, *timeslice = NULL;
    bool list = false;
    for (int i = 0; i < count; i++) {
        const char *argument = arguments[i];
        if (strcmp(argument, "-l") == 0 || strcmp(argument, "--list") == 0)
            list = true;
        else if ((strcmp(argument, "-i") == 0 || strcmp(argument, "--id") == 0) && i + 1 < count)
            gpus = arguments[++i];
        else if (strncmp(argument, "--id=", 5) == 0)
            gpus = argument + 5;
        else if (strcmp(argument, "--set-timeslice") == 0 && i + 1 < count)
            timeslice = arguments[++i];
        else if (strncmp(argument, "--set-timeslice=", 16) == 0)
            timeslice = argument + 16;
    }
    struct selection selection;
    if (!select_gpus(gpus, &selection))
        return NVML_ERROR_NOT_FOUND;
    if (timeslice != NULL)
        return set_timeslice(&selection, timeslice);
    if (list)
        return list_policies(&selection);
    printf("compute-policy needs --list or --set-timeslice\n");
    return EXIT_BAD_ARGUMENTS;
}
