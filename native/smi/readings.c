/* --query-gpu: a reader per kind of reading, and the table of fields over them. Fields keep the vendor's names. */
#define _GNU_SOURCE
#include "readings.h"

#include <stdio.h>
#include <string.h>

#define READER(name) nvmlReturn_t name(const struct cell *cell, U argument, char *out, size_t room)
#define UNUSED (void)argument, (void)room

READER(read_timestamp)
{
    (void)cell, UNUSED;
    format_time(out, room, "%Y/%m/%d %H:%M:%S", true);
    return NVML_SUCCESS;
}

READER(read_index) { UNUSED; snprintf(out, room, "%u", cell->index); return NVML_SUCCESS; }
READER(read_count) { UNUSED; snprintf(out, room, "%u", cell->total); return NVML_SUCCESS; }
READER(read_driver) { (void)cell, (void)argument; return nv(SystemGetDriverVersion)(out, (U)room); }

READER(read_text)
{
    static nvmlReturn_t (*const calls[])(D, char *, U) = {
        nv_DeviceGetName, nv_DeviceGetUUID, nv_DeviceGetSerial, nv_DeviceGetVbiosVersion, nv_DeviceGetInforomImageVersion,
        nv_DeviceGetBoardPartNumber};
    return calls[argument](cell->device, out, (U)room);
}

READER(read_inforom) { return nv(DeviceGetInforomVersion)(cell->device, argument, out, (U)room); }

READER(read_pci)
{
    nvmlPciInfo_t pci;
    nvmlReturn_t rc = nv(DeviceGetPciInfo_v3)(cell->device, &pci);
    if (rc != NVML_SUCCESS)
        return rc;
    if (argument == PCI_BUS_ID) {
        snprintf(out, room, "%.31s", pci.busId);
        return rc;
    }
    const struct { int digits; U value; } parts[] = {
        [PCI_DOMAIN] = {4, pci.domain}, [PCI_BUS] = {2, pci.bus}, [PCI_DEVICE] = {2, pci.device},
        [PCI_DEVICE_ID] = {8, pci.pciDeviceId}, [PCI_SUBSYSTEM] = {8, pci.pciSubSystemId}};
    snprintf(out, room, "0x%0*X", parts[argument].digits, parts[argument].value);
    return rc;
}

READER(read_number)
{
    static nvmlReturn_t (*const calls[])(D, U *) = {
        nv_DeviceGetFanSpeed, nv_DeviceGetCurrPcieLinkGeneration, nv_DeviceGetMaxPcieLinkGeneration,
        nv_DeviceGetGpuMaxPcieLinkGeneration, nv_DeviceGetCurrPcieLinkWidth, nv_DeviceGetMaxPcieLinkWidth,
        nv_DeviceGetAccountingBufferSize, nv_DeviceGetPcieReplayCounter, nv_DeviceGetNumaNodeId};
    U value = 0;
    nvmlReturn_t rc = calls[argument](cell->device, &value);
    snprintf(out, room, "%u", value);
    return rc;
}

static const char *choice(U value, const char *const *texts, size_t count) { return value < count ? texts[value] : "[Unknown Error]"; }
static const char *const on_off[] = {"Disabled", "Enabled"};

READER(read_mode)
{
    static nvmlReturn_t (*const calls[])(D, U *) = {nv_DeviceGetPersistenceMode, nv_DeviceGetDisplayMode, nv_DeviceGetDisplayActive,
                                                    nv_DeviceGetAccountingMode, nv_DeviceGetPowerManagementMode};
    U value = 0;
    nvmlReturn_t rc = calls[argument](cell->device, &value);
    snprintf(out, room, "%s", choice(value, on_off, 2));
    return rc;
}

READER(read_compute_mode)
{
    static const char *const modes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    U value = 0;
    (void)argument;
    nvmlReturn_t rc = nv(DeviceGetComputeMode)(cell->device, &value);
    snprintf(out, room, "%s", choice(value, modes, 4));
    return rc;
}

/* Two-valued modes: now (0) and after the next reset (1). */
READER(read_mig)
{
    U now = 0, next = 0;
    nvmlReturn_t rc = nv(DeviceGetMigMode)(cell->device, &now, &next);
    snprintf(out, room, "%s", choice(argument ? next : now, on_off, 2));
    return rc;
}

READER(read_ecc_mode)
{
    U now = 0, next = 0;
    nvmlReturn_t rc = nv(DeviceGetEccMode)(cell->device, &now, &next);
    snprintf(out, room, "%s", choice(argument ? next : now, on_off, 2));
    return rc;
}

