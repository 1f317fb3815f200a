/* Initialisation, contexts, and what every call asks first: initialised? a current context? is it still sound? */
#include "cu_sim.h"

#define MAX_STACK 64

static _Thread_local struct { int depth; CUcontext at[MAX_STACK]; } stack;

/* ---- entry ---- */

static void in_child(void)
{
    sim.forked = sim.initialised;
    mps_forked();
}

EXPORT CUresult cuInit(unsigned flags)
{
    static bool registered;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.mutex);
    CUresult result = sim.forked ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && !sim.initialised) {
        result = node_open();
        if (result == CUDA_SUCCESS)
            result = mps_attach();
        if (result == CUDA_SUCCESS)
            result = visible_devices(sim.device, &sim.count);
        for (int i = 0; result == CUDA_SUCCESS && i < sim.count; i++) {
            const kg_gpu *gpu = node_gpu(&sim.device[i]);
            node_wait(sim.device[i].gpu);
            if (gpu->fabric_state == 1 || gpu->fabric_state == 2) /* NVSwitch systems wait for the fabric manager */
                result = CUDA_ERROR_SYSTEM_NOT_READY;
        }
        sim.initialised = result == CUDA_SUCCESS;
        if (sim.initialised && !registered)
            registered = pthread_atfork(NULL, NULL, in_child) == 0;
    }
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

CUresult sim_enter(void) { return sim.initialised && !sim.forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult sim_device(CUdevice ordinal, struct cu_device **device)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (ordinal < 0 || ordinal >= sim.count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = &sim.device[ordinal];
    node_wait((*device)->gpu);
    return CUDA_SUCCESS;
}

void context_fault(CUcontext context, CUresult error)
{
    if (context->sticky == CUDA_SUCCESS)
        context->sticky = error;
}

CUresult sim_context(CUcontext *context, struct cu_device **device)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext current = stack.depth ? stack.at[stack.depth - 1] : NULL;
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!handle_ok(current, HANDLE_CONTEXT))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = current;
    *device = &sim.device[current->device];
    node_wait((*device)->gpu);
    if (node_gpu(*device)->lost)
        context_fault(current, CUDA_ERROR_LAUNCH_FAILED);
    context_fault(current, mps_state(*device));
    return current->sticky;
}

/* ---- the thread's stack ---- */

static CUresult push(CUcontext context)
{
    if (stack.depth == MAX_STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack.at[stack.depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, int ordinal, bool primary)
{
    static const size_t limits[8] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0}; /* stack, printf, heap, sync depth, launches, L2 fetch */
    struct cu_device *device = &sim.device[ordinal];
    CUcontext context = calloc(1, sizeof *context);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = node_enter(device);
    if (result != CUDA_SUCCESS) {
        free(context);
        return result;
    }
    context->device = ordinal;
    context->flags = flags;
    context->is_primary = primary;
    memcpy(context->limits, limits, sizeof limits);
    handle_add(&context->handle, HANDLE_CONTEXT, context);
    *out = context;
    return CUDA_SUCCESS;
}

/* Frees what belongs to the context and the context itself; other threads that have it current see it is gone. */
static void destroy(CUcontext context)
{
    struct cu_device *device = &sim.device[context->device];
    heap_free_context(context);
    handle_free_context(context);
    node_leave(device);
    if (stack.depth && stack.at[stack.depth - 1] == context)
        stack.depth--;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    struct cu_device *device;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_device(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.mutex);
    result = stack.depth == MAX_STACK ? CUDA_ERROR_OUT_OF_MEMORY : create(context, flags, ordinal, false);
    if (result == CUDA_SUCCESS)
        push(*context);
    pthread_mutex_unlock(&sim.mutex);
    return result;
}
ALIAS(cuCtxCreate, cuCtxCreate_v2);

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int affinities, unsigned flags, CUdevice ordinal)
{
    (void)affinity;
    return affinities ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice ordinal)
{
    return params ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, ordinal);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.mutex);
    if (!handle_ok(context, HANDLE_CONTEXT) || context->is_primary)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else
        destroy(context);
    pthread_mutex_unlock(&sim.mutex);
    return result;
}
ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return handle_ok(context, HANDLE_CONTEXT) ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!stack.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack.depth--;
    if (context)
        *context = stack.at[stack.depth];
    return CUDA_SUCCESS;
}
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (context && !handle_ok(context, HANDLE_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.depth)
        stack.depth--;
    return context ? push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS || !context)
        return context ? result : CUDA_ERROR_INVALID_VALUE;
    *context = stack.depth ? stack.at[stack.depth - 1] : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *ordinal)
{
    CUcontext context;
    CUresult result = cuCtxGetCurrent(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!context || !handle_ok(context, HANDLE_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!ordinal)
        return CUDA_ERROR_INVALID_VALUE;
    *ordinal = context->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    CUcontext context;
    struct cu_device *device;
    return sim_context(&context, &device);
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result == CUDA_SUCCESS && flags)
        *flags = context->flags;
    return result;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    if (!version || (context && !handle_ok(context, HANDLE_CONTEXT)))
        return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return sim_enter();
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result == CUDA_SUCCESS && (limit < 0 || limit > 7))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (result == CUDA_SUCCESS)
        context->limits[limit] = value;
    return result;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result == CUDA_SUCCESS && (limit < 0 || limit > 7))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (result == CUDA_SUCCESS && value)
        *value = context->limits[limit];
    return result;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return sim_enter();
}

EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
    if (config)
        *config = 0;
    return sim_enter();
}

EXPORT CUresult cuCtxSetCacheConfig(int config)
{
    (void)config;
    return sim_enter();
}
ALIAS(cuCtxGetSharedMemConfig, cuCtxGetCacheConfig);
ALIAS(cuCtxSetSharedMemConfig, cuCtxSetCacheConfig);

/* ---- primary contexts ---- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result != CUDA_SUCCESS || !context)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.mutex);
    if (!device->primary)
        result = create(&device->primary, device->primary_flags, ordinal, true);
    if (result == CUDA_SUCCESS) {
        device->primary_refs++;
        *context = device->primary;
    }
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

static CUresult release_primary(CUdevice ordinal, bool all)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.mutex);
    if (!device->primary) {
        result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else if (all || --device->primary_refs == 0) {
        destroy(device->primary);
        device->primary = NULL;
        device->primary_refs = 0;
    }
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) { return release_primary(ordinal, false); }
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) { return release_primary(ordinal, true); }
ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result == CUDA_SUCCESS)
        device->primary_flags = flags;
    return result;
}
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags)
        *flags = device->primary_flags;
    if (active)
        *active = device->primary != NULL;
    return CUDA_SUCCESS;
}
