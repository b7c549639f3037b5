/* ECC, row remapping, retired pages. */
#include <stddef.h>

#include "nvml.h"

enum { BANKS_PER_GIB = 16 };

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    BEGIN_DEVICE(call, nvmlDeviceGetEccMode, device);
    if (current == NULL || pending == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *current = call.target.gpu->ecc_current;
    *pending = call.target.gpu->ecc_pending;
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t ecc_errors(const struct call *call, unsigned int error, unsigned int counter,
                               unsigned long long *count)
{
    if (count == NULL || error > 1 || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!call->target.gpu->ecc_current)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = error == 0 ? call->target.gpu->ecc_corrected : call->target.gpu->ecc_uncorrected;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                unsigned long long *count)
{
    BEGIN_GPU(call, nvmlDeviceGetTotalEccErrors, device, NVML_ERROR_NOT_SUPPORTED);
    return call_end(&call, ecc_errors(&call, error, counter, count));
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                    unsigned int location, unsigned long long *count)
{
    (void)location;
    BEGIN_GPU(call, nvmlDeviceGetMemoryErrorCounter, device, NVML_ERROR_NOT_SUPPORTED);
    return call_end(&call, ecc_errors(&call, error, counter, count));
}

/* Rows are remapped since Ampere; before, pages are retired. */
static bool remaps_rows(const struct call *call)
{
    return call_model(call)->architecture >= NVML_ARCH_AMPERE;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                              unsigned int *uncorrectable, unsigned int *pending,
                                              unsigned int *failed)
{
    BEGIN_GPU(call, nvmlDeviceGetRemappedRows, device, NVML_ERROR_NOT_SUPPORTED);
    if (correctable == NULL || uncorrectable == NULL || pending == NULL || failed == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (!remaps_rows(&call))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    *correctable = call.target.gpu->remapped_correctable;
    *uncorrectable = call.target.gpu->remapped_uncorrectable;
    *pending = call.target.gpu->remap_pending;
    *failed = call.target.gpu->remap_failed;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    BEGIN_GPU(call, nvmlDeviceGetRowRemapperHistogram, device, NVML_ERROR_NOT_SUPPORTED);
    if (values == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    if (!remaps_rows(&call))
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    const struct gpu *gpu = call.target.gpu;
    uint32_t banks = (uint32_t)((call_model(&call)->memory_mib + 1023) / 1024) * BANKS_PER_GIB;
    uint32_t used = gpu->remapped_correctable + gpu->remapped_uncorrectable;
    values->none = gpu->remap_failed ? 1 : 0;
    values->low = 0;
    values->partial = 0;
    values->high = used < banks ? used : banks;
    values->max = banks - values->high - (values->high < banks ? values->none : 0);
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t no_retired_pages(const struct call *call, unsigned int *count)
{
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (remaps_rows(call))
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                              unsigned long long *addresses)
{
    (void)cause, (void)addresses;
    BEGIN_GPU(call, nvmlDeviceGetRetiredPages, device, NVML_ERROR_NOT_SUPPORTED);
    return call_end(&call, no_retired_pages(&call, count));
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                                 unsigned long long *addresses, unsigned long long *times)
{
    (void)cause, (void)addresses, (void)times;
    BEGIN_GPU(call, nvmlDeviceGetRetiredPages_v2, device, NVML_ERROR_NOT_SUPPORTED);
    return call_end(&call, no_retired_pages(&call, count));
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    BEGIN_GPU(call, nvmlDeviceGetRetiredPagesPendingStatus, device, NVML_ERROR_NOT_SUPPORTED);
    nvmlReturn_t code = no_retired_pages(&call, pending);
    if (code == NVML_SUCCESS)
        *pending = call.target.gpu->remap_pending;
    return call_end(&call, code);
}
