/* The lists of `nvidia-smi mig`: profiles, placements, instances. */
#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>

int list_gi_profiles(struct mig_request *r)
{
    static struct gi_profile profiles[GI_PROFILES];
    fputs("+-----------------------------------------------------------------------------+\n"
          "| GPU instance profiles:                                                      |\n"
          "| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
          "|                              Free/Total   GiB              CE    JPEG  OFA  |\n"
          "|=============================================================================|\n", stdout);
    for (unsigned i = 0; i < r->s.count; i++) {
        D device = r->s.gpu[i].device;
        U count = gi_profiles(device, profiles);
        for (U k = 0; k < count; k++) {
            const nvmlGpuInstanceProfileInfo_t *p = &profiles[k].info;
            U left = 0;
            nv(DeviceGetGpuInstanceRemainingCapacity)(device, p->id, &left);
            printf("|%4u  %-16s %3u    %2u/%-2u  %10.2f     %3s  %4u %5u %5u   |\n", r->s.gpu[i].index, profiles[k].name, p->id, left,
                   p->instanceCount, (double)p->memorySizeMB / 1024.0, p->isP2pSupported ? "Yes" : "No", p->multiprocessorCount,
                   p->decoderCount, p->encoderCount);
            printf("|                                                          %4u %5u %5u   |\n", p->copyEngineCount, p->jpegCount, p->ofaCount);
            fputs("+-----------------------------------------------------------------------------+\n", stdout);
        }
    }
    return 0;
}

int list_gi_placements(struct mig_request *r)
{
    static struct gi_profile profiles[GI_PROFILES];
    for (unsigned i = 0; i < r->s.count; i++) {
        U count = gi_profiles(r->s.gpu[i].device, profiles);
        for (U k = 0; k < count; k++) {
            nvmlPlacement_t at[MAX_PLACEMENTS];
            U n = MAX_PLACEMENTS;
            if (nv(DeviceGetGpuInstancePossiblePlacements_v2)(r->s.gpu[i].device, profiles[k].id, at, &n) != NVML_SUCCESS || n == 0)
                continue;
            printf("GPU %2u Profile ID %2u Placement%s: {", r->s.gpu[i].index, profiles[k].id, n > 1 ? "s" : " ");
            for (U p = 0; p < n; p++)
                printf("%s%u", p ? "," : "", at[p].start);
            printf("}:%u\n", at[0].size);
        }
    }
    return 0;
}

static int none(const char *what)
{
    printf("No %s found: Not Found\n", what);
    return NVML_ERROR_NOT_FOUND;
}

int list_gi(struct mig_request *r)
{
    static struct gi_profile profiles[GI_PROFILES];
    unsigned shown = 0;
    for (unsigned i = 0; i < r->s.count; i++) {
        G list[MAX_INSTANCES];
        U total = gi_profiles(r->s.gpu[i].device, profiles), count = gi_list(r->s.gpu[i].device, r->gi_ids, list);
        for (U k = 0; k < count; k++) {
            nvmlGpuInstanceInfo_t info;
            if (nv(GpuInstanceGetInfo)(list[k], &info) != NVML_SUCCESS)
                continue;
            if (!shown++)
                fputs("+-------------------------------------------------------+\n"
                      "| GPU instances:                                        |\n"
                      "| GPU   Name             Profile  Instance   Placement  |\n"
                      "|                          ID       ID       Start:Size |\n"
                      "|=======================================================|\n", stdout);
            const struct gi_profile *p = gi_profile_by_id(profiles, total, info.profileId);
            printf("|%4u  %-18s %4u     %4u         %2u:%-2u    |\n", r->s.gpu[i].index, p ? p->name : "N/A", info.profileId, info.id,
                   info.placement.start, info.placement.size);
            fputs("+-------------------------------------------------------+\n", stdout);
        }
    }
    return shown ? 0 : none("GPU instances");
}

int list_ci_profiles(struct mig_request *r)
{
    unsigned shown = 0;
    for (unsigned i = 0; i < r->s.count; i++) {
        G list[MAX_INSTANCES];
        U count = gi_list(r->s.gpu[i].device, r->gi_ids, list);
        for (U k = 0; k < count; k++) {
            struct ci_profile profiles[CI_PROFILES];
            nvmlGpuInstanceInfo_t gi;
            if (nv(GpuInstanceGetInfo)(list[k], &gi) != NVML_SUCCESS)
                continue;
            U total = ci_profiles(list[k], profiles);
            for (U c = 0; c < total; c++) {
                const nvmlComputeInstanceProfileInfo_t *p = &profiles[c].info;
                U left = 0;
                char id[16];
                nv(GpuInstanceGetComputeInstanceRemainingCapacity)(list[k], p->id, &left);
                snprintf(id, sizeof id, "%u%s", p->id, profiles[c].whole ? "*" : "");
                if (!shown++)
                    fputs("+--------------------------------------------------------------------------------------+\n"
                          "| Compute instance profiles:                                                           |\n"
                          "| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |\n"
                          "|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |\n"
                          "|         ID                                                          CE    JPEG       |\n"
                          "|======================================================================================|\n", stdout);
                printf("|%4u   %4u       %-18s %4s     %2u/%-2u      %6u     %5u %5u %5u   |\n", r->s.gpu[i].index, gi.id, profiles[c].name,
                       id, left, p->instanceCount, p->multiprocessorCount, p->sharedDecoderCount, p->sharedEncoderCount, p->sharedOfaCount);
                printf("|                                                                   %5u %5u         |\n", p->sharedCopyEngineCount, p->sharedJpegCount);
                fputs("+--------------------------------------------------------------------------------------+\n", stdout);
            }
        }
    }
    return shown ? 0 : none("compute instance profiles");
}

int list_ci(struct mig_request *r)
{
    unsigned shown = 0;
    for (unsigned i = 0; i < r->s.count; i++) {
        G list[MAX_INSTANCES];
        U count = gi_list(r->s.gpu[i].device, r->gi_ids, list);
        for (U k = 0; k < count; k++) {
            struct ci_profile profiles[CI_PROFILES];
            C instances[MAX_INSTANCES];
            nvmlGpuInstanceInfo_t gi;
            if (nv(GpuInstanceGetInfo)(list[k], &gi) != NVML_SUCCESS)
                continue;
            U total = ci_profiles(list[k], profiles), n = ci_list(list[k], r->ci_ids, instances);
            for (U c = 0; c < n; c++) {
                nvmlComputeInstanceInfo_t info;
                if (nv(ComputeInstanceGetInfo_v2)(instances[c], &info) != NVML_SUCCESS)
                    continue;
                if (!shown++)
                    fputs("+--------------------------------------------------------------------+\n"
                          "| Compute instances:                                                 |\n"
                          "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
                          "|       Instance                       ID        ID       Start:Size |\n"
                          "|         ID                                                         |\n"
                          "|====================================================================|\n", stdout);
                const struct ci_profile *p = ci_profile_by_id(profiles, total, info.profileId);
                printf("|%4u   %4u       %-18s %4u      %4u         %2u:%-2u    |\n", r->s.gpu[i].index, gi.id, p ? p->name : "N/A", info.profileId,
                       info.id, info.placement.start, info.placement.size);
                fputs("+--------------------------------------------------------------------+\n", stdout);
            }
        }
    }
    return shown ? 0 : none("compute instances");
}
