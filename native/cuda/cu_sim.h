/* The simulated CUDA driver's insides: what one process holds, over the node's shared state. Private to cu_*.c.
 *
 * Rules: `sim.mutex` guards every table here; `sim.heap_lock` is read-held while device memory is touched and
 * write-held while it is mapped or unmapped; launches run one at a time under `sim.launch_mutex`. */
#ifndef KGPU_CU_SIM_H
#define KGPU_CU_SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda_api.h"
#include "kgpu_map.h"
#include "ptx.h"

#include <pthread.h>
#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(name, target) EXPORT extern __typeof__(target) name __attribute__((alias(#target)))

/* A device as CUDA numbers it: a GPU, or one compute instance of a GPU in MIG mode. */
struct cu_device {
    uint32_t gpu;    /* slot in the state */
    uint32_t gi, ci; /* KG_NO_INSTANCE unless MIG */
    char name[160];
    CUuuid uuid, gpu_uuid;
    uint32_t sm_count;
    uint64_t memory; /* bytes a program can have at most */
    uint64_t charged; /* bytes this process holds, contexts included */
    uint64_t limit;   /* bytes that an MPS client may allocate, 0: no limit */
    int mps;          /* number of the device at the MPS server, -1: it serves none */
    int slot;        /* in the process table, -1: not entered */
    int node[3];     /* descriptors of the device nodes while in the table */
    unsigned contexts;
    CUcontext primary;
    unsigned primary_refs, primary_flags;
};

enum handle_kind { HANDLE_CONTEXT = 1, HANDLE_MODULE, HANDLE_FUNCTION, HANDLE_STREAM, HANDLE_EVENT };

/* First member of every object a program gets a pointer to: a pointer is good when it is on the list. */
struct handle {
    enum handle_kind kind;
    struct handle *next;
    CUcontext context;
    void (*release)(struct handle *handle); /* frees what it holds when its context is destroyed; NULL: nothing */
};

struct CUctx_st {
    struct handle handle;
    int device;
    unsigned flags;
    bool is_primary, destroyed;
    CUresult sticky; /* a fault corrupts the context: every later call answers it */
    size_t limits[8];
};

struct CUmod_st {
    struct handle handle;
    struct ptx_module *ptx;
    struct CUfunc_st *functions;
};

struct CUfunc_st {
    struct handle handle;
    CUmodule module;
    const struct ptx_kernel *kernel;
    struct CUfunc_st *next_of_module;
    int max_dynamic_shared;
};

struct CUstream_st {
    struct handle handle;
    unsigned flags;
    int priority;
};

struct CUevent_st {
    struct handle handle;
    unsigned flags;
    bool recorded;
    uint64_t time_ns;
};

/* The connection to an MPS server. */
struct cu_mps {
    int fd;
    bool client, server; /* this process is one */
    CUresult lost;       /* what every call answers once the server has gone, or has ended this client */
    int count;
    struct { char uuid[64]; double percent; uint64_t limit; bool faulted; } device[KG_MAX_GPUS];
};

struct cu_sim {
    pthread_mutex_t mutex, launch_mutex;
    pthread_rwlock_t heap_lock;
    kg_map map;
    bool initialised, forked;
    int count;
    struct cu_device device[KG_MAX_GPUS];
    struct handle *handles;
    struct cu_mps mps;
};
extern struct cu_sim sim;

/* ---- cu_node.c: the shared state ---- */
CUresult node_open(void);
kg_gpu *node_gpu(const struct cu_device *device);
void node_wait(uint32_t gpu);             /* blocks while calls on the GPU are made to hang, delays when slow */
CUresult node_charge(struct cu_device *device, uint64_t bytes); /* OUT_OF_MEMORY when the GPU or slice is full */
void node_release(struct cu_device *device, uint64_t bytes);
void node_usage(const struct cu_device *device, uint64_t *free_bytes, uint64_t *total);
CUresult node_enter(struct cu_device *device); /* into the process table, with a context's overhead */
void node_leave(struct cu_device *device);
void node_busy(struct cu_device *device, bool busy);
void node_xid(const struct cu_device *device, uint32_t xid);

/* ---- cu_mps.c: the Multi-Process Service ---- */
CUresult mps_attach(void);                        /* become a client where a control daemon listens */
void mps_provision(struct cu_device *device, int ordinal); /* the share of threads and memory that it may have */
CUresult mps_open(const struct cu_device *device);
void mps_close(const struct cu_device *device);
CUresult mps_state(const struct cu_device *device); /* SUCCESS while the server is there and the device is sound */
void mps_fault(const struct cu_device *device);     /* this client has damaged the device */
void mps_forked(void);

/* ---- cu_visible.c: which devices this process has ---- */
CUresult visible_devices(struct cu_device *devices, int *count);

/* ---- cu_handle.c ---- */
void handle_add(struct handle *handle, enum handle_kind kind, CUcontext context);
void handle_remove(struct handle *handle);
bool handle_ok(const void *handle, enum handle_kind kind);
void handle_free_context(CUcontext context); /* all that belong to it, itself included */

/* ---- cu_context.c ---- */
CUresult sim_enter(void); /* initialised, and not in a forked child */
CUresult sim_device(CUdevice ordinal, struct cu_device **device);
CUresult sim_context(CUcontext *context, struct cu_device **device); /* the current one, if it is usable */
void context_fault(CUcontext context, CUresult error);

/* ---- cu_heap.c: memory that kernels can reach ---- */
enum heap_kind { HEAP_DEVICE, HEAP_HOST, HEAP_MANAGED, HEAP_REGISTERED };
struct heap_block {
    uint64_t address, size;
    uint8_t *host;
    enum heap_kind kind;
    CUcontext context;
    unsigned flags;
    void *chunk;
    uint64_t charged;
};
CUresult heap_alloc(CUcontext context, struct cu_device *device, uint64_t size, enum heap_kind kind, unsigned flags, uint64_t *address);
CUresult heap_register(CUcontext context, void *host, uint64_t size, unsigned flags);
CUresult heap_free(uint64_t address, unsigned kinds); /* kinds: bit per heap_kind it may be */
void heap_free_context(CUcontext context);
/* The block that holds all of [address, address + size), or NULL. Call with heap_lock held. */
const struct heap_block *heap_find(uint64_t address, uint64_t size);
uint8_t *heap_at(uint64_t address, uint64_t size);

#endif
