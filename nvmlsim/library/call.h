/*
 * What every NVML function does before and after its own work: it is counted, delayed or answered with a code when
 * the node is set so, and sees one unchanging state in between. A delay is waited for without holding any lock.
 */
#ifndef NVMLSIM_CALL_H
#define NVMLSIM_CALL_H

#include "handles.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

struct call {
    enum symbol symbol;
    const struct node *node;
    struct node *writable; /* NULL in a call that only reads */
    const struct state_file *file;
    struct target target;
};

nvmlReturn_t call_begin(struct call *call, enum symbol symbol, const void *handle);
nvmlReturn_t call_begin_write(struct call *call, enum symbol symbol, const void *handle);
/* For look-ups that find their GPU only now: applies what is set for that GPU. */
nvmlReturn_t call_found(struct call *call, uint32_t slot);
/* Ends the call; keeps what a writer changed only when `code` is SUCCESS. Returns `code`. */
nvmlReturn_t call_end(struct call *call, nvmlReturn_t code);

/* The target of a whole GPU's handle, of a MIG device's, or of either (then for a MIG device `target.ci` is set). */
nvmlReturn_t call_gpu(struct call *call, nvmlDevice_t device);
nvmlReturn_t call_device(struct call *call, nvmlDevice_t device);

const struct model *call_model(const struct call *call);
struct store *call_store(void);

/* Whether this process may change the GPU configuration: root, or one that may read the mig/config capability. */
bool call_privileged(void);

/* GPUs in NVML's order that this process can see (in a container: those whose device node is there). */
uint32_t visible_count(const struct node *node);
/* NO_GPU when there is no such index. */
uint32_t visible_slot(const struct node *node, uint32_t index);
uint32_t visible_index(const struct node *node, uint32_t slot);
bool gpu_visible(const struct node *node, uint32_t slot);
bool mig_device_visible(const struct node *node, uint32_t slot, uint32_t gi, uint32_t ci);

nvmlReturn_t copy_text(char *to, uint32_t length, const char *text);

nvmlReturn_t call_attach(enum symbol symbol, uint32_t flags);
nvmlReturn_t call_detach(void);

/* Begins a reading call on a GPU or MIG device; returns from the calling function when that fails. */
#define BEGIN_DEVICE(call, name, device)                                         \
    struct call call;                                                            \
    do {                                                                         \
        nvmlReturn_t begun = call_begin(&call, SYMBOL_##name, (device).handle);  \
        if (begun != NVML_SUCCESS)                                               \
            return begun;                                                        \
        begun = call_device(&call, device);                                      \
        if (begun != NVML_SUCCESS)                                               \
            return call_end(&call, begun);                                       \
    } while (0)

/* The same where a MIG device is no valid argument: it gets `refusal`. */
#define BEGIN_GPU(call, name, device, refusal)                                   \
    BEGIN_DEVICE(call, name, device);                                            \
    if (call.target.ci != NULL)                                                  \
    return call_end(&call, refusal)

#endif
