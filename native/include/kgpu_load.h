/* The load model: everything that moves with load is a function of the node's time, so all processes read the same.
 *
 * Load has two parts. Steady load is what is set by hand or by a running kernel; it goes to its target in a ramp of
 * KG_LOAD_RAMP_MS. A process that follows a load profile (kg_load_profile) adds that profile's channels. Counters are
 * integrals: what came until load_since_ns is stored, the rest follows from the time since. Whoever changes what the
 * load is made of does it between kg_load_settle and kg_load_head, with the lock held. The same arithmetic for Python is
 * in src/kgpu/hw/simulator/load_model.py.
 */
#ifndef KGPU_LOAD_H
#define KGPU_LOAD_H

#include <string.h>
#include <time.h>

#include "kgpu_state.h"

#define KG_LOAD_MAYBE __attribute__((unused)) static
#define KG_ALL_BUSY 100000u /* a fully busy GPU, in 1/1000 percent */

/* The node's time, ns since the epoch: wall time, unless the node has a clock of its own. */
KG_LOAD_MAYBE uint64_t kg_now_ns(const kg_state *s) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t wall = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    if (!s || !s->clock_real_ns) return wall;
    return s->clock_node_ns + (wall > s->clock_real_ns ? (wall - s->clock_real_ns) * s->clock_rate : 0);
}

/* ---- load profiles ---- */

/* The profile that a process follows, NULL: none. */
KG_LOAD_MAYBE const kg_load_profile *kg_load_profile_of(const kg_state *s, const kg_process *p) {
    return p->used && p->load && p->load <= KG_MAX_LOADS ? &s->load[p->load - 1] : NULL;
}

/* Percent x ns of a channel in the first `time` ns of a profile. */
KG_LOAD_MAYBE uint64_t kg_profile_area(const kg_load_profile *profile, uint32_t channel, uint64_t time) {
    uint32_t count = profile->phase_count < KG_MAX_PHASES ? profile->phase_count : KG_MAX_PHASES;
    uint64_t sum = 0, cycle = 0, cycle_area = 0;
    for (uint32_t i = profile->once; i < count; i++) {
        cycle += (uint64_t)profile->phase[i].ms * 1000000;
        cycle_area += (uint64_t)profile->phase[i].ms * 1000000 * profile->phase[i].value[channel];
    }
    for (uint32_t i = 0; i < count; i++) {
        if (i == profile->once && cycle) sum += time / cycle * cycle_area, time %= cycle;
        uint64_t length = (uint64_t)profile->phase[i].ms * 1000000, part = time < length ? time : length;
        sum += part * profile->phase[i].value[channel];
        time -= part;
    }
    return sum;
}

/* The most of the GPU that a profile uses or heats at any time, percent. */
KG_LOAD_MAYBE uint32_t kg_profile_peak(const kg_load_profile *profile) {
    uint32_t peak = 0;
    for (uint32_t i = 0; i < profile->phase_count && i < KG_MAX_PHASES; i++) {
        const uint32_t *value = profile->phase[i].value;
        if (value[KG_LOAD_GR] > peak) peak = value[KG_LOAD_GR];
        if (value[KG_LOAD_POWER] > peak) peak = value[KG_LOAD_POWER];
    }
    return peak;
}

/* Percent x ns of a channel that one process causes from `from` to `to`, of its part of the GPU. */
KG_LOAD_MAYBE uint64_t kg_process_area(const kg_state *s, const kg_process *p, uint32_t channel, uint64_t from, uint64_t to) {
    const kg_load_profile *profile = kg_load_profile_of(s, p);
    uint64_t start = p->start_us * 1000, shift = (uint64_t)p->load_shift_ms * 1000000;
    if (from < start) from = start;
    if (!profile || to <= from) return 0;
    uint64_t area = kg_profile_area(profile, channel, to - start + shift) - kg_profile_area(profile, channel, from - start + shift);
    return (uint64_t)((unsigned __int128)area * p->load_scale / 1000);
}

/* The same of all processes: of the whole GPU (gi NULL), or those of an instance in parts of the instance. */
KG_LOAD_MAYBE uint64_t kg_profiles_area(const kg_state *s, const kg_gpu *g, const kg_gi *gi, uint32_t channel, uint64_t from,
                                        uint64_t to) {
    uint64_t sum = 0, whole = 1000;
    if (gi && g->sm_count && gi->row < KG_MAX_GI_PROFILES) whole = (uint64_t)g->gi_profile[gi->row].sm * 1000 / g->sm_count;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++) {
        const kg_process *p = &g->process[i];
        if (!p->used || !p->load || (gi && p->gi_id != gi->id)) continue;
        uint64_t share = p->load_share < whole ? p->load_share : whole;
        sum += (uint64_t)((unsigned __int128)kg_process_area(s, p, channel, from, to) * share / (whole ? whole : 1));
    }
    return sum;
}

/* Percent x ns of a channel since the node was made. */
KG_LOAD_MAYBE uint64_t kg_channel_area(const kg_state *s, const kg_gpu *g, const kg_gi *gi, uint32_t channel, uint64_t now) {
    return (gi ? gi->load_done : g->load_done)[channel] + kg_profiles_area(s, g, gi, channel, g->load_since_ns, now);
}

/* What the profiles make of a channel at `now`, and the average over the ramp's time before it (heat), 1/1000 percent. */
KG_LOAD_MAYBE uint32_t kg_channel(const kg_state *s, const kg_gpu *g, uint32_t channel, uint64_t now) {
    return (uint32_t)(kg_profiles_area(s, g, NULL, channel, now, now + 1000));
}

