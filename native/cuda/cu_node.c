/* The node's shared state as the CUDA driver uses it: memory accounts, the process table, load, Xids.
 *
 * Promises: what a process takes is seen by every other reader at once and is given back when the process ends in any
 * way; two processes cannot both get the last free memory. */
#include "cu_sim.h"

struct cu_sim sim = {
    .mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
    .launch_mutex = PTHREAD_MUTEX_INITIALIZER,
    .heap_lock = PTHREAD_RWLOCK_INITIALIZER,
    .map = KG_MAP_INIT,
    .mps = {.fd = -1},
};

enum { EVENT_XID = 0x8 };

CUresult node_open(void)
{
    /* Without a driver the real library finds no device; a driver of another version is its own error. */
    static const struct { uint32_t nvml; CUresult cuda; } init_errors[] = {
        {9, CUDA_ERROR_NO_DEVICE}, {4, CUDA_ERROR_NO_DEVICE}, {18, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH},
    };
    if (kg_map_open(&sim.map) != 0 || !kg_node_exists(&sim.map, "nvidiactl"))
        return CUDA_ERROR_NO_DEVICE;
    const kg_state *state = sim.map.state;
    uint32_t error = state->init_error;
    for (size_t i = 0; i < sizeof init_errors / sizeof *init_errors; i++)
        if (error == init_errors[i].nvml)
            return init_errors[i].cuda;
    return error ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

kg_gpu *node_gpu(const struct cu_device *device) { return &sim.map.state->gpu[device->gpu]; }

void node_wait(uint32_t gpu)
{
    const kg_state *state = sim.map.state;
    const struct timespec slice = {.tv_nsec = 50 * 1000 * 1000};
    while (*(volatile const uint32_t *)&state->gpu[gpu].hang || *(volatile const uint32_t *)&state->hang_all)
        nanosleep(&slice, NULL);
    uint64_t slow = (uint64_t)state->gpu[gpu].slow_us + state->slow_us;
    if (slow) {
        struct timespec delay = {.tv_sec = (time_t)(slow / 1000000), .tv_nsec = (long)(slow % 1000000) * 1000};
        nanosleep(&delay, NULL);
    }
}

/* Bytes that live processes hold of the same memory: the whole GPU's, or the GPU instance's. */
static uint64_t held(const struct cu_device *device)
{
    const kg_gpu *gpu = node_gpu(device);
    uint64_t total = 0;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++) {
        const kg_process *p = &gpu->process[i];
        if (p->used && (device->gi == KG_NO_INSTANCE || p->gi_id == device->gi))
            total += __atomic_load_n(&p->memory, __ATOMIC_RELAXED); /* readers take no lock */
    }
    return device->gi == KG_NO_INSTANCE ? total + gpu->mem_used_base : total;
}

/* What a context costs before the first allocation: grows with the multiprocessors, as on real GPUs
 * (an H100 takes about 430 MiB, a T4 about 200 MiB). An MPS server shows about 30 MiB in nvidia-smi. */
static uint64_t context_overhead(const struct cu_device *device)
{
    return sim.mps.server ? 30ull << 20 : ((uint64_t)device->sm_count * 5 / 2 + 100) << 20;
}

/* Bytes that this process has allocated; an MPS client's limit is one of allocations, not of contexts. */
static uint64_t allocated(const struct cu_device *device)
{
    uint64_t contexts = context_overhead(device) * device->contexts;
    return device->charged > contexts ? device->charged - contexts : 0;
}

void node_usage(const struct cu_device *device, uint64_t *free_bytes, uint64_t *total)
{
    kg_proc_reap(&sim.map, device->gpu);
    uint64_t used = held(device);
    *total = device->memory;
    *free_bytes = used < device->memory ? device->memory - used : 0;
    if (device->limit && device->limit < *total) {
        uint64_t own = allocated(device), left = own < device->limit ? device->limit - own : 0;
        *total = device->limit;
        *free_bytes = left < *free_bytes ? left : *free_bytes;
    }
}

static void note_memory(const struct cu_device *device)
{
    __atomic_store_n(&node_gpu(device)->process[device->slot].memory, device->charged, __ATOMIC_RELAXED);
}

static CUresult charge(struct cu_device *device, uint64_t bytes)
{
    kg_proc_reap(&sim.map, device->gpu);
    if (kg_lock(&sim.map) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    uint64_t used = held(device);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (used <= device->memory && bytes <= device->memory - used) {
        device->charged += bytes;
        if (device->slot >= 0)
            note_memory(device);
        result = CUDA_SUCCESS;
    }
    kg_unlock(&sim.map);
    return result;
}

CUresult node_charge(struct cu_device *device, uint64_t bytes)
{
    uint64_t own = allocated(device);
    if (device->limit && (own > device->limit || bytes > device->limit - own))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return charge(device, bytes);
}

void node_release(struct cu_device *device, uint64_t bytes)
{
    device->charged -= bytes < device->charged ? bytes : device->charged;
    if (device->slot < 0 || kg_lock(&sim.map) != 0)
        return;
    note_memory(device);
    kg_unlock(&sim.map);
}

/* Exclusive compute modes: is another live process on the GPU? The clients of an MPS server come in with it. */
static CUresult check_compute_mode(const struct cu_device *device)
{
    enum { EXCLUSIVE_THREAD = 1, PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };
    const kg_gpu *gpu = node_gpu(device);
    if (gpu->compute_mode == PROHIBITED)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if ((gpu->compute_mode != EXCLUSIVE_PROCESS && gpu->compute_mode != EXCLUSIVE_THREAD) || sim.mps.client)
        return CUDA_SUCCESS;
    uint32_t others = sim.mps.server ? KG_PROC_COMPUTE : KG_PROC_COMPUTE | KG_PROC_MPS;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++)
        if (gpu->process[i].used && (int)i != device->slot && (gpu->process[i].kind & others))
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return CUDA_SUCCESS;
}

