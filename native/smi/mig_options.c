/* nvidia-smi mig: its options, and the action that they ask for. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

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
