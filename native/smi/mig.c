/* What all actions of `nvidia-smi mig` ask the driver: its profiles and instances. */
#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Smallest first: slices, then memory, then id. */
static int by_size(const void *a, const void *b)
{
    const struct gi_profile *x = a, *y = b;
    if (x->info.sliceCount != y->info.sliceCount)
        return x->info.sliceCount < y->info.sliceCount ? -1 : 1;
    if (x->info.memorySizeMB != y->info.memorySizeMB)
        return x->info.memorySizeMB < y->info.memorySizeMB ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The name that a driver gives lacks in old ones: then slices and memory make it. */
static void name_from_size(char *out, size_t room, U slices, U64 megabytes)
{
    snprintf(out, room, "MIG %ug.%llugb", slices, (megabytes + 1023) / 1024);
}

static void copy_name(char *out, size_t room, const char *name)
{
    snprintf(out, room, "%s%.88s", strncmp(name, "MIG ", 4) == 0 ? "" : "MIG ", name);
}

U gi_profiles(D device, struct gi_profile *out)
{
    U count = 0;
    for (U i = 0; i < GI_PROFILES; i++) {
        nvmlGpuInstanceProfileInfo_v2_t named = {.version = NVML_VERSIONED(nvmlGpuInstanceProfileInfo_v2_t, 2)};
        struct gi_profile *p = &out[count];
        if (nv(DeviceGetGpuInstanceProfileInfo)(device, i, &p->info) != NVML_SUCCESS)
            continue;
        p->id = p->info.id;
        if (nv(DeviceGetGpuInstanceProfileInfoV)(device, i, &named) == NVML_SUCCESS && named.name[0])
            copy_name(p->name, sizeof p->name, named.name);
        else
            name_from_size(p->name, sizeof p->name, p->info.sliceCount, p->info.memorySizeMB);
        count++;
    }
    qsort(out, count, sizeof *out, by_size);
    return count;
}

U ci_profiles(G gi, struct ci_profile *out)
{
    U count = 0, most = 0;
    for (U i = 0; i < CI_PROFILES; i++) {
        nvmlComputeInstanceProfileInfo_v2_t named = {.version = NVML_VERSIONED(nvmlComputeInstanceProfileInfo_v2_t, 2)};
        struct ci_profile *p = &out[count];
        if (nv(GpuInstanceGetComputeInstanceProfileInfo)(gi, i, 0, &p->info) != NVML_SUCCESS)
            continue;
        p->id = p->info.id;
        if (nv(GpuInstanceGetComputeInstanceProfileInfoV)(gi, i, 0, &named) == NVML_SUCCESS && named.name[0])
            copy_name(p->name, sizeof p->name, named.name);
        else
            snprintf(p->name, sizeof p->name, "MIG %uc", p->info.sliceCount);
        most = p->info.multiprocessorCount > most ? p->info.multiprocessorCount : most;
        count++;
    }
    for (U i = 0; i < count; i++) /* the default of -C: what takes the whole GPU instance */
        out[i].whole = out[i].info.multiprocessorCount == most;
    return count;
}

const struct gi_profile *gi_profile_by_id(const struct gi_profile *list, U count, U id)
{
    for (U i = 0; i < count; i++)
        if (list[i].id == id)
            return &list[i];
    return NULL;
}

const struct ci_profile *ci_profile_by_id(const struct ci_profile *list, U count, U id)
{
    for (U i = 0; i < count; i++)
        if (list[i].id == id)
            return &list[i];
    return NULL;
}

static bool listed(const char *ids, U id)
{
    if (!ids)
        return true;
    for (const char *p = ids; *p; p += strcspn(p, ","), p += *p == ',') {
        char *end;
        unsigned long value = strtoul(p, &end, 10);
        if (end != p && value == id)
            return true;
    }
    return false;
}

U gi_list(D device, const char *ids, G *out)
{
    static struct gi_profile profiles[GI_PROFILES];
    U total = gi_profiles(device, profiles), count = 0;
    for (U i = 0; i < total; i++) {
        G found[MAX_INSTANCES];
        U n = 0;
        if (nv(DeviceGetGpuInstances)(device, profiles[i].id, found, &n) != NVML_SUCCESS)
            continue;
        for (U k = 0; k < n && count < MAX_INSTANCES; k++) {
            nvmlGpuInstanceInfo_t info;
            if (nv(GpuInstanceGetInfo)(found[k], &info) == NVML_SUCCESS && listed(ids, info.id))
                out[count++] = found[k];
        }
    }
    return count;
}

U ci_list(G gi, const char *ids, C *out)
{
    struct ci_profile profiles[CI_PROFILES];
    U total = ci_profiles(gi, profiles), count = 0;
    for (U i = 0; i < total; i++) {
        C found[MAX_INSTANCES];
        U n = 0;
        if (nv(GpuInstanceGetComputeInstances)(gi, profiles[i].id, found, &n) != NVML_SUCCESS)
            continue;
        for (U k = 0; k < n && count < MAX_INSTANCES; k++) {
            nvmlComputeInstanceInfo_t info;
            if (nv(ComputeInstanceGetInfo_v2)(found[k], &info) == NVML_SUCCESS && listed(ids, info.id))
                out[count++] = found[k];
        }
    }
    return count;
}
