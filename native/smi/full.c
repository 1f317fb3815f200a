/* nvidia-smi -q: everything about a GPU, section by section. Rows name the fields of --query-gpu that they show. */
#define _GNU_SOURCE
#include "readings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { COLON = 42 }; /* column of the colon, whatever the indent */

struct row { const char *section; int indent; const char *label, *field; };

/* section: name for -d; NULL: shown only without -d. A row without field is a heading. */
static const struct row rows[] = {
    {NULL, 1, "Product Name", "name"},
    {NULL, 1, "Display Attached", "display_attached"},
    {NULL, 1, "Display Active", "display_active"},
    {NULL, 1, "Persistence Mode", "persistence_mode"},
    {NULL, 1, "Addressing Mode", "addressing_mode"},
    {NULL, 1, "MIG Mode", NULL},
    {NULL, 2, "Current", "mig.mode.current"},
    {NULL, 2, "Pending", "mig.mode.pending"},
    {"ACCOUNTING", 1, "Accounting Mode", "accounting.mode"},
    {"ACCOUNTING", 1, "Accounting Mode Buffer Size", "accounting.buffer_size"},
    {NULL, 1, "Serial Number", "serial"},
    {NULL, 1, "GPU UUID", "uuid"},
    {NULL, 1, "VBIOS Version", "vbios_version"},
    {NULL, 1, "Board Part Number", "board.part_number"},
    {NULL, 1, "Inforom Version", NULL},
    {NULL, 2, "Image Version", "inforom.img"},
    {NULL, 2, "OEM Object", "inforom.oem"},
    {NULL, 2, "ECC Object", "inforom.ecc"},
    {NULL, 2, "Power Management Object", "inforom.pwr"},
    {NULL, 1, "GPU Operation Mode", NULL},
    {NULL, 2, "Current", "gom.current"},
    {NULL, 2, "Pending", "gom.pending"},
    {NULL, 1, "GSP Firmware Version", "gsp.version"},
    {NULL, 1, "GPU Recovery Action", "gpu_recovery_action"},
    {NULL, 1, "PCI", NULL},
    {NULL, 2, "Bus", "pci.bus"},
    {NULL, 2, "Device", "pci.device"},
    {NULL, 2, "Domain", "pci.domain"},
    {NULL, 2, "Device Id", "pci.device_id"},
    {NULL, 2, "Bus Id", "pci.bus_id"},
    {NULL, 2, "Sub System Id", "pci.sub_device_id"},
    {NULL, 2, "GPU Link Info", NULL},
    {NULL, 3, "PCIe Generation", NULL},
    {NULL, 4, "Max", "pcie.link.gen.max"},
    {NULL, 4, "Current", "pcie.link.gen.current"},
    {NULL, 4, "Device Max", "pcie.link.gen.gpumax"},
    {NULL, 3, "Link Width", NULL},
    {NULL, 4, "Max", "pcie.link.width.max"},
    {NULL, 4, "Current", "pcie.link.width.current"},
    {NULL, 1, "Fan Speed", "fan.speed"},
    {"PERFORMANCE", 1, "Performance State", "pstate"},
    {"PERFORMANCE", 1, "Clocks Event Reasons", NULL},
    {"PERFORMANCE", 2, "Idle", "clocks_event_reasons.gpu_idle"},
    {"PERFORMANCE", 2, "Applications Clocks Setting", "clocks_event_reasons.applications_clocks_setting"},
    {"PERFORMANCE", 2, "SW Power Cap", "clocks_event_reasons.sw_power_cap"},
    {"PERFORMANCE", 2, "HW Slowdown", "clocks_event_reasons.hw_slowdown"},
    {"PERFORMANCE", 3, "HW Thermal Slowdown", "clocks_event_reasons.hw_thermal_slowdown"},
    {"PERFORMANCE", 3, "HW Power Brake Slowdown", "clocks_event_reasons.hw_power_brake_slowdown"},
    {"PERFORMANCE", 2, "Sync Boost", "clocks_event_reasons.sync_boost"},
    {"PERFORMANCE", 2, "SW Thermal Slowdown", "clocks_event_reasons.sw_thermal_slowdown"},
    {"MEMORY", 1, "FB Memory Usage", NULL},
    {"MEMORY", 2, "Total", "memory.total"},
    {"MEMORY", 2, "Reserved", "memory.reserved"},
    {"MEMORY", 2, "Used", "memory.used"},
    {"MEMORY", 2, "Free", "memory.free"},
    {"COMPUTE", 1, "Compute Mode", "compute_mode"},
    {"UTILIZATION", 1, "Utilization", NULL},
    {"UTILIZATION", 2, "GPU", "utilization.gpu"},
    {"UTILIZATION", 2, "Memory", "utilization.memory"},
    {"UTILIZATION", 2, "Encoder", "utilization.encoder"},
    {"UTILIZATION", 2, "Decoder", "utilization.decoder"},
    {"UTILIZATION", 2, "JPEG", "utilization.jpeg"},
    {"UTILIZATION", 2, "OFA", "utilization.ofa"},
    {"ECC", 1, "ECC Mode", NULL},
    {"ECC", 2, "Current", "ecc.mode.current"},
    {"ECC", 2, "Pending", "ecc.mode.pending"},
    {"ECC", 1, "ECC Errors", NULL},
    {"ECC", 2, "Volatile", NULL},
    {"ECC", 3, "SRAM Correctable", "ecc.errors.corrected.volatile.sram"},
    {"ECC", 3, "SRAM Uncorrectable", "ecc.errors.uncorrected.volatile.sram"},
    {"ECC", 3, "DRAM Correctable", "ecc.errors.corrected.volatile.dram"},
    {"ECC", 3, "DRAM Uncorrectable", "ecc.errors.uncorrected.volatile.dram"},
    {"ECC", 2, "Aggregate", NULL},
    {"ECC", 3, "SRAM Correctable", "ecc.errors.corrected.aggregate.sram"},
    {"ECC", 3, "SRAM Uncorrectable", "ecc.errors.uncorrected.aggregate.sram"},
    {"ECC", 3, "DRAM Correctable", "ecc.errors.corrected.aggregate.dram"},
    {"ECC", 3, "DRAM Uncorrectable", "ecc.errors.uncorrected.aggregate.dram"},
    {"PAGE_RETIREMENT", 1, "Retired Pages", NULL},
    {"PAGE_RETIREMENT", 2, "Single Bit ECC", "retired_pages.single_bit_ecc.count"},
    {"PAGE_RETIREMENT", 2, "Double Bit ECC", "retired_pages.double_bit.count"},
    {"PAGE_RETIREMENT", 2, "Pending Page Blacklist", "retired_pages.pending"},
    {"ROW_REMAPPER", 1, "Remapped Rows", NULL},
    {"ROW_REMAPPER", 2, "Correctable Error", "remapped_rows.correctable"},
    {"ROW_REMAPPER", 2, "Uncorrectable Error", "remapped_rows.uncorrectable"},
    {"ROW_REMAPPER", 2, "Pending", "remapped_rows.pending"},
    {"ROW_REMAPPER", 2, "Remapping Failure Occurred", "remapped_rows.failure"},
    {"ROW_REMAPPER", 2, "Bank Remap Availability Histogram", NULL},
    {"ROW_REMAPPER", 3, "Max", "remapped_rows.histogram.max"},
    {"ROW_REMAPPER", 3, "High", "remapped_rows.histogram.high"},
    {"ROW_REMAPPER", 3, "Partial", "remapped_rows.histogram.partial"},
    {"ROW_REMAPPER", 3, "Low", "remapped_rows.histogram.low"},
    {"ROW_REMAPPER", 3, "None", "remapped_rows.histogram.none"},
    {"TEMPERATURE", 1, "Temperature", NULL},
    {"TEMPERATURE", 2, "GPU Current Temp", "temperature.gpu"},
    {"TEMPERATURE", 2, "GPU T.Limit Temp", "temperature.gpu.tlimit"},
    {"TEMPERATURE", 2, "Memory Current Temp", "temperature.memory"},
    {"POWER", 1, "GPU Power Readings", NULL},
    {"POWER", 2, "Average Power Draw", "power.draw.average"},
    {"POWER", 2, "Instantaneous Power Draw", "power.draw.instant"},
    {"POWER", 2, "Current Power Limit", "enforced.power.limit"},
    {"POWER", 2, "Requested Power Limit", "power.limit"},
    {"POWER", 2, "Default Power Limit", "power.default_limit"},
    {"POWER", 2, "Min Power Limit", "power.min_limit"},
    {"POWER", 2, "Max Power Limit", "power.max_limit"},
    {"CLOCK", 1, "Clocks", NULL},
    {"CLOCK", 2, "Graphics", "clocks.current.graphics"},
    {"CLOCK", 2, "SM", "clocks.current.sm"},
    {"CLOCK", 2, "Memory", "clocks.current.memory"},
    {"CLOCK", 2, "Video", "clocks.current.video"},
    {"CLOCK", 1, "Applications Clocks", NULL},
    {"CLOCK", 2, "Graphics", "clocks.applications.graphics"},
    {"CLOCK", 2, "Memory", "clocks.applications.memory"},
    {"CLOCK", 1, "Max Clocks", NULL},
    {"CLOCK", 2, "Graphics", "clocks.max.graphics"},
    {"CLOCK", 2, "SM", "clocks.max.sm"},
    {"CLOCK", 2, "Memory", "clocks.max.memory"},
    {NULL, 1, "Fabric", NULL},
    {NULL, 2, "State", "fabric.state"},
    {NULL, 2, "Status", "fabric.status"},
};

