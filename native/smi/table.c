/* The default view: driver, a box per GPU, MIG devices, processes. 91 columns, laid out as the vendor's 550 and later. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>

#define RULE_GPU "+-----------------------------------------+------------------------+----------------------+\n"
#define RULE_ALL "+-----------------------------------------------------------------------------------------+\n"
#define BLANK    "                                                                                         \n"

static void header(void)
{
    char driver[80] = "N/A", now[64], cuda[32] = "N/A";
    int version = 0;
    nv(SystemGetDriverVersion)(driver, sizeof driver);
    if (nv(SystemGetCudaDriverVersion_v2)(&version) == NVML_SUCCESS)
        snprintf(cuda, sizeof cuda, "%d.%d", version / 1000, version % 1000 / 10);
    format_time(now, sizeof now, "%a %b %e %H:%M:%S %Y", false);
    printf("%-31s\n" RULE_ALL, now);
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", driver, driver, cuda);
    fputs("|-----------------------------------------+------------------------+----------------------+\n"
          "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
          "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
          "|                                         |                        |               MIG M. |\n"
          "|=========================================+========================+======================|\n", stdout);
}

/* A number with its unit, `N/A` where there is none, `ERR!` where reading fails. */
static void text_of(char *out, size_t room, nvmlReturn_t rc, const char *format, U value)
{
    if (rc == NVML_SUCCESS)
        snprintf(out, room, format, value);
    else
        snprintf(out, room, rc == NVML_ERROR_NOT_SUPPORTED || rc == NVML_ERROR_FUNCTION_NOT_FOUND ? "N/A" : "ERR!");
}

static const char *mode_text(nvmlReturn_t rc, U mode, const char *on, const char *off)
{
    return rc != NVML_SUCCESS ? "N/A" : mode ? on : off;
}

static void first_line(const struct gpu *gpu)
{
    char name[96] = "", shown[32], ecc[32];
    U persistence = 0, display = 0, now = 0, next = 0;
    U64 errors = 0;
    nv(DeviceGetName)(gpu->device, name, sizeof name);
    if (strlen(name) > 27)
        snprintf(shown, sizeof shown, "%.24s...", name);
    else
        snprintf(shown, sizeof shown, "%s", name);
    nvmlReturn_t rc = nv(DeviceGetEccMode)(gpu->device, &now, &next);
    if (rc != NVML_SUCCESS)
        text_of(ecc, sizeof ecc, rc, "%u", 0);
    else if (!now)
        snprintf(ecc, sizeof ecc, "Off");
    else {
        rc = nv(DeviceGetTotalEccErrors)(gpu->device, 1, 0, &errors);
        text_of(ecc, sizeof ecc, rc, "%u", (U)errors);
    }
    nvmlReturn_t prc = nv(DeviceGetPersistenceMode)(gpu->device, &persistence);
    nvmlReturn_t drc = nv(DeviceGetDisplayActive)(gpu->device, &display);
    printf("|%4u  %-30s %-3s |   %-16s %3s | %20s |\n", gpu->index, shown, mode_text(prc, persistence, "On", "Off"),
           gpu->bus_id, mode_text(drc, display, "On", "Off"), ecc);
}

static void memory_text(char *out, size_t room, D device)
{
    nvmlMemory_v2_t v2 = {.version = NVML_VERSIONED(nvmlMemory_v2_t, 2)};
    nvmlMemory_t v1;
    U64 used, total;
    if (nv(DeviceGetMemoryInfo_v2)(device, &v2) == NVML_SUCCESS) {
        used = v2.used, total = v2.total;
    } else if (nv(DeviceGetMemoryInfo)(device, &v1) == NVML_SUCCESS) {
        used = v1.used, total = v1.total;
    } else {
        snprintf(out, room, "%11s / %8s", "N/A", "N/A");
        return;
    }
    snprintf(out, room, "%8lluMiB / %6lluMiB", used >> 20, total >> 20);
}

