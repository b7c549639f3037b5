/* MIG on one GPU: geometry and instance life cycle, on plain state; knows nothing of NVML calls or files. */
#ifndef NVMLSIM_MIG_H
#define NVMLSIM_MIG_H

#include "state.h"

const struct gi_profile *mig_profile_by_id(const struct model *model, uint32_t id);
const struct gi_profile *mig_profile_by_number(const struct model *model, uint32_t number);
const struct gi_profile *mig_profile_by_name(const struct model *model, const char *name);
const struct ci_profile *mig_ci_profile_by_id(const struct gi_profile *profile, uint32_t id);
const struct gi_profile *mig_profile_of(const struct model *model, const struct gpu_instance *gi);
/* "1c." where a compute instance has fewer slices than its GPU instance, else "". */
void mig_ci_name(const struct gi_profile *gi, const struct ci_profile *ci, char name[48]);

uint32_t mig_free_gpu_instances(const struct model *model, const struct gpu *gpu, const struct gi_profile *profile);
uint32_t mig_free_compute_instances(const struct gpu_instance *gi, const struct gi_profile *profile,
                                    const struct ci_profile *wanted);
uint32_t mig_instance_count(const struct gpu *gpu);
bool mig_gpu_busy(const struct node *node, uint32_t slot);

#define ANY_START UINT32_MAX

/*
 * INVALID_ARGUMENT: the profile has no such placement. INSUFFICIENT_RESOURCES: taken, or media engines used up.
 * IN_USE: first instance on a busy GPU. NOT_SUPPORTED: MIG mode is off.
 */
nvmlReturn_t mig_create_gpu_instance(struct node *node, const struct model *model, uint32_t slot,
                                     const struct gi_profile *profile, uint32_t start, uint32_t *id);
nvmlReturn_t mig_create_compute_instance(struct node *node, const struct model *model, uint32_t slot, uint32_t gi,
                                         const struct ci_profile *profile, uint32_t start, uint32_t *id);
/* IN_USE: a compute instance is alive or a process runs in it. */
nvmlReturn_t mig_destroy_gpu_instance(struct node *node, uint32_t slot, uint32_t gi);
nvmlReturn_t mig_destroy_compute_instance(struct node *node, uint32_t slot, uint32_t gi, uint32_t ci);

/* Sets the mode by the rules of the GPU's generation; `activation` is what SetMigMode reports. */
nvmlReturn_t mig_set_mode(struct node *node, const struct model *model, uint32_t slot, uint32_t mode,
                          nvmlReturn_t *activation);
/* What a GPU reset does: instances go, a pending mode becomes current. */
void mig_reset(struct gpu *gpu);
void mig_forget_instances(struct gpu *gpu);
bool mig_supported(const struct model *model, const struct gpu *gpu);

#endif
