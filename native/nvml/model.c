/* Readings that move: power, temperature, clocks, utilisation, energy, link traffic, as functions of wall time.
 *
 * Every process computes the same value from the state, so nothing needs to run in the background. Utilisation and
 * clocks follow load at once, power and temperature over KG_LOAD_RAMP_MS; power carries a small deterministic jitter.
 */
#include "internal.h"

static const kg_gpu *settle(const kg_gpu *g) {
    kg_proc_reap(&kg_m, (uint32_t)(g - kg_m.state->gpu));
    return g;
}

static uint32_t capped(uint32_t load) { return load > ALL_BUSY ? ALL_BUSY : load; }

/* -amount..amount, the same for everybody within one second. */
static int64_t jitter(const kg_gpu *g, int64_t amount) {
    uint64_t x = kg_now_ns() / 1000000000ull * 0x9E3779B97F4A7C15ull + g->minor * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 31, x *= 0x94D049BB133111EBull, x ^= x >> 29;
    return amount > 0 ? (int64_t)(x % (uint64_t)(2 * amount + 1)) - amount : 0;
}

static uint64_t wanted_mw(const kg_gpu *g) {
    uint64_t span = g->power_max_mw > g->power_idle_mw ? g->power_max_mw - g->power_idle_mw : 0;
    return g->power_idle_mw + span * kg_load(settle(g), kg_now_ns()) / ALL_BUSY;
}

uint32_t kg_power_mw(const kg_gpu *g) {
    uint64_t power = wanted_mw(g);
    uint64_t limit = g->power_limit_mw ? g->power_limit_mw : UINT32_MAX;
    power = (uint64_t)((int64_t)power + jitter(g, (int64_t)power / 200));
    return (uint32_t)(power > limit ? limit : power);
}

int kg_temperature(const kg_gpu *g) {
    int64_t span = (int64_t)g->temp_max_load - g->temp_idle;
    return (int)(g->temp_idle + span * kg_load(settle(g), kg_now_ns()) / (int64_t)ALL_BUSY + g->temp_offset);
}

uint32_t kg_utilization(const kg_gpu *g) { return capped(settle(g)->load_target) / 1000; }

uint32_t kg_memory_utilization(const kg_gpu *g) {
    uint64_t set = g->mem_load_set;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++)
        if (g->process[i].used) set += g->process[i].mem_util;
    if (set) return (uint32_t)(set > 100 ? 100 : set);
    return kg_utilization(g) * 6 / 10;
}

static int hot(const kg_gpu *g) { return g->temp_slowdown > 0 && kg_temperature(g) >= g->temp_slowdown; }

uint32_t kg_clock(const kg_gpu *g, unsigned kind) {
    if (kind > 3) return 0;
    if (!capped(settle(g)->load_target)) return g->clock_idle[kind] ? g->clock_idle[kind] : g->clock_max[kind];
    uint32_t clock = g->clock_app[kind] && kind < 3 ? g->clock_app[kind] : g->clock_max[kind];
    if (kind < 2 && g->clock_lock[1] && clock > g->clock_lock[1]) clock = g->clock_lock[1];
    return kind < 2 && hot(g) ? clock * 7 / 10 : clock;
}

uint32_t kg_fan(const kg_gpu *g) {
    int64_t span = (int64_t)g->fan_max - g->fan_idle;
    return (uint32_t)(g->fan_idle + span * kg_load(settle(g), kg_now_ns()) / (int64_t)ALL_BUSY);
}

/* Clocks event reasons: what is forced, and what follows from load, power and temperature. */
uint64_t kg_throttle(const kg_gpu *g) {
    uint64_t reasons = g->throttle_forced;
    if (!capped(settle(g)->load_target)) reasons |= 0x1;
    if (g->power_limit_mw && wanted_mw(g) > g->power_limit_mw) reasons |= 0x4;
    if (hot(g)) reasons |= 0x20 | 0x40 | 0x8;
    return reasons;
}

/* Time spent below full clocks by cause (index of throttle_ns); a forced reason counts on. */
uint64_t kg_throttle_ns(const kg_gpu *g, unsigned policy) {
    static const uint64_t bit[8] = {0x4, 0x20, 0x10, 0, 0x1, 0x8, 0x40, 0x80};
    if (policy >= 8) return 0;
    uint64_t now = kg_now_ns();
    uint64_t forced = g->throttle_forced & bit[policy] && now > g->throttle_since_ns ? now - g->throttle_since_ns : 0;
    return g->throttle_ns[policy] + forced;
}

uint64_t kg_busy_ns(const kg_gpu *g) { return settle(g)->busy_ns + kg_busy_since(g, kg_now_ns()); }
uint64_t kg_energy_mj(const kg_gpu *g) { return settle(g)->energy_mj + kg_energy_since(g, kg_now_ns()); }

uint64_t kg_memory_total(const kg_dev *d) {
    if (!d->gi) return d->g->mem_total;
    return d->g->gi_profile[d->gi->row % KG_MAX_GI_PROFILES].memory_mib << 20;
}

/* Bytes held by processes (of this instance, for a MIG device) and by hand, never more than there is. */
uint64_t kg_memory_used(const kg_dev *d) {
    kg_proc_reap(&kg_m, d->gpu);
    uint64_t used = d->gi ? 0 : d->g->mem_used_base, total = kg_memory_total(d);
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++) {
        const kg_process *p = &d->g->process[i];
        if (!p->used || (d->gi && p->gi_id != d->gi->id)) continue;
        used = p->memory > total - (used > total ? total : used) ? total : used + p->memory;
    }
    return used > total ? total : used;
}

/* Payload of a link: the counter set by hand, and a fifth of the line rate for the time the GPU was busy. */
uint64_t kg_link_kib(const kg_gpu *g, const kg_link *link, int receive) {
    uint64_t set = receive ? link->rx_kib : link->tx_kib;
    if (!link->active) return set;
    return set + (uint64_t)((unsigned __int128)kg_busy_ns(g) * link->speed_mbps / 5 / 1024 / 1000);
}
