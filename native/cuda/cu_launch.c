/* Launching kernels: parameters in, the PTX machine over this process's memory, faults out.
 *
 * Promises: while a kernel runs the device shows load; an illegal access ends the context with the code a real GPU gives
 * and reports the Xid that goes with it. */
#include "cu_sim.h"

struct run { struct cu_device *device; const struct heap_block *last; };

/* Xids of the driver's error table: 31 MMU fault, 13 graphics engine exception, 43 the application's own trap. */
static const struct { enum ptx_fault fault; CUresult error; uint32_t xid; } faults[] = {
    {PTX_FAULT_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS, 31},
    {PTX_FAULT_SHARED_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS, 13},
    {PTX_FAULT_MISALIGNED, CUDA_ERROR_MISALIGNED_ADDRESS, 13},
    {PTX_FAULT_TRAP, CUDA_ERROR_LAUNCH_FAILED, 43},
    {PTX_FAULT_STOPPED, CUDA_ERROR_LAUNCH_FAILED, 0},
};

static uint8_t *locate(void *user, uint64_t address, uint64_t size)
{
    struct run *run = user;
    const struct heap_block *block = run->last;
    if (!block || address < block->address || size > block->size || address - block->address > block->size - size)
        block = heap_find(address, size);
    if (!block)
        return NULL;
    run->last = block;
    return block->host + (address - block->address);
}

/* A GPU that hangs stops the kernel where it is; a lost one ends it. */
static bool tick(void *user)
{
    const struct run *run = user;
    node_wait(run->device->gpu);
    return !*(volatile const uint32_t *)&node_gpu(run->device)->lost;
}

static bool shape_ok(const struct ptx_kernel *kernel, const struct ptx_launch *launch)
{
    const uint32_t *g = launch->grid, *b = launch->block;
    uint64_t shared = (uint64_t)ptx_kernel_shared(kernel) + launch->dynamic_shared;
    return g[0] && g[1] && g[2] && g[0] <= 0x7fffffff && g[1] <= 65535 && g[2] <= 65535 && b[0] && b[1] && b[2] && b[0] <= 1024 &&
           b[1] <= 1024 && b[2] <= 64 && (uint64_t)b[0] * b[1] * b[2] <= 1024 && shared <= PTX_MAX_SHARED_BYTES - 16;
}

static CUresult gather_params(const struct ptx_kernel *kernel, void **params, void **extra, uint8_t *out)
{
    size_t offset, size, total = ptx_kernel_param_bytes(kernel);
    if (params && extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (params) {
        for (size_t i = 0; ptx_kernel_param(kernel, i, &offset, &size); i++) {
            if (!params[i])
                return CUDA_ERROR_INVALID_VALUE;
            memcpy(out + offset, params[i], size);
        }
        return CUDA_SUCCESS;
    }
    const void *buffer = NULL;
    size_t length = 0;
    for (void **at = extra; at && (uintptr_t)at[0] != CU_LAUNCH_PARAM_END; at += 2) {
        if ((uintptr_t)at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = at[1];
        else if ((uintptr_t)at[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            length = *(const size_t *)at[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (total == 0)
        return CUDA_SUCCESS;
    if (!buffer || length < total)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, buffer, total);
    return CUDA_SUCCESS;
}

static CUresult run(CUcontext context, struct cu_device *device, CUfunction function, struct ptx_launch *launch)
{
    struct run state = {.device = device};
    launch->sm_count = device->sm_count;
    launch->global = locate;
    launch->tick = tick;
    launch->user = &state;
    pthread_mutex_lock(&sim.launch_mutex);
    pthread_rwlock_rdlock(&sim.heap_lock);
    node_busy(device, true);
    struct ptx_result result = ptx_run(function->module->ptx, function->kernel, launch);
    node_busy(device, false);
    pthread_rwlock_unlock(&sim.heap_lock);
    pthread_mutex_unlock(&sim.launch_mutex);
    if (result.fault == PTX_FAULT_MEMORY)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (faults[i].fault == result.fault) {
            context_fault(context, faults[i].error); /* the launch itself succeeds; the next call sees the fault */
            mps_fault(device);
            if (faults[i].xid)
                node_xid(device, faults[i].xid);
        }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                               unsigned shared, CUstream stream, void **params, void **extra)
{
    CUcontext context;
    struct cu_device *device;
    uint8_t bytes[PTX_MAX_PARAM_BYTES];
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle_ok(function, HANDLE_FUNCTION) || ((uintptr_t)stream > 2 && !handle_ok(stream, HANDLE_STREAM)))
        return CUDA_ERROR_INVALID_HANDLE;
    if (function->handle.context != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct ptx_launch launch = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .dynamic_shared = shared, .params = bytes};
    if (!shape_ok(function->kernel, &launch))
        return CUDA_ERROR_INVALID_VALUE;
    result = gather_params(function->kernel, params, extra, bytes);
    return result == CUDA_SUCCESS ? run(context, device, function, &launch) : result;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                          config->blockDimZ, config->sharedMemBytes, config->hStream, params, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                          unsigned bz, unsigned shared, CUstream stream, void **params)
{
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}

/* ---- what a function is like ---- */

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || !handle_ok(function, HANDLE_FUNCTION))
        return value ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    unsigned regs = ptx_kernel_regs(function->kernel);
    const int values[] = {1024, (int)ptx_kernel_shared(function->kernel), 0, 0, (int)(regs > 255 ? 255 : regs),
                          (int)ptx_version(function->module->ptx), (int)ptx_target(function->module->ptx), 0,
                          function->max_dynamic_shared ? function->max_dynamic_shared : 49152 - (int)ptx_kernel_shared(function->kernel), -1};
    if (attribute < 0 || attribute >= (int)(sizeof values / sizeof *values))
        return CUDA_ERROR_INVALID_VALUE;
    *value = values[attribute];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    enum { MAX_DYNAMIC_SHARED = 8 };
    if (!handle_ok(function, HANDLE_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == MAX_DYNAMIC_SHARED) {
        if (value < 0 || value > (int)PTX_MAX_SHARED_BYTES)
            return CUDA_ERROR_INVALID_VALUE;
        function->max_dynamic_shared = value;
    }
    return sim_enter();
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
    (void)config;
    return handle_ok(function, HANDLE_FUNCTION) ? sim_enter() : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    if (!module || !handle_ok(function, HANDLE_FUNCTION))
        return module ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *module = function->module;
    return sim_enter();
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction function)
{
    if (!name || !handle_ok(function, HANDLE_FUNCTION))
        return name ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *name = ptx_kernel_name(function->kernel);
    return sim_enter();
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t shared)
{
    enum { THREADS_PER_SM = 2048, BLOCKS_PER_SM = 32, SHARED_PER_SM = 100 * 1024 };
    if (!blocks || block_size < 1 || !handle_ok(function, HANDLE_FUNCTION))
        return CUDA_ERROR_INVALID_VALUE;
    size_t used = ptx_kernel_shared(function->kernel) + shared;
    int by_threads = block_size > 1024 ? 0 : THREADS_PER_SM / block_size, by_shared = used ? (int)(SHARED_PER_SM / used) : BLOCKS_PER_SM;
    int least = by_threads < by_shared ? by_threads : by_shared;
    *blocks = least < BLOCKS_PER_SM ? least : BLOCKS_PER_SM;
    return sim_enter();
}
