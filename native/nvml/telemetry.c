/* Clocks, power, temperature, fans, utilisation, throughput: what changes from second to second. */
#include "internal.h"

#define READ(function, type, condition, expression)                   \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, type *value) {  \
        ENTER(kg_gpu_of, device, value);                              \
        if (!(condition)) return NVML_ERROR_NOT_SUPPORTED;            \
        *value = (type)(expression);                                  \
        return NVML_SUCCESS;                                          \
    }
EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *value) {
    ENTER(kg_gpu_of, device, value);
    if (!d.g->power_supported) return NVML_ERROR_NOT_SUPPORTED;
    FAILS(KG_FAIL_POWER);
    *value = kg_power_mw(d.g);
    return NVML_SUCCESS;
}
READ(nvmlDeviceGetPowerManagementMode, unsigned int, 1, d.g->power_supported)
READ(nvmlDeviceGetPowerManagementLimit, unsigned int, d.g->power_supported, d.g->power_limit_mw)
READ(nvmlDeviceGetEnforcedPowerLimit, unsigned int, d.g->power_supported, d.g->power_limit_mw)
READ(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, d.g->power_supported, d.g->power_limit_default_mw)
READ(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, d.g->power_supported && d.g->architecture >= 5,
     kg_energy_mj(d.g))
READ(nvmlDeviceGetFanSpeed, unsigned int, d.g->fan_count, kg_fan(d.g))
READ(nvmlDeviceGetNumFans, unsigned int, 1, d.g->fan_count)
READ(nvmlDeviceGetPerformanceState, unsigned int, 1, kg_utilization(d.g) ? d.g->pstate_busy : d.g->pstate_idle)
READ(nvmlDeviceGetPowerState, unsigned int, 1, kg_utilization(d.g) ? d.g->pstate_busy : d.g->pstate_idle)
READ(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1, kg_throttle(d.g))
READ(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1, 0x1FF)
READ(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, kg_driver_at_least(535), 0x1FF)
READ(nvmlDeviceGetAdaptiveClockInfoStatus, unsigned int, 1, 1)

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    ENTER(kg_gpu_of, device, reasons);
    SINCE(535);
    *reasons = kg_throttle(d.g);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minimum,
                                                                 unsigned int *maximum) {
    ENTER(kg_gpu_of, device, minimum && maximum);
    if (!d.g->power_supported) return NVML_ERROR_NOT_SUPPORTED;
    *minimum = d.g->power_limit_min_mw, *maximum = d.g->power_limit_max_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed) {
    ENTER(kg_gpu_of, device, speed);
    if (!d.g->fan_count) return NVML_ERROR_NOT_SUPPORTED;
    if (fan >= d.g->fan_count) return NVML_ERROR_INVALID_ARGUMENT;
    *speed = kg_fan(d.g);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan, unsigned int *speed) {
    return nvmlDeviceGetFanSpeed_v2(device, fan, speed);
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, nvmlFanSpeedInfo_t *info) {
    ENTER(kg_gpu_of, device, info);
    SINCE(565);
    VERSIONED(info, nvmlFanSpeedInfo_t, 1);
    if (!d.g->fan_count) return NVML_ERROR_NOT_SUPPORTED;
    if (info->fan >= d.g->fan_count) return NVML_ERROR_INVALID_ARGUMENT;
    info->speed = kg_fan(d.g) * 45;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinMaxFanSpeed(nvmlDevice_t device, unsigned int *minimum, unsigned int *maximum) {
    ENTER(kg_gpu_of, device, minimum && maximum);
    if (!d.g->fan_count) return NVML_ERROR_NOT_SUPPORTED;
    *minimum = d.g->fan_idle, *maximum = 100;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *value) {
    ENTER(kg_gpu_of, device, value && sensor == 0);
    FAILS(KG_FAIL_TEMPERATURE);
    *value = (unsigned int)kg_temperature(d.g);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *out) {
    ENTER(kg_gpu_of, device, out);
    SINCE(570);
    VERSIONED(out, nvmlTemperature_v1_t, 1);
    if (out->sensorType != 0) return NVML_ERROR_INVALID_ARGUMENT;
    out->temperature = kg_temperature(d.g);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int kind, unsigned int *value) {
    ENTER(kg_gpu_of, device, value && kind < 8);
    const int32_t limits[8] = {d.g->temp_shutdown, d.g->temp_slowdown, d.g->temp_mem_max, d.g->temp_gpu_max, 0,
                               d.g->temp_acoustic, 0, 0};
    if (limits[kind] <= 0) return NVML_ERROR_NOT_SUPPORTED;
    *value = (unsigned int)limits[kind];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlVersionedValue_t *out) {
    ENTER(kg_gpu_of, device, out);
    SINCE(565);
    VERSIONED(out, nvmlVersionedValue_t, 1);
    if (d.g->architecture < 8 || d.g->temp_slowdown <= 0) return NVML_ERROR_NOT_SUPPORTED;
    out->value = (unsigned int)(d.g->temp_slowdown - kg_temperature(d.g));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int kind, unsigned int *clock) {
    ENTER(kg_gpu_of, device, clock && kind < 4);
    FAILS(KG_FAIL_CLOCKS);
    *clock = kg_clock(d.g, kind);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int kind, unsigned int *clock) {
    ENTER(kg_gpu_of, device, clock && kind < 4);
    *clock = d.g->clock_max[kind];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned int kind, unsigned int *clock) {
    return nvmlDeviceGetMaxClockInfo(device, kind, clock);
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int kind, unsigned int id, unsigned int *clock) {
    ENTER(kg_gpu_of, device, clock && kind < 4 && id < 4);
    const uint32_t clocks[4] = {kg_clock(d.g, kind), d.g->clock_app[kind], d.g->clock_app_default[kind],
                                d.g->clock_max[kind]};
    if (!clocks[id]) return NVML_ERROR_NOT_SUPPORTED;
    *clock = clocks[id];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int kind, unsigned int *clock) {
    return nvmlDeviceGetClock(device, kind, 1, clock);
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int kind, unsigned int *clock) {
    return nvmlDeviceGetClock(device, kind, 2, clock);
}

static nvmlReturn_t give_clocks(unsigned int *count, unsigned int *out, unsigned int top, unsigned int step,
                                unsigned int bottom) {
    unsigned int room = *count, have = top > bottom && step ? (top - bottom) / step + 1 : 1;
    *count = have;
    if (!out || room < have) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < have; i++) out[i] = top - i * step;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks) {
    ENTER(kg_gpu_of, device, count);
    return give_clocks(count, clocks, d.g->clock_max[2], 0, d.g->clock_max[2]);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory, unsigned int *count,
                                                         unsigned int *clocks) {
    ENTER(kg_gpu_of, device, count);
    if (memory != d.g->clock_max[2]) return NVML_ERROR_NOT_FOUND;
    uint32_t top = d.g->clock_max[0] > 10000 ? 10000 : d.g->clock_max[0];
    return give_clocks(count, clocks, top, 15, top > 210 ? top % 15 + 210 : top);
}