static const char *const other_sections[] = {"PIDS", "SUPPORTED_CLOCKS"};

static void line(int indent, const char *label, const char *value)
{
    int blank = indent * 4;
    printf("%*s%-*s: %s\n", blank, "", COLON - blank, label, value);
}

static bool wanted(const char *sections, const char *section)
{
    if (!sections)
        return true;
    size_t length = section ? strlen(section) : 0;
    for (const char *p = sections; section && *p; p += strcspn(p, ","), p += *p == ',') {
        size_t word = strcspn(p, ",");
        if (word == length && strncasecmp(p, section, length) == 0)
            return true;
    }
    return false;
}

static bool known_section(const char *word, size_t length)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].section && strlen(rows[i].section) == length && strncasecmp(rows[i].section, word, length) == 0)
            return true;
    for (size_t i = 0; i < sizeof other_sections / sizeof *other_sections; i++)
        if (strlen(other_sections[i]) == length && strncasecmp(other_sections[i], word, length) == 0)
            return true;
    return false;
}

static void show_row(const struct row *row, const struct cell *cell)
{
    char value[256] = "", shown[288];
    if (!row->field) {
        printf("%*s%s\n", row->indent * 4, "", row->label);
        return;
    }
    const struct field *field = gpu_fields;
    while (strcmp(field->name, row->field) != 0)
        field++;
    nvmlReturn_t rc = field->read(cell, field->argument, value, sizeof value);
    const char *unit = field->unit ? field->unit : strncmp(field->name, "temperature", 11) == 0 ? "C" : NULL;
    if (rc == NVML_SUCCESS)
        snprintf(shown, sizeof shown, "%s%s%s", value, unit ? " " : "", unit ? unit : "");
    else {
        snprintf(shown, sizeof shown, "%s", na_text(rc) + 1); /* without the brackets that CSV has */
        shown[strlen(shown) - 1] = 0;
    }
    line(row->indent, row->label, shown);
}

