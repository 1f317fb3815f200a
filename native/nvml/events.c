/* Event sets: every waiting process gets each event once per set, and only those after its registration.
 *
 * Events are a ring in the state, woken through a futex in it. A set remembers how far it has read. A set freed or
 * a library shut down by another thread ends the wait at once, where this process can't write the state after SLICE_MS.
 */
#include "internal.h"

#define SETS 256
#define TYPES 16
#define SLICE_MS 1000
#define KNOWN 0xFF9Full /* every nvmlEventType bit */

typedef struct event_set {
    uint32_t id; /* 0: free */
    uint64_t cursor; /* events up to this one are done */
    uint64_t types[KG_MAX_GPUS];
    uint64_t since[KG_MAX_GPUS][TYPES]; /* last event before registration */
} event_set;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static event_set *sets[SETS];
static uint32_t next_id;

/* The set of a handle, with the guard held; NULL when it was freed or never existed. */
static event_set *set_of(nvmlEventSet_t handle) {
    uint32_t id;
    if (!kg_handle_id(KG_SET_KIND, handle, &id) || !id) return NULL;
    event_set *set = sets[id % SETS];
    return set && set->id == id ? set : NULL;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    rc = NVML_ERROR_MEMORY;
    pthread_mutex_lock(&guard);
    for (int tries = 0; tries < SETS && rc != NVML_SUCCESS; tries++) {
        uint32_t id = ++next_id ? next_id : ++next_id;
        if (sets[id % SETS]) continue;
        event_set *set = calloc(1, sizeof *set);
        if (!set) break;
        set->id = id;
        set->cursor = __atomic_load_n(&kg_m.state->event_head, __ATOMIC_ACQUIRE);
        sets[id % SETS] = set;
        *out = kg_id_handle(KG_SET_KIND, id);
        rc = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&guard);
    return rc;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle) {
    nvmlReturn_t rc = kg_ready();
    if (rc != NVML_SUCCESS) return rc;
    pthread_mutex_lock(&guard);
    event_set *set = set_of(handle);
    if (set) {
        sets[set->id % SETS] = NULL;
        free(set);
    }
    pthread_mutex_unlock(&guard);
    if (set && kg_m.writable) kg_wake(kg_m.state);
    return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static uint64_t supported(const kg_gpu *g) {
    uint64_t types = KNOWN & ~0x80ull;
    if (!g->ecc_supported) types &= ~(0x1ull | 0x2 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000);
    if (!g->mig_capable) types &= ~NVML_EVENT_MIG_CHANGE;
    if (!kg_driver_at_least(570)) types &= ~(0x200ull | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000);
    return types;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    ENTER(kg_gpu_of, device, types);
    *types = supported(d.g);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle) {
    ENTER(kg_gpu_of, device, !(types & ~KNOWN));
    if (types & ~supported(d.g)) return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&guard);
    event_set *set = set_of(handle);
    if (set) {
        uint64_t head = __atomic_load_n(&kg_m.state->event_head, __ATOMIC_ACQUIRE);
        for (int bit = 0; bit < TYPES; bit++)
            if (types >> bit & 1 && !(set->types[d.gpu] >> bit & 1)) set->since[d.gpu][bit] = head;
        set->types[d.gpu] |= types;
    }
    pthread_mutex_unlock(&guard);
    return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* The set's next event into `out`, with the guard held. 0 when there is none yet. */
static int take(event_set *set, nvmlEventData_t *out) {
    const kg_state *s = kg_m.state;
    uint64_t head = __atomic_load_n(&s->event_head, __ATOMIC_ACQUIRE);
    if (head < set->cursor) set->cursor = head; /* the state was made anew */
    if (head - set->cursor > KG_EVENT_RING) set->cursor = head - KG_EVENT_RING;
    while (set->cursor < head) {
        const kg_event *slot = &s->event[set->cursor % KG_EVENT_RING];
        uint64_t seq = set->cursor + 1;
        if (__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != seq) {
            set->cursor = seq; /* overwritten while we looked */
            continue;
        }
        kg_event e = *slot;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        set->cursor = seq;
        if (__atomic_load_n(&slot->seq, __ATOMIC_RELAXED) != seq || e.gpu >= KG_MAX_GPUS) continue;
        if (!(set->types[e.gpu] & e.type) || kg_visible_index(e.gpu) < 0) continue;
        int bit = __builtin_ctzll(e.type);
        if (bit < TYPES && seq <= set->since[e.gpu][bit]) continue;
        *out = (nvmlEventData_t){.device = kg_gpu_handle(e.gpu),
                                 .eventType = e.type,
                                 .eventData = e.data,
                                 .gpuInstanceId = e.gi_id,
                                 .computeInstanceId = e.ci_id};
        return 1;
    }
    return 0;
}

static uint64_t steady_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout_ms) {
    uint64_t end = steady_ms() + timeout_ms;
    for (;;) {
        nvmlReturn_t rc = kg_ready();
        if (rc != NVML_SUCCESS) return rc;
        if (!data) return NVML_ERROR_INVALID_ARGUMENT;
        uint32_t word = __atomic_load_n(&kg_m.state->event_futex, __ATOMIC_ACQUIRE);
        pthread_mutex_lock(&guard);
        event_set *set = set_of(handle);
        int found = set && take(set, data);
        pthread_mutex_unlock(&guard);
        if (!set) return NVML_ERROR_INVALID_ARGUMENT;
        if (found) return NVML_SUCCESS;
        uint64_t now = steady_ms();
        if (now >= end) return NVML_ERROR_TIMEOUT;
        uint64_t slice = end - now < SLICE_MS ? end - now : SLICE_MS;
        struct timespec wait = {.tv_sec = (time_t)(slice / 1000), .tv_nsec = (long)(slice % 1000) * 1000000};
        syscall(SYS_futex, &kg_m.state->event_futex, FUTEX_WAIT, word, &wait, NULL, 0);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout_ms) {
    return nvmlEventSetWait_v2(handle, data, timeout_ms);
}
