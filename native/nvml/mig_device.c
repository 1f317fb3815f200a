/* MIG devices: compute instances as devices of their own. In a container only those whose nodes are there. */
#include "internal.h"

/* The visible compute instances of a GPU, by GPU instance id and compute instance id. */
static uint32_t devices(const kg_dev *d, const kg_ci *out[KG_MAX_CI]) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < KG_MAX_CI && d->g->mig_current; i++) {
        const kg_ci *c = &d->g->ci[i];
        if (!c->used || c->row >= KG_MAX_CI_PROFILES || !kg_find_gi(d->g, c->gi_id)) continue;
        if (!kg_mig_visible(&kg_m, d->g->minor, c->gi_id, c->id)) continue;
        uint32_t at = found++;
        while (at && (out[at - 1]->gi_id > c->gi_id || (out[at - 1]->gi_id == c->gi_id && out[at - 1]->id > c->id))) {
            out[at] = out[at - 1];
            at--;
        }
        out[at] = c;
    }
    return found;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
    ENTER(kg_dev_of, device, is_mig);
    *is_mig = d.ci != NULL;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    ENTER(kg_mig_of, device, id);
    *id = d.ci->gi_id;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    ENTER(kg_mig_of, device, id);
    *id = d.ci->id;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    ENTER(kg_gpu_of, device, count);
    *count = d.g->mig_current ? d.g->mig_max_devices : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out) {
    ENTER(kg_gpu_of, device, out);
    if (!d.g->mig_capable) return NVML_ERROR_NOT_SUPPORTED;
    if (index >= d.g->mig_max_devices) return NVML_ERROR_INVALID_ARGUMENT;
    const kg_ci *all[KG_MAX_CI];
    if (index >= devices(&d, all)) return NVML_ERROR_NOT_FOUND;
    *out = kg_mig_handle(d.gpu, all[index]);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent) {
    ENTER(kg_mig_of, device, parent);
    *parent = kg_gpu_handle(d.gpu);
    return NVML_SUCCESS;
}

/* Of a MIG device: its position among its GPU's MIG devices. */
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    ENTER(kg_dev_of, device, index);
    if (!d.ci) {
        *index = (unsigned)kg_visible_index(d.gpu);
        return NVML_SUCCESS;
    }
    const kg_ci *all[KG_MAX_CI];
    uint32_t count = devices(&d, all);
    for (uint32_t i = 0; i < count; i++)
        if (all[i] == d.ci) {
            *index = i;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out) {
    ENTER(kg_dev_of, device, out);
    if (!d.ci) return NVML_ERROR_NOT_SUPPORTED;
    const kg_gi_profile *p = kg_profile_of(&d);
    const kg_ci_profile *c = &p->ci[d.ci->row];
    *out = (nvmlDeviceAttributes_t){.multiprocessorCount = c->sm,
                                    .sharedCopyEngineCount = c->ce,
                                    .sharedDecoderCount = c->dec,
                                    .sharedEncoderCount = c->enc,
                                    .sharedJpegCount = c->jpeg,
                                    .sharedOfaCount = c->ofa,
                                    .gpuInstanceSliceCount = p->slices,
                                    .computeInstanceSliceCount = c->slices,
                                    .memorySizeMB = p->memory_mib};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out) {
    return nvmlDeviceGetAttributes_v2(device, out);
}
