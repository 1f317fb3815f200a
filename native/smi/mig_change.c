/* `nvidia-smi mig`: making and removing GPU instances and compute instances. */
#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* One item of -cgi or -cci: an id or a name, with `:start` for a placement. */
struct wanted { char text[64]; U id, start; bool placed, by_name; };

static bool next_wanted(const char **list, struct wanted *w)
{
    size_t length = strcspn(*list, ",");
    memset(w, 0, sizeof *w);
    if (length == 0 || length >= sizeof w->text)
        return false;
    memcpy(w->text, *list, length);
    *list += length + ((*list)[length] == ',');
    char *colon = strchr(w->text, ':'), *end;
    if (colon) {
        *colon = 0;
        w->placed = true;
        w->start = (U)strtoul(colon + 1, &end, 10);
        if (end == colon + 1 || *end)
            return false;
    }
    w->id = (U)strtoul(w->text, &end, 10);
    w->by_name = *end != 0;
    return true;
}

static bool same_name(const char *full, const char *asked)
{
    return strcasecmp(full, asked) == 0 || strcasecmp(full + (strncmp(full, "MIG ", 4) == 0 ? 4 : 0), asked) == 0;
}

static int fail_to(const char *what, nvmlReturn_t rc)
{
    printf("Failed to %s: %s\n", what, nvml_text(rc));
    return (int)rc;
}

/* ---- compute instances ---- */

static nvmlReturn_t make_ci(const struct gpu *gpu, G gi, U gi_id, const struct ci_profile *profile)
{
    C ci = NULL;
    nvmlComputeInstanceInfo_t info;
    nvmlReturn_t rc = nv(GpuInstanceCreateComputeInstance)(gi, profile->id, &ci);
    if (rc == NVML_SUCCESS)
        rc = nv(ComputeInstanceGetInfo_v2)(ci, &info);
    if (rc == NVML_SUCCESS)
        printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n", info.id, gpu->index,
               gi_id, profile->name, profile->id);
    else
        printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %u: %s\n", gpu->index, gi_id, profile->id,
               nvml_text(rc));
    return rc;
}

static nvmlReturn_t make_default_ci(const struct gpu *gpu, G gi, U gi_id)
{
    struct ci_profile profiles[CI_PROFILES];
    U count = ci_profiles(gi, profiles);
    for (U i = 0; i < count; i++)
        if (profiles[i].whole)
            return make_ci(gpu, gi, gi_id, &profiles[i]);
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t make_ci_of(const struct gpu *gpu, G gi, U gi_id, const struct wanted *w)
{
    struct ci_profile profiles[CI_PROFILES];
    U count = ci_profiles(gi, profiles);
    for (U i = 0; i < count; i++)
        if (w->by_name ? same_name(profiles[i].name, w->text) : profiles[i].id == w->id)
            return make_ci(gpu, gi, gi_id, &profiles[i]);
    printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\n", gpu->index, gi_id, w->text,
           nvml_text(NVML_ERROR_INVALID_ARGUMENT));
    return NVML_ERROR_INVALID_ARGUMENT;
}

int create_ci(struct mig_request *r)
{
    bool any = false;
    for (unsigned i = 0; i < r->s.count; i++) {
        G list[MAX_INSTANCES];
        U count = gi_list(r->s.gpu[i].device, r->gi_ids, list);
        for (U k = 0; k < count; k++) {
            nvmlGpuInstanceInfo_t gi;
            struct wanted w;
            nvmlReturn_t rc = nv(GpuInstanceGetInfo)(list[k], &gi);
            const char *rest = r->create ? r->create : "";
            if (rc == NVML_SUCCESS && !r->create)
                rc = make_default_ci(&r->s.gpu[i], list[k], gi.id);
            while (rc == NVML_SUCCESS && *rest)
                rc = next_wanted(&rest, &w) ? make_ci_of(&r->s.gpu[i], list[k], gi.id, &w) : NVML_ERROR_INVALID_ARGUMENT;
            if (rc != NVML_SUCCESS)
                return fail_to("create compute instances", rc);
            any = true;
        }
    }
    return any ? 0 : fail_to("create compute instances", NVML_ERROR_NOT_FOUND);
}

/* ---- GPU instances ---- */

