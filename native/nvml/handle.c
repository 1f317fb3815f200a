/* Handles: numbers dressed as pointers, and the way from a handle to what it means now.
 *
 * Layout, low to high: 20 bits serial, 8 bits slot, 8 bits GPU, 4 bits kind, 8 bits tag. The serial of an instance is
 * that of its creation, so a handle of a destroyed instance is noticed even when its slot is used again.
 */
#include "internal.h"

#define TAG 0x6Bull
#define SERIAL(n) ((uint64_t)(n) & 0xFFFFFull)

static void *pack(enum kg_kind kind, uint32_t gpu, uint32_t slot, uint32_t serial) {
    uint64_t bits = TAG << 40 | (uint64_t)kind << 36 | (uint64_t)(gpu & 0xFF) << 28 | (uint64_t)(slot & 0xFF) << 20 |
                    SERIAL(serial);
    return (void *)(uintptr_t)bits;
}

static int unpack(enum kg_kind kind, const void *handle, uint32_t *gpu, uint32_t *slot, uint32_t *serial) {
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    if (bits >> 40 != TAG || (bits >> 36 & 0xF) != (uint64_t)kind) return 0;
    *gpu = (uint32_t)(bits >> 28 & 0xFF);
    *slot = (uint32_t)(bits >> 20 & 0xFF);
    *serial = (uint32_t)SERIAL(bits);
    return 1;
}

nvmlDevice_t kg_gpu_handle(uint32_t gpu) { return pack(KG_GPU_KIND, gpu, 0, 0); }

nvmlDevice_t kg_mig_handle(uint32_t gpu, const kg_ci *ci) {
    return pack(KG_MIG_KIND, gpu, (uint32_t)(ci - kg_m.state->gpu[gpu].ci), ci->serial);
}

nvmlGpuInstance_t kg_gi_handle(uint32_t gpu, const kg_gi *gi) {
    return pack(KG_GI_KIND, gpu, (uint32_t)(gi - kg_m.state->gpu[gpu].gi), gi->serial);
}

nvmlComputeInstance_t kg_ci_handle(uint32_t gpu, const kg_ci *ci) {
    return pack(KG_CI_KIND, gpu, (uint32_t)(ci - kg_m.state->gpu[gpu].ci), ci->serial);
}

void *kg_id_handle(enum kg_kind kind, uint32_t id) { return pack(kind, id >> 28 & 0xFF, id >> 20 & 0xFF, id); }

int kg_handle_id(enum kg_kind kind, const void *handle, uint32_t *id) {
    uint32_t high, middle, low;
    if (!unpack(kind, handle, &high, &middle, &low)) return 0;
    *id = high << 28 | middle << 20 | low;
    return 1;
}

/* Act out what is wrong with a GPU before the call does its work. */
nvmlReturn_t kg_faults(uint32_t gpu) {
    const kg_state *s = kg_m.state;
    const kg_gpu *g = &s->gpu[gpu];
    while (__atomic_load_n(&g->hang, __ATOMIC_RELAXED) || __atomic_load_n(&s->hang_all, __ATOMIC_RELAXED)) {
        usleep(5000);
        if (kg_map_broken(&kg_m)) return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    uint64_t delay = (uint64_t)g->slow_us + s->slow_us;
    if (delay) usleep((useconds_t)(delay > 60000000 ? 60000000 : delay));
    if (g->lost) return NVML_ERROR_GPU_IS_LOST;
    return g->reset_required ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
}

static nvmlReturn_t find(enum kg_kind kind, const void *handle, kg_dev *out) {
    uint32_t gpu, slot, serial;
    if (!unpack(kind, handle, &gpu, &slot, &serial) || kg_visible_index(gpu) < 0) return NVML_ERROR_INVALID_ARGUMENT;
    *out = (kg_dev){.g = &kg_m.state->gpu[gpu], .gpu = gpu};
    nvmlReturn_t rc = kg_faults(gpu);
    if (kind == KG_GPU_KIND && (slot || serial)) return NVML_ERROR_INVALID_ARGUMENT;
    if (rc != NVML_SUCCESS || kind == KG_GPU_KIND) return rc;
    if (kind == KG_GI_KIND) {
        if (slot >= KG_MAX_GI) return NVML_ERROR_INVALID_ARGUMENT;
        kg_gi *gi = &out->g->gi[slot];
        if (!gi->used || SERIAL(gi->serial) != serial || gi->row >= KG_MAX_GI_PROFILES)
            return NVML_ERROR_INVALID_ARGUMENT;
        out->gi = gi, out->serial = gi->serial;
        return NVML_SUCCESS;
    }
    if (slot >= KG_MAX_CI) return NVML_ERROR_INVALID_ARGUMENT;
    kg_ci *ci = &out->g->ci[slot];
    if (!ci->used || SERIAL(ci->serial) != serial || ci->row >= KG_MAX_CI_PROFILES) return NVML_ERROR_INVALID_ARGUMENT;
    out->ci = ci, out->serial = ci->serial;
    out->gi = kg_find_gi(out->g, ci->gi_id);
    return out->gi ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

int kg_still_there(const kg_dev *d) {
    if (d->ci) return d->ci->used && d->ci->serial == d->serial;
    return !d->gi || (d->gi->used && d->gi->serial == d->serial);
}

static int kind_of(const void *handle) {
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    return bits >> 40 == TAG ? (int)(bits >> 36 & 0xF) : 0;
}

nvmlReturn_t kg_dev_of(nvmlDevice_t handle, kg_dev *out) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    return find(kind_of(handle) == KG_MIG_KIND ? KG_MIG_KIND : KG_GPU_KIND, handle, out);
}

nvmlReturn_t kg_known_of(nvmlDevice_t handle, kg_dev *out) {
    nvmlReturn_t rc = kg_dev_of(handle, out);
    return rc == NVML_ERROR_RESET_REQUIRED && kind_of(handle) == KG_GPU_KIND ? NVML_SUCCESS : rc;
}

nvmlReturn_t kg_gpu_of(nvmlDevice_t handle, kg_dev *out) {
    nvmlReturn_t rc = kg_dev_of(handle, out);
    return rc == NVML_SUCCESS && out->ci ? NVML_ERROR_NOT_SUPPORTED : rc;
}

nvmlReturn_t kg_mig_of(nvmlDevice_t handle, kg_dev *out) {
    nvmlReturn_t rc = kg_dev_of(handle, out);
    return rc == NVML_SUCCESS && !out->ci ? NVML_ERROR_INVALID_ARGUMENT : rc;
}

nvmlReturn_t kg_gi_of(nvmlGpuInstance_t handle, kg_dev *out) {
    nvmlReturn_t rc = kg_ready();
    return rc == NVML_SUCCESS ? find(KG_GI_KIND, handle, out) : rc;
}

nvmlReturn_t kg_ci_of(nvmlComputeInstance_t handle, kg_dev *out) {
    nvmlReturn_t rc = kg_ready();
    return rc == NVML_SUCCESS ? find(KG_CI_KIND, handle, out) : rc;
}
