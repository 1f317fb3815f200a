/* nvidia-smi compute-policy: how long a process computes before the next one has its turn (--set-timeslice, -l). */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>

static const char *const timeslices[] = {"Default", "Short", "Medium", "Long"};
enum { TIMESLICES = sizeof timeslices / sizeof *timeslices };

static int usage(int code)
{
    printf("\n    Compute Policy -- Control and list compute policies.\n\n"
           "    Usage: nvidia-smi compute-policy [options]\n\n    Options include:\n"
           "    [-i | --id]: GPU device ID's. Provide comma\n                 separated values for more than one device\n\n"
           "    [-l | --list]: List all compute policies\n\n"
           "    [ | --set-timeslice]: Set timeslice config for a GPU:\n"
           "                          0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG\n\n"
           "    [-h | --help]: Display help information\n\n");
    return code;
}

static int list(const struct selection *s)
{
    printf("+--------------------------------------+\n| GPU compute policies:                |\n"
           "| GPU     Name             Value       |\n|======================================|\n");
    for (unsigned i = 0; i < s->count; i++) {
        U value = 0;
        nvmlReturn_t rc = s->gpu[i].status;
        if (rc == NVML_SUCCESS)
            rc = sim_get_timeslice(s->gpu[i].index, &value);
        printf("| %3u     Timeslice        %-12s|\n", s->gpu[i].index, rc == NVML_SUCCESS && value < TIMESLICES ? timeslices[value] : "N/A");
    }
    printf("+--------------------------------------+\n");
    return 0;
}

static int set(const struct selection *s, U value)
{
    nvmlReturn_t failed = NVML_SUCCESS;
    for (unsigned i = 0; i < s->count; i++) {
        const struct gpu *gpu = &s->gpu[i];
        nvmlReturn_t rc = gpu->status;
        if (rc == NVML_SUCCESS)
            rc = sim_set_timeslice(gpu->index, value);
        if (rc == NVML_SUCCESS) {
            printf("Set timeslice policy with value %s for GPU %s\n", timeslices[value], gpu->bus_id);
            continue;
        }
        printf("Failed to set timeslice policy with value %s for GPU %s : %s\n", timeslices[value], gpu->bus_id, nvml_text(rc));
        failed = rc;
    }
    if (failed != NVML_SUCCESS)
        printf("Failed to set timeslice for requested devices : %s\n", nvml_text(failed));
    return (int)failed;
}

/* The option's value: behind `=`, or the next word; NULL where it is another option or has none. */
static const char *value_of(int argc, char **argv, int *at, const char *brief, const char *full)
{
    size_t length = strlen(full);
    if (strncmp(argv[*at], full, length) == 0 && argv[*at][length] == '=')
        return argv[*at] + length + 1;
    bool named = strcmp(argv[*at], full) == 0 || (brief && strcmp(argv[*at], brief) == 0);
    return named && *at + 1 < argc ? argv[++*at] : NULL;
}

int run_compute_policy(int argc, char **argv)
{
    static struct selection s;
    const char *ids = NULL, *wanted = NULL, *value;
    bool listed = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            return usage(0);
        if (strcmp(argv[i], "-l") == 0 || strcmp(argv[i], "--list") == 0)
            listed = true;
        else if ((value = value_of(argc, argv, &i, "-i", "--id")))
            ids = value;
        else if ((value = value_of(argc, argv, &i, NULL, "--set-timeslice")))
            wanted = value;
        else
            return usage(EXIT_BAD_USE);
    }
    bool known = wanted && wanted[0] >= '0' && wanted[0] < '0' + TIMESLICES && !wanted[1];
    if (listed == (wanted != NULL) || (wanted && !known))
        return usage(argc ? EXIT_BAD_USE : 0);
    int code = start_nvml();
    if (code == 0)
        code = select_gpus(&s, ids);
    if (code == 0)
        code = listed ? list(&s) : set(&s, (U)(wanted[0] - '0'));
    nv(Shutdown)();
    return code;
}
