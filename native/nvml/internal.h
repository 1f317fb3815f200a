/* What the files of the simulated NVML share: the map, handles, the way into a call, and derived readings.
 *
 * Every exported function goes through one of the kg_*_of functions, which check that the library is initialised and
 * the handle good, and act out the faults of the GPU (hang, slow, lost). Handles are numbers dressed as pointers, never
 * dereferenced: a stale, foreign or random handle is an INVALID_ARGUMENT.
 */
#ifndef KGPU_NVML_INTERNAL_H
#define KGPU_NVML_INTERNAL_H

#define _GNU_SOURCE
#include "kgpu_map.h"
#include "kgpu_nvml.h"

#define EXPORT __attribute__((visibility("default")))
#define ALL_BUSY KG_ALL_BUSY

typedef struct kg_dev {
    kg_gpu *g;
    kg_gi *gi; /* MIG devices and instances only */
    kg_ci *ci;
    uint32_t gpu;    /* slot in the state */
    uint32_t serial; /* of the instance that the handle means */
} kg_dev;

extern kg_map kg_m;

/* init.c */
nvmlReturn_t kg_ready(void);
int kg_driver_at_least(unsigned major);
uint32_t kg_visible_count(void);
int kg_visible_slot(uint32_t index);       /* slot of the index-th visible GPU, -1 */
int kg_visible_index(uint32_t gpu);        /* the reverse, -1 */
nvmlReturn_t kg_copy(char *out, unsigned room, const char *field, size_t size);
#define KG_COPY(out, room, field) kg_copy(out, room, field, sizeof(field))

/* handle.c */
enum kg_kind { KG_GPU_KIND = 1, KG_MIG_KIND, KG_GI_KIND, KG_CI_KIND, KG_SET_KIND, KG_SAMPLE_KIND };
nvmlDevice_t kg_gpu_handle(uint32_t gpu);
nvmlDevice_t kg_mig_handle(uint32_t gpu, const kg_ci *ci);
nvmlGpuInstance_t kg_gi_handle(uint32_t gpu, const kg_gi *gi);
nvmlComputeInstance_t kg_ci_handle(uint32_t gpu, const kg_ci *ci);
void *kg_id_handle(enum kg_kind kind, uint32_t id);
int kg_handle_id(enum kg_kind kind, const void *handle, uint32_t *id);
nvmlReturn_t kg_dev_of(nvmlDevice_t handle, kg_dev *out);      /* a GPU or a MIG device (then ci is set) */
nvmlReturn_t kg_known_of(nvmlDevice_t handle, kg_dev *out);    /* the same, also for a GPU that waits for a reset */
nvmlReturn_t kg_gpu_of(nvmlDevice_t handle, kg_dev *out);      /* a GPU; NOT_SUPPORTED for a MIG device */
nvmlReturn_t kg_mig_of(nvmlDevice_t handle, kg_dev *out);      /* a MIG device; INVALID_ARGUMENT for a GPU */
nvmlReturn_t kg_gi_of(nvmlGpuInstance_t handle, kg_dev *out);
nvmlReturn_t kg_ci_of(nvmlComputeInstance_t handle, kg_dev *out);
nvmlReturn_t kg_faults(uint32_t gpu);

/* Of a reading that is made to fail: return UNKNOWN, as a driver does that can't tell why. */
#define FAILS(bit)                                                                \
    do {                                                                          \
        if (d.g->failing & (bit)) return NVML_ERROR_UNKNOWN;                      \
    } while (0)

/* What the driver keeps of utilisation: six samples in a second, the last 100. */
#define KG_SAMPLE_NS (1000000000ull / 6)
enum { KG_SAMPLES_KEPT = 100 };

/* model.c: readings as a function of the node's time */
uint32_t kg_power_mw(const kg_gpu *g);
int kg_temperature(const kg_gpu *g);
uint32_t kg_utilization(const kg_gpu *g);        /* percent */
uint32_t kg_memory_utilization(const kg_gpu *g); /* percent */
uint32_t kg_sample(const kg_gpu *g, unsigned type, uint64_t time); /* at a time since the load last changed */
uint32_t kg_clock(const kg_gpu *g, unsigned kind);
uint32_t kg_fan(const kg_gpu *g);
uint64_t kg_throttle(const kg_gpu *g);
uint64_t kg_throttle_ns(const kg_gpu *g, unsigned policy);
uint32_t kg_traffic(const kg_gpu *g, uint32_t channel);    /* of that at full load, 1/1000 percent */
uint64_t kg_busy_ns(const kg_gpu *g);                      /* steady load alone */
uint64_t kg_moved_ns(const kg_gpu *g, uint32_t channel);   /* ns of traffic at full load, with that of profiles */
uint64_t kg_energy_mj(const kg_gpu *g);
uint64_t kg_memory_used(const kg_dev *d);
uint64_t kg_memory_total(const kg_dev *d);
uint64_t kg_link_kib(const kg_gpu *g, const kg_link *link, int receive);

/* nvlink.c, pci */
void kg_fill_pci(nvmlPciInfo_t *out, unsigned domain, unsigned bus, unsigned device, unsigned id, unsigned subsystem);

/* memory.c */
uint64_t kg_ecc_total(const kg_gpu *g, int uncorrected, int aggregate);

/* mig_gi.c */
kg_gi_profile *kg_profile_of(kg_dev *d);
int kg_still_there(const kg_dev *d); /* with the lock held: nobody destroyed the instance meanwhile */
int kg_gi_busy(const kg_dev *d, uint32_t gi, uint32_t ci);

/* Begin an exported function: resolve the handle with `how`, then insist on `ok` (pointers that must not be NULL). */
#define ENTER(how, handle, ok)                      \
    kg_dev d;                                       \
    do {                                            \
        nvmlReturn_t rc_ = how(handle, &d);         \
        if (rc_ != NVML_SUCCESS) return rc_;        \
        if (!(ok)) return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)
/* The function came with driver `major`; older drivers don't have it. */
#define SINCE(major)                                                              \
    do {                                                                          \
        if (!kg_driver_at_least(major)) return NVML_ERROR_FUNCTION_NOT_FOUND;     \
    } while (0)
/* The same for what programs look up before they call it: the lookup succeeds here, so say "not supported". */
#define PROBED_SINCE(major)                                                       \
    do {                                                                          \
        if (!kg_driver_at_least(major)) return NVML_ERROR_NOT_SUPPORTED;          \
    } while (0)
/* A versioned struct must say the size and number this library knows. */
#define VERSIONED(p, type, number)                                                \
    do {                                                                          \
        if ((p)->version != NVML_VERSIONED(type, number)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; \
    } while (0)
/* Begin to change the state; END() before every return. */
#define BEGIN()                                                                   \
    do {                                                                          \
        if (kg_lock(&kg_m) != 0) return NVML_ERROR_NO_PERMISSION;                 \
    } while (0)
#define END() kg_unlock(&kg_m)

#endif