static nvmlReturn_t make_gi(const struct gpu *gpu, const struct wanted *w, bool with_compute)
{
    static struct gi_profile profiles[GI_PROFILES];
    U count = gi_profiles(gpu->device, profiles);
    const struct gi_profile *profile = NULL;
    for (U i = 0; i < count && !profile; i++)
        if (w->by_name ? same_name(profiles[i].name, w->text) : profiles[i].id == w->id)
            profile = &profiles[i];
    nvmlReturn_t rc = profile ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
    nvmlPlacement_t at[MAX_PLACEMENTS];
    U placements = MAX_PLACEMENTS;
    nvmlGpuInstanceInfo_t info;
    G gi = NULL;
    if (rc == NVML_SUCCESS && w->placed) {
        rc = nv(DeviceGetGpuInstancePossiblePlacements_v2)(gpu->device, profile->id, at, &placements);
        at[0].start = w->start;
        if (rc == NVML_SUCCESS)
            rc = nv(DeviceCreateGpuInstanceWithPlacement)(gpu->device, profile->id, at, &gi);
    } else if (rc == NVML_SUCCESS) {
        rc = nv(DeviceCreateGpuInstance)(gpu->device, profile->id, &gi);
    }
    if (rc == NVML_SUCCESS)
        rc = nv(GpuInstanceGetInfo)(gi, &info);
    if (rc != NVML_SUCCESS) {
        printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", gpu->index, w->text, nvml_text(rc));
        return rc;
    }
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", info.id, gpu->index, profile->name, profile->id);
    return with_compute ? make_default_ci(gpu, gi, info.id) : NVML_SUCCESS;
}

int create_gi(struct mig_request *r)
{
    for (unsigned i = 0; i < r->s.count; i++) {
        const char *rest = r->create;
        struct wanted w;
        while (*rest) {
            nvmlReturn_t rc = next_wanted(&rest, &w) ? make_gi(&r->s.gpu[i], &w, r->with_compute) : NVML_ERROR_INVALID_ARGUMENT;
            if (rc != NVML_SUCCESS)
                return fail_to("create GPU instances", rc);
        }
    }
    return 0;
}

int destroy_gi(struct mig_request *r)
{
    bool any = false;
    for (unsigned i = 0; i < r->s.count; i++) {
        G list[MAX_INSTANCES];
        U count = gi_list(r->s.gpu[i].device, r->gi_ids, list);
        for (U k = 0; k < count; k++) {
            nvmlGpuInstanceInfo_t info;
            nvmlReturn_t rc = nv(GpuInstanceGetInfo)(list[k], &info);
            if (rc == NVML_SUCCESS)
                rc = nv(GpuInstanceDestroy)(list[k]);
            if (rc != NVML_SUCCESS) {
                printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", info.id, r->s.gpu[i].index, nvml_text(rc));
                return fail_to("destroy GPU instances", rc);
            }
            printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", info.id, r->s.gpu[i].index);
            any = true;
        }
    }
    if (any)
        return 0;
    printf("No GPU instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}

int destroy_ci(struct mig_request *r)
{
    bool any = false;
    for (unsigned i = 0; i < r->s.count; i++) {
        G list[MAX_INSTANCES];
        U count = gi_list(r->s.gpu[i].device, r->gi_ids, list);
        for (U k = 0; k < count; k++) {
            C instances[MAX_INSTANCES];
            nvmlGpuInstanceInfo_t gi;
            U n = nv(GpuInstanceGetInfo)(list[k], &gi) == NVML_SUCCESS ? ci_list(list[k], r->ci_ids, instances) : 0;
            for (U c = 0; c < n; c++) {
                nvmlComputeInstanceInfo_t info = {.id = 0};
                nvmlReturn_t rc = nv(ComputeInstanceGetInfo_v2)(instances[c], &info);
                if (rc == NVML_SUCCESS)
                    rc = nv(ComputeInstanceDestroy)(instances[c]);
                if (rc != NVML_SUCCESS) {
                    printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", info.id, r->s.gpu[i].index,
                           gi.id, nvml_text(rc));
                    return fail_to("destroy compute instances", rc);
                }
                printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", info.id, r->s.gpu[i].index, gi.id);
                any = true;
            }
        }
    }
    if (any)
        return 0;
    printf("No compute instances found: Not Found\n");
    return NVML_ERROR_NOT_FOUND;
}
