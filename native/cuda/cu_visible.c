/* Which devices CUDA gives this process, and in which order: device nodes, CUDA_DEVICE_ORDER, MIG, CUDA_VISIBLE_DEVICES.
 *
 * Rules of the CUDA programming guide and the MIG user guide: a list ends at its first invalid entry; a GPU in MIG mode
 * is no device itself; one process sees at most one compute instance, and with it no other GPU. */
#include "cu_sim.h"

#include <ctype.h>

#define MAX_SLICES (KG_MAX_GPUS * KG_MAX_CI)

struct candidates {
    int count; /* whole GPUs and slices, GPUs in CUDA's order first */
    int gpus;
    struct cu_device item[KG_MAX_GPUS + MAX_SLICES];
    char uuid[KG_MAX_GPUS + MAX_SLICES][96];
};

static int hex(char c) { return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1; }

static CUuuid uuid_bytes(const char *text)
{
    CUuuid uuid = {{0}};
    const char *p = strchr(text, '-');
    int digits = 0;
    for (; p && *p && digits < 32; p++) {
        int value = hex(*p);
        if (value < 0)
            continue;
        unsigned char *byte = (unsigned char *)&uuid.bytes[digits / 2];
        *byte = (unsigned char)(digits % 2 ? *byte | value : value << 4);
        digits++;
    }
    return uuid;
}

static bool usable(const kg_gpu *gpu)
{
    return gpu->used && !gpu->lost && !gpu->init_error && kg_gpu_visible(&sim.map, gpu->minor);
}

static void add_gpu(struct candidates *c, uint32_t slot)
{
    const kg_gpu *gpu = &sim.map.state->gpu[slot];
    struct cu_device *d = &c->item[c->count];
    *d = (struct cu_device){.gpu = slot, .gi = KG_NO_INSTANCE, .ci = KG_NO_INSTANCE, .sm_count = gpu->sm_count, .slot = -1, .mps = -1};
    kg_text(d->name, sizeof d->name, gpu->name, sizeof gpu->name);
    kg_text(c->uuid[c->count], sizeof *c->uuid, gpu->uuid, sizeof gpu->uuid);
    d->uuid = d->gpu_uuid = uuid_bytes(c->uuid[c->count]);
    d->memory = gpu->mem_total > gpu->mem_reserved ? gpu->mem_total - gpu->mem_reserved : 0;
    c->count++;
}

static void add_slice(struct candidates *c, uint32_t slot, const kg_ci *ci)
{
    kg_gpu *gpu = &sim.map.state->gpu[slot];
    const kg_gi *gi = kg_find_gi(gpu, ci->gi_id);
    char gpu_name[96], gpu_uuid[96], profile[40];
    if (!gi || ci->row >= KG_MAX_CI_PROFILES || !kg_mig_visible(&sim.map, gpu->minor, ci->gi_id, ci->id))
        return;
    const kg_gi_profile *gp = &gpu->gi_profile[gi->row];
    const kg_ci_profile *cp = &gp->ci[ci->row];
    struct cu_device *d = &c->item[c->count];
    *d = (struct cu_device){.gpu = slot, .gi = ci->gi_id, .ci = ci->id, .sm_count = cp->sm, .slot = -1, .mps = -1, .memory = gp->memory_mib << 20};
    kg_text(gpu_name, sizeof gpu_name, gpu->name, sizeof gpu->name);
    kg_text(gpu_uuid, sizeof gpu_uuid, gpu->uuid, sizeof gpu->uuid);
    kg_text(profile, sizeof profile, cp->name[0] ? cp->name : gp->name, sizeof cp->name);
    snprintf(d->name, sizeof d->name, "%s MIG %s", gpu_name, profile);
    kg_text(c->uuid[c->count], sizeof *c->uuid, ci->uuid, sizeof ci->uuid);
    d->uuid = uuid_bytes(c->uuid[c->count]);
    d->gpu_uuid = uuid_bytes(gpu_uuid);
    c->count++;
}

/* FASTEST_FIRST is the default of CUDA_DEVICE_ORDER; among equals the PCI order stays. */
static void order_gpus(uint32_t *slots, int count)
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    const kg_gpu *gpu = sim.map.state->gpu;
    if (order && strcmp(order, "PCI_BUS_ID") == 0)
        return;
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            const kg_gpu *a = &gpu[slots[j - 1]], *b = &gpu[slots[j]];
            if ((uint64_t)a->cores * a->clock_max[1] >= (uint64_t)b->cores * b->clock_max[1])
                break;
            uint32_t swap = slots[j - 1];
            slots[j - 1] = slots[j];
            slots[j] = swap;
        }
}