READER(read_operation_mode)
{
    static const char *const modes[] = {"All On", "Compute", "Low Double Precision"};
    U now = 0, next = 0;
    nvmlReturn_t rc = nv(DeviceGetGpuOperationMode)(cell->device, &now, &next);
    snprintf(out, room, "%s", choice(argument ? next : now, modes, 3));
    return rc;
}

READER(read_memory)
{
    nvmlMemory_v2_t memory = {.version = NVML_VERSIONED(nvmlMemory_v2_t, 2)};
    nvmlReturn_t rc = nv(DeviceGetMemoryInfo_v2)(cell->device, &memory);
    if (rc == NVML_ERROR_FUNCTION_NOT_FOUND && argument != MEMORY_RESERVED) {
        nvmlMemory_t old;
        rc = nv(DeviceGetMemoryInfo)(cell->device, &old);
        memory.total = old.total, memory.used = old.used, memory.free = old.free;
    }
    const U64 values[] = {[MEMORY_TOTAL] = memory.total, [MEMORY_USED] = memory.used, [MEMORY_FREE] = memory.free, [MEMORY_RESERVED] = memory.reserved};
    snprintf(out, room, "%llu", values[argument] >> 20);
    return rc;
}

READER(read_utilization)
{
    nvmlUtilization_t rates = {0, 0};
    U value = 0, period = 0;
    nvmlReturn_t rc;
    switch (argument) {
    case UTIL_ENCODER: rc = nv(DeviceGetEncoderUtilization)(cell->device, &value, &period); break;
    case UTIL_DECODER: rc = nv(DeviceGetDecoderUtilization)(cell->device, &value, &period); break;
    case UTIL_JPEG: rc = nv(DeviceGetJpgUtilization)(cell->device, &value, &period); break;
    case UTIL_OFA: rc = nv(DeviceGetOfaUtilization)(cell->device, &value, &period); break;
    default:
        rc = nv(DeviceGetUtilizationRates)(cell->device, &rates);
        value = argument == UTIL_GPU ? rates.gpu : rates.memory;
    }
    if (mig_enabled(cell->device) && argument <= UTIL_MEMORY)
        rc = NVML_ERROR_NOT_SUPPORTED; /* a GPU in MIG mode has no utilisation as a whole */
    snprintf(out, room, "%u", value);
    return rc;
}

READER(read_temperature)
{
    U value = 0;
    (void)argument;
    nvmlReturn_t rc = nv(DeviceGetTemperature)(cell->device, 0, &value);
    snprintf(out, room, "%u", value);
    return rc;
}

READER(read_temperature_limit)
{
    enum { SLOWDOWN = 1 };
    U value = 0, now = 0;
    (void)argument;
    nvmlReturn_t rc = nv(DeviceGetTemperatureThreshold)(cell->device, SLOWDOWN, &value);
    if (rc == NVML_SUCCESS)
        rc = nv(DeviceGetTemperature)(cell->device, 0, &now);
    snprintf(out, room, "%d", (int)value - (int)now);
    return rc;
}

/* A reading that NVML offers as a field value only. */
READER(read_field)
{
    nvmlFieldValue_t field = {.fieldId = argument};
    nvmlReturn_t rc = nv(DeviceGetFieldValues)(cell->device, 1, &field);
    if (rc == NVML_SUCCESS)
        rc = field.nvmlReturn;
    snprintf(out, room, "%u", field.value.uiVal);
    return rc;
}

