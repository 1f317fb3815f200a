/* MIG mode and GPU instances: profiles, placements, creation, destruction.
 *
 * Profiles and placements come from the state. An instance's id follows from its placement as on real GPUs: the whole
 * is 0, halves 1 and 2, quarters 3..6 and so on. Without a wish the placement is taken that leaves the most other
 * placements free. Media engines are a budget: what the whole GPU's profile has can't be given out twice.
 */
#include "internal.h"

static nvmlReturn_t capable(nvmlDevice_t device, kg_dev *d) {
    nvmlReturn_t rc = kg_gpu_of(device, d);
    return rc == NVML_SUCCESS && !d->g->mig_capable ? NVML_ERROR_NOT_SUPPORTED : rc;
}

static nvmlReturn_t enabled(nvmlDevice_t device, kg_dev *d) {
    nvmlReturn_t rc = capable(device, d);
    return rc == NVML_SUCCESS && !d->g->mig_current ? NVML_ERROR_NOT_SUPPORTED : rc;
}

kg_gi_profile *kg_profile_of(kg_dev *d) { return &d->g->gi_profile[d->gi->row % KG_MAX_GI_PROFILES]; }

static kg_gi_profile *by_enum(kg_gpu *g, uint32_t number) {
    for (uint32_t i = 0; i < KG_MAX_GI_PROFILES; i++)
        if (g->gi_profile[i].used && g->gi_profile[i].enum_id == number) return &g->gi_profile[i];
    return NULL;
}

static kg_gi_profile *by_id(kg_gpu *g, uint32_t id) {
    for (uint32_t i = 0; i < KG_MAX_GI_PROFILES; i++)
        if (g->gi_profile[i].used && g->gi_profile[i].id == id) return &g->gi_profile[i];
    return NULL;
}

static uint32_t starts_of(const kg_gi_profile *p) {
    return p->placement_count > KG_MAX_PLACEMENTS ? KG_MAX_PLACEMENTS : p->placement_count;
}

/* Is there a process in this GPU instance (and compute instance, unless NO_INSTANCE)? gi NO_INSTANCE: on the GPU. */
int kg_gi_busy(const kg_dev *d, uint32_t gi, uint32_t ci) {
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++) {
        const kg_process *p = &d->g->process[i];
        if (!p->used || kg_proc_owner(&kg_m, d->gpu, i) < 0) continue;
        if ((gi == KG_NO_INSTANCE || p->gi_id == gi) && (ci == KG_NO_INSTANCE || p->ci_id == ci)) return 1;
    }
    return 0;
}

static int any_gi(const kg_gpu *g) {
    for (uint32_t i = 0; i < KG_MAX_GI; i++)
        if (g->gi[i].used) return 1;
    return 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    ENTER(capable, device, current && pending);
    *current = d.g->mig_current, *pending = d.g->mig_pending;
    return NVML_SUCCESS;
}

/* An idle GPU changes at once (with a reset of its own on Ampere). One in use answers IN_USE: on Ampere in the
 * activation status, with the mode pending until a reset; later GPUs stay as they are. */
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation) {
    ENTER(capable, device, activation && mode <= 1);
    BEGIN();
    nvmlReturn_t rc = NVML_SUCCESS;
    *activation = NVML_SUCCESS;
    if (mode == d.g->mig_current) {
        d.g->mig_pending = mode;
    } else if (any_gi(d.g) || kg_gi_busy(&d, KG_NO_INSTANCE, KG_NO_INSTANCE)) {
        *activation = NVML_ERROR_IN_USE;
        if (d.g->mig_needs_reset) d.g->mig_pending = mode;
        else rc = NVML_ERROR_IN_USE;
    } else {
        d.g->mig_current = d.g->mig_pending = mode;
        kg_push_event(kg_m.state, d.gpu, NVML_EVENT_MIG_CHANGE, 0, KG_NO_INSTANCE, KG_NO_INSTANCE);
    }
    END();
    return rc;
}

static void fill(const kg_gi_profile *p, nvmlGpuInstanceProfileInfo_t *out) {
    *out = (nvmlGpuInstanceProfileInfo_t){.id = p->id,
                                          .isP2pSupported = p->p2p,
                                          .sliceCount = p->slices,
                                          .instanceCount = p->instances,
                                          .multiprocessorCount = p->sm,
                                          .copyEngineCount = p->ce,
                                          .decoderCount = p->dec,
                                          .encoderCount = p->enc,
                                          .jpegCount = p->jpeg,
                                          .ofaCount = p->ofa,
                                          .memorySizeMB = p->memory_mib};
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                        nvmlGpuInstanceProfileInfo_t *info) {
    ENTER(capable, device, info && profile < 18);
    const kg_gi_profile *p = by_enum(d.g, profile);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    fill(p, info);
    return NVML_SUCCESS;
}

