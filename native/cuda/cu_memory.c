/* The memory calls of the driver API. Copies and fills are done before the call returns, in stream order by nature. */
#include "cu_sim.h"

#include <sys/mman.h>

#define KIND(kind) (1u << (kind))
#define DEVICE_KINDS (KIND(HEAP_DEVICE) | KIND(HEAP_MANAGED))

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t address = 0;
    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.mutex);
    result = heap_alloc(context, device, size, HEAP_DEVICE, 0, &address);
    pthread_mutex_unlock(&sim.mutex);
    if (result == CUDA_SUCCESS)
        *pointer = address;
    return result;
}
ALIAS(cuMemAlloc, cuMemAlloc_v2);

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    (void)stream;
    return cuMemAlloc_v2(pointer, size);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16) || width > SIZE_MAX / 2 ||
        height > SIZE_MAX / ((width + 511) & ~(size_t)511))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) & ~(size_t)511;
    return cuMemAlloc_v2(pointer, *pitch * height);
}
ALIAS(cuMemAllocPitch, cuMemAllocPitch_v2);

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    uint64_t address = 0;
    if (result == CUDA_SUCCESS)
        result = pointer ? heap_alloc(context, device, size, HEAP_MANAGED, flags, &address) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pointer = address;
    return result;
}

static CUresult free_kinds(uint64_t address, unsigned kinds)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.mutex);
    result = heap_free(address, kinds);
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) { return pointer ? free_kinds(pointer, DEVICE_KINDS) : CUDA_SUCCESS; }
ALIAS(cuMemFree, cuMemFree_v2);
EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { (void)stream; return cuMemFree_v2(pointer); }
EXPORT CUresult cuMemFreeHost(void *host) { return free_kinds((uint64_t)(uintptr_t)host, KIND(HEAP_HOST)); }

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t available = 0, all = 0;
    node_usage(device, &available, &all);
    if (free_bytes)
        *free_bytes = available;
    if (total)
        *total = all;
    return CUDA_SUCCESS;
}
ALIAS(cuMemGetInfo, cuMemGetInfo_v2);

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_rdlock(&sim.heap_lock);
    const struct heap_block *block = heap_find(pointer, 1);
    if (block && base)
        *base = block->address;
    if (block && size)
        *size = block->size;
    pthread_rwlock_unlock(&sim.heap_lock);
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ALIAS(cuMemGetAddressRange, cuMemGetAddressRange_v2);

/* ---- host memory ---- */

EXPORT CUresult cuMemHostAlloc(void **host, size_t size, unsigned flags)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    uint64_t address = 0;
    if (result == CUDA_SUCCESS)
        result = host ? heap_alloc(context, device, size, HEAP_HOST, flags, &address) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *host = (void *)(uintptr_t)address;
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **host, size_t size) { return cuMemHostAlloc(host, size, 0); }
ALIAS(cuMemAllocHost, cuMemAllocHost_v2);

EXPORT CUresult cuMemHostRegister_v2(void *host, size_t size, unsigned flags)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    return result == CUDA_SUCCESS ? heap_register(context, host, size, flags) : result;
}
ALIAS(cuMemHostRegister, cuMemHostRegister_v2);

EXPORT CUresult cuMemHostUnregister(void *host)
{
    CUresult result = free_kinds((uint64_t)(uintptr_t)host, KIND(HEAP_REGISTERED));
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : result;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned flags)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_rwlock_rdlock(&sim.heap_lock);
    const struct heap_block *block = heap_find((uint64_t)(uintptr_t)host, 1);
    bool good = pointer && flags == 0 && block && block->kind != HEAP_DEVICE;
    pthread_rwlock_unlock(&sim.heap_lock);
    if (!good)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = (uint64_t)(uintptr_t)host;
    return CUDA_SUCCESS;
}
ALIAS(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2);

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *host)
{
    pthread_rwlock_rdlock(&sim.heap_lock);
    const struct heap_block *block = heap_find((uint64_t)(uintptr_t)host, 1);
    bool good = flags && block && block->kind == HEAP_HOST;
    if (good)
        *flags = block->flags;
    pthread_rwlock_unlock(&sim.heap_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- copies and fills ---- */

/* `host` sides are taken as they are; device sides must lie in one allocation. */
static CUresult copy(uint64_t to, bool to_device, uint64_t from, bool from_device, size_t size)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS || size == 0)
        return result;
    pthread_rwlock_rdlock(&sim.heap_lock);
    uint8_t *target = to_device ? heap_at(to, size) : (uint8_t *)(uintptr_t)to;
    const uint8_t *source = from_device ? heap_at(from, size) : (const uint8_t *)(uintptr_t)from;
    if (target && source)
        memmove(target, source, size);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&sim.heap_lock);
    return result;
}

