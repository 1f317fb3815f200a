/* Compute instances: profiles, placements inside a GPU instance, creation, destruction.
 *
 * A compute instance's UUID is a function of the GPU's UUID and the two placements, so it comes back the same when the
 * same layout is made again, as with the real driver.
 */
#include "internal.h"

static uint32_t step_of(uint32_t slices) { return slices == 3 ? 4 : slices ? slices : 1; }

static kg_ci_profile *by(kg_dev *d, uint32_t number, int by_enum) {
    kg_gi_profile *p = kg_profile_of(d);
    for (uint32_t i = 0; i < KG_MAX_CI_PROFILES; i++)
        if (p->ci[i].used && (by_enum ? p->ci[i].enum_id : p->ci[i].id) == number) return &p->ci[i];
    return NULL;
}

static nvmlComputeInstanceProfileInfo_t info_of(const kg_ci_profile *p) {
    return (nvmlComputeInstanceProfileInfo_t){.id = p->id,
                                              .sliceCount = p->slices,
                                              .instanceCount = p->instances,
                                              .multiprocessorCount = p->sm,
                                              .sharedCopyEngineCount = p->ce,
                                              .sharedDecoderCount = p->dec,
                                              .sharedEncoderCount = p->enc,
                                              .sharedJpegCount = p->jpeg,
                                              .sharedOfaCount = p->ofa};
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                                 unsigned int engines,
                                                                 nvmlComputeInstanceProfileInfo_t *info) {
    ENTER(kg_gi_of, instance, info && profile < KG_MAX_CI_PROFILES && engines == 0);
    const kg_ci_profile *p = by(&d, profile, 1);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    *info = info_of(p);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                                  unsigned int engines,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *info) {
    ENTER(kg_gi_of, instance, info && profile < KG_MAX_CI_PROFILES && engines == 0);
    int three = info->version == NVML_VERSIONED(nvmlComputeInstanceProfileInfo_v3_t, 3);
    if (!three && info->version != NVML_VERSIONED(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const kg_ci_profile *p = by(&d, profile, 1);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    char name[40];
    kg_text(name, sizeof name - 4, p->name, sizeof p->name);
    info->info = info_of(p);
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    if (three) ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities = kg_profile_of(&d)->caps >> 1 & 1;
    return NVML_SUCCESS;
}

/* Compute slices of the GPU instance that are taken. */
static uint64_t taken(const kg_dev *d) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < KG_MAX_CI; i++) {
        const kg_ci *c = &d->g->ci[i];
        if (c->used && c->gi_id == d->gi->id && c->start < 32 && c->size < 32) bits |= ((1ull << c->size) - 1) << c->start;
    }
    return bits;
}

static uint64_t span(uint32_t start, uint32_t size) { return start < 32 && size < 32 ? ((1ull << size) - 1) << start : ~0ull; }

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int id,
                                                                       unsigned int *count) {
    ENTER(kg_gi_of, instance, count);
    const kg_ci_profile *p = by(&d, id, 0);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    uint64_t bits = taken(&d);
    uint32_t total = kg_profile_of(&d)->slices, found = 0;
    for (uint32_t at = 0; at + p->slices <= total && total < 32; at += step_of(p->slices))
        found += !(span(at, p->slices) & bits);
    *count = found;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int id,
                                                                        nvmlPlacement_t *out, unsigned int *count) {
    ENTER(kg_gi_of, instance, count);
    const kg_ci_profile *p = by(&d, id, 0);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    uint32_t total = kg_profile_of(&d)->slices, found = 0;
    for (uint32_t at = 0; at + p->slices <= total && total < 32; at += step_of(p->slices), found++)
        if (out) out[found] = (nvmlPlacement_t){.start = at, .size = p->slices};
    *count = found;
    return NVML_SUCCESS;
}

/* ---- UUID ---- */

static uint64_t mix(uint64_t hash, const void *data, size_t size) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    hash ^= hash >> 32, hash *= 0xd6e8feb86659fd93ull, hash ^= hash >> 29;
    return hash;
}

static void name_it(const kg_dev *d, kg_ci *ci) {
    const uint32_t place[] = {d->gi->id, d->gi->row, d->gi->start, d->gi->size, ci->id, ci->row, ci->start, ci->size};
    char gpu[97];
    kg_text(gpu, sizeof gpu, d->g->uuid, sizeof d->g->uuid);
    uint64_t a = mix(mix(0xcbf29ce484222325ull, gpu, strlen(gpu)), place, sizeof place);
    uint64_t b = mix(mix(a ^ 0x9E3779B97F4A7C15ull, place, sizeof place), gpu, strlen(gpu));
    snprintf(ci->uuid, sizeof ci->uuid, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(a >> 32), (unsigned)(a >> 16 & 0xFFFF),
             (unsigned)(a & 0xFFF), (unsigned)(0x8000 | (b >> 48 & 0x3FFF)), (unsigned long long)(b & 0xFFFFFFFFFFFFull));
}

