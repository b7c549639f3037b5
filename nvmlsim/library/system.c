#include <string.h>

#include "nvml.h"

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    return call_attach(SYMBOL_nvmlInitWithFlags, flags);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return call_attach(SYMBOL_nvmlInit_v2, 0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return call_attach(SYMBOL_nvmlInit, 0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    return call_detach();
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    }
    return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlSystemGetDriverVersion, NULL);
    return code != NVML_SUCCESS ? code : call_end(&call, copy_text(version, length, call.node->driver_version));
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, SYMBOL_nvmlSystemGetNVMLVersion, NULL);
    return code != NVML_SUCCESS ? code : call_end(&call, copy_text(version, length, call.node->nvml_version));
}

static nvmlReturn_t cuda_version(enum symbol symbol, int *version)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, symbol, NULL);
    if (code != NVML_SUCCESS)
        return code;
    if (version == NULL)
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    *version = (int)call.node->cuda_version;
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(SYMBOL_nvmlSystemGetCudaDriverVersion, version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(SYMBOL_nvmlSystemGetCudaDriverVersion_v2, version);
}
