/* Beside NVML: what the simulated nvidia-smi needs and the real one does through the driver's private interface.
 *
 * The functions take the index among the visible GPUs, since a lost GPU gives no handle. The reset is the one of
 * kgpu.hw.simulator.state: pending modes take effect, instances go, volatile counters clear, what a reset cures is cured,
 * links train again, and what was set by hand is gone. `next_reset` of a GPU orders one reset that goes wrong.
 */
#include "internal.h"

EXPORT nvmlReturn_t kgpuSimDeviceReset(unsigned int index);
EXPORT nvmlReturn_t kgpuSimDeviceBusId(unsigned int index, char *text, unsigned int room);
EXPORT nvmlReturn_t kgpuSimGetTimeslice(unsigned int index, unsigned int *value);
EXPORT nvmlReturn_t kgpuSimSetTimeslice(unsigned int index, unsigned int value);

/* As the real driver sees it: whoever has a context or this library open, and persistence mode, which keeps the GPU open. */
static int in_use(const kg_dev *d) {
    return d->g->persistence || kg_client_other(&kg_m, d->gpu) || kg_gi_busy(d, KG_NO_INSTANCE, KG_NO_INSTANCE);
}

/* What somebody has set by hand while the driver ran is gone afterwards. */
static void forget_settings(kg_gpu *g) {
    g->compute_mode = g->accounting_mode = g->timeslice = 0;
    g->power_limit_mw = g->power_limit_default_mw;
    memset(g->clock_lock, 0, sizeof g->clock_lock);
    memcpy(g->clock_app, g->clock_app_default, sizeof g->clock_app);
}

/* PCI and the NVLinks come up as at a start, with no errors counted, and the fabric takes the GPU in anew. */
static void train_links(kg_gpu *g) {
    enum { TO_GPU = 0, TO_SWITCH = 2 };
    g->pci.gen_cur = g->pci.gen_max, g->pci.width_cur = g->pci.width_max;
    g->fabric_health_mask = g->fabric_status = 0;
    if (g->fabric_health_summary) g->fabric_health_summary = 1;
    for (uint32_t i = 0; i < g->link_count && i < KG_MAX_LINKS; i++) {
        kg_link *link = &g->link[i];
        link->active = link->remote_type == TO_GPU || link->remote_type == TO_SWITCH;
        link->err_replay = link->err_recovery = link->err_crc_flit = link->err_crc_data = link->err_ecc = 0;
    }
}

static void reset(kg_dev *d) {
    kg_gpu *g = d->g;
    if (g->mig_current != g->mig_pending) {
        g->mig_current = g->mig_pending;
        kg_push_event(kg_m.state, d->gpu, NVML_EVENT_MIG_CHANGE, 0, KG_NO_INSTANCE, KG_NO_INSTANCE);
    }
    memset(g->gi, 0, sizeof g->gi);
    memset(g->ci, 0, sizeof g->ci);
    memset(g->ecc_volatile, 0, sizeof g->ecc_volatile);
    g->ecc_current = g->ecc_pending;
    g->remap_pending = g->retired_pending = g->remap_corrected_inactive = g->remap_uncorrected_inactive = 0;
    g->lost = g->hang = g->reset_required = g->recovery_action = 0;
    forget_settings(g);
    train_links(g);
    g->resets++;
    kg_wake(kg_m.state);
}

/* The fault that was ordered for this reset, once. */
static void act_out(kg_gpu *g, uint32_t fault) {
    enum { REBOOT = 2 };
    size_t last = strnlen(g->uuid, sizeof g->uuid);
    if (fault == KG_RESET_LOSES) g->lost = 1, g->recovery_action = REBOOT;
    if (fault == KG_RESET_RENAMES && last) g->uuid[last - 1] = g->uuid[last - 1] == '0' ? '1' : '0';
}

static nvmlReturn_t reset_locked(kg_dev *d) {
    uint32_t fault = d->g->next_reset;
    if (in_use(d)) return NVML_ERROR_IN_USE;
    d->g->next_reset = 0;
    if (fault == KG_RESET_FAILS) return NVML_ERROR_UNKNOWN;
    reset(d);
    act_out(d->g, fault);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t kgpuSimDeviceReset(unsigned int index) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    int gpu = kg_visible_slot(index);
    if (gpu < 0) return NVML_ERROR_INVALID_ARGUMENT;
    kg_dev d = {.g = &kg_m.state->gpu[gpu], .gpu = (uint32_t)gpu};
    kg_proc_reap(&kg_m, d.gpu);
    while (!in_use(&d) && __atomic_load_n(&d.g->next_reset, __ATOMIC_RELAXED) == KG_RESET_HANGS) usleep(5000);
    BEGIN();
    rc = reset_locked(&d);
    END();
    return rc;
}

EXPORT nvmlReturn_t kgpuSimDeviceBusId(unsigned int index, char *text, unsigned int room) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    int gpu = kg_visible_slot(index);
    if (gpu < 0 || !text) return NVML_ERROR_INVALID_ARGUMENT;
    const kg_pci *p = &kg_m.state->gpu[gpu].pci;
    nvmlPciInfo_t full;
    kg_fill_pci(&full, p->domain, p->bus, p->device, p->device_id, p->subsystem_id);
    return kg_copy(text, room, full.busId, sizeof full.busId);
}

/* A GPU that answers and has time slices that can be set, or why not. */
static nvmlReturn_t sliced(unsigned int index, kg_gpu **g) {
    nvmlReturn_t rc = kg_ready();
    int gpu = rc == NVML_SUCCESS ? kg_visible_slot(index) : -1;
    if (rc == NVML_SUCCESS) rc = gpu < 0 ? NVML_ERROR_INVALID_ARGUMENT : kg_faults((uint32_t)gpu);
    if (rc != NVML_SUCCESS) return rc;
    *g = &kg_m.state->gpu[gpu];
    return (*g)->timeslice_supported ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t kgpuSimGetTimeslice(unsigned int index, unsigned int *value) {
    kg_gpu *g = NULL;
    nvmlReturn_t rc = sliced(index, &g);
    if (rc == NVML_SUCCESS) *value = g->timeslice;
    return rc;
}

EXPORT nvmlReturn_t kgpuSimSetTimeslice(unsigned int index, unsigned int value) {
    enum { LONGEST = 3 };
    kg_gpu *g = NULL;
    nvmlReturn_t rc = sliced(index, &g);
    if (rc != NVML_SUCCESS || value > LONGEST) return rc != NVML_SUCCESS ? rc : NVML_ERROR_INVALID_ARGUMENT;
    BEGIN();
    g->timeslice = value;
    END();
    return NVML_SUCCESS;
}
