/* Every NVML function of the library. A symbol's place in this list is where its calls are counted. */
#ifndef NVMLSIM_SYMBOLS_H
#define NVMLSIM_SYMBOLS_H

#define NVML_SYMBOLS(X)                                \
    X(nvmlInit)                                        \
    X(nvmlInit_v2)                                     \
    X(nvmlInitWithFlags)                               \
    X(nvmlShutdown)                                    \
    X(nvmlErrorString)                                 \
    X(nvmlSystemGetDriverVersion)                      \
    X(nvmlSystemGetNVMLVersion)                        \
    X(nvmlSystemGetCudaDriverVersion)                  \
    X(nvmlSystemGetCudaDriverVersion_v2)               \
    X(nvmlSystemGetTopologyGpuSet)                     \
    X(nvmlDeviceGetCount)                              \
    X(nvmlDeviceGetCount_v2)                           \
    X(nvmlDeviceGetHandleByIndex)                      \
    X(nvmlDeviceGetHandleByIndex_v2)                   \
    X(nvmlDeviceGetHandleByUUID)                       \
    X(nvmlDeviceGetHandleByPciBusId)                   \
    X(nvmlDeviceGetHandleByPciBusId_v2)                \
    X(nvmlDeviceGetHandleBySerial)                     \
    X(nvmlDeviceGetName)                               \
    X(nvmlDeviceGetUUID)                               \
    X(nvmlDeviceGetIndex)                              \
    X(nvmlDeviceGetMinorNumber)                        \
    X(nvmlDeviceGetBrand)                              \
    X(nvmlDeviceGetArchitecture)                       \
    X(nvmlDeviceGetCudaComputeCapability)              \
    X(nvmlDeviceGetSerial)                             \
    X(nvmlDeviceGetBoardPartNumber)                    \
    X(nvmlDeviceGetBoardId)                            \
    X(nvmlDeviceGetModuleId)                           \
    X(nvmlDeviceGetNumGpuCores)                        \
    X(nvmlDeviceGetMemoryInfo)                         \
    X(nvmlDeviceGetMemoryInfo_v2)                      \
    X(nvmlDeviceGetBAR1MemoryInfo)                     \
    X(nvmlDeviceGetPciInfo)                            \
    X(nvmlDeviceGetPciInfo_v2)                         \
    X(nvmlDeviceGetPciInfo_v3)                         \
    X(nvmlDeviceGetPciInfoExt)                         \
    X(nvmlDeviceGetNumaNodeId)                         \
    X(nvmlDeviceGetAddressingMode)                     \
    X(nvmlDeviceGetPersistenceMode)                    \
    X(nvmlDeviceSetPersistenceMode)                    \
    X(nvmlDeviceGetVirtualizationMode)                 \
    X(nvmlDeviceGetComputeMode)                        \
    X(nvmlDeviceSetComputeMode)                        \
    X(nvmlDeviceGetMigMode)                            \
    X(nvmlDeviceSetMigMode)                            \
    X(nvmlDeviceGetGpuInstanceProfileInfo)             \
    X(nvmlDeviceGetGpuInstanceProfileInfoV)            \
    X(nvmlDeviceGetGpuInstanceProfileInfoByIdV)        \
    X(nvmlDeviceGetGpuInstancePossiblePlacements)      \
    X(nvmlDeviceGetGpuInstancePossiblePlacements_v2)   \
    X(nvmlDeviceGetGpuInstanceRemainingCapacity)       \
    X(nvmlDeviceCreateGpuInstance)                     \
    X(nvmlDeviceCreateGpuInstanceWithPlacement)        \
    X(nvmlGpuInstanceDestroy)                          \
    X(nvmlDeviceGetGpuInstances)                       \
    X(nvmlDeviceGetGpuInstanceById)                    \
    X(nvmlGpuInstanceGetInfo)                          \
    X(nvmlGpuInstanceGetComputeInstanceProfileInfo)    \
    X(nvmlGpuInstanceGetComputeInstanceProfileInfoV)   \
    X(nvmlGpuInstanceGetComputeInstanceRemainingCapacity) \
    X(nvmlGpuInstanceGetComputeInstancePossiblePlacements) \
    X(nvmlGpuInstanceCreateComputeInstance)            \
    X(nvmlGpuInstanceCreateComputeInstanceWithPlacement) \
    X(nvmlComputeInstanceDestroy)                      \
    X(nvmlGpuInstanceGetComputeInstances)              \
    X(nvmlGpuInstanceGetComputeInstanceById)           \
    X(nvmlComputeInstanceGetInfo)                      \
    X(nvmlComputeInstanceGetInfo_v2)                   \
    X(nvmlDeviceIsMigDeviceHandle)                     \
    X(nvmlDeviceGetGpuInstanceId)                      \
    X(nvmlDeviceGetComputeInstanceId)                  \
    X(nvmlDeviceGetMaxMigDeviceCount)                  \
    X(nvmlDeviceGetMigDeviceHandleByIndex)             \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)    \
    X(nvmlDeviceGetAttributes)                         \
    X(nvmlDeviceGetAttributes_v2)                      \
    X(nvmlDeviceGetTopologyCommonAncestor)             \
    X(nvmlDeviceGetTopologyNearestGpus)                \
    X(nvmlDeviceGetP2PStatus)                          \
    X(nvmlDeviceGetCpuAffinity)                        \
    X(nvmlDeviceGetCpuAffinityWithinScope)             \
    X(nvmlDeviceGetMemoryAffinity)                     \
    X(nvmlDeviceGetNvLinkState)                        \
    X(nvmlDeviceGetNvLinkVersion)                      \
    X(nvmlDeviceGetNvLinkCapability)                   \
    X(nvmlDeviceGetNvLinkRemotePciInfo)                \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2)             \
    X(nvmlDeviceGetNvLinkRemoteDeviceType)             \
    X(nvmlDeviceGetNvLinkErrorCounter)                 \
    X(nvmlDeviceGetFieldValues)                        \
    X(nvmlDeviceGetGpuFabricInfo)                      \
    X(nvmlDeviceGetGpuFabricInfoV)                     \
    X(nvmlEventSetCreate)                              \
    X(nvmlEventSetWait)                                \
    X(nvmlEventSetWait_v2)                             \
    X(nvmlEventSetFree)                                \
    X(nvmlDeviceRegisterEvents)                        \
    X(nvmlDeviceGetSupportedEventTypes)                \
    X(nvmlDeviceGetEccMode)                            \
    X(nvmlDeviceGetTotalEccErrors)                     \
    X(nvmlDeviceGetMemoryErrorCounter)                 \
    X(nvmlDeviceGetRemappedRows)                       \
    X(nvmlDeviceGetRowRemapperHistogram)               \
    X(nvmlDeviceGetRetiredPages)                       \
    X(nvmlDeviceGetRetiredPages_v2)                    \
    X(nvmlDeviceGetRetiredPagesPendingStatus)          \
    X(nvmlDeviceGetComputeRunningProcesses)            \
    X(nvmlDeviceGetComputeRunningProcesses_v2)         \
    X(nvmlDeviceGetComputeRunningProcesses_v3)         \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3)        \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3)      \
    X(nvmlDeviceGetRunningProcessDetailList)           \
    X(nvmlDeviceGetPlatformInfo)                       \
    X(nvmlDeviceGetNvLinkInfo)                         \
    X(nvmlDeviceGetSramEccErrorStatus)

#define NVML_SYMBOL_ENTRY(name) SYMBOL_##name,
enum symbol { NVML_SYMBOLS(NVML_SYMBOL_ENTRY) SYMBOL_COUNT };
#undef NVML_SYMBOL_ENTRY

/* SYMBOL_COUNT when there is no such function. */
enum symbol symbol_by_name(const char *name);
const char *symbol_name(enum symbol symbol);

#endif
