#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "smi.h"

enum { VALUE_SIZE = 128 };

/* Writes one field's value; false when NVML has none. Units are appended unless `units` is false. */
typedef bool (*reader)(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE]);

static bool read_index(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    snprintf(value, VALUE_SIZE, "%u", selection->indexes[at]);
    return true;
}

static bool read_count(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)at, (void)units;
    snprintf(value, VALUE_SIZE, "%u", selection->count);
    return true;
}

static bool read_name(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    return nvmlDeviceGetName(selection->gpus[at], value, VALUE_SIZE) == NVML_SUCCESS;
}

static bool read_uuid(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    return nvmlDeviceGetUUID(selection->gpus[at], value, VALUE_SIZE) == NVML_SUCCESS;
}

static bool read_serial(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    return nvmlDeviceGetSerial(selection->gpus[at], value, VALUE_SIZE) == NVML_SUCCESS;
}

static bool read_bus_id(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    bus_id_of(selection->gpus[at], value);
    return true;
}

static bool read_driver(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)selection, (void)at, (void)units;
    return nvmlSystemGetDriverVersion(value, VALUE_SIZE) == NVML_SUCCESS;
}

static bool read_capability(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    int major, minor;
    if (nvmlDeviceGetCudaComputeCapability(selection->gpus[at], &major, &minor) != NVML_SUCCESS)
        return false;
    snprintf(value, VALUE_SIZE, "%d.%d", major, minor);
    return true;
}

static void put_memory(uint64_t bytes, bool units, char value[VALUE_SIZE])
{
    snprintf(value, VALUE_SIZE, "%llu%s", (unsigned long long)bytes / (1024 * 1024), units ? " MiB" : "");
}

static bool read_total(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    nvmlMemory_t memory;
    bool known = nvmlDeviceGetMemoryInfo(selection->gpus[at], &memory) == NVML_SUCCESS;
    put_memory(known ? memory.total : 0, units, value);
    return known;
}

static bool read_used(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    nvmlMemory_t memory;
    bool known = nvmlDeviceGetMemoryInfo(selection->gpus[at], &memory) == NVML_SUCCESS;
    put_memory(known ? memory.used : 0, units, value);
    return known;
}

static bool read_free(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    nvmlMemory_t memory;
    bool known = nvmlDeviceGetMemoryInfo(selection->gpus[at], &memory) == NVML_SUCCESS;
    put_memory(known ? memory.free : 0, units, value);
    return known;
}

static void put_enabled(unsigned int mode, char value[VALUE_SIZE])
{
    snprintf(value, VALUE_SIZE, "%s", mode ? "Enabled" : "Disabled");
}

static bool read_mig(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    unsigned int current = 0, pending;
    bool known = nvmlDeviceGetMigMode(selection->gpus[at], &current, &pending) == NVML_SUCCESS;
    put_enabled(current, value);
    return known;
}

static bool read_mig_pending(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    unsigned int current, pending = 0;
    bool known = nvmlDeviceGetMigMode(selection->gpus[at], &current, &pending) == NVML_SUCCESS;
    put_enabled(pending, value);
    return known;
}

static bool read_ecc(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    unsigned int current = 0, pending;
    bool known = nvmlDeviceGetEccMode(selection->gpus[at], &current, &pending) == NVML_SUCCESS;
    put_enabled(current, value);
    return known;
}

static bool read_persistence(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    unsigned int mode = 0;
    bool known = nvmlDeviceGetPersistenceMode(selection->gpus[at], &mode) == NVML_SUCCESS;
    put_enabled(mode, value);
    return known;
}

static bool read_compute_mode(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)units;
    static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    unsigned int mode = 0;
    bool known = nvmlDeviceGetComputeMode(selection->gpus[at], &mode) == NVML_SUCCESS;
    snprintf(value, VALUE_SIZE, "%s", names[mode & 3]);
    return known;
}

static bool read_nothing(const struct selection *selection, unsigned int at, bool units, char value[VALUE_SIZE])
{
    (void)selection, (void)at, (void)units, (void)value;
    return false;
}

static const struct field {
    const char *name, *unit;
    reader read;
} fields[] = {
    {"index", "", read_index},
    {"count", "", read_count},
    {"name", "", read_name},
    {"gpu_name", "", read_name},
    {"uuid", "", read_uuid},
    {"gpu_uuid", "", read_uuid},
    {"serial", "", read_serial},
    {"gpu_serial", "", read_serial},
    {"pci.bus_id", "", read_bus_id},
    {"gpu_bus_id", "", read_bus_id},
    {"driver_version", "", read_driver},
    {"compute_cap", "", read_capability},
    {"memory.total", " [MiB]", read_total},
    {"memory.used", " [MiB]", read_used},
    {"memory.free", " [MiB]", read_free},
    {"mig.mode.current", "", read_mig},
    {"mig.mode.pending", "", read_mig_pending},
    {"ecc.mode.current", "", read_ecc},
    {"persistence_mode", "", read_persistence},
    {"compute_mode", "", read_compute_mode},
    {"temperature.gpu", "", read_nothing},
    {"power.draw", " [W]", read_nothing},
    {"utilization.gpu", " [%]", read_nothing},
    {"utilization.memory", " [%]", read_nothing},
};

enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static const struct field *find_field(const char *name)
{
    for (int i = 0; i < FIELD_COUNT; i++)
        if (strcasecmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static unsigned int parse_fields(const char *list, const struct field *wanted[FIELD_COUNT], const char **unknown)
{
    static char copy[1024];
    unsigned int count = 0;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *rest = copy, *name; (name = strsep(&rest, ",")) != NULL && count < FIELD_COUNT;) {
        name += strspn(name, " ");
        wanted[count] = find_field(name);
        if (wanted[count++] == NULL)
            *unknown = name;
    }
    return count;
}

int smi_query(const struct selection *selection, const char *list, const char *format)
{
    if (strncmp(format, "csv", 3) != 0) {
        printf("Missing or invalid --format; --query-gpu needs --format=csv[,noheader][,nounits]\n");
        return EXIT_BAD_ARGUMENTS;
    }
    const struct field *wanted[FIELD_COUNT];
    const char *unknown = NULL;
    unsigned int count = parse_fields(list, wanted, &unknown);
    if (unknown != NULL) {
        printf("Field \"%s\" is not a valid field to query.\n\n", unknown);
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    bool units = strstr(format, "nounits") == NULL;
    for (unsigned int i = 0; strstr(format, "noheader") == NULL && i < count; i++)
        printf("%s%s%s", wanted[i]->name, wanted[i]->unit, i + 1 < count ? ", " : "\n");
    for (unsigned int at = 0; at < selection->count; at++)
        for (unsigned int i = 0; i < count; i++) {
            char value[VALUE_SIZE];
            bool known = wanted[i]->read(selection, at, units, value);
            printf("%s%s", known ? value : "[N/A]", i + 1 < count ? ", " : "\n");
        }
    return 0;
}
