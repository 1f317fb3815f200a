/* Who uses a GPU: process lists and per-process utilisation.
 *
 * Pids are those of the caller's pid namespace; a process that lives outside of it is not shown, as with the real
 * driver in a container. A MIG device lists its own processes only.
 */
#include "internal.h"

typedef struct entry {
    const kg_process *p;
    uint32_t pid;
} entry;

static uint32_t collect(const kg_dev *d, uint32_t kinds, entry *out) {
    uint32_t found = 0;
    kg_proc_reap(&kg_m, d->gpu);
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++) {
        const kg_process *p = &d->g->process[i];
        if (!p->used || !(p->kind & kinds)) continue;
        if (d->ci && (p->gi_id != d->ci->gi_id || p->ci_id != d->ci->id)) continue;
        int pid = kg_proc_owner(&kg_m, d->gpu, i);
        if (pid > 0) out[found++] = (entry){.p = p, .pid = (uint32_t)pid};
    }
    return found;
}

static nvmlReturn_t list(nvmlDevice_t device, uint32_t kinds, unsigned int *count, void *infos, int version) {
    ENTER(kg_dev_of, device, count);
    FAILS(KG_FAIL_PROCESSES);
    entry found[KG_MAX_PROCESSES];
    uint32_t have = collect(&d, kinds, found), room = *count;
    if (room && !infos) return NVML_ERROR_INVALID_ARGUMENT;
    *count = have;
    if (room < have) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have; i++) {
        const kg_process *p = found[i].p;
        if (version == 1)
            ((nvmlProcessInfo_v1_t *)infos)[i] = (nvmlProcessInfo_v1_t){.pid = found[i].pid, .usedGpuMemory = p->memory};
        else
            ((nvmlProcessInfo_t *)infos)[i] = (nvmlProcessInfo_t){.pid = found[i].pid,
                                                                  .usedGpuMemory = p->memory,
                                                                  .gpuInstanceId = p->gi_id,
                                                                  .computeInstanceId = p->ci_id};
    }
    return NVML_SUCCESS;
}

#define LISTS(name, kind)                                                                                       \
    EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) {       \
        return list(d, kind, n, out, 1);                                                                        \
    }                                                                                                           \
    EXPORT nvmlReturn_t nvmlDeviceGet##name##_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) {     \
        return list(d, kind, n, out, 2);                                                                        \
    }                                                                                                           \
    EXPORT nvmlReturn_t nvmlDeviceGet##name##_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) {     \
        return list(d, kind, n, out, 3);                                                                        \
    }
LISTS(ComputeRunningProcesses, KG_PROC_COMPUTE | KG_PROC_MPS)
LISTS(GraphicsRunningProcesses, KG_PROC_GRAPHICS)
LISTS(MPSComputeRunningProcesses, KG_PROC_MPS)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out) {
    static const uint32_t kinds[] = {KG_PROC_COMPUTE, KG_PROC_GRAPHICS, KG_PROC_MPS,
                                     KG_PROC_COMPUTE | KG_PROC_GRAPHICS | KG_PROC_MPS};
    ENTER(kg_dev_of, device, out);
    SINCE(535);
    VERSIONED(out, nvmlProcessDetailList_t, 1);
    if (out->mode > 3) return NVML_ERROR_INVALID_ARGUMENT;
    entry found[KG_MAX_PROCESSES];
    uint32_t have = collect(&d, kinds[out->mode], found), room = out->numProcArrayEntries;
    if (room && !out->procArray) return NVML_ERROR_INVALID_ARGUMENT;
    out->numProcArrayEntries = have;
    if (room < have) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have; i++)
        out->procArray[i] = (nvmlProcessDetail_t){.pid = found[i].pid,
                                                  .usedGpuMemory = found[i].p->memory,
                                                  .gpuInstanceId = found[i].p->gi_id,
                                                  .computeInstanceId = found[i].p->ci_id};
    return NVML_SUCCESS;
}

static nvmlReturn_t sampled(nvmlDevice_t device, kg_dev *d) {
    nvmlReturn_t rc = kg_gpu_of(device, d);
    return rc == NVML_SUCCESS && d->g->mig_current ? NVML_ERROR_NOT_SUPPORTED : rc;
}

/* Percent from `from` to `to`: kernels of its own, and what its load profile says. */
static uint32_t part(const kg_process *p, uint32_t steady, uint32_t channel, uint64_t from, uint64_t to) {
    uint64_t sum = steady + kg_process_area(kg_m.state, p, channel, from, to) * p->load_share / 1000 / (to - from);
    return (uint32_t)(sum > 100 ? 100 : sum);
}

