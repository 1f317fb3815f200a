/* Finds the NVML library and its symbols at run time. */
#define _GNU_SOURCE
#include "nvml_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *library;
static const char *(*error_text)(nvmlReturn_t);
static nvmlReturn_t (*private_reset)(U index);
static nvmlReturn_t (*private_bus_id)(U index, char *text, U room);
static nvmlReturn_t (*private_get_timeslice)(U index, U *value);
static nvmlReturn_t (*private_set_timeslice)(U index, U value);

#define NVML_DEFINE(name, parameters, arguments)                                 \
    static nvmlReturn_t(*p_##name) parameters;                                   \
    nvmlReturn_t nv_##name parameters { return p_##name ? p_##name arguments : NVML_ERROR_FUNCTION_NOT_FOUND; }
NVML_FUNCTIONS(NVML_DEFINE)
#undef NVML_DEFINE

nvmlReturn_t sim_device_reset(U index) { return private_reset ? private_reset(index) : NVML_ERROR_FUNCTION_NOT_FOUND; }

nvmlReturn_t sim_device_bus_id(U index, char *text, U room)
{
    return private_bus_id ? private_bus_id(index, text, room) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t sim_get_timeslice(U index, U *value)
{
    return private_get_timeslice ? private_get_timeslice(index, value) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t sim_set_timeslice(U index, U value)
{
    return private_set_timeslice ? private_set_timeslice(index, value) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

static void resolve(const char *name, void *slot)
{
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof symbol); /* data to function pointer, as POSIX allows */
}

#if defined(__aarch64__)
#define TRIPLET "aarch64-linux-gnu"
#else
#define TRIPLET "x86_64-linux-gnu"
#endif

/* A simulated driver root's own program finds the library and the state of that root: <root>/usr/bin/nvidia-smi. */
static void *load_of_own_root(void)
{
    char root[PATH_MAX], path[PATH_MAX + 64];
    ssize_t length = readlink("/proc/self/exe", root, sizeof root - 1);
    if (length <= 0)
        return NULL;
    root[length] = '\0';
    for (int level = 0; level < 3; level++) {
        char *slash = strrchr(root, '/');
        if (!slash)
            return NULL;
        *slash = '\0';
    }
    snprintf(path, sizeof path, "%s/state", root);
    if (access(path, R_OK) != 0)
        return NULL;
    setenv("KGPU_HW_STATE", path, 0);
    snprintf(path, sizeof path, "%s/usr/lib/" TRIPLET "/libnvidia-ml.so.1", root);
    return dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
}

nvmlReturn_t nvml_load(void)
{
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_GLOBAL);
    if (!library)
        library = load_of_own_root();
    if (!library)
        return NVML_ERROR_LIBRARY_NOT_FOUND;
#define NVML_RESOLVE(name, parameters, arguments) resolve("nvml" #name, &p_##name);
    NVML_FUNCTIONS(NVML_RESOLVE)
#undef NVML_RESOLVE
    resolve("nvmlErrorString", &error_text);
    resolve("kgpuSimDeviceReset", &private_reset);
    resolve("kgpuSimDeviceBusId", &private_bus_id);
    resolve("kgpuSimGetTimeslice", &private_get_timeslice);
    resolve("kgpuSimSetTimeslice", &private_set_timeslice);
    if (!p_DeviceGetCurrentClocksEventReasons) /* drivers before 535 */
        p_DeviceGetCurrentClocksEventReasons = p_DeviceGetCurrentClocksThrottleReasons;
    return NVML_SUCCESS;
}

const char *nvml_text(nvmlReturn_t code) { return error_text ? error_text(code) : "Unknown Error"; }
