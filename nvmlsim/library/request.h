/* One command on its way through the files that carry it out. */
#ifndef NVMLSIM_REQUEST_H
#define NVMLSIM_REQUEST_H

#include "nvml.h"
#include "words.h"

enum { MAX_MESSAGE = 512 };

struct request {
    struct store *store;
    struct node *node;
    const struct words *words;
    struct gpu *gpu; /* of the word "gpu", or NULL */
    const struct model *model;
    uint32_t slot;
};

/* Each returns NULL, or a message saying why not. */
const char *command_mig_create(struct request *request);
const char *command_mig_destroy(struct request *request);
const char *command_mig_mode(struct request *request);
const char *command_fault(struct request *request);
const char *command_clear_faults(struct request *request);
const char *command_gpu_set(struct request *request);
const char *command_lose(struct request *request);
const char *command_unplug(struct request *request);
const char *command_reset(struct request *request);
const char *command_event(struct request *request);
const char *command_process_add(struct request *request);
const char *command_process_remove(struct request *request);

#endif
