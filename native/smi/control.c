/* Changing a GPU's modes (-pm, -e, -c, -pl, -mig) and resetting it (-r). */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool parse_switch(const char *value, U *mode)
{
    *mode = strcmp(value, "1") == 0 || strcasecmp(value, "ENABLED") == 0;
    return *mode || strcmp(value, "0") == 0 || strcasecmp(value, "DISABLED") == 0;
}

static bool parse_compute_mode(const char *value, U *mode)
{
    static const char *const names[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
    for (*mode = 0; *mode < 4; ++*mode)
        if (strcasecmp(value, names[*mode]) == 0 || (value[0] == (char)('0' + *mode) && !value[1]))
            return true;
    return false;
}

static bool parse_watts(const char *value, U *milliwatts)
{
    char *end;
    double watts = strtod(value, &end);
    *milliwatts = watts > 0 && watts < 1e6 ? (U)(watts * 1000) : 0;
    return end != value && !*end && *milliwatts;
}

static nvmlReturn_t set_persistence(const struct gpu *gpu, U mode)
{
    U now = 0;
    if (nv(DeviceGetPersistenceMode)(gpu->device, &now) == NVML_SUCCESS && now == mode) {
        printf("Persistence mode is already %s for GPU %s.\n", mode ? "Enabled" : "Disabled", gpu->bus_id);
        return NVML_SUCCESS;
    }
    nvmlReturn_t rc = nv(DeviceSetPersistenceMode)(gpu->device, mode);
    if (rc == NVML_SUCCESS)
        printf("%s persistence mode for GPU %s.\n", mode ? "Enabled" : "Disabled", gpu->bus_id);
    return rc;
}

static nvmlReturn_t set_ecc(const struct gpu *gpu, U mode)
{
    nvmlReturn_t rc = nv(DeviceSetEccMode)(gpu->device, mode);
    if (rc == NVML_SUCCESS)
        printf("%s ECC support for GPU %s.\nReboot required.\n", mode ? "Enabled" : "Disabled", gpu->bus_id);
    return rc;
}

static nvmlReturn_t set_compute_mode(const struct gpu *gpu, U mode)
{
    static const char *const names[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
    nvmlReturn_t rc = nv(DeviceSetComputeMode)(gpu->device, mode);
    if (rc == NVML_SUCCESS)
        printf("Set compute mode to %s for GPU %s.\n", names[mode], gpu->bus_id);
    return rc;
}

static nvmlReturn_t set_power(const struct gpu *gpu, U milliwatts)
{
    U before = 0, least = 0, most = 0;
    nv(DeviceGetPowerManagementLimit)(gpu->device, &before);
    nvmlReturn_t rc = nv(DeviceSetPowerManagementLimit)(gpu->device, milliwatts);
    if (rc == NVML_SUCCESS)
        printf("Power limit for GPU %s was set to %.2f W from %.2f W.\n", gpu->bus_id, milliwatts / 1000.0, before / 1000.0);
    else if (rc == NVML_ERROR_INVALID_ARGUMENT && nv(DeviceGetPowerManagementLimitConstraints)(gpu->device, &least, &most) == NVML_SUCCESS)
        printf("Provided power limit %.2f W is not a valid power limit which should be between %.2f W and %.2f W for GPU %s\n",
               milliwatts / 1000.0, least / 1000.0, most / 1000.0, gpu->bus_id);
    return rc;
}

static nvmlReturn_t set_mig(const struct gpu *gpu, U mode)
{
    nvmlReturn_t activation = NVML_SUCCESS, rc = nv(DeviceSetMigMode)(gpu->device, mode, &activation);
    const char *verb = mode ? "enable" : "disable";
    if (rc == NVML_ERROR_NOT_SUPPORTED) {
        printf("Unable to %s MIG Mode for GPU %s: %s\nTreating as warning and moving on.\n", verb, gpu->bus_id, nvml_text(rc));
        return NVML_SUCCESS;
    }
    if (rc != NVML_SUCCESS)
        return rc;
    if (activation == NVML_SUCCESS) {
        printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", gpu->bus_id);
        return rc;
    }
    printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", verb, gpu->bus_id, nvml_text(activation));
    if (activation == NVML_ERROR_IN_USE)
        printf("%s is currently being used by one or more other processes (e.g. CUDA application or a monitoring application such as "
               "another instance of nvidia-smi). Please first kill all processes using the device and retry the command or reboot "
               "the system to make MIG mode effective.\n", gpu->bus_id);
    return rc;
}

static const struct mode {
    const char *option;
    bool (*parse)(const char *value, U *mode);
    nvmlReturn_t (*set)(const struct gpu *gpu, U mode);
    const char *what;
} modes[] = {
    {"--persistence-mode", parse_switch, set_persistence, "persistence mode"},
    {"--ecc-config", parse_switch, set_ecc, "ECC support"},
    {"--compute-mode", parse_compute_mode, set_compute_mode, "compute mode"},
    {"--power-limit", parse_watts, set_power, "power limit"},
    {"--multi-instance-gpu", parse_switch, set_mig, "MIG Mode"},
};

int set_modes(const struct selection *s, const char *option, const char *value)
{
    const struct mode *mode = modes;
    U wanted = 0;
    while (strcmp(mode->option, option) != 0)
        mode++;
    if (!mode->parse(value, &wanted)) {
        printf("Unable to parse \"%s\" as an argument of %s. Please run 'nvidia-smi -h' for help.\n\n", value, option);
        return EXIT_BAD_USE;
    }
    int code = report_lost(s);
    for (unsigned i = 0; i < s->count; i++) {
        if (s->gpu[i].status != NVML_SUCCESS)
            continue;
        nvmlReturn_t rc = mode->set(&s->gpu[i], wanted);
        if (rc == NVML_SUCCESS)
            continue;
        printf("Unable to set %s for GPU %s: %s\n", mode->what, s->gpu[i].bus_id, nvml_text(rc));
        code = (int)rc;
    }
    if (code == 0)
        printf("All done.\n");
    return code;
}

static bool is_chosen(const struct selection *s, const struct gpu *gpu)
{
    for (unsigned i = 0; i < s->count; i++)
        if (s->gpu[i].index == gpu->index)
            return true;
    return false;
}

/* Are they joined by an NVLink that is up, directly or through switches? */
static bool linked(const struct gpu *a, const struct gpu *b)
{
    enum { LINKS = 18, TO_GPU = 0, TO_SWITCH = 2 };
    bool a_switched = false, b_switched = false;
    for (U link = 0; link < LINKS; link++) {
        nvmlPciInfo_t pci;
        U up = 0, kind = 0;
        if (nv(DeviceGetNvLinkState)(b->device, link, &up) == NVML_SUCCESS && up &&
            nv(DeviceGetNvLinkRemoteDeviceType)(b->device, link, &kind) == NVML_SUCCESS)
            b_switched |= kind == TO_SWITCH;
        up = 0;
        if (nv(DeviceGetNvLinkState)(a->device, link, &up) != NVML_SUCCESS || !up ||
            nv(DeviceGetNvLinkRemoteDeviceType)(a->device, link, &kind) != NVML_SUCCESS)
            continue;
        a_switched |= kind == TO_SWITCH;
        if (kind == TO_GPU && nv(DeviceGetNvLinkRemotePciInfo_v2)(a->device, link, &pci) == NVML_SUCCESS &&
            strcasecmp(pci.busId, b->bus_id) == 0)
            return true;
    }
    return a_switched && b_switched;
}

/* Before Ampere, GPUs that are joined by NVLink can only be reset together: name those that were left out. */
static unsigned report_left_out(const struct selection *s)
{
    enum { AMPERE = 7 };
    static struct selection all;
    unsigned left_out = 0;
    if (select_gpus(&all, NULL) != 0)
        return 0;
    for (unsigned k = 0; k < all.count; k++) {
        const struct gpu *peer = &all.gpu[k];
        bool needed = false;
        for (unsigned i = 0; i < s->count && peer->status == NVML_SUCCESS && !is_chosen(s, peer); i++) {
            U architecture = AMPERE;
            if (s->gpu[i].status == NVML_SUCCESS)
                nv(DeviceGetArchitecture)(s->gpu[i].device, &architecture);
            needed |= architecture < AMPERE && linked(&s->gpu[i], peer);
        }
        if (needed)
            printf("%s  GPU %s\n", left_out++ ? "" : "GPUs that are joined by NVLink have to be reset together. These are missing:\n", peer->bus_id);
    }
    return left_out;
}

int reset_gpus(const struct selection *s)
{
    enum { REFUSED = 255 };
    int busy = 0, code = 0;
    if (report_left_out(s))
        return REFUSED;
    for (unsigned i = 0; i < s->count; i++) {
        const struct gpu *gpu = &s->gpu[i];
        const char *name = gpu->bus_id[0] ? gpu->bus_id : "at an unknown address";
        nvmlReturn_t rc = sim_device_reset(gpu->index);
        if (rc == NVML_SUCCESS) {
            printf("GPU %s was successfully reset.\n", name);
        } else if (rc == NVML_ERROR_IN_USE) {
            printf("%s  GPU %s: %s\n", busy++ ? "" : "The following GPUs could not be reset:\n", name, nvml_text(rc));
        } else {
            printf("Unable to reset GPU %s: %s\n", name, rc == NVML_ERROR_FUNCTION_NOT_FOUND ? "Not Supported" : nvml_text(rc));
            code = rc == NVML_ERROR_FUNCTION_NOT_FOUND ? NVML_ERROR_NOT_SUPPORTED : (int)rc;
        }
    }
    if (busy)
        printf("\n%d device%s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "
               "application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first "
               "kill all processes using %s and all compute applications running in the system.\n",
               busy, busy == 1 ? " is" : "s are", busy == 1 ? "this device" : "these devices");
    if (busy || code)
        return busy ? REFUSED : code;
    printf("All done.\n");
    return 0;
}
