/* Starting NVML, choosing GPUs, and what several views ask about a GPU. */
#define _GNU_SOURCE
#include "smi.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/time.h>
#include <time.h>

/* What the vendor's program prints when NVML does not start; anything else gets the library's own text. */
static const struct { nvmlReturn_t code; const char *text; } start_errors[] = {
    {NVML_ERROR_DRIVER_NOT_LOADED,
     "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n"},
    {NVML_ERROR_LIBRARY_NOT_FOUND,
     "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is properly installed and present in your system.\n"
     "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n"},
};

int start_nvml(void)
{
    nvmlReturn_t rc = nvml_load();
    if (rc == NVML_SUCCESS)
        rc = nv(Init_v2)();
    if (rc == NVML_SUCCESS)
        return 0;
    for (size_t i = 0; i < sizeof start_errors / sizeof *start_errors; i++)
        if (start_errors[i].code == rc) {
            printf("%s\n", start_errors[i].text);
            return (int)rc;
        }
    printf("Failed to initialize NVML: %s\n", nvml_text(rc));
    if (rc == NVML_ERROR_LIB_RM_VERSION_MISMATCH) {
        char version[80];
        if (nv(SystemGetNVMLVersion)(version, sizeof version) == NVML_SUCCESS) {
            const char *dot = strchr(version, '.');
            printf("NVML library version: %s\n", dot ? dot + 1 : version);
        }
    }
    return (int)rc;
}

static void fill_gpu(struct gpu *gpu, U index)
{
    nvmlPciInfo_t pci;
    memset(gpu, 0, sizeof *gpu);
    gpu->index = index;
    gpu->status = nv(DeviceGetHandleByIndex_v2)(index, &gpu->device);
    if (gpu->status == NVML_SUCCESS && nv(DeviceGetPciInfo_v3)(gpu->device, &pci) == NVML_SUCCESS)
        snprintf(gpu->bus_id, sizeof gpu->bus_id, "%.31s", pci.busId);
    else if (sim_device_bus_id(index, gpu->bus_id, sizeof gpu->bus_id) != NVML_SUCCESS)
        gpu->bus_id[0] = 0;
}

/* Bus ids are accepted with a domain of 4 or 8 digits or none, and with or without function. */
static bool same_bus_id(const char *a, const char *b)
{
    unsigned x[4] = {0}, y[4] = {0};
    if (!strchr(b, ':') || sscanf(a, "%x:%x:%x.%x", &x[0], &x[1], &x[2], &x[3]) != 4)
        return false;
    if (sscanf(b, "%x:%x:%x.%x", &y[0], &y[1], &y[2], &y[3]) < 3) {
        y[0] = 0;
        if (sscanf(b, "%x:%x.%x", &y[1], &y[2], &y[3]) < 2)
            return false;
    }
    return memcmp(x, y, sizeof x) == 0;
}

static bool matches(const struct gpu *gpu, const char *id)
{
    char text[96], *end;
    unsigned long index = strtoul(id, &end, 10);
    if (isdigit((unsigned char)id[0]) && *end == 0 && strlen(id) < 6)
        return index == gpu->index;
    if (same_bus_id(gpu->bus_id, id))
        return true;
    if (gpu->status != NVML_SUCCESS)
        return false;
    if (nv(DeviceGetUUID)(gpu->device, text, sizeof text) == NVML_SUCCESS && strcasecmp(text, id) == 0)
        return true;
    return nv(DeviceGetSerial)(gpu->device, text, sizeof text) == NVML_SUCCESS && strcmp(text, id) == 0;
}

static bool add_matches(struct selection *s, const struct gpu *all, const char *id)
{
    bool found = false;
    for (unsigned i = 0; i < s->total; i++) {
        if (!matches(&all[i], id))
            continue;
        found = true;
        bool chosen = false;
        for (unsigned k = 0; k < s->count; k++)
            chosen |= s->gpu[k].index == all[i].index;
        if (!chosen)
            s->gpu[s->count++] = all[i];
    }
    return found;
}

int select_gpus(struct selection *s, const char *ids)
{
    static struct gpu all[MAX_GPUS];
    U total = 0;
    nvmlReturn_t rc = nv(DeviceGetCount_v2)(&total);
    memset(s, 0, sizeof *s);
    if (rc != NVML_SUCCESS) {
        printf("Unable to determine the device count: %s\n", nvml_text(rc));
        return (int)rc;
    }
    s->total = total < MAX_GPUS ? total : MAX_GPUS;
    for (unsigned i = 0; i < s->total; i++)
        fill_gpu(&all[i], i);
    if (s->total == 0) {
        printf("No devices were found\n");
        return NVML_ERROR_NOT_FOUND;
    }
    if (!ids) {
        memcpy(s->gpu, all, sizeof all);
        s->count = s->total;
        return 0;
    }
    char *list = strdup(ids), *rest = list;
    int code = list ? 0 : NVML_ERROR_MEMORY;
    for (char *id = strsep(&rest, ","); id && code == 0; id = strsep(&rest, ",")) {
        if (!*id || !add_matches(s, all, id)) {
            printf("No devices were found\n");
            code = NVML_ERROR_NOT_FOUND;
        }
    }
    free(list);
    return code;
}

int report_lost(const struct selection *s)
{
    int code = 0;
    for (unsigned i = 0; i < s->count; i++) {
        const struct gpu *gpu = &s->gpu[i];
        if (gpu->status == NVML_SUCCESS)
            continue;
        /* The message names the GPU by its 4-digit bus id, without a blank: GPU0000:07:00.0 */
        char where[48];
        if (gpu->bus_id[0])
            snprintf(where, sizeof where, "%s", gpu->bus_id + (strlen(gpu->bus_id) > 12 ? 4 : 0));
        else
            snprintf(where, sizeof where, " %u", gpu->index);
        printf("Unable to determine the device handle for GPU%s: %s%s\n", where, nvml_text(gpu->status),
               gpu->status == NVML_ERROR_GPU_IS_LOST ? ".  Reboot the system to recover this GPU" : "");
        code = (int)gpu->status;
    }
    return code;
}

bool mig_enabled(D device)
{
    U now = 0, next = 0;
    return nv(DeviceGetMigMode)(device, &now, &next) == NVML_SUCCESS && now;
}

U mig_device_limit(D device)
{
    U count = 0;
    return nv(DeviceGetMaxMigDeviceCount)(device, &count) == NVML_SUCCESS ? count : 0;
}

D mig_device(D device, U index)
{
    D mig = NULL;
    return nv(DeviceGetMigDeviceHandleByIndex)(device, index, &mig) == NVML_SUCCESS ? mig : NULL;
}

void mig_profile_name(D mig, char *out, size_t room)
{
    char name[128] = "";
    nvmlDeviceAttributes_t a;
    const char *mark = NULL;
    if (nv(DeviceGetName)(mig, name, sizeof name) == NVML_SUCCESS)
        mark = strstr(name, " MIG ");
    if (mark)
        snprintf(out, room, "%s", mark + 5);
    else if (nv(DeviceGetAttributes_v2)(mig, &a) == NVML_SUCCESS)
        snprintf(out, room, "%ug.%llugb", a.gpuInstanceSliceCount, (a.memorySizeMB + 1023) / 1024);
    else
        snprintf(out, room, "N/A");
}

void format_time(char *out, size_t room, const char *format, bool milliseconds)
{
    struct timeval now;
    struct tm local;
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &local);
    size_t length = strftime(out, room, format, &local);
    if (milliseconds && length < room)
        snprintf(out + length, room - length, ".%03d", (int)(now.tv_usec / 1000));
}
