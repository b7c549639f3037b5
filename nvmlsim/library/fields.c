/* nvmlDeviceGetFieldValues, for the fields that tell of links, rows, recovery and MIG. */
#include <time.h>

#include "nvml.h"

enum {
    FIELD_ECC_CURRENT = 1,
    FIELD_LINK_SPEED_COMMON = 90,
    FIELD_LINK_COUNT = 91,
    FIELD_RETIRED_PENDING_SBE = 92,
    FIELD_RETIRED_PENDING_DBE = 93,
    FIELD_REMAPPED_CORRECTABLE = 142,
    FIELD_REMAPPED_UNCORRECTABLE = 143,
    FIELD_REMAPPED_PENDING = 144,
    FIELD_REMAPPED_FAILURE = 145,
    FIELD_LINK_SPEED = 164,
    FIELD_LINK_STATE = 165,
    FIELD_LINK_VERSION = 166,
    FIELD_C2C_LINK_COUNT = 170,
    FIELD_RESETLESS_MIG = 184,
    FIELD_MIG_MODE_INDEPENDENT_QUERY = 199,
    FIELD_RECOVERY_ACTION = 230,
};

static nvmlReturn_t link_field(const struct call *call, uint32_t field, uint32_t number, uint32_t *value)
{
    const struct model *model = call_model(call);
    if (model->link_count == 0 || call->target.ci != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (number >= model->link_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct link *link = &call->target.gpu->links[number];
    bool active = link->present && link->active;
    if (field == FIELD_LINK_STATE)
        *value = active;
    else if (field == FIELD_LINK_VERSION)
        *value = model->link_version;
    else
        *value = active ? model->link_speed_mbps : 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_field(const struct call *call, uint32_t field, uint32_t scope, uint32_t *value)
{
    const struct model *model = call_model(call);
    const struct gpu *gpu = call->target.gpu;
    bool rows = model->architecture >= NVML_ARCH_AMPERE, mig = mig_supported(model, gpu);
    switch (field) {
    case FIELD_ECC_CURRENT: *value = gpu->ecc_current; return NVML_SUCCESS;
    case FIELD_LINK_COUNT: *value = model->link_count; return model->link_count ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    case FIELD_LINK_SPEED_COMMON: return link_field(call, FIELD_LINK_SPEED, 0, value);
    case FIELD_LINK_SPEED:
    case FIELD_LINK_STATE:
    case FIELD_LINK_VERSION: return link_field(call, field, scope, value);
    case FIELD_C2C_LINK_COUNT: *value = model->c2c_links; return NVML_SUCCESS;
    case FIELD_RETIRED_PENDING_SBE:
    case FIELD_RETIRED_PENDING_DBE: *value = gpu->remap_pending; return rows ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    case FIELD_REMAPPED_CORRECTABLE: *value = gpu->remapped_correctable; break;
    case FIELD_REMAPPED_UNCORRECTABLE: *value = gpu->remapped_uncorrectable; break;
    case FIELD_REMAPPED_PENDING: *value = gpu->remap_pending; break;
    case FIELD_REMAPPED_FAILURE: *value = gpu->remap_failed; break;
    case FIELD_RESETLESS_MIG:
        *value = model->architecture >= NVML_ARCH_HOPPER;
        return mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    case FIELD_MIG_MODE_INDEPENDENT_QUERY: *value = 1; return mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    case FIELD_RECOVERY_ACTION: *value = gpu->recovery_action; return NVML_SUCCESS;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return rows ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    BEGIN_DEVICE(call, nvmlDeviceGetFieldValues, device);
    if (values == NULL || count < 1)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        uint32_t value = 0;
        values[i].nvmlReturn = read_field(&call, values[i].fieldId, values[i].scopeId, &value);
        values[i].timestamp = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].valueType = NVML_VALUE_UNSIGNED_INT;
        values[i].value.ul = value;
    }
    return call_end(&call, NVML_SUCCESS);
}
