/* nvmlDeviceGetFieldValues: readings by field id, several in one call, each with its own return code. */
#include "internal.h"

#define ANY_LINK 0xFFFFFFFFu
enum { T_DOUBLE, T_UINT, T_ULONG, T_ULL, T_SLL, T_INT };

/* Sum over the links, or one link; `what`: offset of a 64-bit counter in kg_link. */
static nvmlReturn_t link_sum(const kg_gpu *g, uint32_t scope, size_t what, uint64_t *out) {
    uint64_t sum = 0;
    int any = 0;
    for (uint32_t i = 0; i < KG_MAX_LINKS; i++) {
        if (!g->link[i].present || (scope != ANY_LINK && scope != i)) continue;
        sum += *(const uint64_t *)(const void *)((const char *)&g->link[i] + what);
        any = 1;
    }
    *out = sum;
    return any ? NVML_SUCCESS : scope != ANY_LINK && scope >= KG_MAX_LINKS ? NVML_ERROR_INVALID_ARGUMENT
                                                                             : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t traffic(const kg_gpu *g, uint32_t scope, int receive, uint64_t *out) {
    int any = 0;
    *out = 0;
    for (uint32_t i = 0; i < KG_MAX_LINKS; i++) {
        if (!g->link[i].present || (scope != ANY_LINK && scope != i)) continue;
        *out += kg_link_kib(g, &g->link[i], receive);
        any = 1;
    }
    return any ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* Ranges of per-lane ids of NVLink 1..3: first id, last id, lane of the first, counter. */
static const struct {
    uint32_t first, last, lane;
    size_t what;
} lanes[] = {
    {32, 37, 0, offsetof(kg_link, err_crc_flit)}, {96, 101, 6, offsetof(kg_link, err_crc_flit)},
    {39, 44, 0, offsetof(kg_link, err_crc_data)}, {102, 107, 6, offsetof(kg_link, err_crc_data)},
    {46, 51, 0, offsetof(kg_link, err_replay)},   {108, 113, 6, offsetof(kg_link, err_replay)},
    {53, 58, 0, offsetof(kg_link, err_recovery)}, {114, 119, 6, offsetof(kg_link, err_recovery)},
    {148, 159, 0, offsetof(kg_link, err_ecc)},
};

static nvmlReturn_t link_field(const kg_gpu *g, uint32_t id, uint32_t scope, uint64_t *out) {
    const kg_link *l = scope < KG_MAX_LINKS && g->link[scope].present ? &g->link[scope] : NULL;
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        if (id >= lanes[i].first && id <= lanes[i].last)
            return link_sum(g, lanes[i].lane + id - lanes[i].first, lanes[i].what, out);
    if (id >= 84 && id <= 89) scope = id - 84, l = g->link[scope].present ? &g->link[scope] : NULL;
    switch (id) {
    case 38: return link_sum(g, ANY_LINK, offsetof(kg_link, err_crc_flit), out);
    case 45: return link_sum(g, ANY_LINK, offsetof(kg_link, err_crc_data), out);
    case 52: return link_sum(g, ANY_LINK, offsetof(kg_link, err_replay), out);
    case 59: return link_sum(g, ANY_LINK, offsetof(kg_link, err_recovery), out);
    case 160: return link_sum(g, ANY_LINK, offsetof(kg_link, err_ecc), out);
    case 161: return link_sum(g, scope, offsetof(kg_link, err_replay), out);
    case 162: return link_sum(g, scope, offsetof(kg_link, err_recovery), out);
    case 163: return link_sum(g, scope, offsetof(kg_link, err_crc_flit), out);
    case 138: case 140: return traffic(g, scope, 0, out);
    case 139: case 141: return traffic(g, scope, 1, out);
    case 202: case 204: {
        nvmlReturn_t rc = g->architecture < 10 ? NVML_ERROR_NOT_SUPPORTED : traffic(g, scope, id == 204, out);
        *out *= 1024;
        return rc;
    }
    case 91: *out = g->link_count; return NVML_SUCCESS;
    case 90:
        *out = 0;
        for (uint32_t i = 0; i < KG_MAX_LINKS && !*out; i++)
            if (g->link[i].present && g->link[i].active) *out = g->link[i].speed_mbps;
        return g->link_count ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    default: break;
    }
    if (!l) return NVML_ERROR_NOT_SUPPORTED;
    switch (id) {
    case 84: case 85: case 86: case 87: case 88: case 89: case 164: *out = l->active ? l->speed_mbps : 0; break;
    case 146: *out = l->remote_link; break;
    case 165: *out = l->active != 0; break;
    case 166: *out = l->version; break;
    case 167: *out = 0; break;
    default:
        if (g->architecture < 10) return NVML_ERROR_NOT_SUPPORTED;
        *out = id == 213 || id == 215 ? l->err_recovery : id == 208 ? l->err_crc_data : 0;
    }
    return NVML_SUCCESS;
}

static int is_link(uint32_t id) {
    return (id >= 32 && id <= 73) || (id >= 84 && id <= 91) || (id >= 96 && id <= 141) || (id >= 146 && id <= 168) ||
           (id >= 201 && id <= 225) || (id >= 235 && id <= 250);
}

/* Limits that are told as a distance to the slowdown temperature (Ada and later). */
static nvmlReturn_t margin(const kg_gpu *g, uint32_t id, int64_t *out) {
    const int32_t limit[4] = {g->temp_shutdown, g->temp_slowdown, g->temp_mem_max, g->temp_gpu_max};
    if (g->architecture < 8 || limit[id - 193] <= 0) return NVML_ERROR_NOT_SUPPORTED;
    *out = g->temp_slowdown - limit[id - 193];
    return NVML_SUCCESS;
}

#define GIVE(kind, expression)           \
    do {                                 \
        *type = (kind);                  \
        *out = (uint64_t)(expression);   \
        return NVML_SUCCESS;             \
    } while (0)
#define GIVE_IF(condition, kind, expression)                \
    do {                                                    \
        if (!(condition)) return NVML_ERROR_NOT_SUPPORTED;  \
        GIVE(kind, expression);                             \
    } while (0)

static nvmlReturn_t field(const kg_gpu *g, uint32_t id, uint32_t scope, unsigned *type, uint64_t *out) {
    static const uint8_t policies[8] = {0, 1, 2, 3, 4, 5, 5, 5};
    *type = T_ULL;
    if (is_link(id)) {
        *type = id == 91 || (id >= 164 && id <= 167) ? T_UINT : T_ULL;
        return link_field(g, id, scope, out);
    }
    if (id >= 3 && id <= 6)
        GIVE_IF(g->ecc_supported && g->ecc_current, T_ULL, kg_ecc_total(g, (id - 3) & 1, id >= 5));
    if (id >= 7 && id <= 28) { /* volatile 7..17, aggregate 18..28: five places corrected and not, then the CBU */
        uint32_t at = id < 18 ? id - 7 : id - 18;
        const uint64_t *counts = id < 18 ? g->ecc_volatile : g->ecc_aggregate;
        GIVE_IF(g->ecc_supported && g->ecc_current, T_ULL, at == 10 ? counts[13] : counts[at / 2 + (at & 1) * 7]);
    }
    if (id >= 74 && id <= 81) GIVE(T_ULL, kg_throttle_ns(g, policies[id - 74]));
    if (id >= 173 && id <= 183) GIVE(T_ULL, g->pcie_err[id - 173]);
    if (id >= 193 && id <= 196) {
        int64_t value = 0;
        nvmlReturn_t rc = margin(g, id, &value);
        *type = T_INT, *out = (uint64_t)value;
        return rc;
    }
    switch (id) {
    case 1: GIVE_IF(g->ecc_supported, T_UINT, g->ecc_current);
    case 2: GIVE_IF(g->ecc_supported, T_UINT, g->ecc_pending);
    case 29: GIVE_IF(!g->remap_supported && g->ecc_supported, T_ULL, g->retired_sbe_count);
    case 30: GIVE_IF(!g->remap_supported && g->ecc_supported, T_ULL, g->retired_dbe_count);
    case 31: case 92: case 93: GIVE_IF(!g->remap_supported && g->ecc_supported, T_UINT, g->retired_pending);
    case 82: GIVE_IF(g->temp_memory_delta > -1000, T_UINT, kg_temperature(g) + g->temp_memory_delta);
    case 83: case 191: GIVE_IF(g->power_supported && g->architecture >= 5, T_ULL, kg_energy_mj(g));
    case 94: GIVE(T_UINT, g->pcie_replays);
    case 95: case 169: GIVE(T_UINT, 0);
    case 142: GIVE_IF(g->remap_supported, T_UINT, g->remap_corrected);
    case 143: GIVE_IF(g->remap_supported, T_UINT, g->remap_uncorrected);
    case 144: GIVE_IF(g->remap_supported, T_UINT, g->remap_pending);
    case 145: GIVE_IF(g->remap_supported, T_UINT, g->remap_failed);
    case 147: GIVE(T_UINT, kg_m.state->nvswitch_count ? g->link_count : 0);
    case 170: GIVE(T_UINT, g->c2c_links);
    case 171: GIVE_IF(scope < g->c2c_links, T_UINT, 1);
    case 172: GIVE_IF(scope < g->c2c_links, T_UINT, 44712);
    case 184: GIVE_IF(g->mig_capable, T_UINT, !g->mig_needs_reset);
    case 185: GIVE_IF(g->power_supported && g->architecture >= 7 && scope < 2, T_UINT, kg_power_mw(g));
    case 186: GIVE_IF(g->power_supported && scope < 2, T_UINT, kg_power_mw(g));
    case 187: GIVE_IF(g->power_supported, T_UINT, g->power_limit_min_mw);
    case 188: GIVE_IF(g->power_supported, T_UINT, g->power_limit_max_mw);
    case 189: GIVE_IF(g->power_supported, T_UINT, g->power_limit_default_mw);
    case 190: case 192: GIVE_IF(g->power_supported, T_UINT, g->power_limit_mw);
    case 197: GIVE(T_ULL, (unsigned __int128)g->pcie_tx_kbs * kg_moved_ns(g, KG_LOAD_PCIE_TX) / 1000000);
    case 198: GIVE(T_ULL, (unsigned __int128)g->pcie_rx_kbs * kg_moved_ns(g, KG_LOAD_PCIE_RX) / 1000000);
    case 199: GIVE_IF(g->mig_capable, T_UINT, 1);
    case 226: GIVE(T_UINT, g->reset_required || g->recovery_action == 1);
    case 227: GIVE(T_UINT, g->recovery_action == 4);
    case 230: GIVE_IF(kg_driver_at_least(570), T_UINT, g->recovery_action);
    case 231: case 232: case 233: case 234: GIVE_IF(scope < g->c2c_links, T_ULL, 0);
    case 269: GIVE(T_ULL, kg_throttle_ns(g, 1));
    case 270: GIVE(T_ULL, kg_throttle_ns(g, 6));
    case 271: GIVE(T_ULL, kg_throttle_ns(g, 7));
    case 301: GIVE_IF(g->remap_supported, T_UINT, g->remap_corrected_inactive);
    case 302: GIVE_IF(g->remap_supported, T_UINT, g->remap_uncorrected_inactive);
    default: return id && id < 1000 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER(kg_dev_of, device, values && count > 0 && count <= 100000);
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *v = &values[i];
        uint64_t began = kg_now_ns(kg_m.state), value = 0;
        unsigned type = T_UINT;
        if (d.g->failing & KG_FAIL_FIELDS) v->nvmlReturn = NVML_ERROR_UNKNOWN;
        else v->nvmlReturn = d.ci ? NVML_ERROR_NOT_SUPPORTED : field(d.g, v->fieldId, v->scopeId, &type, &value);
        if (v->nvmlReturn != NVML_SUCCESS) value = 0;
        v->valueType = type;
        v->value.ullVal = 0;
        if (type == T_INT) v->value.siVal = (int)(int64_t)value;
        else if (type == T_UINT) v->value.uiVal = (unsigned int)value;
        else v->value.ullVal = value;
        v->timestamp = (long long)(kg_now_ns(kg_m.state) / 1000);
        v->latencyUsec = (long long)((kg_now_ns(kg_m.state) - began) / 1000);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceClearFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER(kg_gpu_of, device, values && count > 0 && count <= 100000);
    for (int i = 0; i < count; i++) values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