READER(read_recovery)
{
    static const char *const actions[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain", "Bus Reset", "Reboot"};
    nvmlFieldValue_t field = {.fieldId = argument};
    nvmlReturn_t rc = nv(DeviceGetFieldValues)(cell->device, 1, &field);
    if (rc == NVML_SUCCESS)
        rc = field.nvmlReturn;
    snprintf(out, room, "%s", choice(field.value.uiVal, actions, 8));
    return rc;
}

READER(read_power)
{
    static nvmlReturn_t (*const calls[])(D, U *) = {
        [POWER_DRAW] = nv_DeviceGetPowerUsage, [POWER_LIMIT] = nv_DeviceGetPowerManagementLimit,
        [POWER_ENFORCED] = nv_DeviceGetEnforcedPowerLimit, [POWER_DEFAULT] = nv_DeviceGetPowerManagementDefaultLimit};
    U value = 0, least = 0, most = 0;
    nvmlReturn_t rc;
    if (argument == POWER_MIN || argument == POWER_MAX) {
        rc = nv(DeviceGetPowerManagementLimitConstraints)(cell->device, &least, &most);
        value = argument == POWER_MIN ? least : most;
    } else {
        rc = calls[argument](cell->device, &value);
    }
    snprintf(out, room, "%u.%02u", value / 1000, value % 1000 / 10);
    return rc;
}

/* argument: 16 * how + clock; clocks are 0 graphics, 1 SM, 2 memory, 3 video. */
READER(read_clock)
{
    static nvmlReturn_t (*const calls[])(D, U, U *) = {nv_DeviceGetClockInfo, nv_DeviceGetMaxClockInfo, nv_DeviceGetApplicationsClock,
                                                       nv_DeviceGetDefaultApplicationsClock};
    U value = 0;
    nvmlReturn_t rc = calls[argument / 16](cell->device, argument % 16, &value);
    snprintf(out, room, "%u", value);
    return rc;
}

READER(read_pstate)
{
    U value = 32;
    (void)argument;
    nvmlReturn_t rc = nv(DeviceGetPerformanceState)(cell->device, &value);
    snprintf(out, room, "P%u", value);
    return rc == NVML_SUCCESS && value > 15 ? NVML_ERROR_NOT_SUPPORTED : rc;
}

/* argument: the bit's number, or 64 and 65 for the masks. */
READER(read_reason)
{
    U64 reasons = 0;
    nvmlReturn_t rc = argument == REASONS_SUPPORTED ? nv(DeviceGetSupportedClocksEventReasons)(cell->device, &reasons)
                                                    : nv(DeviceGetCurrentClocksEventReasons)(cell->device, &reasons);
    if (argument >= REASONS_SUPPORTED)
        snprintf(out, room, "0x%016llX", reasons);
    else
        snprintf(out, room, "%s", reasons >> argument & 1 ? "Active" : "Not Active");
    return rc;
}

/* argument: ECC(kind, counter, place); place 15 is the total. */
READER(read_ecc)
{
    U kind = argument >> 8 & 1, counter = argument >> 4 & 1, place = argument & 15, now = 0, next = 0;
    U64 value = 0;
    nvmlReturn_t rc = nv(DeviceGetEccMode)(cell->device, &now, &next);
    if (rc == NVML_SUCCESS && !now)
        return NVML_ERROR_NOT_SUPPORTED;
    if (rc == NVML_SUCCESS)
        rc = place == 15 ? nv(DeviceGetTotalEccErrors)(cell->device, kind, counter, &value)
                         : nv(DeviceGetMemoryErrorCounter)(cell->device, kind, counter, place, &value);
    snprintf(out, room, "%llu", value);
    return rc;
}

READER(read_retired)
{
    U count = 0, pending = 0;
    nvmlReturn_t rc;
    if (argument == 2) {
        rc = nv(DeviceGetRetiredPagesPendingStatus)(cell->device, &pending);
        snprintf(out, room, "%s", pending ? "Yes" : "No");
        return rc;
    }
    rc = nv(DeviceGetRetiredPages)(cell->device, argument, &count, NULL);
    snprintf(out, room, "%u", count);
    return rc == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : rc;
}

READER(read_remapped)
{
    U values[4] = {0, 0, 0, 0};
    nvmlReturn_t rc = nv(DeviceGetRemappedRows)(cell->device, &values[0], &values[1], &values[2], &values[3]);
    snprintf(out, room, "%u", values[argument]);
    return rc;
}

READER(read_histogram)
{
    nvmlRowRemapperHistogramValues_t h = {0, 0, 0, 0, 0};
    nvmlReturn_t rc = nv(DeviceGetRowRemapperHistogram)(cell->device, &h);
    const U values[] = {h.max, h.high, h.partial, h.low, h.none};
    snprintf(out, room, "%u", values[argument]);
    return rc;
}

READER(read_capability)
{
    int major = 0, minor = 0;
    (void)argument;
    nvmlReturn_t rc = nv(DeviceGetCudaComputeCapability)(cell->device, &major, &minor);
    snprintf(out, room, "%d.%d", major, minor);
    return rc;
}

READER(read_fabric)
{
    static const char *const states[] = {"Not Supported", "Not Started", "In Progress", "Completed"};
    nvmlGpuFabricInfo_v2_t info = {.version = NVML_VERSIONED(nvmlGpuFabricInfo_v2_t, 2)};
    nvmlReturn_t rc = nv(DeviceGetGpuFabricInfoV)(cell->device, &info);
    if (rc == NVML_SUCCESS && info.state == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (argument)
        snprintf(out, room, "%s", info.state == 3 ? (info.status == NVML_SUCCESS ? "Success" : nvml_text(info.status)) : "N/A");
    else
        snprintf(out, room, "%s", choice(info.state, states, 4));
    return rc;
}

READER(read_absent) { (void)cell, (void)out, UNUSED; return NVML_ERROR_NOT_SUPPORTED; }

READER(read_gsp)
{
    (void)argument;
    char version[96] = "";
    nvmlReturn_t rc = nv(DeviceGetGspFirmwareVersion)(cell->device, version);
    snprintf(out, room, "%.90s", version);
    return rc;
}
