/* Setting things: modes, limits, clocks. Whoever may write the state may set. */
#include "internal.h"

/* Set one member when the value passes the check; NOT_SUPPORTED where the GPU lacks the feature. */
#define SET(function, type, feature, check, statement)              \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, type value) { \
        ENTER(kg_gpu_of, device, check);                            \
        if (!(feature)) return NVML_ERROR_NOT_SUPPORTED;            \
        BEGIN();                                                    \
        statement;                                                  \
        END();                                                      \
        return NVML_SUCCESS;                                        \
    }
/* Kept by the kernel module and its daemon, so that it can be set while the GPU waits for a reset. */
EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode) {
    ENTER(kg_known_of, device, mode <= 1);
    if (d.ci) return NVML_ERROR_NOT_SUPPORTED;
    BEGIN();
    d.g->persistence = mode;
    END();
    return NVML_SUCCESS;
}

SET(nvmlDeviceSetComputeMode, unsigned int, 1, value <= 3 && value != 1, d.g->compute_mode = value)
SET(nvmlDeviceSetEccMode, unsigned int, d.g->ecc_supported, value <= 1, d.g->ecc_pending = value)
SET(nvmlDeviceSetAccountingMode, unsigned int, !d.g->mig_current, value <= 1, d.g->accounting_mode = value)
SET(nvmlDeviceSetVirtualizationMode, unsigned int, 1, value <= 4, d.g->virtualization_mode = value)
SET(nvmlDeviceSetPowerManagementLimit, unsigned int, d.g->power_supported,
    value >= d.g->power_limit_min_mw && value <= d.g->power_limit_max_mw, d.g->power_limit_mw = value)

EXPORT nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned int counter) {
    ENTER(kg_gpu_of, device, counter <= 1);
    if (!d.g->ecc_supported) return NVML_ERROR_NOT_SUPPORTED;
    BEGIN();
    memset(counter ? d.g->ecc_aggregate : d.g->ecc_volatile, 0, sizeof d.g->ecc_volatile);
    END();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int low, unsigned int high) {
    ENTER(kg_gpu_of, device, low <= high && high);
    BEGIN();
    d.g->clock_lock[0] = low, d.g->clock_lock[1] = high;
    END();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
    ENTER(kg_gpu_of, device, 1);
    BEGIN();
    d.g->clock_lock[0] = d.g->clock_lock[1] = 0;
    END();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory, unsigned int graphics) {
    ENTER(kg_gpu_of, device, memory && graphics);
    if (!d.g->clock_app_default[0]) return NVML_ERROR_NOT_SUPPORTED;
    if (memory > d.g->clock_max[2] || graphics > d.g->clock_max[0]) return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN();
    d.g->clock_app[0] = d.g->clock_app[1] = graphics, d.g->clock_app[2] = memory;
    END();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device) {
    ENTER(kg_gpu_of, device, 1);
    if (!d.g->clock_app_default[0]) return NVML_ERROR_NOT_SUPPORTED;
    BEGIN();
    memcpy(d.g->clock_app, d.g->clock_app_default, sizeof d.g->clock_app);
    END();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t device) {
    ENTER(kg_gpu_of, device, 1);
    return d.g->accounting_mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