static void show_processes(D device)
{
    static nvmlProcessInfo_t info[1024];
    U count = sizeof info / sizeof *info;
    if (nv(DeviceGetComputeRunningProcesses_v3)(device, &count, info) != NVML_SUCCESS || count == 0) {
        line(1, "Processes", "None");
        return;
    }
    printf("    Processes\n");
    for (U i = 0; i < count; i++) {
        char text[300];
        const U ids[] = {info[i].gpuInstanceId, info[i].computeInstanceId};
        static const char *const labels[] = {"GPU instance ID", "Compute instance ID"};
        for (int k = 0; k < 2; k++) {
            snprintf(text, sizeof text, "%u", ids[k]);
            line(2, labels[k], ids[k] == NO_ID ? "N/A" : text);
        }
        snprintf(text, sizeof text, "%u", info[i].pid);
        line(2, "Process ID", text);
        line(3, "Type", "C");
        text[0] = 0;
        nv(SystemGetProcessName)(info[i].pid, text, sizeof text);
        line(3, "Name", text);
        snprintf(text, sizeof text, "%llu MiB", info[i].usedGpuMemory >> 20);
        line(3, "Used GPU Memory", text);
    }
}

static void show_slices(D device)
{
    U limit = mig_enabled(device) ? mig_device_limit(device) : 0, number = 0;
    for (U i = 0; i < limit; i++) {
        D mig = mig_device(device, i);
        U gi = 0, ci = 0;
        nvmlMemory_t memory = {0, 0, 0};
        nvmlDeviceAttributes_t a = {.multiprocessorCount = 0};
        char text[64], uuid[96] = "";
        if (!mig)
            continue;
        nv(DeviceGetGpuInstanceId)(mig, &gi);
        nv(DeviceGetComputeInstanceId)(mig, &ci);
        nv(DeviceGetMemoryInfo)(mig, &memory);
        nv(DeviceGetAttributes_v2)(mig, &a);
        nv(DeviceGetUUID)(mig, uuid, sizeof uuid);
        printf("    MIG Device\n");
        const struct { const char *label; U64 value; const char *unit; } values[] = {
            {"Index", number++, ""}, {"GPU Instance ID", gi, ""}, {"Compute Instance ID", ci, ""}, {"Multiprocessor count", a.multiprocessorCount, ""},
            {"FB Memory Total", memory.total >> 20, " MiB"}, {"FB Memory Used", memory.used >> 20, " MiB"}, {"FB Memory Free", memory.free >> 20, " MiB"}};
        line(2, "MIG UUID", uuid);
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            snprintf(text, sizeof text, "%llu%s", values[k].value, values[k].unit);
            line(2, values[k].label, text);
        }
    }
}

