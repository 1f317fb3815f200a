/* --query-compute-apps: one row per process that computes on a GPU. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>

#define READER(name) static nvmlReturn_t name(const struct cell *cell, U argument, char *out, size_t room)

READER(gpu_name) { (void)argument; return nv(DeviceGetName)(cell->device, out, (U)room); }
READER(gpu_uuid) { (void)argument; return nv(DeviceGetUUID)(cell->device, out, (U)room); }
READER(gpu_serial) { (void)argument; return nv(DeviceGetSerial)(cell->device, out, (U)room); }
READER(process_pid) { (void)argument; snprintf(out, room, "%u", cell->process->pid); return NVML_SUCCESS; }

READER(gpu_bus_id)
{
    nvmlPciInfo_t pci;
    (void)argument;
    nvmlReturn_t rc = nv(DeviceGetPciInfo_v3)(cell->device, &pci);
    snprintf(out, room, "%.31s", rc == NVML_SUCCESS ? pci.busId : "");
    return rc;
}

READER(process_name)
{
    (void)argument;
    if (nv(SystemGetProcessName)(cell->process->pid, out, (U)room) != NVML_SUCCESS)
        snprintf(out, room, "[Not Found]");
    return NVML_SUCCESS;
}

READER(process_memory)
{
    (void)argument;
    snprintf(out, room, "%llu", cell->process->usedGpuMemory >> 20);
    return cell->process->usedGpuMemory == ~0ull ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

READER(timestamp)
{
    (void)cell, (void)argument;
    format_time(out, room, "%Y/%m/%d %H:%M:%S", true);
    return NVML_SUCCESS;
}

static const struct field fields[] = {
    {"timestamp", NULL, NULL, timestamp, 0, "When the query was made: YYYY/MM/DD HH:MM:SS.msec."},
    {"gpu_name", NULL, NULL, gpu_name, 0, "Product name of the GPU."},
    {"gpu_bus_id", NULL, NULL, gpu_bus_id, 0, "PCI address of the GPU."},
    {"gpu_serial", NULL, NULL, gpu_serial, 0, "Serial number of the GPU."},
    {"gpu_uuid", NULL, NULL, gpu_uuid, 0, "Globally unique identifier of the GPU."},
    {"pid", NULL, NULL, process_pid, 0, "Process id."},
    {"process_name", "name", NULL, process_name, 0, "Program."},
    {"used_gpu_memory", "used_memory", "MiB", process_memory, 0, "Memory that the process holds on the GPU."},
};

int show_apps(const struct selection *s, const char *list, bool header, bool units)
{
    static nvmlProcessInfo_t info[1024];
    struct csv csv = {.header = header, .units = units};
    int code = csv_choose(&csv, fields, sizeof fields / sizeof *fields, list);
    if (code)
        return code;
    csv_header(&csv);
    for (unsigned i = 0; i < s->count; i++) {
        U count = sizeof info / sizeof *info;
        if (s->gpu[i].status != NVML_SUCCESS || nv(DeviceGetComputeRunningProcesses_v3)(s->gpu[i].device, &count, info) != NVML_SUCCESS)
            continue;
        for (U k = 0; k < count; k++)
            csv_row(&csv, &(struct cell){.device = s->gpu[i].device, .index = s->gpu[i].index, .total = s->total, .process = &info[k]});
    }
    return report_lost(s);
}

int show_apps_help(void)
{
    csv_help(fields, sizeof fields / sizeof *fields, "--query-compute-apps");
    return 0;
}
