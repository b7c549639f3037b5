/*
 * The part of NVML's binary interface that the simulated node speaks, written from the public nvml.h 13.x:
 * return codes, handles (one-pointer structs passed by value) and structs for x86-64 and arm64 (little-endian, LP64).
 */
#ifndef NVMLSIM_NVML_TYPES_H
#define NVMLSIM_NVML_TYPES_H

#include <stdint.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct { void *handle; } nvmlDevice_t;
typedef struct { void *handle; } nvmlGpuInstance_t;
typedef struct { void *handle; } nvmlComputeInstance_t;
typedef struct { void *handle; } nvmlEventSet_t;

#define NVML_INIT_FLAG_NO_GPUS 1u

#define NVML_STRUCT_VERSION(type, version) ((uint32_t)(sizeof(type) | ((uint32_t)(version) << 24)))

enum { NVML_ARCH_AMPERE = 7, NVML_ARCH_HOPPER = 9 };
enum { NVML_FEATURE_DISABLED = 0, NVML_FEATURE_ENABLED = 1 };
enum { NVML_VIRTUALIZATION_NONE = 0, NVML_VIRTUALIZATION_PASSTHROUGH = 1, NVML_VIRTUALIZATION_VGPU = 2 };
enum { NVML_GI_PROFILE_COUNT = 18, NVML_CI_PROFILE_COUNT = 9, NVML_CI_ENGINE_PROFILE_SHARED = 0 };
enum { NVML_LINK_REMOTE_GPU = 0, NVML_LINK_REMOTE_SWITCH = 2, NVML_LINK_REMOTE_UNKNOWN = 255 };

typedef struct { uint64_t total, free, used; } nvmlMemory_t;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { uint64_t total, free, used; } nvmlBAR1Memory_t;

typedef struct {
    char busIdLegacy[16];
    uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    char busId[16];
    uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
} nvmlPciInfoLegacy_t;

typedef struct {
    uint32_t version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
    uint32_t id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    uint32_t version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount,
        decoderCount, encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    uint32_t version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
    char name[96];
    uint32_t capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

#define NVML_GI_PROFILE_CAPS_GFX 0x2u

typedef struct {
    uint32_t id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    uint32_t version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount,
        sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
    uint32_t version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount,
        sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    char name[96];
    uint32_t capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;

typedef struct { uint32_t start, size; } nvmlGpuInstancePlacement_t;
typedef nvmlGpuInstancePlacement_t nvmlComputeInstancePlacement_t;

typedef struct {
    nvmlDevice_t device;
    uint32_t id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    uint32_t id, profileId;
    nvmlComputeInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    uint32_t id, profileId;
} nvmlComputeInstanceInfo_v1_t;

typedef struct {
    uint32_t multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    uint64_t memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    nvmlDevice_t device;
    uint64_t eventType, eventData;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

#define NVML_EVENT_SINGLE_BIT_ECC 0x1ull
#define NVML_EVENT_DOUBLE_BIT_ECC 0x2ull
#define NVML_EVENT_XID 0x8ull

typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    uint32_t valueType;
    nvmlReturn_t nvmlReturn;
    union { double d; uint32_t u; uint64_t ul; int64_t sl; } value;
} nvmlFieldValue_t;

enum { NVML_VALUE_UNSIGNED_INT = 1, NVML_VALUE_UNSIGNED_LONG_LONG = 3 };

typedef struct {
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    uint32_t cliqueId;
    uint8_t state;
} nvmlGpuFabricInfo_t;

typedef struct {
    uint32_t version;
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    uint32_t cliqueId;
    uint8_t state;
    uint32_t healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    uint32_t version;
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    uint32_t cliqueId;
    uint8_t state;
    uint32_t healthMask;
    uint8_t healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct { uint32_t version, value; } nvmlDeviceAddressingMode_t;
typedef struct { uint32_t max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;

#endif
