/* Error texts, and the look-up of entry points by name that newer programs begin with. */
#include "cu_sim.h"

#include <dlfcn.h>

#define ROW(code, text) {code, #code, text}

static const struct { CUresult code; const char *name, *text; } errors[] = {
    ROW(CUDA_SUCCESS, "no error"),
    ROW(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ROW(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ROW(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ROW(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ROW(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    ROW(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    ROW(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ROW(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ROW(CUDA_ERROR_DEVICE_NOT_LICENSED, "device doesn't have valid Grid license"),
    ROW(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ROW(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ROW(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    ROW(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    ROW(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    ROW(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ROW(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    ROW(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    ROW(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread"),
    ROW(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    ROW(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    ROW(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
    ROW(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    ROW(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    ROW(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    ROW(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    ROW(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    ROW(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    ROW(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ROW(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ROW(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ROW(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ROW(CUDA_ERROR_NOT_READY, "device not ready"),
    ROW(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ROW(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ROW(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    ROW(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    ROW(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    ROW(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    ROW(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ROW(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    ROW(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ROW(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ROW(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    ROW(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    ROW(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ROW(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    ROW(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    ROW(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ROW(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ROW(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ROW(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    ROW(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    ROW(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW"),
    ROW(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or the MPS server"),
    ROW(CUDA_ERROR_MPS_RPC_FAILURE, "the remote procedural call between the MPS server and the MPS client failed"),
    ROW(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready to accept new MPS client requests"),
    ROW(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "the hardware resources required to create MPS client have been exhausted"),
    ROW(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "the hardware resources required to support device connections have been exhausted"),
    ROW(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server"),
    ROW(CUDA_ERROR_EXTERNAL_DEVICE, "an async error occurred in external entity outside of CUDA"),
    ROW(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static CUresult find_error(CUresult code, const char **out, bool name)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *out = name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **name) { return find_error(code, name, true); }
EXPORT CUresult cuGetErrorString(CUresult code, const char **text) { return find_error(code, text, false); }

/* Private tables of the runtime library: not simulated. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    if (table)
        *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* Names whose newer versions have another signature: which suffix a program built for `version` expects. */
static const struct { const char *base; int version; const char *symbol; } versions[] = {
    {"cuCtxCreate", 13000, "cuCtxCreate_v4"},
    {"cuCtxCreate", 0, "cuCtxCreate_v2"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDeviceGetUuid", 0, "cuDeviceGetUuid"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 0, "cuGetProcAddress"},
    {"cuEventElapsedTime", 0, "cuEventElapsedTime"},
};

static void *look_up(const char *base, int version)
{
    char name[128];
    Dl_info self;
    void *library, *found = NULL;
    if (!dladdr((const void *)errors, &self) || !(library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD)))
        return NULL;
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !found; i++)
        if (strcmp(base, versions[i].base) == 0 && version >= versions[i].version)
            found = dlsym(library, versions[i].symbol);
    if (!found && snprintf(name, sizeof name, "%s_v2", base) < (int)sizeof name)
        found = dlsym(library, name);
    if (!found)
        found = dlsym(library, base);
    dlclose(library);
    return found;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    enum { FOUND = 0, NOT_FOUND = 1 };
    (void)flags;
    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    *function = name[0] == 'c' && name[1] == 'u' ? look_up(name, version) : NULL;
    if (status)
        *status = *function ? FOUND : NOT_FOUND;
    return *function || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

EXPORT CUresult cuProfilerStart(void) { return sim_enter(); }
EXPORT CUresult cuProfilerStop(void) { return sim_enter(); }