static void second_line(const struct gpu *gpu)
{
    static const char *const modes[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
    char fan[16], temperature[16], perf[16], power[16], cap[16], memory[48], utilisation[16];
    U value = 0, mode = 0;
    nvmlUtilization_t rates = {0, 0};
    nvmlReturn_t rc = nv(DeviceGetFanSpeed)(gpu->device, &value);
    text_of(fan, sizeof fan, rc, "%u%%", value);
    rc = nv(DeviceGetTemperature)(gpu->device, 0, &value);
    text_of(temperature, sizeof temperature, rc, "%uC", value);
    rc = nv(DeviceGetPerformanceState)(gpu->device, &value);
    text_of(perf, sizeof perf, value == 32 ? NVML_ERROR_NOT_SUPPORTED : rc, "P%u", value);
    rc = nv(DeviceGetPowerUsage)(gpu->device, &value);
    text_of(power, sizeof power, rc, "%uW", value / 1000);
    rc = nv(DeviceGetEnforcedPowerLimit)(gpu->device, &value);
    text_of(cap, sizeof cap, rc, "%uW", value / 1000);
    rc = mig_enabled(gpu->device) ? NVML_ERROR_NOT_SUPPORTED : nv(DeviceGetUtilizationRates)(gpu->device, &rates);
    text_of(utilisation, sizeof utilisation, rc, "%u%%", rates.gpu);
    memory_text(memory, sizeof memory, gpu->device);
    rc = nv(DeviceGetComputeMode)(gpu->device, &mode);
    printf("|%4s  %4s    %-3s%15s / %5s |%23s | %7s %12s |\n", fan, temperature, perf, power, cap, memory, utilisation,
           rc == NVML_SUCCESS && mode < 4 ? modes[mode] : "N/A");
}

static void third_line(const struct gpu *gpu)
{
    U now = 0, next = 0;
    nvmlReturn_t rc = nv(DeviceGetMigMode)(gpu->device, &now, &next);
    char text[16];
    snprintf(text, sizeof text, "%s%s", mode_text(rc, now, "Enabled", "Disabled"), rc == NVML_SUCCESS && now != next ? "*" : "");
    printf("|                                         |                        | %20s |\n" RULE_GPU, text);
}

/* ---- MIG devices ---- */

static U uncorrected(D mig)
{
    U64 errors = 0;
    return nv(DeviceGetTotalEccErrors)(mig, 1, 0, &errors) == NVML_SUCCESS ? (U)errors : 0;
}

static void usage_text(char *out, size_t room, U64 used, U64 total)
{
    char all[32];
    snprintf(all, sizeof all, "%5lluMiB", total >> 20);
    snprintf(out, room, "%16lluMiB / %-12s", used >> 20, all);
}

static void slice_lines(const struct gpu *gpu, D mig, U number)
{
    U gi = 0, ci = 0;
    char used[80];
    nvmlMemory_t memory = {0, 0, 0};
    nvmlBAR1Memory_t bar1 = {0, 0, 0};
    nvmlDeviceAttributes_t a;
    memset(&a, 0, sizeof a);
    nv(DeviceGetGpuInstanceId)(mig, &gi);
    nv(DeviceGetComputeInstanceId)(mig, &ci);
    nv(DeviceGetMemoryInfo)(mig, &memory);
    nv(DeviceGetBAR1MemoryInfo)(mig, &bar1);
    nv(DeviceGetAttributes_v2)(mig, &a);
    usage_text(used, sizeof used, memory.used, memory.total);
    printf("|%3u  %3u %3u %3u  |%s|%3u %6u |%3u %3u %4u %4u %4u |\n", gpu->index, gi, ci, number, used, a.multiprocessorCount, uncorrected(mig), a.sharedCopyEngineCount,
           a.sharedEncoderCount, a.sharedDecoderCount, a.sharedOfaCount, a.sharedJpegCount);
    usage_text(used, sizeof used, bar1.bar1Used, bar1.bar1Total);
    printf("|                  |%s|           |                       |\n", used);
    fputs("+------------------+----------------------------------+-----------+-----------------------+\n", stdout);
}

static void slices(const struct selection *s)
{
    bool any = false, shown = false;
    for (unsigned i = 0; i < s->count; i++)
        any |= s->gpu[i].status == NVML_SUCCESS && mig_enabled(s->gpu[i].device);
    if (!any)
        return;
    fputs("\n" RULE_ALL
          "| MIG devices:                                                                            |\n"
          "+------------------+----------------------------------+-----------+-----------------------+\n"
          "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |\n"
          "|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
          "|                  |                                  |        ECC|                       |\n"
          "|==================+==================================+===========+=======================|\n", stdout);
    for (unsigned i = 0; i < s->count; i++) {
        const struct gpu *gpu = &s->gpu[i];
        U limit = gpu->status == NVML_SUCCESS && mig_enabled(gpu->device) ? mig_device_limit(gpu->device) : 0, number = 0;
        for (U k = 0; k < limit; k++) {
            D mig = mig_device(gpu->device, k);
            if (!mig)
                continue;
            slice_lines(gpu, mig, number++);
            shown = true;
        }
    }
    if (!shown)
        fputs("|  No MIG devices found                                                                   |\n" RULE_ALL, stdout);
}

/* ---- processes ---- */

static void id_text(char out[8], U id)
{
    if (id == NO_ID)
        strcpy(out, "N/A");
    else
        snprintf(out, 8, "%u", id % 1000);
}

/* Is it a client of an MPS server? NVML lists those among the processes that compute, too; they get one line, `M+C`. */
static bool is_mps_client(const struct gpu *gpu, U pid)
{
    static nvmlProcessInfo_t info[1024];
    U count = sizeof info / sizeof *info;
    if (nv(DeviceGetMPSComputeRunningProcesses_v3)(gpu->device, &count, info) != NVML_SUCCESS)
        return false;
    for (U i = 0; i < count; i++)
        if (info[i].pid == pid)
            return true;
    return false;
}

static unsigned process_lines(const struct gpu *gpu, const char *type, nvmlReturn_t (*list)(D, U *, nvmlProcessInfo_t *))
{
    static nvmlProcessInfo_t info[1024];
    U count = sizeof info / sizeof *info;
    if (list(gpu->device, &count, info) != NVML_SUCCESS)
        return 0;
    for (U i = 0; i < count; i++) {
        if (type[0] == 'C' && is_mps_client(gpu, info[i].pid))
            continue;
        char name[256] = "[Not Found]", shown[64], memory[32], gi[8], ci[8];
        nv(SystemGetProcessName)(info[i].pid, name, sizeof name);
        size_t length = strlen(name);
        if (length > 40)
            snprintf(shown, sizeof shown, "...%.37s", name + length - 37);
        else
            snprintf(shown, sizeof shown, "%s", name);
        if (info[i].usedGpuMemory == ~0ull)
            snprintf(memory, sizeof memory, "N/A");
        else
            snprintf(memory, sizeof memory, "%lluMiB", info[i].usedGpuMemory >> 20);
        id_text(gi, info[i].gpuInstanceId);
        id_text(ci, info[i].computeInstanceId);
        printf("|%5u   %3s  %3s %9u %6s   %-42s%10s |\n", gpu->index, gi, ci, info[i].pid, type, shown, memory);
    }
    return count;
}

static void processes(const struct selection *s)
{
    unsigned shown = 0;
    fputs(BLANK RULE_ALL
          "| Processes:                                                                              |\n"
          "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |\n"
          "|        ID   ID                                                               Usage      |\n"
          "|=========================================================================================|\n", stdout);
    for (unsigned i = 0; i < s->count; i++) {
        if (s->gpu[i].status != NVML_SUCCESS)
            continue;
        shown += process_lines(&s->gpu[i], "C", nv(DeviceGetComputeRunningProcesses_v3));
        shown += process_lines(&s->gpu[i], "G", nv(DeviceGetGraphicsRunningProcesses_v3));
        shown += process_lines(&s->gpu[i], "M+C", nv(DeviceGetMPSComputeRunningProcesses_v3));
    }
    if (!shown)
        fputs("|  No running processes found                                                             |\n", stdout);
    fputs(RULE_ALL, stdout);
}

int show_table(const struct selection *s)
{
    int lost = report_lost(s);
    if (lost)
        return lost;
    header();
    for (unsigned i = 0; i < s->count; i++) {
        first_line(&s->gpu[i]);
        second_line(&s->gpu[i]);
        third_line(&s->gpu[i]);
    }
    slices(s);
    processes(s);
    return 0;
}
