/* Memory, ECC, retired pages, remapped rows. */
#include "internal.h"

static nvmlReturn_t split(const kg_dev *d, uint64_t *total, uint64_t *reserved, uint64_t *used) {
    *total = kg_memory_total(d);
    *used = kg_memory_used(d);
    *reserved = d->gi ? 0 : d->g->mem_reserved;
    if (*reserved > *total) *reserved = *total;
    if (*used > *total - *reserved) *used = *total - *reserved;
    return NVML_SUCCESS;
}

/* Version 1 counts what the driver keeps as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    ENTER(kg_dev_of, device, memory);
    FAILS(KG_FAIL_MEMORY);
    uint64_t total, reserved, used;
    split(&d, &total, &reserved, &used);
    *memory = (nvmlMemory_t){.total = total, .free = total - reserved - used, .used = reserved + used};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    ENTER(kg_dev_of, device, memory);
    SINCE(510);
    VERSIONED(memory, nvmlMemory_v2_t, 2);
    FAILS(KG_FAIL_MEMORY);
    uint64_t total, reserved, used;
    split(&d, &total, &reserved, &used);
    memory->total = total, memory->reserved = reserved, memory->used = used, memory->free = total - reserved - used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    ENTER(kg_dev_of, device, memory);
    uint64_t used = d.g->bar1_used > d.g->bar1_total ? d.g->bar1_total : d.g->bar1_used;
    *memory = (nvmlBAR1Memory_t){.bar1Total = d.g->bar1_total, .bar1Free = d.g->bar1_total - used, .bar1Used = used};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *info) {
    ENTER(kg_gpu_of, device, info);
    SINCE(535);
    if (d.g->architecture < 9) return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlConfComputeMemSizeInfo_t){.unprotectedMemSizeKib = d.g->mem_total >> 10};
    return NVML_SUCCESS;
}

static nvmlReturn_t ecc_enter(nvmlDevice_t device, kg_dev *d) {
    nvmlReturn_t rc = kg_dev_of(device, d);
    return rc == NVML_SUCCESS && !d->g->ecc_supported ? NVML_ERROR_NOT_SUPPORTED : rc;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    ENTER(ecc_enter, device, current && pending);
    *current = d.g->ecc_current, *pending = d.g->ecc_pending;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned int *mode) {
    ENTER(ecc_enter, device, mode);
    *mode = d.g->ecc_default;
    return NVML_SUCCESS;
}

static nvmlReturn_t counting(nvmlDevice_t device, kg_dev *d) {
    nvmlReturn_t rc = ecc_enter(device, d);
    return rc == NVML_SUCCESS && !d->g->ecc_current ? NVML_ERROR_NOT_SUPPORTED : rc;
}

uint64_t kg_ecc_total(const kg_gpu *g, int uncorrected, int aggregate) {
    const uint64_t *counts = (aggregate ? g->ecc_aggregate : g->ecc_volatile) + (uncorrected ? 7 : 0);
    uint64_t sum = 0;
    for (int i = 0; i < 7; i++) sum += counts[i];
    return sum;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                unsigned long long *count) {
    ENTER(counting, device, count && error < 2 && counter < 2);
    *count = kg_ecc_total(d.g, error == 1, counter == 1);
    return NVML_SUCCESS;
}

/* Locations 0..6 are counted one by one, 7 (SRAM) is everything but the DRAM. Of a MIG device the driver knows only
 * volatile uncorrected errors of what is not DRAM; here they are all in the L2 cache. */
