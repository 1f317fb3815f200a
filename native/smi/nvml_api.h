/* The NVML calls that nvidia-smi makes, each as a wrapper over a symbol looked up at start.
 *
 * Promises: nothing is linked; a symbol that the installed library lacks answers NVML_ERROR_FUNCTION_NOT_FOUND, so the
 * program runs on older and on real drivers alike. `nv(DeviceGetName)(device, name, 96)` calls nvmlDeviceGetName. */
#ifndef KGPU_SMI_NVML_API_H
#define KGPU_SMI_NVML_API_H

#include "kgpu_nvml.h"

typedef nvmlDevice_t D;
typedef nvmlGpuInstance_t G;
typedef nvmlComputeInstance_t C;
typedef unsigned int U;
typedef unsigned long long U64;

/* name, parameters, arguments */
#define NVML_FUNCTIONS(F) \
    F(Init_v2, (void), ()) \
    F(Shutdown, (void), ()) \
    F(SystemGetDriverVersion, (char *text, U room), (text, room)) \
    F(SystemGetNVMLVersion, (char *text, U room), (text, room)) \
    F(SystemGetCudaDriverVersion_v2, (int *version), (version)) \
    F(SystemGetProcessName, (U pid, char *text, U room), (pid, text, room)) \
    F(DeviceGetCount_v2, (U *count), (count)) \
    F(DeviceGetHandleByIndex_v2, (U index, D *d), (index, d)) \
    F(DeviceGetHandleByUUID, (const char *uuid, D *d), (uuid, d)) \
    F(DeviceGetHandleByPciBusId_v2, (const char *id, D *d), (id, d)) \
    F(DeviceGetHandleBySerial, (const char *serial, D *d), (serial, d)) \
    F(DeviceGetIndex, (D d, U *index), (d, index)) \
    F(DeviceGetName, (D d, char *text, U room), (d, text, room)) \
    F(DeviceGetUUID, (D d, char *text, U room), (d, text, room)) \
    F(DeviceGetSerial, (D d, char *text, U room), (d, text, room)) \
    F(DeviceGetVbiosVersion, (D d, char *text, U room), (d, text, room)) \
    F(DeviceGetBoardPartNumber, (D d, char *text, U room), (d, text, room)) \
    F(DeviceGetInforomImageVersion, (D d, char *text, U room), (d, text, room)) \
    F(DeviceGetInforomVersion, (D d, U object, char *text, U room), (d, object, text, room)) \
    F(DeviceGetGspFirmwareVersion, (D d, char *text), (d, text)) \
    F(DeviceGetPciInfo_v3, (D d, nvmlPciInfo_t *pci), (d, pci)) \
    F(DeviceGetMinorNumber, (D d, U *minor), (d, minor)) \
    F(DeviceGetBoardId, (D d, U *id), (d, id)) \
    F(DeviceGetMultiGpuBoard, (D d, U *value), (d, value)) \
    F(DeviceGetBrand, (D d, U *value), (d, value)) \
    F(DeviceGetArchitecture, (D d, U *value), (d, value)) \
    F(DeviceGetCudaComputeCapability, (D d, int *major, int *minor), (d, major, minor)) \
    F(DeviceGetMemoryInfo, (D d, nvmlMemory_t *memory), (d, memory)) \
    F(DeviceGetMemoryInfo_v2, (D d, nvmlMemory_v2_t *memory), (d, memory)) \
    F(DeviceGetBAR1MemoryInfo, (D d, nvmlBAR1Memory_t *memory), (d, memory)) \
    F(DeviceGetConfComputeProtectedMemoryUsage, (D d, nvmlMemory_t *memory), (d, memory)) \
    F(DeviceGetUtilizationRates, (D d, nvmlUtilization_t *value), (d, value)) \
    F(DeviceGetEncoderUtilization, (D d, U *value, U *period), (d, value, period)) \
    F(DeviceGetDecoderUtilization, (D d, U *value, U *period), (d, value, period)) \
    F(DeviceGetJpgUtilization, (D d, U *value, U *period), (d, value, period)) \
    F(DeviceGetOfaUtilization, (D d, U *value, U *period), (d, value, period)) \
    F(DeviceGetTemperature, (D d, U sensor, U *value), (d, sensor, value)) \
    F(DeviceGetTemperatureThreshold, (D d, U which, U *value), (d, which, value)) \
    F(DeviceGetFieldValues, (D d, int count, nvmlFieldValue_t *values), (d, count, values)) \
    F(DeviceGetFanSpeed, (D d, U *value), (d, value)) \
    F(DeviceGetPowerUsage, (D d, U *value), (d, value)) \
    F(DeviceGetPowerManagementLimit, (D d, U *value), (d, value)) \
    F(DeviceGetEnforcedPowerLimit, (D d, U *value), (d, value)) \
    F(DeviceGetPowerManagementDefaultLimit, (D d, U *value), (d, value)) \
    F(DeviceGetPowerManagementLimitConstraints, (D d, U *least, U *most), (d, least, most)) \
    F(DeviceGetPowerManagementMode, (D d, U *mode), (d, mode)) \
    F(DeviceSetPowerManagementLimit, (D d, U value), (d, value)) \
    F(DeviceGetTotalEnergyConsumption, (D d, U64 *value), (d, value)) \
    F(DeviceGetPerformanceState, (D d, U *value), (d, value)) \
    F(DeviceGetClockInfo, (D d, U kind, U *value), (d, kind, value)) \
    F(DeviceGetMaxClockInfo, (D d, U kind, U *value), (d, kind, value)) \
    F(DeviceGetApplicationsClock, (D d, U kind, U *value), (d, kind, value)) \
    F(DeviceGetDefaultApplicationsClock, (D d, U kind, U *value), (d, kind, value)) \
    F(DeviceGetMaxCustomerBoostClock, (D d, U kind, U *value), (d, kind, value)) \
    F(DeviceGetCurrentClocksEventReasons, (D d, U64 *value), (d, value)) \
    F(DeviceGetCurrentClocksThrottleReasons, (D d, U64 *value), (d, value)) \
    F(DeviceGetSupportedClocksEventReasons, (D d, U64 *value), (d, value)) \
    F(DeviceGetPersistenceMode, (D d, U *mode), (d, mode)) \
    F(DeviceSetPersistenceMode, (D d, U mode), (d, mode)) \
    F(DeviceGetComputeMode, (D d, U *mode), (d, mode)) \
    F(DeviceSetComputeMode, (D d, U mode), (d, mode)) \
    F(DeviceGetDisplayMode, (D d, U *mode), (d, mode)) \
    F(DeviceGetDisplayActive, (D d, U *mode), (d, mode)) \
    F(DeviceGetAccountingMode, (D d, U *mode), (d, mode)) \
    F(DeviceGetAccountingBufferSize, (D d, U *size), (d, size)) \
    F(DeviceGetGpuOperationMode, (D d, U *now, U *next), (d, now, next)) \
    F(DeviceGetVirtualizationMode, (D d, U *mode), (d, mode)) \
    F(DeviceGetEccMode, (D d, U *now, U *next), (d, now, next)) \
    F(DeviceSetEccMode, (D d, U mode), (d, mode)) \
    F(DeviceGetTotalEccErrors, (D d, U kind, U counter, U64 *value), (d, kind, counter, value)) \
    F(DeviceGetMemoryErrorCounter, (D d, U kind, U counter, U place, U64 *value), (d, kind, counter, place, value)) \
    F(DeviceGetRetiredPages, (D d, U cause, U *count, U64 *addresses), (d, cause, count, addresses)) \
    F(DeviceGetRetiredPagesPendingStatus, (D d, U *pending), (d, pending)) \
    F(DeviceGetRemappedRows, (D d, U *corrected, U *uncorrected, U *pending, U *failed), (d, corrected, uncorrected, pending, failed)) \
    F(DeviceGetRowRemapperHistogram, (D d, nvmlRowRemapperHistogramValues_t *values), (d, values)) \
    F(DeviceGetCurrPcieLinkGeneration, (D d, U *value), (d, value)) \
    F(DeviceGetMaxPcieLinkGeneration, (D d, U *value), (d, value)) \
    F(DeviceGetGpuMaxPcieLinkGeneration, (D d, U *value), (d, value)) \
    F(DeviceGetCurrPcieLinkWidth, (D d, U *value), (d, value)) \
    F(DeviceGetMaxPcieLinkWidth, (D d, U *value), (d, value)) \
    F(DeviceGetPcieReplayCounter, (D d, U *value), (d, value)) \
    F(DeviceGetPcieThroughput, (D d, U counter, U *value), (d, counter, value)) \
    F(DeviceGetComputeRunningProcesses_v3, (D d, U *count, nvmlProcessInfo_t *list), (d, count, list)) \
    F(DeviceGetGraphicsRunningProcesses_v3, (D d, U *count, nvmlProcessInfo_t *list), (d, count, list)) \
    F(DeviceGetMPSComputeRunningProcesses_v3, (D d, U *count, nvmlProcessInfo_t *list), (d, count, list)) \
    F(DeviceGetMigMode, (D d, U *now, U *next), (d, now, next)) \
    F(DeviceSetMigMode, (D d, U mode, nvmlReturn_t *activation), (d, mode, activation)) \
    F(DeviceGetMaxMigDeviceCount, (D d, U *count), (d, count)) \
    F(DeviceGetMigDeviceHandleByIndex, (D d, U index, D *mig), (d, index, mig)) \
    F(DeviceIsMigDeviceHandle, (D d, U *value), (d, value)) \
    F(DeviceGetDeviceHandleFromMigDeviceHandle, (D mig, D *d), (mig, d)) \
    F(DeviceGetGpuInstanceId, (D d, U *id), (d, id)) \
    F(DeviceGetComputeInstanceId, (D d, U *id), (d, id)) \
    F(DeviceGetAttributes_v2, (D d, nvmlDeviceAttributes_t *value), (d, value)) \
    F(DeviceGetGpuInstanceProfileInfo, (D d, U profile, nvmlGpuInstanceProfileInfo_t *info), (d, profile, info)) \
    F(DeviceGetGpuInstanceProfileInfoV, (D d, U profile, nvmlGpuInstanceProfileInfo_v2_t *info), (d, profile, info)) \
    F(DeviceGetGpuInstancePossiblePlacements_v2, (D d, U id, nvmlPlacement_t *list, U *count), (d, id, list, count)) \
    F(DeviceGetGpuInstanceRemainingCapacity, (D d, U id, U *count), (d, id, count)) \
    F(DeviceCreateGpuInstance, (D d, U id, G *gi), (d, id, gi)) \
    F(DeviceCreateGpuInstanceWithPlacement, (D d, U id, const nvmlPlacement_t *at, G *gi), (d, id, at, gi)) \
    F(DeviceGetGpuInstances, (D d, U id, G *list, U *count), (d, id, list, count)) \
    F(DeviceGetGpuInstanceById, (D d, U id, G *gi), (d, id, gi)) \
    F(GpuInstanceDestroy, (G gi), (gi)) \
    F(GpuInstanceGetInfo, (G gi, nvmlGpuInstanceInfo_t *info), (gi, info)) \
    F(GpuInstanceGetComputeInstanceProfileInfo, (G gi, U profile, U engine, nvmlComputeInstanceProfileInfo_t *info), (gi, profile, engine, info)) \
    F(GpuInstanceGetComputeInstanceProfileInfoV, (G gi, U profile, U engine, nvmlComputeInstanceProfileInfo_v2_t *info), (gi, profile, engine, info)) \
    F(GpuInstanceGetComputeInstanceRemainingCapacity, (G gi, U id, U *count), (gi, id, count)) \
    F(GpuInstanceCreateComputeInstance, (G gi, U id, C *ci), (gi, id, ci)) \
    F(GpuInstanceGetComputeInstances, (G gi, U id, C *list, U *count), (gi, id, list, count)) \
    F(GpuInstanceGetComputeInstanceById, (G gi, U id, C *ci), (gi, id, ci)) \
    F(ComputeInstanceGetInfo_v2, (C ci, nvmlComputeInstanceInfo_t *info), (ci, info)) \
    F(ComputeInstanceDestroy, (C ci), (ci)) \
    F(DeviceGetTopologyCommonAncestor, (D a, D b, U *level), (a, b, level)) \
    F(DeviceGetCpuAffinity, (D d, U words, unsigned long *set), (d, words, set)) \
    F(DeviceGetMemoryAffinity, (D d, U words, unsigned long *set, U scope), (d, words, set, scope)) \
    F(DeviceGetNumaNodeId, (D d, U *node), (d, node)) \
    F(DeviceGetNvLinkState, (D d, U link, U *state), (d, link, state)) \
    F(DeviceGetNvLinkVersion, (D d, U link, U *version), (d, link, version)) \
    F(DeviceGetNvLinkRemotePciInfo_v2, (D d, U link, nvmlPciInfo_t *pci), (d, link, pci)) \
    F(DeviceGetNvLinkRemoteDeviceType, (D d, U link, U *kind), (d, link, kind)) \
    F(DeviceGetNvLinkCapability, (D d, U link, U which, U *value), (d, link, which, value)) \
    F(DeviceGetNvLinkErrorCounter, (D d, U link, U which, U64 *value), (d, link, which, value)) \
    F(DeviceGetGpuFabricInfoV, (D d, nvmlGpuFabricInfo_v2_t *info), (d, info)) \
    F(DeviceGetP2PStatus, (D a, D b, U kind, U *status), (a, b, kind, status))

#define NVML_DECLARE(name, parameters, arguments) nvmlReturn_t nv_##name parameters;
NVML_FUNCTIONS(NVML_DECLARE)
#undef NVML_DECLARE
#define nv(name) nv_##name

/* Not part of NVML: exported by the simulated library alone, absent from a real one (then FUNCTION_NOT_FOUND). They
 * take the index among the visible GPUs, since a lost GPU gives no handle. */
nvmlReturn_t sim_device_reset(U index);
nvmlReturn_t sim_device_bus_id(U index, char *text, U room);
nvmlReturn_t sim_get_timeslice(U index, U *value);
nvmlReturn_t sim_set_timeslice(U index, U value);

/* Loads libnvidia-ml.so.1; NVML_ERROR_LIBRARY_NOT_FOUND when there is none. */
nvmlReturn_t nvml_load(void);
/* The library's own text for a code. */
const char *nvml_text(nvmlReturn_t code);

#endif
