/* Readings that move: power, temperature, clocks, utilisation, energy, link traffic, as functions of the node's time.
 *
 * Every process computes the same value from the state, so nothing needs to run in the background. Utilisation and
 * clocks follow load at once, temperature over KG_LOAD_RAMP_MS, power a profile at once and steady load as temperature
 * does; power carries a small deterministic jitter.
 */
#include "internal.h"

static const kg_gpu *settle(const kg_gpu *g) {
    kg_proc_reap(&kg_m, (uint32_t)(g - kg_m.state->gpu));
    return g;
}

static uint32_t capped(uint32_t load) { return load > ALL_BUSY ? ALL_BUSY : load; }
static uint64_t now_ns(void) { return kg_now_ns(kg_m.state); }

static uint32_t warmth(const kg_gpu *g) {
    uint64_t now = now_ns();
    return capped(kg_load(settle(g), now) + kg_heat(kg_m.state, g, now));
}

static uint32_t level_at(const kg_gpu *g, uint32_t channel, uint64_t time) {
    return capped(kg_load(g, time) + kg_channel(kg_m.state, g, channel, time));
}

uint32_t kg_traffic(const kg_gpu *g, uint32_t channel) { return level_at(settle(g), channel, now_ns()); }

/* -amount..amount, the same for everybody within one second. */
static int64_t jitter(const kg_gpu *g, int64_t amount, uint64_t time) {
    uint64_t x = time / 1000000000ull * 0x9E3779B97F4A7C15ull + g->minor * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 31, x *= 0x94D049BB133111EBull, x ^= x >> 29;
    return amount > 0 ? (int64_t)(x % (uint64_t)(2 * amount + 1)) - amount : 0;
}

static uint64_t wanted_mw(const kg_gpu *g, uint64_t time) {
    uint64_t span = g->power_max_mw > g->power_idle_mw ? g->power_max_mw - g->power_idle_mw : 0;
    return g->power_idle_mw + span * level_at(g, KG_LOAD_POWER, time) / ALL_BUSY;
}

static uint32_t power_at(const kg_gpu *g, uint64_t time) {
    uint64_t power = wanted_mw(g, time);
    uint64_t limit = g->power_limit_mw ? g->power_limit_mw : UINT32_MAX;
    power = (uint64_t)((int64_t)power + jitter(g, (int64_t)power / 200, time));
    return (uint32_t)(power > limit ? limit : power);
}

uint32_t kg_power_mw(const kg_gpu *g) { return power_at(settle(g), now_ns()); }

int kg_temperature(const kg_gpu *g) {
    int64_t span = (int64_t)g->temp_max_load - g->temp_idle;
    return (int)(g->temp_idle + span * warmth(g) / (int64_t)ALL_BUSY + g->temp_offset);
}

static uint32_t utilization_at(const kg_gpu *g, uint64_t time) {
    return capped(g->load_target + kg_channel(kg_m.state, g, KG_LOAD_GR, time)) / 1000;
}

static uint32_t memory_utilization_at(const kg_gpu *g, uint64_t time) {
    uint64_t set = g->mem_load_set;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++)
        if (g->process[i].used) set += g->process[i].mem_util;
    if (!set) set = capped(g->load_target) / 1000 * 6 / 10;
    set += kg_channel(kg_m.state, g, KG_LOAD_DRAM, time) / 1000;
    return (uint32_t)(set > 100 ? 100 : set);
}

uint32_t kg_utilization(const kg_gpu *g) { return utilization_at(settle(g), now_ns()); }
uint32_t kg_memory_utilization(const kg_gpu *g) { return memory_utilization_at(settle(g), now_ns()); }

/* A reading of the past, by nvmlSamplingType_t; those that load does not move in a moment are as they are now. */
uint32_t kg_sample(const kg_gpu *g, unsigned type, uint64_t time) {
    switch (type) {
    case 0: case 7: return power_at(g, time);
    case 1: return utilization_at(g, time);
    case 2: return memory_utilization_at(g, time);
    case 5: case 6: return kg_clock(g, type - 4);
    case 8: return g->jpg_util;
    default: return g->ofa_util;
    }
}

static int hot(const kg_gpu *g) { return g->temp_slowdown > 0 && kg_temperature(g) >= g->temp_slowdown; }

uint32_t kg_clock(const kg_gpu *g, unsigned kind) {
    if (kind > 3) return 0;
    if (!kg_utilization(g)) return g->clock_idle[kind] ? g->clock_idle[kind] : g->clock_max[kind];
    uint32_t clock = g->clock_app[kind] && kind < 3 ? g->clock_app[kind] : g->clock_max[kind];
    if (kind < 2 && g->clock_lock[1] && clock > g->clock_lock[1]) clock = g->clock_lock[1];
    return kind < 2 && hot(g) ? clock * 7 / 10 : clock;
}

uint32_t kg_fan(const kg_gpu *g) {
    int64_t span = (int64_t)g->fan_max - g->fan_idle;
    return (uint32_t)(g->fan_idle + span * warmth(g) / (int64_t)ALL_BUSY);
}

/* Clocks event reasons: what is forced, and what follows from load, power and temperature. */
uint64_t kg_throttle(const kg_gpu *g) {
    uint64_t reasons = g->throttle_forced;
    if (!kg_utilization(g)) reasons |= 0x1;
    if (g->power_limit_mw && wanted_mw(g, now_ns()) > g->power_limit_mw) reasons |= 0x4;
    if (hot(g)) reasons |= 0x20 | 0x40 | 0x8;
    return reasons;
}

/* Time spent below full clocks by cause (index of throttle_ns); a forced reason counts on. */
uint64_t kg_throttle_ns(const kg_gpu *g, unsigned policy) {
    static const uint64_t bit[8] = {0x4, 0x20, 0x10, 0, 0x1, 0x8, 0x40, 0x80};
    if (policy >= 8) return 0;
    uint64_t now = now_ns();
    uint64_t forced = g->throttle_forced & bit[policy] && now > g->throttle_since_ns ? now - g->throttle_since_ns : 0;
    return g->throttle_ns[policy] + forced;
}

uint64_t kg_busy_ns(const kg_gpu *g) { return settle(g)->busy_ns + kg_busy_since(g, now_ns()); }
uint64_t kg_moved_ns(const kg_gpu *g, uint32_t channel) {
    return kg_busy_ns(g) + kg_channel_area(kg_m.state, g, NULL, channel, now_ns()) / 100;
}
uint64_t kg_energy_mj(const kg_gpu *g) { return settle(g)->energy_mj + kg_energy_since(kg_m.state, g, now_ns()); }

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

/* Payload of a link: the counter set by hand, a fifth of the line rate for the time the GPU was busy with steady load, and
 * what profiles say. */
uint64_t kg_link_kib(const kg_gpu *g, const kg_link *link, int receive) {
    uint64_t set = receive ? link->rx_kib : link->tx_kib;
    if (!link->active) return set;
    uint64_t moved = kg_busy_ns(g) / 5 + kg_channel_area(kg_m.state, g, NULL, KG_LOAD_NVLINK, now_ns()) / 100;
    return set + (uint64_t)((unsigned __int128)moved * link->speed_mbps / 1024 / 1000);
}
