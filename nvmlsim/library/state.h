/*
 * The state of a simulated node: one file of fixed size that every process maps, as all processes of a real node
 * share what the kernel driver holds. Strings end with a zero byte; memory sizes are MiB; times are milliseconds.
 *
 * The file has three parts. `models` only grows. `live` holds counters that are changed in place by atomic
 * operations. `slots` holds everything else twice: a writer fills the slot that nobody reads and then flips
 * `generation`, whose lowest bit says which slot is valid, so a process killed at any point leaves a whole state.
 */
#ifndef NVMLSIM_STATE_H
#define NVMLSIM_STATE_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "nvml_types.h"
#include "symbols.h"

enum {
    MAX_GPUS = 32,
    MAX_MODELS = 24,
    MAX_STARTS = 8,
    MAX_GI = 15,
    MAX_CI = 8,
    MAX_LINKS = 18,
    MAX_PROCESSES = 256,
    MAX_EVENTS = 256,
    MAX_FAULTS = 64,
};

#define NO_GPU UINT32_MAX
#define NO_INSTANCE UINT32_MAX

struct ci_profile {
    uint32_t id, slices, max_instances, sm;
    uint32_t start_count, starts[MAX_STARTS];
};

struct gi_profile {
    char name[32];
    uint32_t number; /* argument of nvmlDeviceGetGpuInstanceProfileInfo */
    uint32_t id;     /* what Create, ById and nvidia-smi take */
    uint32_t slices, size, max_instances, graphics;
    uint32_t sm, copy_engines, decoders, encoders, jpeg, ofa;
    uint64_t memory_mib;
    uint32_t start_count, starts[MAX_STARTS];
    uint32_t ci_count;
    struct ci_profile ci[MAX_CI];
};

enum gi_id_rule { GI_ID_IDENTITY = 0, GI_ID_A100 = 1 };

struct model {
    char key[48], name[96], part_number[32];
    uint32_t architecture, cc_major, cc_minor, brand, pci_device_id, pci_subsystem_id;
    uint64_t memory_mib, bar1_mib;
    uint32_t sm, cores_per_sm, link_count, link_version, link_speed_mbps, c2c_links;
    uint32_t mig_capable, placement_units, max_mig_devices, gi_id_rule;
    uint32_t decoders, encoders, jpeg, ofa;
    uint32_t gi_profile_count;
    struct gi_profile gi_profiles[NVML_GI_PROFILE_COUNT];
};

struct compute_instance {
    uint32_t used, generation, profile, start, mig_index;
    char uuid[48];
};

struct gpu_instance {
    uint32_t used, generation, profile, start;
    struct compute_instance ci[MAX_CI];
};

struct link {
    uint32_t present, active, remote_type, remote_domain, remote_bus, remote_device, errors;
};

struct gpu {
    uint32_t present, lost, model, generation, rank, minor;
    uint32_t domain, bus, device, pcie_switch, module_id;
    int32_t numa_node, memory_numa_node;
    char uuid[48], name[96], serial[32], pcie_root[32], cpu_affinity[64];
    uint32_t mig_current, mig_pending, compute_mode, timeslice, persistence, virtualization, addressing_mode;
    uint32_t timeslice_code, timeslice_delay_ms; /* what a change of the time-slice answers, and after how long */
    uint32_t ecc_current, ecc_pending, events_supported, memory_unreported;
    uint64_t ecc_corrected, ecc_uncorrected;
    uint32_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed, recovery_action;
    uint32_t fabric_supported, fabric_state, fabric_status, fabric_clique, fabric_health;
    uint8_t fabric_cluster[16];
    struct link links[MAX_LINKS];
    struct gpu_instance gi[MAX_GI];
};

enum process_type { PROCESS_COMPUTE = 0, PROCESS_GRAPHICS = 1, PROCESS_MPS = 2 };

struct process {
    uint32_t pid, gpu, gi, ci, type;
    uint64_t memory_mib;
};

struct event {
    uint64_t number, type, data;
    uint32_t gpu, gi, ci;
};

/* What is done to the calls of one symbol (or of all: SYMBOL_COUNT) on one GPU (or on all: NO_GPU). */
struct fault {
    uint32_t used, symbol, gpu, has_code, code, delay_ms, limited;
};

struct node {
    char machine[64], driver_version[32], kernel_version[32], nvml_version[32];
    uint32_t cuda_version, driver_loaded, derived_uuids, next_generation;
    uint32_t smi_exit_code, smi_delay_ms;
    uint32_t gpu_count;
    struct gpu gpus[MAX_GPUS];
    uint32_t process_count;
    struct process processes[MAX_PROCESSES];
    uint64_t event_count;
    struct event events[MAX_EVENTS];
    struct fault faults[MAX_FAULTS];
};

struct live {
    uint32_t files_generation; /* the generation that the capability files below the root show */
    uint32_t fault_remaining[MAX_FAULTS];
    uint64_t calls[SYMBOL_COUNT];
    uint64_t smi_calls;
};

struct state_file {
    char magic[8];
    uint64_t size;
    uint32_t generation;
    uint32_t model_count;
    struct model models[MAX_MODELS];
    struct live live;
    struct node slots[2];
};

/* A process's view of the file. `root` is what lies above /usr/lib/...: empty inside a container. */
struct store {
    int fd;
    pid_t pid;
    bool writable;
    struct state_file *file;
    char path[PATH_MAX], root[PATH_MAX];
    pthread_mutex_t mutex;
};

/* Returns NULL, or a static message saying why the state cannot be used. */
const char *store_open(struct store *store, const char *path);
void store_close(struct store *store);
/* Writes an empty state of the right size; `fill` puts the first content in. Returns NULL or a message. */
const char *store_create(const char *path, const char *(*fill)(struct store *, struct node *, const void *),
                         const void *argument);

/* Each begin locks the state against writers (read) or everybody (write) until store_end. */
const struct node *store_begin_read(struct store *store);
/* NULL when the file cannot be written. The returned copy becomes the state with store_commit, or is forgotten. */
struct node *store_begin_write(struct store *store);
void store_commit(struct store *store);
void store_end(struct store *store);
/* Waits, without a lock, until the state is no longer the one of `generation`, but not longer than `timeout_ms`. */
void store_wait(struct store *store, uint32_t generation, int64_t timeout_ms);

/* Finds the state file: $NVMLSIM_STATE, next to this library or program, the system's library folder. */
bool store_locate(char path[PATH_MAX]);

#endif