/* The slices of a GPU in the order of their instance ids, which is the order that `nvidia-smi -L` lists them in. */
static void add_slices(struct candidates *c, uint32_t slot)
{
    const kg_gpu *gpu = &sim.map.state->gpu[slot];
    const kg_ci *sorted[KG_MAX_CI];
    int count = 0;
    for (uint32_t k = 0; k < KG_MAX_CI; k++) {
        const kg_ci *ci = &gpu->ci[k];
        int at = count;
        if (!ci->used)
            continue;
        for (; at > 0 && (sorted[at - 1]->gi_id > ci->gi_id || (sorted[at - 1]->gi_id == ci->gi_id && sorted[at - 1]->id > ci->id)); at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = ci;
        count++;
    }
    for (int i = 0; i < count; i++)
        add_slice(c, slot, sorted[i]);
}

static void gather(struct candidates *c)
{
    uint32_t slots[KG_MAX_GPUS];
    const kg_state *state = sim.map.state;
    uint32_t total = state->gpu_count < KG_MAX_GPUS ? state->gpu_count : KG_MAX_GPUS;
    int count = 0;
    c->count = 0;
    for (uint32_t i = 0; i < total; i++)
        if (usable(&state->gpu[i]))
            slots[count++] = i;
    order_gpus(slots, count);
    for (int i = 0; i < count; i++)
        if (!state->gpu[slots[i]].mig_current)
            add_gpu(c, slots[i]);
    c->gpus = c->count;
    for (int i = 0; i < count; i++)
        if (state->gpu[slots[i]].mig_current)
            add_slices(c, slots[i]);
}

/* `MIG-GPU-<uuid>/<gi>/<ci>`, the form of drivers before 470. */
static int find_legacy_slice(const struct candidates *c, const char *token)
{
    unsigned gi, ci;
    char tail;
    const char *slash = strchr(token, '/');
    if (!slash || sscanf(slash, "/%u/%u%c", &gi, &ci, &tail) != 2)
        return -1;
    for (int i = c->gpus; i < c->count; i++) {
        char uuid[96];
        const kg_gpu *gpu = &sim.map.state->gpu[c->item[i].gpu];
        kg_text(uuid, sizeof uuid, gpu->uuid, sizeof gpu->uuid);
        size_t length = (size_t)(slash - token) - 4;
        if (c->item[i].gi == gi && c->item[i].ci == ci && strlen(uuid) == length && strncasecmp(token + 4, uuid, length) == 0)
            return i;
    }
    return -1;
}

/* A full UUID or the beginning of exactly one. */
static int find_uuid(const struct candidates *c, const char *token)
{
    size_t length = strlen(token);
    int found = -1;
    if (strncasecmp(token, "MIG-GPU-", 8) == 0)
        return find_legacy_slice(c, token);
    for (int i = 0; i < c->count; i++) {
        if (strncasecmp(c->uuid[i], token, length) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    if (found >= 0 || strncasecmp(token, "GPU-", 4) != 0)
        return found;
    for (int i = c->gpus; i < c->count; i++) { /* a GPU in MIG mode stands for its first slice */
        const kg_gpu *gpu = &sim.map.state->gpu[c->item[i].gpu];
        if (strncasecmp(gpu->uuid, token, length) == 0)
            return i;
    }
    return -1;
}

static int find_token(const struct candidates *c, const char *token)
{
    if (strncasecmp(token, "GPU-", 4) == 0 || strncasecmp(token, "MIG-", 4) == 0)
        return find_uuid(c, token);
    char *end;
    long index = strtol(token, &end, 10);
    /* Numbers count what CUDA would enumerate without a list: the first slice alone, or the whole GPUs. */
    int limit = c->gpus < c->count ? 1 : c->gpus;
    if (end == token || *end || index < 0 || index >= limit)
        return -1;
    return c->gpus < c->count ? c->gpus : (int)index;
}

static int pick(const struct candidates *c, const char *list, struct cu_device *devices)
{
    int count = 0, chosen[KG_MAX_GPUS];
    const char *p = list;
    while (*p && count < (int)KG_MAX_GPUS) {
        char token[128];
        size_t length = strcspn(p, ",");
        const char *next = p[length] ? p + length + 1 : p + length;
        while (length && isspace((unsigned char)*p))
            p++, length--;
        while (length && isspace((unsigned char)p[length - 1]))
            length--;
        if (length == 0 || length >= sizeof token)
            break;
        memcpy(token, p, length);
        token[length] = 0;
        int found = find_token(c, token);
        if (found < 0)
            break;
        for (int i = 0; i < count; i++)
            if (chosen[i] == found)
                return 0; /* the same device twice makes the whole list invalid */
        chosen[count] = found;
        devices[count++] = c->item[found];
        p = next;
    }
    return count;
}

/* A process works with one compute instance only: the first one ends the list. */
static int keep_one_slice(struct cu_device *devices, int count)
{
    for (int i = 0; i < count; i++)
        if (devices[i].gi != KG_NO_INSTANCE) {
            devices[0] = devices[i];
            return 1;
        }
    return count;
}

/* A client of an MPS server has that server's devices, in its order: the server has numbered them anew. */
static CUresult keep_served(struct candidates *c)
{
    struct candidates *all = sim.mps.client ? malloc(sizeof *all) : NULL;
    if (!all)
        return sim.mps.client ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    memcpy(all, c, sizeof *all);
    c->count = c->gpus = 0;
    for (int k = 0; k < sim.mps.count; k++)
        for (int i = 0; i < all->count; i++)
            if (strcasecmp(all->uuid[i], sim.mps.device[k].uuid) == 0) {
                c->item[c->count] = all->item[i];
                c->item[c->count].mps = k;
                memcpy(c->uuid[c->count++], all->uuid[i], sizeof *c->uuid);
                c->gpus += i < all->gpus;
            }
    free(all);
    return CUDA_SUCCESS;
}

CUresult visible_devices(struct cu_device *devices, int *count)
{
    struct candidates *c = malloc(sizeof *c);
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    gather(c);
    if (keep_served(c) != CUDA_SUCCESS) {
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (list) {
        *count = pick(c, list, devices);
    } else if (c->gpus < c->count) {
        devices[0] = c->item[c->gpus];
        *count = 1;
    } else {
        memcpy(devices, c->item, (size_t)c->gpus * sizeof *devices);
        *count = c->gpus;
    }
    *count = keep_one_slice(devices, *count);
    for (int i = 0; i < *count; i++)
        mps_provision(&devices[i], i);
    free(c);
    return *count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
