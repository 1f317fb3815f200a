/* nvidia-smi mig: its options, and what all of them ask the driver. */
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

/* ---- options ---- */

static const struct { const char *brief, *full; int (*run)(struct mig_request *r); bool value, needs_mig; } actions[] = {
    {"-lgip", "--list-gpu-instance-profiles", list_gi_profiles, false, false},
    {"-lgipp", "--list-gpu-instance-possible-placements", list_gi_placements, false, false},
    {"-lgi", "--list-gpu-instances", list_gi, false, true},
    {"-lcip", "--list-compute-instance-profiles", list_ci_profiles, false, true},
    {"-lci", "--list-compute-instances", list_ci, false, true},
    {"-cgi", "--create-gpu-instance", create_gi, true, true},
    {"-cci", "--create-compute-instance", create_ci, true, true},
    {"-dgi", "--destroy-gpu-instance", destroy_gi, false, true},
    {"-dci", "--destroy-compute-instance", destroy_ci, false, true},
};

static int usage(void)
{
    printf("Usage: nvidia-smi mig [-i GPU] [-gi ID] [-ci ID] ACTION\n\n");
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        printf("    %-6s %s%s\n", actions[i].brief, actions[i].full, actions[i].value ? "=PROFILES" : "");
    printf("    -C     --default-compute-instance   with -cgi: also create the default compute instance\n\n");
    return EXIT_BAD_USE;
}

/* Leaves the GPUs that support MIG, or those where it is on. */
static void keep_mig(struct selection *s, bool enabled)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < s->count; i++) {
        U now = 0, next = 0;
        bool capable = s->gpu[i].status == NVML_SUCCESS && nv(DeviceGetMigMode)(s->gpu[i].device, &now, &next) == NVML_SUCCESS;
        if (capable && (now || !enabled))
            s->gpu[kept++] = s->gpu[i];
    }
    s->count = kept;
}

/* The option's value: behind `=`, or the next word unless that is an option. */
static const char *value_of(int argc, char **argv, int *at, const char *full)
{
    size_t length = strlen(full);
    if (strncmp(argv[*at], full, length) == 0 && argv[*at][length] == '=')
        return argv[*at] + length + 1;
    return *at + 1 < argc && argv[*at + 1][0] != '-' ? argv[++*at] : NULL;
}

static bool is_option(const char *word, const char *brief, const char *full)
{
    size_t length = strlen(full);
    return strcmp(word, brief) == 0 || (strncmp(word, full, length) == 0 && (!word[length] || word[length] == '='));
}

int run_mig(int argc, char **argv)
{
    static struct mig_request r;
    const char *ids = NULL;
    int action = -1;
    for (int i = 0; i < argc; i++) {
        const struct { const char *brief, *full; const char **value; } filters[] = {
            {"-i", "--id", &ids}, {"-gi", "--gpu-instance-id", &r.gi_ids}, {"-ci", "--compute-instance-id", &r.ci_ids}};
        bool known = is_option(argv[i], "-C", "--default-compute-instance");
        r.with_compute |= known;
        for (size_t k = 0; !known && k < sizeof filters / sizeof *filters; k++)
            if (is_option(argv[i], filters[k].brief, filters[k].full)) {
                known = true;
                *filters[k].value = value_of(argc, argv, &i, filters[k].full);
                if (!*filters[k].value)
                    return usage();
            }
        for (size_t k = 0; !known && k < sizeof actions / sizeof *actions; k++)
            if (is_option(argv[i], actions[k].brief, actions[k].full)) {
                known = true;
                if (action >= 0)
                    return usage();
                action = (int)k;
                r.create = actions[k].value ? value_of(argc, argv, &i, actions[k].full) : NULL;
            }
        if (!known)
            return usage();
    }
    if (action < 0 || (actions[action].run == create_gi && !r.create))
        return usage();
    int code = start_nvml();
    if (code == 0)
        code = select_gpus(&r.s, ids);
    if (code)
        return code;
    keep_mig(&r.s, actions[action].needs_mig);
    if (r.s.count == 0) {
        printf(actions[action].needs_mig ? "No MIG-enabled devices found.\n" : "No MIG-supported devices found.\n");
        return NVML_ERROR_NOT_FOUND;
    }
    return actions[action].run(&r);
}
