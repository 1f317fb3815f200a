/* Device memory of this process: addresses, backing, and exact bounds.
 *
 * Promises: a device address is never valid on the host (its range is reserved without access), no two blocks overlap,
 * memory is charged in 2 MiB steps as the real driver takes it, and costs real memory only where it is written. */
#include "cu_sim.h"

#include <sys/mman.h>

#define CHUNK (2ull << 20)
#define SMALL (1ull << 20)
#define ALIGNMENT 512ull

/* A range of addresses with its backing. Small blocks of one context share a chunk, filled from the bottom up. */
struct chunk {
    struct chunk *next;
    CUcontext context;
    struct cu_device *device;
    uint64_t address, size, used;
    uint8_t *host;
    unsigned blocks;
    bool shared;
};

static struct heap_block *blocks; /* sorted by address */
static size_t block_count, block_cap;
static struct chunk *chunks;

static uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

static void *map_pages(uint64_t size, int protection)
{
    void *at = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void unmap_chunk(struct chunk *chunk)
{
    munmap((void *)(uintptr_t)chunk->address, chunk->size);
    munmap(chunk->host, chunk->size);
    node_release(chunk->device, chunk->size);
    for (struct chunk **at = &chunks; *at; at = &(*at)->next)
        if (*at == chunk) {
            *at = chunk->next;
            break;
        }
    free(chunk);
}

static CUresult new_chunk(CUcontext context, struct cu_device *device, uint64_t size, bool shared, struct chunk **out)
{
    struct chunk *chunk = calloc(1, sizeof *chunk);
    CUresult result = chunk ? node_charge(device, size) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    void *reserved = map_pages(size, PROT_NONE);
    chunk->host = map_pages(size, PROT_READ | PROT_WRITE);
    if (!reserved || !chunk->host) {
        if (reserved)
            munmap(reserved, size);
        if (chunk->host)
            munmap(chunk->host, size);
        node_release(device, size);
        free(chunk);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    chunk->context = context;
    chunk->device = device;
    chunk->address = (uint64_t)(uintptr_t)reserved;
    chunk->size = size;
    chunk->shared = shared;
    chunk->next = chunks;
    chunks = chunk;
    *out = chunk;
    return CUDA_SUCCESS;
}

/* Index of the first block above `address`. */
static size_t upper(uint64_t address)
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(const struct heap_block *block)
{
    if (block_count == block_cap) {
        size_t wanted = block_cap ? block_cap * 2 : 64;
        struct heap_block *grown = realloc(blocks, wanted * sizeof *blocks);
        if (!grown)
            return false;
        blocks = grown;
        block_cap = wanted;
    }
    size_t at = upper(block->address);
    memmove(&blocks[at + 1], &blocks[at], (block_count - at) * sizeof *blocks);
    blocks[at] = *block;
    block_count++;
    return true;
}

static CUresult place(CUcontext context, struct cu_device *device, uint64_t size, struct heap_block *block)
{
    bool shared = size < SMALL;
    uint64_t taken = round_up(size, ALIGNMENT);
    struct chunk *chunk = NULL;
    for (struct chunk *c = chunks; shared && c && !chunk; c = c->next)
        if (c->shared && c->context == context && c->size - c->used >= taken)
            chunk = c;
    if (!chunk) {
        CUresult result = new_chunk(context, device, shared ? CHUNK : round_up(size, CHUNK), shared, &chunk);
        if (result != CUDA_SUCCESS)
            return result;
    }
    block->address = chunk->address + chunk->used;
    block->host = chunk->host + chunk->used;
    block->chunk = chunk;
    chunk->used += taken;
    chunk->blocks++;
    return CUDA_SUCCESS;
}

static void drop_backing(struct heap_block *block)
{
    struct chunk *chunk = block->chunk;
    if (chunk) {
        if (--chunk->blocks == 0)
            unmap_chunk(chunk);
    } else if (block->kind != HEAP_REGISTERED) {
        munmap(block->host, round_up(block->size, 4096));
    }
}

CUresult heap_alloc(CUcontext context, struct cu_device *device, uint64_t size, enum heap_kind kind, unsigned flags, uint64_t *address)
{
    struct heap_block block = {.size = size, .kind = kind, .context = context, .flags = flags};
    CUresult result = CUDA_SUCCESS;
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > 1ull << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&sim.heap_lock);
    if (kind == HEAP_DEVICE) {
        result = place(context, device, size, &block);
    } else { /* host and managed memory: one address for both sides */
        block.host = map_pages(round_up(size, 4096), PROT_READ | PROT_WRITE);
        block.address = (uint64_t)(uintptr_t)block.host;
        result = block.host ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS && !insert(&block)) {
        drop_backing(&block);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_rwlock_unlock(&sim.heap_lock);
    if (result == CUDA_SUCCESS)
        *address = block.address;
    return result;
}

CUresult heap_register(CUcontext context, void *host, uint64_t size, unsigned flags)
{
    uint64_t address = (uint64_t)(uintptr_t)host;
    struct heap_block block = {.address = address, .size = size, .host = host, .kind = HEAP_REGISTERED, .context = context, .flags = flags};
    if (!host || size == 0 || size > UINT64_MAX - address)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim.heap_lock);
    size_t at = upper(address);
    bool overlaps = (at > 0 && blocks[at - 1].address + blocks[at - 1].size > address) ||
                    (at < block_count && blocks[at].address < address + size);
    CUresult result = overlaps ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : insert(&block) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_unlock(&sim.heap_lock);
    return result;
}

static void remove_at(size_t at)
{
    struct heap_block block = blocks[at];
    memmove(&blocks[at], &blocks[at + 1], (block_count - at - 1) * sizeof *blocks);
    block_count--;
    drop_backing(&block);
}

CUresult heap_free(uint64_t address, unsigned kinds)
{
    pthread_rwlock_wrlock(&sim.heap_lock);
    size_t at = upper(address);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (at > 0 && blocks[at - 1].address == address && (kinds >> blocks[at - 1].kind & 1)) {
        remove_at(at - 1);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&sim.heap_lock);
    return result;
}

void heap_free_context(CUcontext context)
{
    pthread_rwlock_wrlock(&sim.heap_lock);
    for (size_t i = block_count; i-- > 0;)
        if (blocks[i].context == context)
            remove_at(i);
    pthread_rwlock_unlock(&sim.heap_lock);
}

const struct heap_block *heap_find(uint64_t address, uint64_t size)
{
    size_t at = upper(address);
    if (at == 0)
        return NULL;
    const struct heap_block *block = &blocks[at - 1];
    return size <= block->size && address - block->address <= block->size - size ? block : NULL;
}

uint8_t *heap_at(uint64_t address, uint64_t size)
{
    const struct heap_block *block = heap_find(address, size);
    return block ? block->host + (address - block->address) : NULL;
}
