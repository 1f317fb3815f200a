/* GPU performance monitoring (Hopper and later): samples, and metrics as the average between two samples.
 *
 * A sample remembers the busy time, the load profiles' channels and the traffic until its moment; what a metric means is a
 * share of the steady load and of a channel, or a rate, by the rows of the table.
 */
#include "internal.h"

#define SAMPLES 4096

typedef struct sample {
    uint32_t id;
    uint32_t gpu;
    int filled;
    uint32_t gi; /* NO_INSTANCE: the whole GPU */
    uint32_t load;
    uint64_t ns, busy_ns;
    uint64_t area[KG_LOAD_CHANNELS]; /* percent x ns */
    uint64_t tx[KG_MAX_LINKS], rx[KG_MAX_LINKS];
} sample;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static sample *samples[SAMPLES];
static uint32_t next_id;

static sample *sample_of(nvmlGpmSample_t handle) {
    uint32_t id;
    if (!kg_handle_id(KG_SAMPLE_KIND, handle, &id) || !id) return NULL;
    sample *s = samples[id % SAMPLES];
    return s && s->id == id ? s : NULL;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    SINCE(520);
    rc = NVML_ERROR_MEMORY;
    pthread_mutex_lock(&guard);
    for (int tries = 0; tries < SAMPLES && rc != NVML_SUCCESS; tries++) {
        uint32_t id = ++next_id ? next_id : ++next_id;
        if (samples[id % SAMPLES]) continue;
        sample *s = calloc(1, sizeof *s);
        if (!s) break;
        s->id = id;
        samples[id % SAMPLES] = s;
        *out = kg_id_handle(KG_SAMPLE_KIND, id);
        rc = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&guard);
    return rc;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t handle) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    pthread_mutex_lock(&guard);
    sample *s = sample_of(handle);
    if (s) {
        samples[s->id % SAMPLES] = NULL;
        free(s);
    }
    pthread_mutex_unlock(&guard);
    return s ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* What is set for the GPU every instance has; a process is in one. */
static uint32_t instance_load(const kg_gpu *g, uint32_t gi) {
    uint64_t sum = g->load_set;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++)
        if (g->process[i].used && g->process[i].gi_id == gi) sum += g->process[i].sm_util;
    return (uint32_t)(sum > 100 ? 100 : sum) * 1000;
}