KG_LOAD_MAYBE uint32_t kg_heat(const kg_state *s, const kg_gpu *g, uint64_t now) {
    const uint64_t ramp = (uint64_t)KG_LOAD_RAMP_MS * 1000000;
    return (uint32_t)(kg_profiles_area(s, g, NULL, KG_LOAD_POWER, now - ramp, now) / (ramp / 1000));
}

/* ---- steady load ---- */

/* Busy share in 1/1000 percent at `now`, on its way from load_prev to load_target. */
KG_LOAD_MAYBE uint32_t kg_load(const kg_gpu *g, uint64_t now) {
    const int64_t ramp = (int64_t)KG_LOAD_RAMP_MS * 1000000;
    int64_t from = g->load_prev > KG_ALL_BUSY ? KG_ALL_BUSY : g->load_prev;
    int64_t goal = g->load_target > KG_ALL_BUSY ? KG_ALL_BUSY : g->load_target;
    int64_t elapsed = now > g->load_since_ns ? (int64_t)((now - g->load_since_ns) & INT64_MAX) : 0;
    if (elapsed >= ramp) return (uint32_t)goal;
    return (uint32_t)(from + (goal - from) * elapsed / ramp);
}

/* Busy nanoseconds since load_since_ns. */
KG_LOAD_MAYBE uint64_t kg_busy_since(const kg_gpu *g, uint64_t now) {
    const uint64_t ramp = (uint64_t)KG_LOAD_RAMP_MS * 1000000;
    uint64_t elapsed = now > g->load_since_ns ? now - g->load_since_ns : 0;
    uint64_t ramped = elapsed < ramp ? elapsed : ramp;
    uint64_t from = g->load_prev > KG_ALL_BUSY ? KG_ALL_BUSY : g->load_prev;
    uint64_t goal = g->load_target > KG_ALL_BUSY ? KG_ALL_BUSY : g->load_target;
    unsigned __int128 area = (unsigned __int128)(from + kg_load(g, g->load_since_ns + ramped)) * ramped / 2 +
                             (unsigned __int128)goal * (elapsed - ramped);
    return (uint64_t)(area / KG_ALL_BUSY);
}

/* Where the steady load goes: what is set by hand plus what the kernels of processes cause, in 1/1000 percent. */
KG_LOAD_MAYBE uint32_t kg_load_goal(const kg_gpu *g) {
    uint64_t total = g->load_set;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++)
        if (g->process[i].used) total += g->process[i].sm_util;
    return (uint32_t)(total > 100 ? 100 : total) * 1000;
}

/* ---- both ---- */

/* Millijoules since load_since_ns. */
KG_LOAD_MAYBE uint64_t kg_energy_since(const kg_state *s, const kg_gpu *g, uint64_t now) {
    uint64_t elapsed = now > g->load_since_ns ? now - g->load_since_ns : 0;
    uint64_t span = g->power_max_mw > g->power_idle_mw ? g->power_max_mw - g->power_idle_mw : 0;
    uint64_t busy = kg_busy_since(g, now) + kg_profiles_area(s, g, NULL, KG_LOAD_POWER, g->load_since_ns, now) / 100;
    unsigned __int128 total = (unsigned __int128)g->power_idle_mw * elapsed + (unsigned __int128)span * busy;
    return (uint64_t)(total / 1000000000ull);
}

/* Before a change of what the load is made of: store what came until `now`. The level, for kg_load_head. */
KG_LOAD_MAYBE uint32_t kg_load_settle(const kg_state *s, kg_gpu *g, uint64_t now) {
    uint32_t level = kg_load(g, now);
    g->energy_mj += kg_energy_since(s, g, now);
    g->busy_ns += kg_busy_since(g, now);
    for (uint32_t c = 0; c < KG_LOAD_CHANNELS; c++) {
        g->load_done[c] += kg_profiles_area(s, g, NULL, c, g->load_since_ns, now);
        for (uint32_t i = 0; i < KG_MAX_GI; i++)
            if (g->gi[i].used) g->gi[i].load_done[c] += kg_profiles_area(s, g, &g->gi[i], c, g->load_since_ns, now);
    }
    g->load_prev = level;
    g->load_since_ns = now;
    return level + kg_heat(s, g, now);
}

/* What all processes of one instance (or those in none) would use at most, percent of what they have together. */
KG_LOAD_MAYBE uint32_t kg_load_wanted(const kg_state *s, const kg_gpu *g, uint32_t gi) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++) {
        const kg_load_profile *profile = kg_load_profile_of(s, &g->process[i]);
        if (profile && g->process[i].gi_id == gi) sum += kg_profile_peak(profile);
    }
    return sum;
}

/* After it: head for the new steady load; profiles that together want more than there is get their part of it. A
 * process that ended leaves its heat behind. */
KG_LOAD_MAYBE void kg_load_head(const kg_state *s, kg_gpu *g, uint64_t now, uint32_t level) {
    g->load_target = kg_load_goal(g);
    for (uint32_t i = 0; i < KG_MAX_PROCESSES; i++) {
        kg_process *p = &g->process[i];
        if (!p->used || !p->load) continue;
        uint32_t wanted = kg_load_wanted(s, g, p->gi_id);
        uint32_t room = 100 - (p->gi_id == KG_NO_INSTANCE ? g->load_target / 1000 : 0);
        p->load_scale = wanted > room ? room * 1000 / wanted : 1000;
    }
    uint32_t heat = kg_heat(s, g, now);
    g->load_prev = level > heat ? level - heat : 0;
}

#endif