int show_full(const struct selection *s, const char *sections)
{
    char text[80] = "N/A";
    int version = 0;
    for (const char *p = sections ? sections : ""; *p; p += strcspn(p, ","), p += *p == ',')
        if (!known_section(p, strcspn(p, ","))) {
            printf("Invalid argument \"%.*s\" for -d. Please run 'nvidia-smi -h' for help.\n\n", (int)strcspn(p, ","), p);
            return EXIT_BAD_USE;
        }
    printf("\n==============NVSMI LOG==============\n\n");
    format_time(text, sizeof text, "%a %b %e %H:%M:%S %Y", false);
    line(0, "Timestamp", text);
    nv(SystemGetDriverVersion)(text, sizeof text);
    line(0, "Driver Version", text);
    nv(SystemGetCudaDriverVersion_v2)(&version);
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    line(0, "CUDA Version", text);
    snprintf(text, sizeof text, "%u", s->total);
    putchar('\n');
    line(0, "Attached GPUs", text);
    for (unsigned i = 0; i < s->count; i++) {
        const struct gpu *gpu = &s->gpu[i];
        struct cell cell = {.device = gpu->device, .index = gpu->index, .total = s->total};
        if (gpu->status != NVML_SUCCESS)
            continue;
        printf("GPU %s\n", gpu->bus_id);
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            if (wanted(sections, rows[k].section))
                show_row(&rows[k], &cell);
        if (!sections)
            show_slices(gpu->device);
        if (wanted(sections, "PIDS"))
            show_processes(gpu->device);
        putchar('\n');
    }
    return report_lost(s);
}