/* A process's newest sample after `last` (us); as the driver's, only of a time in which it has used something. */
typedef struct use {
    uint64_t us;
    uint32_t sm, memory;
} use;

static int newest(const kg_process *p, uint64_t now, uint64_t last, use *out) {
    uint64_t length = 1000;
    for (int kept = 0; kept < KG_SAMPLES_KEPT; kept++, now -= length, length = KG_SAMPLE_NS) {
        if (now / 1000 <= last || now < p->start_us * 1000) return 0;
        uint64_t from = kept ? now - length : now, to = from + length;
        *out = (use){now / 1000, part(p, p->sm_util, KG_LOAD_GR, from, to), part(p, p->mem_util, KG_LOAD_DRAM, from, to)};
        if (out->sm || out->memory || p->enc_util || p->dec_util) return 1;
    }
    return 0;
}

/* Of all processes, those without a sample left out. */
static uint32_t samples(const kg_dev *d, uint64_t last, entry *found, use *uses) {
    uint32_t have = collect(d, ~0u, found), sampled = 0;
    uint64_t now = kg_now_ns(kg_m.state);
    for (uint32_t i = 0; i < have; i++)
        if (newest(found[i].p, now, last, &uses[sampled])) found[sampled++] = found[i];
    return sampled;
}

/* The same over its life so far. */
static uint32_t average(const kg_process *p, uint32_t steady, uint32_t channel) {
    uint64_t start = p->start_us * 1000, now = kg_now_ns(kg_m.state), life = now > start ? now - start : 1;
    uint64_t sum = steady + kg_process_area(kg_m.state, p, channel, start, now) / 1000 * p->load_share / life;
    return (uint32_t)(sum > 100 ? 100 : sum);
}

/* One sample per process; no newer one than `last` is NOT_FOUND, as is a GPU without processes. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                    unsigned int *count, unsigned long long last) {
    ENTER(sampled, device, count);
    entry found[KG_MAX_PROCESSES];
    use uses[KG_MAX_PROCESSES];
    uint32_t have = samples(&d, last, found, uses), room = *count;
    *count = have;
    if (!have) return NVML_ERROR_NOT_FOUND;
    if (!out || room < have) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have; i++)
        out[i] = (nvmlProcessUtilizationSample_t){.pid = found[i].pid,
                                                  .timeStamp = uses[i].us,
                                                  .smUtil = uses[i].sm,
                                                  .memUtil = uses[i].memory,
                                                  .encUtil = found[i].p->enc_util,
                                                  .decUtil = found[i].p->dec_util};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *out) {
    ENTER(sampled, device, out);
    SINCE(550);
    VERSIONED(out, nvmlProcessesUtilizationInfo_t, 1);
    entry found[KG_MAX_PROCESSES];
    use uses[KG_MAX_PROCESSES];
    uint32_t have = samples(&d, out->lastSeenTimeStamp, found, uses), room = out->processSamplesCount;
    out->processSamplesCount = have;
    if (!have) return NVML_ERROR_NOT_FOUND;
    if (!out->procUtilArray || room < have) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have; i++)
        out->procUtilArray[i] = (nvmlProcessUtilizationInfo_t){.timeStamp = uses[i].us,
                                                               .pid = found[i].pid,
                                                               .smUtil = uses[i].sm,
                                                               .memUtil = uses[i].memory,
                                                               .encUtil = found[i].p->enc_util,
                                                               .decUtil = found[i].p->dec_util};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    ENTER(kg_gpu_of, device, count);
    if (!d.g->accounting_mode) return NVML_ERROR_NOT_SUPPORTED;
    entry found[KG_MAX_PROCESSES];
    uint32_t have = collect(&d, ~0u, found), room = *count;
    *count = have;
    if (room < have || (have && !pids)) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have; i++) pids[i] = found[i].pid;
    return NVML_SUCCESS;
}

/* Averages over a running process's life; `time` is 0 until it ends, and then it is forgotten here. */
EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *out) {
    ENTER(kg_gpu_of, device, out);
    if (!d.g->accounting_mode) return NVML_ERROR_NOT_SUPPORTED;
    entry found[KG_MAX_PROCESSES];
    uint32_t have = collect(&d, ~0u, found);
    for (uint32_t i = 0; i < have; i++) {
        const kg_process *p = found[i].p;
        if (found[i].pid != pid) continue;
        *out = (nvmlAccountingStats_t){.gpuUtilization = average(p, p->sm_util, KG_LOAD_GR),
                                       .memoryUtilization = average(p, p->mem_util, KG_LOAD_DRAM),
                                       .maxMemoryUsage = p->memory,
                                       .startTime = p->start_us,
                                       .isRunning = 1};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
