/* The files below <root>/proc/driver/nvidia/capabilities and the nodes below <root>/dev/nvidia-caps. */
#ifndef NVMLSIM_CAPABILITY_FILES_H
#define NVMLSIM_CAPABILITY_FILES_H

#include <stdbool.h>
#include <stdint.h>

struct node;

enum { CAPABILITY_MIG_CONFIG = 1, CAPABILITY_MIG_MONITOR = 2, CAPABILITY_MAJOR = 237 };

/* Device minors of nvidia-caps; static in the open kernel driver (nv-caps.c). */
uint32_t capability_minor_gi(uint32_t gpu_minor, uint32_t gi);
uint32_t capability_minor_ci(uint32_t gpu_minor, uint32_t gi, uint32_t ci);

/* Makes files and nodes show exactly the instances of `node`. Does nothing where the root has no such folder. */
void capability_files_sync(const char *root, const struct node *node);
/* Whether /dev/nvidia-caps/nvidia-cap<minor> exists below `root`. */
bool capability_node_exists(const char *root, uint32_t minor);

#endif
