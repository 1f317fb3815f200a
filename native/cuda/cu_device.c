/* Devices: count, names, identity, attributes, peers. Attributes are rows: a constant, a field of the state, or a value
 * that follows from the compute capability. */
#include "cu_sim.h"

struct source {
    const struct cu_device *device;
    const kg_gpu *gpu;
    int capability; /* 10 * major + minor */
};

/* What the vendor's table of compute capabilities says: per multiprocessor and per block. */
static const struct capability { int cc, threads, blocks, shared_sm_kib, shared_optin_kib, l2_mib; } capabilities[] = {
    {60, 2048, 32, 64, 48, 4}, {61, 2048, 32, 96, 48, 3}, {70, 2048, 32, 96, 96, 6}, {75, 1024, 16, 64, 64, 4},
    {80, 2048, 32, 164, 163, 40}, {86, 1536, 16, 100, 99, 6}, {89, 1536, 24, 100, 99, 48}, {90, 2048, 32, 228, 227, 50},
    {100, 2048, 32, 228, 227, 126}, {103, 2048, 32, 228, 227, 126}, {120, 1536, 24, 100, 99, 128},
};

static const struct capability *capability_of(int cc)
{
    size_t count = sizeof capabilities / sizeof *capabilities, best = 0;
    for (size_t i = 0; i < count; i++)
        if (capabilities[i].cc <= cc)
            best = i;
    return &capabilities[best];
}

static int sm_count(const struct source *s) { return (int)s->device->sm_count; }
static int major(const struct source *s) { return (int)s->gpu->cc_major; }
static int minor(const struct source *s) { return (int)s->gpu->cc_minor; }
static int clock_khz(const struct source *s) { return (int)s->gpu->clock_max[1] * 1000; }
static int memory_khz(const struct source *s) { return (int)s->gpu->clock_max[2] * 1000; }
static int bus_width(const struct source *s) { return (int)s->gpu->mem_bus_width; }
static int ecc(const struct source *s) { return (int)s->gpu->ecc_current; }
static int compute_mode(const struct source *s) { return (int)s->gpu->compute_mode; }
static int pci_bus(const struct source *s) { return (int)s->gpu->pci.bus; }
static int pci_device(const struct source *s) { return (int)s->gpu->pci.device; }
static int pci_domain(const struct source *s) { return (int)s->gpu->pci.domain; }
static int numa(const struct source *s) { return s->gpu->pci.numa_node; }
static int threads_sm(const struct source *s) { return capability_of(s->capability)->threads; }
static int blocks_sm(const struct source *s) { return capability_of(s->capability)->blocks; }
static int shared_sm(const struct source *s) { return capability_of(s->capability)->shared_sm_kib * 1024; }
static int shared_optin(const struct source *s) { return capability_of(s->capability)->shared_optin_kib * 1024; }
static int l2(const struct source *s) { return capability_of(s->capability)->l2_mib << 20; }
static int multi_gpu(const struct source *s) { return (int)s->gpu->multi_gpu; }
static int board(const struct source *s) { return (int)s->gpu->board_id; }
static int hopper(const struct source *s) { return s->capability >= 90; }
static int volta(const struct source *s) { return s->capability >= 70; }

