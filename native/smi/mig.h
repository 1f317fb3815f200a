/* Shared by the files behind `nvidia-smi mig`. */
#ifndef KGPU_SMI_MIG_H
#define KGPU_SMI_MIG_H

#include "smi.h"

enum { GI_PROFILES = 32, CI_PROFILES = 16, MAX_INSTANCES = 64, MAX_PLACEMENTS = 32 };

/* What `-cgi`, `-gi` and the like say; lists are NULL when not given. */
struct mig_request {
    struct selection s;
    const char *gi_ids, *ci_ids; /* -gi, -ci */
    const char *create;          /* argument of -cgi or -cci */
    bool with_compute;           /* -C */
};

struct gi_profile { U id; nvmlGpuInstanceProfileInfo_t info; char name[96]; };
struct ci_profile { U id; nvmlComputeInstanceProfileInfo_t info; char name[96]; bool whole; };

U gi_profiles(D device, struct gi_profile *out);
U ci_profiles(G gi, struct ci_profile *out);
U gi_list(D device, const char *ids, G *out);  /* GPU instances, only those named by `ids` unless NULL */
U ci_list(G gi, const char *ids, C *out);
const struct gi_profile *gi_profile_by_id(const struct gi_profile *list, U count, U id);
const struct ci_profile *ci_profile_by_id(const struct ci_profile *list, U count, U id);

int list_gi_profiles(struct mig_request *r);
int list_gi_placements(struct mig_request *r);
int list_gi(struct mig_request *r);
int list_ci_profiles(struct mig_request *r);
int list_ci(struct mig_request *r);
int create_gi(struct mig_request *r);
int create_ci(struct mig_request *r);
int destroy_gi(struct mig_request *r);
int destroy_ci(struct mig_request *r);

#endif
