/* Finds the NVML library and its symbols at run time. */
#define _GNU_SOURCE
#include "nvml_api.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static void *library;
static const char *(*error_text)(nvmlReturn_t);
static nvmlReturn_t (*private_reset)(U index);
static nvmlReturn_t (*private_bus_id)(U index, char *text, U room);

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

static void resolve(const char *name, void *slot)
{
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof symbol); /* data to function pointer, as POSIX allows */
}

nvmlReturn_t nvml_load(void)
{
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_GLOBAL);
    if (!library)
        return NVML_ERROR_LIBRARY_NOT_FOUND;
#define NVML_RESOLVE(name, parameters, arguments) resolve("nvml" #name, &p_##name);
    NVML_FUNCTIONS(NVML_RESOLVE)
#undef NVML_RESOLVE
    resolve("nvmlErrorString", &error_text);
    resolve("kgpuSimDeviceReset", &private_reset);
    resolve("kgpuSimDeviceBusId", &private_bus_id);
    if (!p_DeviceGetCurrentClocksEventReasons) /* drivers before 535 */
        p_DeviceGetCurrentClocksEventReasons = p_DeviceGetCurrentClocksThrottleReasons;
    return NVML_SUCCESS;
}

const char *nvml_text(nvmlReturn_t code) { return error_text ? error_text(code) : "Unknown Error"; }