static nvmlReturn_t place(kg_dev *d, const kg_ci_profile *p, const nvmlPlacement_t *wish, nvmlComputeInstance_t *out) {
    const kg_gi_profile *parent = kg_profile_of(d);
    uint32_t total = parent->slices, ids = 0, start = 0, id = 0;
    uint64_t bits = taken(d);
    kg_ci *slot = NULL;
    int found = 0, known = 0;
    for (uint32_t i = 0; i < KG_MAX_CI; i++) {
        const kg_ci *c = &d->g->ci[i];
        if (!c->used && !slot) slot = &d->g->ci[i];
        if (c->used && c->gi_id == d->gi->id && c->id < 8) ids |= 1u << c->id;
    }
    for (uint32_t at = 0; at + p->slices <= total && total < 32; at += step_of(p->slices)) {
        if (wish && (wish->start != at || wish->size != p->slices)) continue;
        known = 1;
        if (!found && !(span(at, p->slices) & bits)) start = at, found = 1;
    }
    if (wish && !known) return NVML_ERROR_INVALID_ARGUMENT;
    while (id < 8 && ids >> id & 1) id++;
    if (!found || !slot || id == 8) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    kg_ci made = {.used = 1,
                  .id = id,
                  .gi_id = d->gi->id,
                  .row = (uint32_t)(p - parent->ci),
                  .start = start,
                  .size = p->slices,
                  .serial = ++d->g->mig_serial,
                  .created_us = kg_now_ns(kg_m.state) / 1000};
    name_it(d, &made);
    *slot = made;
    kg_push_event(kg_m.state, d->gpu, NVML_EVENT_MIG_CHANGE, 0, made.gi_id, made.id);
    *out = kg_ci_handle(d->gpu, slot);
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlGpuInstance_t instance, unsigned int id, const nvmlPlacement_t *wish,
                           nvmlComputeInstance_t *out) {
    ENTER(kg_gi_of, instance, out);
    const kg_ci_profile *p = by(&d, id, 0);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    BEGIN();
    nvmlReturn_t rc = kg_still_there(&d) ? place(&d, p, wish, out) : NVML_ERROR_INVALID_ARGUMENT;
    END();
    return rc;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int id,
                                                         nvmlComputeInstance_t *out) {
    return create(instance, id, NULL, out);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int id,
                                                                      const nvmlPlacement_t *placement,
                                                                      nvmlComputeInstance_t *out) {
    if (!placement) return kg_ready() ? kg_ready() : NVML_ERROR_INVALID_ARGUMENT;
    return create(instance, id, placement, out);
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance) {
    ENTER(kg_ci_of, instance, 1);
    BEGIN();
    nvmlReturn_t rc = NVML_SUCCESS;
    if (!kg_still_there(&d)) rc = NVML_ERROR_INVALID_ARGUMENT;
    else if (kg_gi_busy(&d, d.ci->gi_id, d.ci->id)) rc = NVML_ERROR_IN_USE;
    else {
        kg_push_event(kg_m.state, d.gpu, NVML_EVENT_MIG_CHANGE, 0, d.ci->gi_id, d.ci->id);
        memset(d.ci, 0, sizeof *d.ci);
    }
    END();
    return rc;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int id,
                                                       nvmlComputeInstance_t *out, unsigned int *count) {
    ENTER(kg_gi_of, instance, out && count);
    const kg_gi_profile *parent = kg_profile_of(&d);
    const kg_ci_profile *p = by(&d, id, 0);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (uint32_t i = 0; i < KG_MAX_CI; i++) {
        const kg_ci *c = &d.g->ci[i];
        if (c->used && c->gi_id == d.gi->id && c->row == (uint32_t)(p - parent->ci) && *count < p->instances)
            out[(*count)++] = kg_ci_handle(d.gpu, c);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                          nvmlComputeInstance_t *out) {
    ENTER(kg_gi_of, instance, out);
    const kg_ci *ci = kg_find_ci(d.g, d.gi->id, id);
    if (!ci) return NVML_ERROR_NOT_FOUND;
    *out = kg_ci_handle(d.gpu, ci);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info) {
    ENTER(kg_ci_of, instance, info);
    *info = (nvmlComputeInstanceInfo_t){.device = kg_gpu_handle(d.gpu),
                                        .gpuInstance = kg_gi_handle(d.gpu, d.gi),
                                        .id = d.ci->id,
                                        .profileId = kg_profile_of(&d)->ci[d.ci->row].id,
                                        .placement = {.start = d.ci->start, .size = d.ci->size}};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info) {
    return nvmlComputeInstanceGetInfo_v2(instance, info);
}
