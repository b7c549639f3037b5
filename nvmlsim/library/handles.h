/*
 * Handles are numbers dressed as pointers: kind, GPU slot, GI id, CI id and the generation of what is meant. They need
 * no memory, any garbage is refused, and a handle to an instance that was destroyed and made again is stale.
 */
#ifndef NVMLSIM_HANDLES_H
#define NVMLSIM_HANDLES_H

#include "state.h"

enum handle_kind { HANDLE_DEVICE = 1, HANDLE_MIG_DEVICE = 2, HANDLE_GPU_INSTANCE = 3, HANDLE_COMPUTE_INSTANCE = 4 };

/* What a handle means in one state. gi and ci are NULL where the handle names none. */
struct target {
    const struct gpu *gpu;
    const struct gpu_instance *gi;
    const struct compute_instance *ci;
    uint32_t slot, gi_id, ci_id;
};

void *handle_device(const struct node *node, uint32_t slot);
void *handle_instance(const struct node *node, enum handle_kind kind, uint32_t slot, uint32_t gi, uint32_t ci);

/* The GPU slot that a handle names, or NO_GPU; needs no state. */
uint32_t handle_slot(const void *handle);
bool handle_is(const void *handle, enum handle_kind kind);

/* INVALID_ARGUMENT: not a handle of this kind. GPU_IS_LOST: its GPU is lost or gone. NOT_FOUND: instance gone. */
nvmlReturn_t handle_resolve(const struct node *node, const void *handle, enum handle_kind kind,
                            struct target *target);

#endif