static nvmlReturn_t get(kg_dev *d, uint32_t gi, nvmlGpmSample_t handle) {
    if (!d->g->gpm_supported) return NVML_ERROR_NOT_SUPPORTED;
    if (d->g->failing & KG_FAIL_GPM) return NVML_ERROR_UNKNOWN;
    sample now = {.filled = 1, .gpu = d->gpu, .gi = gi, .ns = kg_now_ns(kg_m.state), .busy_ns = kg_busy_ns(d->g)};
    const kg_gi *instance = gi == KG_NO_INSTANCE ? NULL : kg_find_gi(d->g, gi);
    for (uint32_t c = 0; c < KG_LOAD_CHANNELS; c++) now.area[c] = kg_channel_area(kg_m.state, d->g, instance, c, now.ns);
    now.load = gi == KG_NO_INSTANCE ? kg_load(d->g, now.ns) : instance_load(d->g, gi);
    for (uint32_t i = 0; i < KG_MAX_LINKS; i++)
        now.tx[i] = kg_link_kib(d->g, &d->g->link[i], 0), now.rx[i] = kg_link_kib(d->g, &d->g->link[i], 1);
    pthread_mutex_lock(&guard);
    sample *s = sample_of(handle);
    if (s) {
        now.id = s->id;
        *s = now;
    }
    pthread_mutex_unlock(&guard);
    return s ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t handle) {
    ENTER(kg_dev_of, device, handle);
    SINCE(520);
    return get(&d, d.gi ? d.gi->id : KG_NO_INSTANCE, handle);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t handle) {
    ENTER(kg_gpu_of, device, handle);
    SINCE(520);
    if (!d.g->mig_current) return NVML_ERROR_NOT_SUPPORTED;
    if (!kg_find_gi(d.g, gi)) return NVML_ERROR_NOT_FOUND;
    return get(&d, gi, handle);
}

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out) {
    ENTER(kg_dev_of, device, out);
    SINCE(520);
    if (out->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->isSupportedDevice = d.g->gpm_supported != 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmQueryIfStreamingEnabled(nvmlDevice_t device, unsigned int *state) {
    ENTER(kg_gpu_of, device, state);
    if (!d.g->gpm_supported) return NVML_ERROR_NOT_SUPPORTED;
    *state = d.g->gpm_streaming;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSetStreamingEnabled(nvmlDevice_t device, unsigned int state) {
    ENTER(kg_gpu_of, device, state <= 1);
    if (!d.g->gpm_supported) return NVML_ERROR_NOT_SUPPORTED;
    BEGIN();
    d.g->gpm_streaming = state;
    END();
    return NVML_SUCCESS;
}

/* ---- metrics ---- */

enum unit { PERCENT, PCIE_TX, PCIE_RX, LINKS_RX, LINKS_TX, DECODER, JPEG, OFA, ENCODER, NOTHING };

/* Metrics `first`..`last`; PERCENT is `share`/1000 of the steady load, and `part`/1000 of a profile's channel. */
static const struct row {
    uint32_t first, last;
    enum unit unit;
    uint32_t share, channel, part;
    const char *name;
} rows[] = {
    {1, 1, PERCENT, 1000, KG_LOAD_GR, 1000, "Graphics Utilization"},
    {2, 2, PERCENT, 930, KG_LOAD_SM, 1000, "SM Utilization"},
    {3, 3, PERCENT, 480, KG_LOAD_OCCUPANCY, 1000, "SM Occupancy"},
    {4, 4, PERCENT, 210, KG_LOAD_SM, 230, "Integer Utilization"},
    {5, 5, PERCENT, 420, KG_LOAD_TENSOR, 1000, "Tensor Utilization"},
    {6, 6, PERCENT, 0, 0, 0, "DFMA Tensor Utilization"},
    {7, 7, PERCENT, 420, KG_LOAD_TENSOR, 1000, "HMMA Tensor Utilization"},
    {8, 8, PERCENT, 0, 0, 0, "DMMA Tensor Utilization"},
    {9, 9, PERCENT, 0, 0, 0, "IMMA Tensor Utilization"},
    {10, 10, PERCENT, 600, KG_LOAD_DRAM, 1000, "DRAM Bandwidth Utilization"},
    {11, 11, PERCENT, 10, KG_LOAD_SM, 10, "FP64 Utilization"},
    {12, 12, PERCENT, 180, KG_LOAD_SM, 190, "FP32 Utilization"},
    {13, 13, PERCENT, 90, KG_LOAD_SM, 100, "FP16 Utilization"},
    {20, 20, PCIE_TX, 0, KG_LOAD_PCIE_TX, 1000, "PCIe TX Traffic"},
    {21, 21, PCIE_RX, 0, KG_LOAD_PCIE_RX, 1000, "PCIe RX Traffic"},
    {30, 37, DECODER, 0, 0, 0, "NVDEC Utilization"},
    {40, 47, JPEG, 0, 0, 0, "NVJPG Utilization"},
    {50, 51, OFA, 0, 0, 0, "NVOFA Utilization"},
    {60, 60, LINKS_RX, 0, 0, 0, "NVLink Total RX"},
    {61, 61, LINKS_TX, 0, 0, 0, "NVLink Total TX"},
    {62, 97, NOTHING, 0, 0, 0, "NVLink"},
    {100, 159, NOTHING, 0, 0, 0, "C2C"},
    {160, 165, PERCENT, 700, KG_LOAD_GR, 700, "Cache Rate"},
    {166, 169, ENCODER, 0, 0, 0, "NVENC Utilization"},
    {212, 247, NOTHING, 0, 0, 0, "NVLink"},
};

static double mib_per_s(uint64_t kib, double seconds) { return seconds > 0 ? (double)kib / 1024.0 / seconds : 0; }

/* Payload between the samples: of one link, or of all (link NO_INSTANCE). */
static uint64_t moved(const sample *a, const sample *b, uint32_t link, int receive) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < KG_MAX_LINKS; i++) {
        if (link != KG_NO_INSTANCE && link != i) continue;
        uint64_t from = receive ? a->rx[i] : a->tx[i], to = receive ? b->rx[i] : b->tx[i];
        sum += to > from ? to - from : 0;
    }
    return sum;
}

static double at_most(double value, double most) { return value < most ? value : most; }

/* Of a channel between the samples. */
static double channel_percent(const sample *a, const sample *b, uint32_t channel) {
    return b->area[channel] > a->area[channel] ? (double)(b->area[channel] - a->area[channel]) / (double)(b->ns - a->ns) : 0;
}

static nvmlReturn_t compute(const sample *a, const sample *b, nvmlGpmMetric_t *m) {
    const kg_gpu *g = &kg_m.state->gpu[b->gpu];
    double seconds = (double)(b->ns - a->ns) / 1e9;
    double busy = b->gi == KG_NO_INSTANCE && b->busy_ns >= a->busy_ns ? (double)(b->busy_ns - a->busy_ns) / 1e9 / seconds
                                                                      : (a->load + b->load) / 2.0 / ALL_BUSY;
    if (busy > 1) busy = 1;
    m->metricInfo = (nvmlGpmMetricInfo_t){"", "", ""};
    int whole = b->gi == KG_NO_INSTANCE;
    nvmlReturn_t of_gpu = whole ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        if (m->metricId < r->first || m->metricId > r->last) continue;
        uint32_t at = m->metricId - r->first;
        double channel = channel_percent(a, b, r->channel) * r->part / 1000;
        m->metricInfo = (nvmlGpmMetricInfo_t){r->name, r->name, r->unit == PERCENT ? "%" : "MiB/s"};
        switch (r->unit) {
        case PERCENT: m->value = at_most(busy * r->share / 10.0 + channel, 100); return NVML_SUCCESS;
        case PCIE_TX: m->value = at_most(busy + channel / 100, 1) * g->pcie_tx_kbs / 1024.0; return of_gpu;
        case PCIE_RX: m->value = at_most(busy + channel / 100, 1) * g->pcie_rx_kbs / 1024.0; return of_gpu;
        case DECODER: m->value = at ? 0 : g->dec_util; return NVML_SUCCESS;
        case ENCODER: m->value = at ? 0 : g->enc_util; return NVML_SUCCESS;
        case JPEG: m->value = at ? 0 : g->jpg_util; return NVML_SUCCESS;
        case OFA: m->value = at ? 0 : g->ofa_util; return NVML_SUCCESS;
        case LINKS_RX: case LINKS_TX:
            if (!whole || !g->link_count) return NVML_ERROR_NOT_SUPPORTED;
            m->value = mib_per_s(moved(a, b, KG_NO_INSTANCE, r->unit == LINKS_RX), seconds);
            return NVML_SUCCESS;
        default: break;
        }
        if (r->first != 62 && r->first != 212) return NVML_ERROR_NOT_SUPPORTED;
        uint32_t link = at / 2 + (r->first == 212 ? 18 : 0);
        if (!whole || link >= KG_MAX_LINKS || !g->link[link].present) return NVML_ERROR_NOT_SUPPORTED;
        m->value = mib_per_s(moved(a, b, link, at % 2 == 0), seconds);
        return NVML_SUCCESS;
    }
    return m->metricId && m->metricId < 1000 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!request) return NVML_ERROR_INVALID_ARGUMENT;
    SINCE(520);
    if (request->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!request->numMetrics || request->numMetrics > 1000) return NVML_ERROR_INVALID_ARGUMENT;
    sample a, b;
    pthread_mutex_lock(&guard);
    const sample *one = sample_of(request->sample1), *two = sample_of(request->sample2);
    int good = one && two && one->filled && two->filled && one->gpu == two->gpu && one->gi == two->gi;
    if (good) a = *one, b = *two;
    pthread_mutex_unlock(&guard);
    if (!good || b.ns <= a.ns) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < request->numMetrics; i++) {
        request->metrics[i].value = 0;
        request->metrics[i].nvmlReturn = compute(&a, &b, &request->metrics[i]);
    }
    return NVML_SUCCESS;
}
