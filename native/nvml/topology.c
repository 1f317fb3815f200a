/* Where GPUs sit: common ancestors, P2P, CPUs and memory near them. */
#include "internal.h"

static nvmlReturn_t pair(nvmlDevice_t one, nvmlDevice_t two, uint32_t *a, uint32_t *b) {
    kg_dev first, second;
    nvmlReturn_t rc = kg_dev_of(one, &first);
    if (rc == NVML_SUCCESS) rc = kg_dev_of(two, &second);
    if (rc == NVML_SUCCESS) *a = first.gpu, *b = second.gpu;
    return rc;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, unsigned int *level) {
    uint32_t a, b;
    nvmlReturn_t rc = pair(one, two, &a, &b);
    if (rc != NVML_SUCCESS) return rc;
    if (!level) return NVML_ERROR_INVALID_ARGUMENT;
    *level = a == b ? 0 : kg_m.state->topology[a * KG_MAX_GPUS + b];
    return NVML_SUCCESS;
}

static nvmlReturn_t give(uint32_t *count, nvmlDevice_t *out, const uint32_t *gpus, uint32_t have) {
    uint32_t room = *count;
    *count = have;
    for (uint32_t i = 0; out && i < have && i < room; i++) out[i] = kg_gpu_handle(gpus[i]);
    return out && room < have ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                                     nvmlDevice_t *out) {
    ENTER(kg_gpu_of, device, count);
    uint32_t gpus[KG_MAX_GPUS], have = 0;
    for (uint32_t i = 0; i < kg_visible_count(); i++) {
        uint32_t other = (uint32_t)kg_visible_slot(i);
        if (other != d.gpu && kg_m.state->topology[d.gpu * KG_MAX_GPUS + other] == level) gpus[have++] = other;
    }
    return give(count, out, gpus, have);
}

EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *out) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!count || cpu >= KG_CPU_WORDS * 64) return NVML_ERROR_INVALID_ARGUMENT;
    uint32_t gpus[KG_MAX_GPUS], have = 0;
    for (uint32_t i = 0; i < kg_visible_count(); i++) {
        uint32_t gpu = (uint32_t)kg_visible_slot(i);
        if (kg_m.state->gpu[gpu].cpu_affinity[cpu / 64] >> (cpu % 64) & 1) gpus[have++] = gpu;
    }
    return give(count, out, gpus, have);
}

/* Index 0 read, 1 write, 2 NVLink, 3 atomics, 4 PCI. NVLink is answered from the links, the others from the table. */
EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t two, unsigned int index,
                                           unsigned int *status) {
    uint32_t a, b;
    nvmlReturn_t rc = pair(one, two, &a, &b);
    if (rc != NVML_SUCCESS) return rc;
    if (!status || index > 4) return NVML_ERROR_INVALID_ARGUMENT;
    const kg_gpu *g = &kg_m.state->gpu[a];
    const kg_pci *peer = &kg_m.state->gpu[b].pci;
    int linked = 0;
    for (uint32_t i = 0; i < KG_MAX_LINKS; i++) {
        const kg_link *l = &g->link[i];
        int direct = l->remote_type == 0 && l->remote_domain == peer->domain && l->remote_bus == peer->bus &&
                     l->remote_device == peer->device;
        linked |= l->present && l->active && (direct || (l->remote_type == 2 && kg_m.state->gpu[b].link_count));
    }
    uint32_t known = kg_m.state->p2p[a * KG_MAX_GPUS + b];
    if (g->mig_current || kg_m.state->gpu[b].mig_current) *status = 5;
    else if (index == 2) *status = linked ? 0 : 5;
    else if (index == 3) *status = linked ? 0 : 5;
    else *status = linked ? 0 : known;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t two, int *same) {
    uint32_t a, b;
    nvmlReturn_t rc = pair(one, two, &a, &b);
    if (rc != NVML_SUCCESS) return rc;
    if (!same) return NVML_ERROR_INVALID_ARGUMENT;
    *same = a == b || (kg_m.state->gpu[a].multi_gpu && kg_m.state->gpu[a].board_id == kg_m.state->gpu[b].board_id);
    return NVML_SUCCESS;
}

static nvmlReturn_t set_of(const uint64_t *from, size_t have, unsigned int room, unsigned long *out) {
    int any = 0;
    for (unsigned int i = 0; i < room; i++) out[i] = 0;
    for (size_t i = 0; i < have; i++) {
        any |= from[i] != 0;
        if (i < room) out[i] = (unsigned long)from[i];
        else if (from[i]) return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return any ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set) {
    ENTER(kg_gpu_of, device, set && words && words <= 4096);
    return set_of(d.g->cpu_affinity, KG_CPU_WORDS, words, set);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                        unsigned int scope) {
    if (scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceGetCpuAffinity(device, words, set);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                unsigned int scope) {
    ENTER(kg_gpu_of, device, set && words && words <= 4096 && scope <= 1);
    return set_of(d.g->mem_affinity, sizeof d.g->mem_affinity / sizeof *d.g->mem_affinity, words, set);
}

EXPORT nvmlReturn_t nvmlDeviceSetCpuAffinity(nvmlDevice_t device) {
    ENTER(kg_gpu_of, device, 1);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceClearCpuAffinity(nvmlDevice_t device) {
    ENTER(kg_gpu_of, device, 1);
    return NVML_SUCCESS;
}