/* The device nodes that the real driver has open while a context lives. */
static void hold_nodes(struct cu_device *device)
{
    device->node[0] = kg_gpu_hold(&sim.map, node_gpu(device)->minor);
    device->node[1] = kg_node_hold(&sim.map, "nvidiactl");
    device->node[2] = kg_node_hold(&sim.map, "nvidia-uvm");
}

static void leave_nodes(struct cu_device *device)
{
    for (size_t i = 0; i < sizeof device->node / sizeof *device->node; i++)
        if (device->node[i] >= 0)
            close(device->node[i]);
}

/* The load profile that KGPU_SIMULATED_LOAD names, as NAME or NAME+SECONDS: the program begins that far in it. */
static void load_wish(const struct cu_device *device, kg_process *entry)
{
    static bool told;
    const char *wish = getenv("KGPU_SIMULATED_LOAD");
    if (!wish || !*wish)
        return;
    const kg_state *state = sim.map.state;
    const kg_gpu *gpu = node_gpu(device);
    size_t length = strcspn(wish, "+");
    const char *after = wish[length] ? wish + length + 1 : "0";
    unsigned long seconds = strtoul(after, NULL, 10);
    bool good = *after && !after[strspn(after, "0123456789")] && seconds < 1000000;
    for (uint32_t i = 0; good && i < state->load_count && i < KG_MAX_LOADS; i++) {
        const char *name = state->load[i].name;
        if (strnlen(name, sizeof state->load[i].name) != length || memcmp(name, wish, length) != 0)
            continue;
        entry->load = i + 1;
        entry->load_shift_ms = (uint32_t)seconds * 1000;
        entry->load_share = gpu->sm_count ? device->sm_count * 1000 / gpu->sm_count : 1000;
        return;
    }
    if (!told)
        fprintf(stderr, "KGPU_SIMULATED_LOAD=%.60s is no load profile of this simulated node; `kgpu lab hw load --help` lists them\n", wish);
    told = true;
}

/* What a program with this profile takes of the device's memory, as far as it is there. */
static void hold_memory(struct cu_device *device)
{
    const kg_load_profile *profile = kg_load_profile_of(sim.map.state, &node_gpu(device)->process[device->slot]);
    if (!profile)
        return;
    uint64_t free_bytes, total, want;
    node_usage(device, &free_bytes, &total);
    want = total / 1000 * (profile->memory < 1000 ? profile->memory : 1000);
    charge(device, want < free_bytes ? want : free_bytes);
}

/* A slot in the process table, and with it the device nodes. */
static CUresult sit_down(struct cu_device *device)
{
    kg_process entry = {.kind = sim.mps.client ? KG_PROC_MPS : KG_PROC_COMPUTE, .gi_id = device->gi, .ci_id = device->ci};
    if (!sim.mps.server)
        load_wish(device, &entry);
    CUresult result = mps_open(device);
    if (result != CUDA_SUCCESS)
        return result;
    device->charged = 0;
    device->slot = kg_proc_add(&sim.map, device->gpu, &entry);
    if (device->slot < 0) {
        mps_close(device);
        return sim.map.writable ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
    }
    hold_nodes(device);
    return CUDA_SUCCESS;
}

static void stand_up(struct cu_device *device)
{
    kg_proc_remove(&sim.map, device->gpu, device->slot);
    device->slot = -1;
    leave_nodes(device);
    mps_close(device);
}

CUresult node_enter(struct cu_device *device)
{
    const kg_gpu *gpu = node_gpu(device);
    if (gpu->lost || gpu->reset_required || gpu->init_error)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    kg_proc_reap(&sim.map, device->gpu);
    CUresult result = check_compute_mode(device);
    bool first = device->slot < 0;
    if (result == CUDA_SUCCESS)
        result = mps_state(device);
    if (result == CUDA_SUCCESS && first)
        result = sit_down(device);
    if (result != CUDA_SUCCESS)
        return result;
    result = charge(device, context_overhead(device));
    if (result == CUDA_SUCCESS)
        device->contexts++;
    else if (first)
        stand_up(device);
    if (result == CUDA_SUCCESS && first)
        hold_memory(device);
    return result;
}

void node_leave(struct cu_device *device)
{
    node_release(device, context_overhead(device));
    if (--device->contexts == 0)
        stand_up(device);
}

void node_busy(struct cu_device *device, bool busy)
{
    const kg_gpu *gpu = node_gpu(device);
    uint32_t share = gpu->sm_count ? device->sm_count * 100 / gpu->sm_count : 100; /* a slice loads its part of the GPU */
    kg_proc_busy(&sim.map, device->gpu, device->slot, busy ? (share > 100 ? 100 : share) : 0);
}

void node_xid(const struct cu_device *device, uint32_t xid)
{
    if (kg_lock(&sim.map) != 0)
        return;
    kg_gpu *gpu = node_gpu(device);
    gpu->xid_last = xid;
    gpu->xid_count++;
    kg_push_event(sim.map.state, device->gpu, EVENT_XID, xid, device->gi, device->ci);
    kg_unlock(&sim.map);
}

static void leave_all(void)
{
    if (!sim.initialised || sim.forked)
        return;
    for (int i = 0; i < sim.count; i++)
        if (sim.device[i].slot >= 0)
            kg_proc_remove(&sim.map, sim.device[i].gpu, sim.device[i].slot);
    sim.initialised = false;
}

__attribute__((destructor)) static void at_exit(void) { leave_all(); }
