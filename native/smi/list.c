/* nvidia-smi -L: GPUs and their MIG devices with their UUIDs. */
#include "smi.h"

#include <stdio.h>

static void list_slices(D device)
{
    U limit = mig_device_limit(device), shown = 0;
    for (U i = 0; i < limit; i++) {
        char profile[64], uuid[96] = "";
        D mig = mig_device(device, i);
        if (!mig)
            continue;
        mig_profile_name(mig, profile, sizeof profile);
        nv(DeviceGetUUID)(mig, uuid, sizeof uuid);
        printf("  MIG %-12s Device %2u: (UUID: %s)\n", profile, shown++, uuid);
    }
}

int show_list(const struct selection *s)
{
    for (unsigned i = 0; i < s->count; i++) {
        char name[96] = "", uuid[96] = "";
        D device = s->gpu[i].device;
        if (s->gpu[i].status != NVML_SUCCESS)
            continue;
        nv(DeviceGetName)(device, name, sizeof name);
        nv(DeviceGetUUID)(device, uuid, sizeof uuid);
        printf("GPU %u: %s (UUID: %s)\n", s->gpu[i].index, name, uuid);
        if (mig_enabled(device))
            list_slices(device);
    }
    return report_lost(s);
}