static nvmlReturn_t versioned(const kg_gi_profile *p, void *out) {
    unsigned int version = *(unsigned int *)out;
    int two = version == NVML_VERSIONED(nvmlGpuInstanceProfileInfo_v2_t, 2);
    if (!two && version != NVML_VERSIONED(nvmlGpuInstanceProfileInfo_v3_t, 3))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    char name[40];
    kg_text(name, sizeof name - 4, p->name, sizeof p->name);
    if (two) {
        nvmlGpuInstanceProfileInfo_v2_t *v = out;
        *v = (nvmlGpuInstanceProfileInfo_v2_t){version, p->id,  p->p2p, p->slices, p->instances, p->sm,
                                               p->ce,   p->dec, p->enc, p->jpeg,   p->ofa,       p->memory_mib, ""};
        snprintf(v->name, sizeof v->name, "MIG %s", name);
    } else {
        nvmlGpuInstanceProfileInfo_v3_t *v = out;
        *v = (nvmlGpuInstanceProfileInfo_v3_t){version, p->id,  p->slices, p->instances, p->sm,         p->ce, p->dec,
                                               p->enc,  p->jpeg, p->ofa,   p->memory_mib, "", p->caps};
        snprintf(v->name, sizeof v->name, "MIG %s", name);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile, void *info) {
    ENTER(capable, device, info && profile < 18);
    return versioned(by_enum(d.g, profile), info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id, void *info) {
    ENTER(capable, device, info);
    SINCE(560);
    return versioned(by_id(d.g, id), info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                                  nvmlPlacement_t *out, unsigned int *count) {
    ENTER(capable, device, count);
    const kg_gi_profile *p = by_id(d.g, id);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    *count = starts_of(p);
    for (uint32_t i = 0; out && i < *count; i++)
        out[i] = (nvmlPlacement_t){.start = p->placement_start[i], .size = p->placement_size};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                               nvmlPlacement_t *out, unsigned int *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, out, count);
}

/* ---- placement ---- */

static uint64_t span(uint32_t start, uint32_t size) {
    if (start >= 64 || size >= 64) return ~0ull;
    return ((1ull << size) - 1) << start;
}

static uint64_t taken(const kg_gpu *g) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < KG_MAX_GI; i++)
        if (g->gi[i].used) bits |= span(g->gi[i].start, g->gi[i].size);
    return bits;
}

/* How many more instances of a profile the count limit, the compute slices and the media engines allow. */
static uint32_t allowance(kg_gpu *g, const kg_gi_profile *want) {
    const kg_gi_profile *whole = NULL;
    for (uint32_t i = 0; i < KG_MAX_GI_PROFILES; i++) {
        const kg_gi_profile *p = &g->gi_profile[i];
        if (p->used && p->slices == g->mig_compute_slices && !(p->caps & 2)) whole = p;
    }
    if (!whole) return 0;
    uint32_t left[5] = {whole->slices, whole->dec, whole->enc, whole->jpeg, whole->ofa}, more = want->instances;
    const uint32_t need[5] = {want->slices, want->dec, want->enc, want->jpeg, want->ofa};
    for (uint32_t i = 0; i < KG_MAX_GI; i++) {
        if (!g->gi[i].used) continue;
        const kg_gi_profile *p = &g->gi_profile[g->gi[i].row % KG_MAX_GI_PROFILES];
        const uint32_t has[5] = {p->slices, p->dec, p->enc, p->jpeg, p->ofa};
        for (int k = 0; k < 5; k++) left[k] -= has[k] < left[k] ? has[k] : left[k];
        if (p == want && more) more--;
    }
    for (int k = 0; k < 5; k++)
        if (need[k] && left[k] / need[k] < more) more = left[k] / need[k];
    return more;
}

static uint32_t free_placements(const kg_gpu *g, uint64_t bits) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < KG_MAX_GI_PROFILES; i++) {
        const kg_gi_profile *p = &g->gi_profile[i];
        for (uint32_t k = 0; p->used && k < starts_of(p); k++)
            count += !(span(p->placement_start[k], p->placement_size) & bits);
    }
    return count;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                              unsigned int *count) {
    ENTER(enabled, device, count);
    const kg_gi_profile *p = by_id(d.g, id);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    uint64_t bits = taken(d.g);
    uint32_t fit = 0, more = allowance(d.g, p);
    for (uint32_t i = 0; i < starts_of(p); i++) {
        uint64_t place = span(p->placement_start[i], p->placement_size);
        if (place & bits) continue;
        bits |= place, fit++;
    }
    *count = fit < more ? fit : more;
    return NVML_SUCCESS;
}

