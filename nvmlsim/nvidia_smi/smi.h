#ifndef NVMLSIM_SMI_H
#define NVMLSIM_SMI_H

#include "nvml.h"

/* The exit statuses of NVIDIA's program are NVML's return codes; 1 for a wrong combination of arguments. */
enum { EXIT_BAD_ARGUMENTS = 1, MAX_SELECTED = MAX_GPUS };

struct selection {
    unsigned int count;
    nvmlDevice_t gpus[MAX_SELECTED];
    unsigned int indexes[MAX_SELECTED];
};

/* GPUs of `-i`: a list of indexes, UUIDs or bus ids; NULL means all. False after printing what is wrong. */
bool select_gpus(const char *list, struct selection *selection);
/* "00000000:1B:00.0" */
void bus_id_of(nvmlDevice_t gpu, char bus_id[32]);

int smi_no_driver(nvmlReturn_t code);
int smi_list(const struct selection *selection);
int smi_table(const struct selection *selection);
/* `format` is the value of --format. */
int smi_query(const struct selection *selection, const char *fields, const char *format);
int smi_set_mig_mode(const struct selection *selection, unsigned int mode);
int smi_set_compute_mode(const struct selection *selection, const char *mode);
int smi_mig(int count, char **arguments);
int smi_compute_policy(int count, char **arguments);

int mig_list_profiles(const struct selection *selection);
int mig_list_placements(const struct selection *selection);
int mig_list_gpu_instances(const struct selection *selection);
int mig_list_compute_profiles(const struct selection *selection);
int mig_list_compute_instances(const struct selection *selection);
int mig_create_gpu_instances(const struct selection *selection, const char *profiles, bool with_compute);
int mig_destroy_gpu_instances(const struct selection *selection, const char *ids);
int mig_create_compute_instances(const struct selection *selection, const char *gpu_instances, const char *profiles);
int mig_destroy_compute_instances(const struct selection *selection, const char *gpu_instances, const char *ids);

/* Whether an id is in a comma-separated list; NULL means every id. */
bool in_list(const char *list, unsigned int id);

#endif