static nvmlReturn_t slice_errors(const kg_ci *slice, unsigned int error, unsigned int counter, unsigned int location,
                                 unsigned long long *count) {
    if (error != 1 || counter != 0 || location == 2) return NVML_ERROR_NOT_SUPPORTED;
    *count = location == 1 || location == 7 ? slice->ecc_sram : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                    unsigned int location, unsigned long long *count) {
    ENTER(counting, device, count && error < 2 && counter < 2 && location < 8);
    if (d.ci) return slice_errors(d.ci, error, counter, location, count);
    const uint64_t *counts = (counter ? d.g->ecc_aggregate : d.g->ecc_volatile) + error * 7;
    *count = location < 7 ? counts[location] : kg_ecc_total(d.g, error == 1, counter == 1) - counts[2];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                   nvmlEccErrorCounts_t *out) {
    ENTER(counting, device, out && error < 2 && counter < 2);
    const uint64_t *counts = (counter ? d.g->ecc_aggregate : d.g->ecc_volatile) + error * 7;
    *out = (nvmlEccErrorCounts_t){
        .l1Cache = counts[0], .l2Cache = counts[1], .deviceMemory = counts[2], .registerFile = counts[3]};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status) {
    ENTER(counting, device, status);
    SINCE(550);
    VERSIONED(status, nvmlEccSramErrorStatus_t, 1);
    unsigned int version = status->version;
    memset(status, 0, sizeof *status);
    status->version = version;
    status->aggregateCor = kg_ecc_total(d.g, 0, 1) - d.g->ecc_aggregate[2];
    status->volatileCor = kg_ecc_total(d.g, 0, 0) - d.g->ecc_volatile[2];
    status->aggregateUncSecDed = kg_ecc_total(d.g, 1, 1) - d.g->ecc_aggregate[9];
    status->volatileUncSecDed = kg_ecc_total(d.g, 1, 0) - d.g->ecc_volatile[9];
    status->aggregateUncBucketL2 = d.g->ecc_aggregate[8];
    status->aggregateUncBucketSm = status->aggregateUncSecDed - d.g->ecc_aggregate[8];
    status->bThresholdExceeded = d.g->sram_threshold_exceeded;
    return NVML_SUCCESS;
}

/* Turing and older data center GPUs retire pages; later ones remap rows instead. */
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                                 unsigned long long *addresses, unsigned long long *times) {
    ENTER(ecc_enter, device, count && cause < 2);
    if (d.ci || d.g->remap_supported) return NVML_ERROR_NOT_SUPPORTED;
    uint32_t have = cause ? d.g->retired_dbe_count : d.g->retired_sbe_count, room = *count;
    const uint64_t *where = cause ? d.g->retired_dbe : d.g->retired_sbe;
    const uint64_t *when = cause ? d.g->retired_dbe_us : d.g->retired_sbe_us;
    if (have > KG_MAX_RETIRED) have = KG_MAX_RETIRED;
    *count = have;
    if (room < have) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have && addresses; i++) addresses[i] = where[i];
    for (uint32_t i = 0; i < have && times; i++) times[i] = when[i];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                              unsigned long long *addresses) {
    return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending) {
    ENTER(ecc_enter, device, pending);
    if (d.ci || d.g->remap_supported) return NVML_ERROR_NOT_SUPPORTED;
    *pending = d.g->retired_pending;
    return NVML_SUCCESS;
}

static nvmlReturn_t remap_enter(nvmlDevice_t device, kg_dev *d) {
    nvmlReturn_t rc = kg_gpu_of(device, d);
    return rc == NVML_SUCCESS && !d->g->remap_supported ? NVML_ERROR_NOT_SUPPORTED : rc;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                              unsigned int *pending, unsigned int *failed) {
    ENTER(remap_enter, device, corrected && uncorrected && pending && failed);
    *corrected = d.g->remap_corrected, *uncorrected = d.g->remap_uncorrected;
    *pending = d.g->remap_pending, *failed = d.g->remap_failed;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info) {
    ENTER(remap_enter, device, info);
    SINCE(580);
    *info = (nvmlRemappedRowsInfo_v2_t){.corrActiveRemaps = d.g->remap_corrected,
                                        .corrInactiveRemaps = d.g->remap_corrected_inactive,
                                        .uncActiveRemaps = d.g->remap_uncorrected,
                                        .uncInactiveRemaps = d.g->remap_uncorrected_inactive,
                                        .bPending = d.g->remap_pending,
                                        .bFailureOccurred = d.g->remap_failed};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out) {
    ENTER(remap_enter, device, out);
    const uint32_t *h = d.g->remap_histogram;
    *out = (nvmlRowRemapperHistogramValues_t){.max = h[0], .high = h[1], .partial = h[2], .low = h[3], .none = h[4]};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, unsigned int *flag) {
    ENTER(remap_enter, device, flag);
    SINCE(580);
    *flag = d.g->unrepairable_memory;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status) {
    ENTER(remap_enter, device, status);
    SINCE(575);
    VERSIONED(status, nvmlRepairStatus_t, 1);
    status->bChannelRepairPending = d.g->remap_pending, status->bTpcRepairPending = 0;
    return NVML_SUCCESS;
}