static const struct { int attribute, constant; int (*read)(const struct source *); } attributes[] = {
    {1, 1024, NULL}, {2, 1024, NULL}, {3, 1024, NULL}, {4, 64, NULL},                  /* threads and block dimensions */
    {5, 0x7fffffff, NULL}, {6, 65535, NULL}, {7, 65535, NULL},                         /* grid dimensions */
    {8, 49152, NULL}, {9, 65536, NULL}, {10, 32, NULL}, {11, 0x7fffffff, NULL}, {12, 65536, NULL}, /* shared, const, warp, pitch, regs */
    {13, 0, clock_khz}, {14, 512, NULL}, {15, 1, NULL}, {16, 0, sm_count}, {17, 0, NULL}, {18, 0, NULL}, {19, 1, NULL},
    {20, 0, compute_mode}, {21, 131072, NULL}, {22, 131072, NULL}, {23, 65536, NULL},
    {30, 512, NULL}, {31, 1, NULL}, {32, 0, ecc}, {33, 0, pci_bus}, {34, 0, pci_device}, {35, 0, NULL},
    {36, 0, memory_khz}, {37, 0, bus_width}, {38, 0, l2}, {39, 0, threads_sm}, {40, 3, NULL}, {41, 1, NULL},
    {50, 0, pci_domain}, {51, 32, NULL}, {75, 0, major}, {76, 0, minor}, {78, 1, NULL}, {79, 1, NULL}, {80, 1, NULL},
    {81, 0, shared_sm}, {82, 65536, NULL}, {83, 1, NULL}, {84, 0, multi_gpu}, {85, 0, board}, {86, 1, NULL}, {87, 2, NULL},
    {88, 1, NULL}, {89, 1, NULL}, {90, 1, NULL}, {91, 1, NULL}, {95, 0, volta}, {97, 0, shared_optin}, {98, 0, NULL}, {99, 1, NULL},
    {100, 0, NULL}, {101, 0, NULL}, {102, 1, NULL}, {103, 1, NULL}, {104, 0, NULL}, {105, 0, NULL}, {106, 0, blocks_sm},
    {107, 0, NULL}, {108, 0, NULL}, {109, 0, NULL}, {110, 0, NULL}, {111, 1024, NULL}, {115, 1, NULL}, {116, 0, NULL},
    {120, 0, hopper}, {124, 0, NULL}, {128, 0, NULL}, {129, 1, NULL}, {134, 0, numa},
};

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result != CUDA_SUCCESS || !value)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    const kg_gpu *gpu = node_gpu(device);
    struct source source = {device, gpu, (int)(gpu->cc_major * 10 + gpu->cc_minor)};
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) {
            *value = attributes[i].read ? attributes[i].read(&source) : attributes[i].constant;
            return CUDA_SUCCESS;
        }
    if (attribute < 1 || attribute > 145)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.mutex);
    bool open = sim.map.state || kg_map_open(&sim.map) == 0; /* answers without cuInit */
    *version = open ? (int)sim.map.state->cuda_version : 12040;
    pthread_mutex_unlock(&sim.mutex);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult result = sim_enter();
    if (result == CUDA_SUCCESS && !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *count = sim.count;
    return result;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = sim_enter();
    if (result != CUDA_SUCCESS || !device)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    if (ordinal < 0 || ordinal >= sim.count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result == CUDA_SUCCESS && (!name || length <= 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "%s", device->name);
    return result;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result == CUDA_SUCCESS && !uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *uuid = device->uuid;
    return result;
}

/* The first version knows no slices: it gives the whole GPU's. */
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    CUresult result = cuDeviceGetUuid_v2(uuid, ordinal);
    if (result == CUDA_SUCCESS)
        *uuid = sim.device[ordinal].gpu_uuid;
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result == CUDA_SUCCESS && !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = device->memory;
    return result;
}
ALIAS(cuDeviceTotalMem, cuDeviceTotalMem_v2);

EXPORT CUresult cuDeviceComputeCapability(int *major_out, int *minor_out, CUdevice ordinal)
{
    CUresult result = cuDeviceGetAttribute(major_out, 75, ordinal);
    return result == CUDA_SUCCESS ? cuDeviceGetAttribute(minor_out, 76, ordinal) : result;
}

EXPORT CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result != CUDA_SUCCESS || !properties)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    *properties = (CUdevprop){1024, {1024, 1024, 64}, {0x7fffffff, 65535, 65535}, 49152, 65536, 32, 0x7fffffff, 65536,
                              (int)node_gpu(device)->clock_max[1] * 1000, 512};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
    struct cu_device *device;
    CUresult result = sim_device(ordinal, &device);
    if (result == CUDA_SUCCESS && (!text || length <= 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        const kg_pci *pci = &node_gpu(device)->pci;
        snprintf(text, (size_t)length, "%04X:%02X:%02X.%X", pci->domain, pci->bus, pci->device, pci->function);
    }
    return result;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *ordinal, const char *text)
{
    CUresult result = sim_enter();
    unsigned domain = 0, bus, slot, function = 0;
    if (result != CUDA_SUCCESS)
        return result;
    if (!ordinal || !text || (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 &&
                              sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 &&
                              (domain = 0, sscanf(text, "%x:%x.%x", &bus, &slot, &function) != 3)))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < sim.count; i++) {
        const kg_pci *pci = &node_gpu(&sim.device[i])->pci;
        if (pci->domain == domain && pci->bus == bus && pci->device == slot) {
            *ordinal = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* ---- peers ---- */

static bool peers(const struct cu_device *a, const struct cu_device *b)
{
    const kg_state *state = sim.map.state;
    if (a->gpu == b->gpu || a->gi != KG_NO_INSTANCE || b->gi != KG_NO_INSTANCE)
        return false; /* slices have no peer access */
    return state->p2p[a->gpu * KG_MAX_GPUS + b->gpu] == 0; /* NVML_P2P_STATUS_OK */
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to)
{
    struct cu_device *a, *b;
    CUresult result = sim_device(from, &a);
    if (result == CUDA_SUCCESS)
        result = sim_device(to, &b);
    if (result == CUDA_SUCCESS && !can)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *can = peers(a, b);
    return result;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
    int can = 0;
    CUresult result = cuDeviceCanAccessPeer(&can, from, to);
    if (result == CUDA_SUCCESS && (!value || from == to || attribute < 1 || attribute > 4))
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *value = attribute == 1 ? 0 : can; /* rank 0, then access, native atomics, array access */
    return result;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle_ok(peer, HANDLE_CONTEXT) || peer == context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    return peers(device, &sim.device[peer->device]) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    return handle_ok(peer, HANDLE_CONTEXT) ? sim_enter() : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(void **pool, CUdevice ordinal)
{
    (void)pool, (void)ordinal;
    return CUDA_ERROR_NOT_SUPPORTED;
}
