/* Finding devices, and their fixed facts: names, ids, PCI data, versions. */
#include "internal.h"

#include <ctype.h>
#include <strings.h>

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = kg_visible_count();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn_t give(uint32_t gpu, nvmlDevice_t *device) {
    nvmlReturn_t rc = kg_faults(gpu);
    /* A GPU that waits for a reset can still be named; what is asked of it then says so. */
    if (rc == NVML_ERROR_RESET_REQUIRED) rc = NVML_SUCCESS;
    if (rc == NVML_SUCCESS && kg_m.state->gpu[gpu].init_error) rc = (nvmlReturn_t)kg_m.state->gpu[gpu].init_error;
    if (rc == NVML_SUCCESS) *device = kg_gpu_handle(gpu);
    return rc;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    int gpu = kg_visible_slot(index);
    if (!device || gpu < 0) return NVML_ERROR_INVALID_ARGUMENT;
    return give((uint32_t)gpu, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static int same(const char *field, size_t size, const char *text) {
    return strnlen(field, size) == strlen(text) && memcmp(field, text, strlen(text)) == 0;
}

/* `MIG-<uuid>`, and the older `MIG-GPU-<uuid>/<gi>/<ci>`. */
static nvmlReturn_t find_mig(const char *uuid, nvmlDevice_t *device) {
    unsigned gi = 0, ci = 0;
    char gpu_uuid[96] = "";
    int old = sscanf(uuid, "MIG-%80[^/]/%u/%u", gpu_uuid, &gi, &ci) == 3;
    for (uint32_t i = 0; i < kg_visible_count(); i++) {
        uint32_t gpu = (uint32_t)kg_visible_slot(i);
        kg_gpu *g = &kg_m.state->gpu[gpu];
        if (!g->mig_current || (old && !same(g->uuid, sizeof g->uuid, gpu_uuid))) continue;
        for (uint32_t k = 0; k < KG_MAX_CI; k++) {
            const kg_ci *c = &g->ci[k];
            if (!c->used) continue;
            if (old ? c->gi_id != gi || c->id != ci : !same(c->uuid, sizeof c->uuid, uuid)) continue;
            if (!kg_mig_visible(&kg_m, g->minor, c->gi_id, c->id)) continue;
            nvmlReturn_t rc = kg_faults(gpu);
            if (rc == NVML_SUCCESS) *device = kg_mig_handle(gpu, c);
            return rc;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
    if (strncmp(uuid, "MIG-", 4) == 0) return find_mig(uuid, device);
    for (uint32_t i = 0; i < kg_visible_count(); i++) {
        uint32_t gpu = (uint32_t)kg_visible_slot(i);
        if (same(kg_m.state->gpu[gpu].uuid, sizeof kg_m.state->gpu[gpu].uuid, uuid)) return give(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
    SINCE(570);
    VERSIONED(uuid, nvmlUUID_t, 1);
    char text[64];
    if (uuid->type == 1) {
        kg_text(text, sizeof text, uuid->value.str, sizeof uuid->value.str);
        return nvmlDeviceGetHandleByUUID(text, device);
    }
    if (uuid->type != 2) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned char *b = uuid->value.bytes;
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return nvmlDeviceGetHandleByUUID(text, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!serial || !*serial || !device) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < kg_visible_count(); i++) {
        uint32_t gpu = (uint32_t)kg_visible_slot(i);
        if (same(kg_m.state->gpu[gpu].serial, sizeof kg_m.state->gpu[gpu].serial, serial)) return give(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

/* domain:bus:device.function, any number of domain digits; the domain may be left out. */
static int parse_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *device) {
    unsigned function = 0;
    int end = 0;
    *domain = 0;
    if (sscanf(text, "%8x:%2x:%2x%n", domain, bus, device, &end) == 3 && end) goto tail;
    *domain = 0, end = 0;
    if (sscanf(text, "%2x:%2x%n", bus, device, &end) == 2 && end) goto tail;
    return 0;
tail:
    if (!text[end]) return 1;
    int more = 0;
    return sscanf(text + end, ".%1x%n", &function, &more) == 1 && !text[end + more] && function == 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    unsigned domain, bus, slot;
    if (!bus_id || !device || !parse_bus_id(bus_id, &domain, &bus, &slot)) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < kg_visible_count(); i++) {
        uint32_t gpu = (uint32_t)kg_visible_slot(i);
        const kg_pci *p = &kg_m.state->gpu[gpu].pci;
        if (p->domain == domain && p->bus == bus && p->device == slot) return give(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    ENTER(kg_known_of, device, name);
    if (!d.ci) return KG_COPY(name, length, d.g->name);
    char model[96], profile[32], text[160];
    kg_text(model, sizeof model, d.g->name, sizeof d.g->name);
    const kg_ci_profile *p = &kg_profile_of(&d)->ci[d.ci->row];
    kg_text(profile, sizeof profile, p->name, sizeof p->name);
    snprintf(text, sizeof text, "%s MIG %s", model, profile);
    return kg_copy(name, length, text, sizeof text);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    ENTER(kg_known_of, device, uuid);
    return d.ci ? KG_COPY(uuid, length, d.ci->uuid) : KG_COPY(uuid, length, d.g->uuid);
}

static nvmlReturn_t optional_text(char *out, unsigned room, const char *field, size_t size) {
    return field[0] ? kg_copy(out, room, field, size) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned int object, char *version,
                                                unsigned int length) {
    ENTER(kg_gpu_of, device, version && object <= 3);
    const char *fields[] = {d.g->inforom_oem, d.g->inforom_ecc, d.g->inforom_power, ""};
    return optional_text(version, length, fields[object], object == 3 ? 1 : sizeof d.g->inforom_oem);
}

#define TEXT(function, field)                                                                         \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned int length) {              \
        ENTER(kg_gpu_of, device, text);                                                               \
        return optional_text(text, length, d.g->field, sizeof d.g->field);                            \
    }
TEXT(nvmlDeviceGetSerial, serial)
TEXT(nvmlDeviceGetBoardPartNumber, board_part)
TEXT(nvmlDeviceGetVbiosVersion, vbios)
TEXT(nvmlDeviceGetInforomImageVersion, inforom_image)

#define NUMBER(function, how, expression)                                          \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *value) {       \
        ENTER(how, device, value);                                                 \
        *value = (unsigned int)(expression);                                       \
        return NVML_SUCCESS;                                                       \
    }
NUMBER(nvmlDeviceGetMinorNumber, kg_gpu_of, d.g->minor)
NUMBER(nvmlDeviceGetBrand, kg_dev_of, d.g->brand)
NUMBER(nvmlDeviceGetArchitecture, kg_dev_of, d.g->architecture)
NUMBER(nvmlDeviceGetBoardId, kg_gpu_of, d.g->board_id)
NUMBER(nvmlDeviceGetModuleId, kg_gpu_of, d.g->module_id)
NUMBER(nvmlDeviceGetMultiGpuBoard, kg_gpu_of, d.g->multi_gpu)
NUMBER(nvmlDeviceGetMemoryBusWidth, kg_dev_of, d.g->mem_bus_width)
NUMBER(nvmlDeviceGetDisplayMode, kg_gpu_of, d.g->display_active)
NUMBER(nvmlDeviceGetDisplayActive, kg_gpu_of, d.g->display_active)
NUMBER(nvmlDeviceGetPersistenceMode, kg_gpu_of, d.g->persistence)
NUMBER(nvmlDeviceGetComputeMode, kg_dev_of, d.g->compute_mode)
NUMBER(nvmlDeviceGetVirtualizationMode, kg_gpu_of, d.g->virtualization_mode)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, kg_gpu_of, d.g->pci.gen_max)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, kg_gpu_of, d.g->pci.gen_gpu_max)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, kg_gpu_of, d.g->pci.width_max)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, kg_gpu_of, d.g->pci.gen_cur)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, kg_gpu_of, d.g->pci.width_cur)
NUMBER(nvmlDeviceGetPcieReplayCounter, kg_gpu_of, d.g->pcie_replays)
NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, kg_gpu_of, d.g->pci.gen_gpu_max > 6 ? 0 : d.g->pci.gen_gpu_max)
NUMBER(nvmlDeviceGetPcieSpeed, kg_gpu_of, d.g->pci.gen_cur ? 2500u << ((d.g->pci.gen_cur - 1) & 7) : 0)
NUMBER(nvmlDeviceGetIrqNum, kg_gpu_of, 64 + d.g->minor)
NUMBER(nvmlDeviceGetBusType, kg_gpu_of, 2)
NUMBER(nvmlDeviceGetPowerSource, kg_gpu_of, 0)
NUMBER(nvmlDeviceGetAccountingMode, kg_gpu_of, d.g->accounting_mode)
NUMBER(nvmlDeviceGetAccountingBufferSize, kg_gpu_of, d.g->accounting_buffer)

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores) {
    ENTER(kg_gpu_of, device, cores);
    if (d.g->mig_current) return NVML_ERROR_NOT_SUPPORTED;
    *cores = d.g->cores;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER(kg_dev_of, device, major && minor);
    *major = (int)d.g->cc_major, *minor = (int)d.g->cc_minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node) {
    ENTER(kg_gpu_of, device, node);
    /* The node of the GPU's own memory, which only GPUs on a coherent link to their CPU (Grace) have. */
    if (!d.g->c2c_links || d.g->pci.numa_node < 0) return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)d.g->pci.numa_node;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version) {
    ENTER(kg_gpu_of, device, version);
    if (!d.g->gsp_mode) return NVML_ERROR_NOT_SUPPORTED;
    return KG_COPY(version, 64, kg_m.state->driver_version);
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *standard) {
    ENTER(kg_gpu_of, device, enabled && standard);
    *enabled = d.g->gsp_mode, *standard = d.g->gsp_default;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlVersionedValue_t *mode) {
    ENTER(kg_gpu_of, device, mode);
    PROBED_SINCE(580);
    VERSIONED(mode, nvmlVersionedValue_t, 1);
    mode->value = d.g->addressing_mode;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCapabilities(nvmlDevice_t device, nvmlVersionedValue_t *caps) {
    ENTER(kg_gpu_of, device, caps);
    SINCE(570);
    VERSIONED(caps, nvmlVersionedValue_t, 1);
    caps->value = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPdi(nvmlDevice_t device, nvmlPdi_t *pdi) {
    ENTER(kg_gpu_of, device, pdi);
    SINCE(580);
    VERSIONED(pdi, nvmlPdi_t, 1);
    uint64_t value = 0xcbf29ce484222325ull;
    for (const char *c = d.g->uuid; c < d.g->uuid + sizeof d.g->uuid && *c; c++) value = (value ^ (uint8_t)*c) * 0x100000001b3ull;
    pdi->value = value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info) {
    ENTER(kg_gpu_of, device, info);
    SINCE(565);
    if (info->version != NVML_VERSIONED(nvmlPlatformInfo_t, 1) && info->version != NVML_VERSIONED(nvmlPlatformInfo_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!d.g->fabric_state) return NVML_ERROR_NOT_SUPPORTED;
    memcpy(info->ibGuid, d.g->fabric_uuid, sizeof info->ibGuid);
    memcpy(info->chassisSerialNumber, d.g->chassis_serial, sizeof info->chassisSerialNumber);
    info->slotNumber = (unsigned char)d.g->chassis_slot, info->trayIndex = (unsigned char)d.g->tray_index;
    info->hostId = (unsigned char)d.g->host_id, info->peerType = (unsigned char)d.g->peer_type;
    info->moduleId = (unsigned char)d.g->module_id;
    return NVML_SUCCESS;
}

void kg_fill_pci(nvmlPciInfo_t *out, unsigned domain, unsigned bus, unsigned device, unsigned id, unsigned subsystem) {
    memset(out, 0, sizeof *out);
    out->domain = domain, out->bus = bus, out->device = device, out->pciDeviceId = id, out->pciSubSystemId = subsystem;
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", domain, bus & 0xFF, device & 0xFF);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xFFFF, bus & 0xFF, device & 0xFF);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    ENTER(kg_known_of, device, pci);
    const kg_pci *p = &d.g->pci;
    kg_fill_pci(pci, p->domain, p->bus, p->device, p->device_id, p->subsystem_id);
    return NVML_SUCCESS;
}

/* The older forms have the short bus id alone, and reserved words after it. */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) {
    ENTER(kg_dev_of, device, pci);
    nvmlPciInfo_t full;
    const kg_pci *p = &d.g->pci;
    kg_fill_pci(&full, p->domain, p->bus, p->device, p->device_id, p->subsystem_id);
    memset(pci, 0, sizeof *pci);
    memcpy(pci, &full, offsetof(nvmlPciInfo_v2_t, reserved));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) {
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci) {
    ENTER(kg_dev_of, device, pci);
    SINCE(545);
    VERSIONED(pci, nvmlPciInfoExt_t, 1);
    nvmlPciInfo_t full;
    const kg_pci *p = &d.g->pci;
    kg_fill_pci(&full, p->domain, p->bus, p->device, p->device_id, p->subsystem_id);
    pci->domain = p->domain, pci->bus = p->bus, pci->device = p->device, pci->pciDeviceId = p->device_id;
    pci->pciSubSystemId = p->subsystem_id, pci->baseClass = p->class_code >> 16 & 0xFF;
    pci->subClass = p->class_code >> 8 & 0xFF;
    memcpy(pci->busId, full.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}
