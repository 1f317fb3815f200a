/* Streams and events. Work is done when the call that submits it returns, so streams are always idle and events complete
 * when they are recorded; their times are the host's clock. */
#include "cu_sim.h"

static bool stream_ok(CUstream stream)
{
    uintptr_t value = (uintptr_t)stream;
    return value <= 2 || handle_ok(stream, HANDLE_STREAM); /* 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD */
}

static CUresult with_stream(CUstream stream)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    return result == CUDA_SUCCESS && !stream_ok(stream) ? CUDA_ERROR_INVALID_HANDLE : result;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS || !stream || flags > 1)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    CUstream made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    made->priority = priority;
    pthread_mutex_lock(&sim.mutex);
    handle_add(&made->handle, HANDLE_STREAM, context);
    pthread_mutex_unlock(&sim.mutex);
    *stream = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

static CUresult destroy(void *object, enum handle_kind kind)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.mutex);
    if (handle_ok(object, kind)) {
        handle_remove(object);
        free(object);
    } else {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) { return destroy(stream, HANDLE_STREAM); }
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);
EXPORT CUresult cuStreamSynchronize(CUstream stream) { return with_stream(stream); }
EXPORT CUresult cuStreamQuery(CUstream stream) { return with_stream(stream); }

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return handle_ok(event, HANDLE_EVENT) ? with_stream(stream) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
    CUresult result = with_stream(stream);
    if (result == CUDA_SUCCESS && flags)
        *flags = (uintptr_t)stream > 2 ? stream->flags : 0;
    return result;
}

EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    CUresult result = with_stream(stream);
    if (result == CUDA_SUCCESS && priority)
        *priority = (uintptr_t)stream > 2 ? stream->priority : 0;
    return result;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    CUcontext current;
    struct cu_device *device;
    CUresult result = sim_context(&current, &device);
    if (result == CUDA_SUCCESS && (!stream_ok(stream) || !context))
        return CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        *context = (uintptr_t)stream > 2 ? stream->handle.context : current;
    return result;
}

EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *user, unsigned flags)
{
    CUresult result = with_stream(stream);
    if (result == CUDA_SUCCESS && (!callback || flags))
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        callback(stream, CUDA_SUCCESS, user);
    return result;
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user)
{
    CUresult result = with_stream(stream);
    if (result == CUDA_SUCCESS && !function)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        function(user);
    return result;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    if (status)
        *status = 0;
    return with_stream(stream);
}

/* ---- events ---- */

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS || !event)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    CUevent made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    pthread_mutex_lock(&sim.mutex);
    handle_add(&made->handle, HANDLE_EVENT, context);
    pthread_mutex_unlock(&sim.mutex);
    *event = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) { return destroy(event, HANDLE_EVENT); }
ALIAS(cuEventDestroy, cuEventDestroy_v2);

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    if (!handle_ok(event, HANDLE_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = with_stream(stream);
    if (result == CUDA_SUCCESS) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        event->time_ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
        event->recorded = true;
    }
    return result;
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return cuEventRecord(event, stream);
}

EXPORT CUresult cuEventQuery(CUevent event) { return handle_ok(event, HANDLE_EVENT) ? with_stream(NULL) : CUDA_ERROR_INVALID_HANDLE; }
EXPORT CUresult cuEventSynchronize(CUevent event) { return cuEventQuery(event); }

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    enum { DISABLE_TIMING = 2 };
    if (!handle_ok(start, HANDLE_EVENT) || !handle_ok(end, HANDLE_EVENT) || !milliseconds)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->recorded || !end->recorded || ((start->flags | end->flags) & DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)((double)((int64_t)(end->time_ns - start->time_ns)) / 1e6);
    return CUDA_SUCCESS;
}
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);
