/* NVLink per link, and the GPU's place in an NVLink fabric. */
#include "internal.h"

/* INVALID_ARGUMENT past the last link of any GPU, NOT_SUPPORTED for a link this GPU doesn't have. */
static nvmlReturn_t link_of(nvmlDevice_t device, unsigned int number, kg_dev *d, kg_link **out) {
    nvmlReturn_t rc = kg_gpu_of(device, d);
    if (rc != NVML_SUCCESS) return rc;
    if (number >= KG_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    if (!d->g->link[number].present) return NVML_ERROR_NOT_SUPPORTED;
    *out = &d->g->link[number];
    return NVML_SUCCESS;
}

#define LINK(device, number, ok)                                     \
    kg_dev d;                                                        \
    kg_link *l = NULL;                                               \
    do {                                                             \
        nvmlReturn_t rc_ = link_of(device, number, &d, &l);          \
        if (rc_ != NVML_SUCCESS) return rc_;                         \
        if (!(ok)) return NVML_ERROR_INVALID_ARGUMENT;               \
    } while (0)

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active) {
    LINK(device, link, active);
    *active = l->active != 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version) {
    LINK(device, link, version);
    *version = l->version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, unsigned int capability,
                                                  unsigned int *result) {
    LINK(device, link, result && capability < 6);
    *result = l->caps >> capability & 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    LINK(device, link, pci);
    if (!l->active) return NVML_ERROR_NOT_SUPPORTED;
    kg_fill_pci(pci, l->remote_domain, l->remote_bus, l->remote_device, l->remote_device_id, 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_v2_t *pci) {
    LINK(device, link, pci);
    if (!l->active) return NVML_ERROR_NOT_SUPPORTED;
    nvmlPciInfo_t full;
    kg_fill_pci(&full, l->remote_domain, l->remote_bus, l->remote_device, l->remote_device_id, 0);
    memset(pci, 0, sizeof *pci);
    memcpy(pci, &full, offsetof(nvmlPciInfo_v2_t, reserved));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type) {
    LINK(device, link, type);
    *type = l->active ? l->remote_type : 0xFF;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, unsigned int counter,
                                                    unsigned long long *value) {
    LINK(device, link, value && counter < 5);
    const uint64_t counts[5] = {l->err_replay, l->err_recovery, l->err_crc_flit, l->err_crc_data, l->err_ecc};
    *value = counts[counter];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t device, unsigned int link) {
    LINK(device, link, 1);
    BEGIN();
    l->err_replay = l->err_recovery = l->err_crc_flit = l->err_crc_data = l->err_ecc = 0;
    END();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkUtilizationCounter(nvmlDevice_t device, unsigned int link, unsigned int counter,
                                                          unsigned long long *receive, unsigned long long *transmit) {
    LINK(device, link, receive && transmit && counter < 2);
    *receive = kg_link_kib(d.g, l, 1), *transmit = kg_link_kib(d.g, l, 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    ENTER(kg_gpu_of, device, info);
    PROBED_SINCE(525);
    if (d.g->architecture < 9) return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    memcpy(info->clusterUuid, d.g->fabric_uuid, sizeof info->clusterUuid);
    info->status = (nvmlReturn_t)d.g->fabric_status, info->cliqueId = d.g->fabric_clique;
    info->state = (unsigned char)d.g->fabric_state;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t *info) {
    ENTER(kg_gpu_of, device, info);
    PROBED_SINCE(535);
    if (d.g->architecture < 9) return NVML_ERROR_NOT_SUPPORTED;
    int three = info->version == NVML_VERSIONED(nvmlGpuFabricInfo_v3_t, 3);
    if (!three && info->version != NVML_VERSIONED(nvmlGpuFabricInfo_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memcpy(info->clusterUuid, d.g->fabric_uuid, sizeof info->clusterUuid);
    info->status = (nvmlReturn_t)d.g->fabric_status, info->cliqueId = d.g->fabric_clique;
    info->state = (unsigned char)d.g->fabric_state, info->healthMask = d.g->fabric_health_mask;
    if (three) ((nvmlGpuFabricInfo_v3_t *)(void *)info)->healthSummary = (unsigned char)d.g->fabric_health_summary;
    return NVML_SUCCESS;
}

/* version, then one flag: is there a chip to chip link */
EXPORT nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, unsigned int *enabled) {
    ENTER(kg_gpu_of, device, enabled);
    SINCE(535);
    *enabled = d.g->c2c_links != 0;
    return NVML_SUCCESS;
}