/* Nothing is measured per GPU while it is cut into instances. */
static nvmlReturn_t whole_of(nvmlDevice_t device, kg_dev *d) {
    nvmlReturn_t rc = kg_gpu_of(device, d);
    return rc == NVML_SUCCESS && d->g->mig_current ? NVML_ERROR_NOT_SUPPORTED : rc;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    ENTER(whole_of, device, out);
    FAILS(KG_FAIL_UTILIZATION);
    *out = (nvmlUtilization_t){.gpu = kg_utilization(d.g), .memory = kg_memory_utilization(d.g)};
    return NVML_SUCCESS;
}

static uint32_t engine(const kg_gpu *g, int decoder) {
    uint64_t sum = decoder ? g->dec_util : g->enc_util;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++)
        if (g->process[i].used) sum += decoder ? g->process[i].dec_util : g->process[i].enc_util;
    return (uint32_t)(sum > 100 ? 100 : sum);
}

#define ENGINE(function, expression)                                                                 \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *value, unsigned int *period) {   \
        ENTER(whole_of, device, value && period);                                                    \
        FAILS(KG_FAIL_UTILIZATION);                                                                  \
        uint32_t percent = (expression);                                                             \
        *value = percent > 100 ? 100 : percent, *period = 167000;                                    \
        return NVML_SUCCESS;                                                                         \
    }
ENGINE(nvmlDeviceGetEncoderUtilization, engine(d.g, 0))
ENGINE(nvmlDeviceGetDecoderUtilization, engine(d.g, 1))
ENGINE(nvmlDeviceGetJpgUtilization, d.g->jpg_util)
ENGINE(nvmlDeviceGetOfaUtilization, d.g->ofa_util)

EXPORT nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps,
                                              unsigned int *latency) {
    ENTER(kg_gpu_of, device, sessions && fps && latency);
    *sessions = *fps = *latency = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *value) {
    ENTER(kg_gpu_of, device, value && counter < 2);
    uint64_t full = counter ? d.g->pcie_rx_kbs : d.g->pcie_tx_kbs;
    *value = (unsigned int)(full * kg_traffic(d.g, counter ? KG_LOAD_PCIE_RX : KG_LOAD_PCIE_TX) / ALL_BUSY);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *out) {
    ENTER(whole_of, device, out);
    memset(out, 0, sizeof *out);
    uint32_t values[4] = {kg_utilization(d.g), kg_memory_utilization(d.g), engine(d.g, 1), 0};
    for (int i = 0; i < 4; i++) out->utilization[i].bIsPresent = 1, out->utilization[i].percentage = values[i];
    return NVML_SUCCESS;
}

/* NVML_PERF_POLICY_*: 0 power, 1 thermal, 2 sync boost, 3 board limit, 4 low utilisation, 5 reliability. */
EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned int policy, nvmlViolationTime_t *out) {
    ENTER(kg_gpu_of, device, out && policy < 12);
    if (policy > 5) return NVML_ERROR_NOT_SUPPORTED;
    out->referenceTime = kg_now_ns(kg_m.state) / 1000, out->violationTime = kg_throttle_ns(d.g, policy);
    return NVML_SUCCESS;
}

/* The last samples by nvmlSamplingType_t, oldest first; the buffer begins anew when the load changes, for
 * what was there before is not known any more. `since` leaves out what the caller has. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned int type, unsigned long long since,
                                         unsigned int *value_type, unsigned int *count, nvmlSample_t *samples) {
    ENTER(whole_of, device, value_type && count && type < 10);
    if (!samples) {
        *count = KG_SAMPLES_KEPT;
        return NVML_SUCCESS;
    }
    uint64_t tick = kg_now_ns(kg_m.state) / KG_SAMPLE_NS, room = *count;
    uint32_t found = 0;
    kg_proc_reap(&kg_m, d.gpu);
    if (room < 1) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint64_t at = tick - (room < KG_SAMPLES_KEPT ? room : KG_SAMPLES_KEPT) + 1; at <= tick; at++) {
        uint64_t ns = at * KG_SAMPLE_NS;
        if (ns / 1000 <= since || (at < tick && ns < d.g->load_since_ns)) continue;
        uint32_t value = type == 3 || type == 4 ? engine(d.g, type == 4) : kg_sample(d.g, type, ns);
        samples[found++] = (nvmlSample_t){.timeStamp = ns / 1000, .sampleValue = {.uiVal = value}};
    }
    *value_type = 1, *count = found;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