static nvmlReturn_t place(kg_dev *d, const kg_gi_profile *p, const nvmlPlacement_t *wish, nvmlGpuInstance_t *out) {
    kg_gpu *g = d->g;
    kg_gi *slot = NULL;
    for (uint32_t i = 0; i < KG_MAX_GI && !slot; i++)
        if (!g->gi[i].used) slot = &g->gi[i];
    uint64_t bits = taken(g);
    int64_t best = -1;
    uint32_t start = 0, known = 0;
    for (uint32_t i = 0; i < starts_of(p); i++) {
        uint32_t at = p->placement_start[i];
        if (wish && (wish->start != at || wish->size != p->placement_size)) continue;
        known = 1;
        uint64_t mine = span(at, p->placement_size);
        if (mine & bits) continue;
        int64_t left = free_placements(g, bits | mine);
        if (left > best) best = left, start = at;
    }
    if (wish && !known) return NVML_ERROR_INVALID_ARGUMENT;
    if (best < 0 || !slot || !p->placement_size || !allowance(g, p)) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *slot = (kg_gi){.used = 1,
                    .id = g->mig_slices / p->placement_size - 1 + start / p->placement_size,
                    .row = (uint32_t)(p - g->gi_profile),
                    .start = start,
                    .size = p->placement_size,
                    .serial = ++g->mig_serial,
                    .created_us = kg_now_ns(kg_m.state) / 1000};
    kg_push_event(kg_m.state, d->gpu, NVML_EVENT_MIG_CHANGE, 0, slot->id, KG_NO_INSTANCE);
    *out = kg_gi_handle(d->gpu, slot);
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned int id, const nvmlPlacement_t *wish, nvmlGpuInstance_t *out) {
    ENTER(enabled, device, out);
    const kg_gi_profile *p = by_id(d.g, id);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    BEGIN();
    nvmlReturn_t rc = d.g->mig_current ? place(&d, p, wish, out) : NVML_ERROR_NOT_SUPPORTED;
    END();
    return rc;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out) {
    return create(device, id, NULL, out);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                             const nvmlPlacement_t *placement, nvmlGpuInstance_t *out) {
    if (!placement) return kg_ready() ? kg_ready() : NVML_ERROR_INVALID_ARGUMENT;
    return create(device, id, placement, out);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
    ENTER(kg_gi_of, instance, 1);
    BEGIN();
    nvmlReturn_t rc = kg_gi_busy(&d, d.gi->id, KG_NO_INSTANCE) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (!kg_still_there(&d)) rc = NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < KG_MAX_CI; i++)
        if (rc == NVML_SUCCESS && d.g->ci[i].used && d.g->ci[i].gi_id == d.gi->id) rc = NVML_ERROR_IN_USE;
    if (rc == NVML_SUCCESS) {
        kg_push_event(kg_m.state, d.gpu, NVML_EVENT_MIG_CHANGE, 0, d.gi->id, KG_NO_INSTANCE);
        memset(d.gi, 0, sizeof *d.gi);
    }
    END();
    return rc;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out,
                                              unsigned int *count) {
    ENTER(enabled, device, out && count);
    const kg_gi_profile *p = by_id(d.g, id);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (uint32_t i = 0; i < KG_MAX_GI; i++)
        if (d.g->gi[i].used && d.g->gi[i].row == (uint32_t)(p - d.g->gi_profile) && *count < p->instances)
            out[(*count)++] = kg_gi_handle(d.gpu, &d.g->gi[i]);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out) {
    ENTER(enabled, device, out);
    const kg_gi *gi = kg_find_gi(d.g, id);
    if (!gi) return NVML_ERROR_NOT_FOUND;
    *out = kg_gi_handle(d.gpu, gi);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    ENTER(kg_gi_of, instance, info);
    *info = (nvmlGpuInstanceInfo_t){.device = kg_gpu_handle(d.gpu),
                                    .id = d.gi->id,
                                    .profileId = kg_profile_of(&d)->id,
                                    .placement = {.start = d.gi->start, .size = d.gi->size}};
    return NVML_SUCCESS;
}