/* Unified addressing: whether an address is the device's is known from the address. */
static bool is_device(uint64_t address)
{
    pthread_rwlock_rdlock(&sim.heap_lock);
    const struct heap_block *block = heap_find(address, 1);
    bool device = block && block->kind == HEAP_DEVICE;
    pthread_rwlock_unlock(&sim.heap_lock);
    return device;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) { return copy(to, true, (uint64_t)(uintptr_t)from, false, size); }
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) { return copy((uint64_t)(uintptr_t)to, false, from, true, size); }
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, true, from, true, size); }
EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, is_device(to), from, is_device(from), size); }
EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t size)
{
    return handle_ok(tc, HANDLE_CONTEXT) && handle_ok(fc, HANDLE_CONTEXT) ? copy(to, true, from, true, size) : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream s) { (void)s; return cuMemcpyHtoD_v2(to, from, size); }
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream s) { (void)s; return cuMemcpyDtoH_v2(to, from, size); }
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s) { (void)s; return cuMemcpyDtoD_v2(to, from, size); }
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s) { (void)s; return cuMemcpy(to, from, size); }
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t size, CUstream s)
{
    (void)s;
    return cuMemcpyPeer(to, tc, from, fc, size);
}
ALIAS(cuMemcpyHtoD, cuMemcpyHtoD_v2);
ALIAS(cuMemcpyDtoH, cuMemcpyDtoH_v2);
ALIAS(cuMemcpyDtoD, cuMemcpyDtoD_v2);
ALIAS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);
ALIAS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);
ALIAS(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2);

static CUresult fill(CUdeviceptr to, uint32_t value, size_t width, size_t count)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS || count == 0)
        return result;
    if (count > SIZE_MAX / width || to % width)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&sim.heap_lock);
    uint8_t *at = heap_at(to, count * width);
    if (!at) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (width == 1) {
        memset(at, (int)value, count);
    } else {
        for (size_t i = 0; i < count; i++)
            memcpy(at + i * width, &value, width);
    }
    pthread_rwlock_unlock(&sim.heap_lock);
    return result;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, value, 1, count); }
EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return fill(to, value, 2, count); }
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return fill(to, value, 4, count); }
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream s) { (void)s; return fill(to, value, 1, count); }
EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream s) { (void)s; return fill(to, value, 2, count); }
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream s) { (void)s; return fill(to, value, 4, count); }
ALIAS(cuMemsetD8, cuMemsetD8_v2);
ALIAS(cuMemsetD16, cuMemsetD16_v2);
ALIAS(cuMemsetD32, cuMemsetD32_v2);

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, IS_MANAGED = 8, DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12 };
    enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS || !data)
        return data ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&sim.heap_lock);
    const struct heap_block *found = heap_find(pointer, 1);
    struct heap_block block = found ? *found : (struct heap_block){0};
    pthread_rwlock_unlock(&sim.heap_lock);
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CONTEXT: *(CUcontext *)data = block.context; break;
    case MEMORY_TYPE: *(unsigned *)data = block.kind == HEAP_DEVICE || block.kind == HEAP_MANAGED ? TYPE_DEVICE : TYPE_HOST; break;
    case DEVICE_POINTER: *(CUdeviceptr *)data = pointer; break;
    case HOST_POINTER:
        if (block.kind == HEAP_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        break;
    case IS_MANAGED: *(unsigned *)data = block.kind == HEAP_MANAGED; break;
    case DEVICE_ORDINAL: *(int *)data = block.context->device; break;
    case RANGE_START: *(CUdeviceptr *)data = block.address; break;
    case RANGE_SIZE: *(size_t *)data = block.size; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
