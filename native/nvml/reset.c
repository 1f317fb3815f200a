/* Beside NVML: what the simulated nvidia-smi needs and the real one does through the driver's private interface.
 *
 * Both functions take the index among the visible GPUs, since a lost GPU gives no handle. The reset is the one of
 * kgpu.hw.simulator.state: pending modes take effect, instances go, volatile counters clear, what a reset cures is cured.
 */
#include "internal.h"

EXPORT nvmlReturn_t kgpuSimDeviceReset(unsigned int index);
EXPORT nvmlReturn_t kgpuSimDeviceBusId(unsigned int index, char *text, unsigned int room);

static nvmlReturn_t reset(kg_dev *d) {
    kg_gpu *g = d->g;
    if (kg_gi_busy(d, KG_NO_INSTANCE, KG_NO_INSTANCE)) return NVML_ERROR_IN_USE;
    if (g->mig_current != g->mig_pending) {
        g->mig_current = g->mig_pending;
        kg_push_event(kg_m.state, d->gpu, NVML_EVENT_MIG_CHANGE, 0, KG_NO_INSTANCE, KG_NO_INSTANCE);
    }
    memset(g->gi, 0, sizeof g->gi);
    memset(g->ci, 0, sizeof g->ci);
    memset(g->ecc_volatile, 0, sizeof g->ecc_volatile);
    g->ecc_current = g->ecc_pending;
    g->remap_pending = g->retired_pending = 0;
    g->lost = g->hang = g->reset_required = g->recovery_action = 0;
    kg_wake(kg_m.state);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t kgpuSimDeviceReset(unsigned int index) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    int gpu = kg_visible_slot(index);
    if (gpu < 0) return NVML_ERROR_INVALID_ARGUMENT;
    kg_dev d = {.g = &kg_m.state->gpu[gpu], .gpu = (uint32_t)gpu};
    kg_proc_reap(&kg_m, d.gpu);
    BEGIN();
    rc = reset(&d);
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
