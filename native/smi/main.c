/* nvidia-smi: looks at and sets up GPUs through the public NVML interface, simulated or real.
 *
 * Promises: the vendor's options, texts and exit codes (NVML return codes; 2 for bad use) for what it offers; nothing
 * private of a driver is needed, except that `--gpu-reset` and `compute-policy` work on the simulated one only. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct request {
    const char *ids, *query, *apps, *format, *sections, *set_option, *set_value;
    bool list, full, reset, help_query, help_apps;
    double loop; /* seconds between views, 0: once */
};

enum action { TAKES_NOTHING, TAKES_VALUE, TAKES_OPTIONAL };

/* Options by their spellings; `at` is where a value or flag goes in the request, `mode` options set something. */
static const struct { const char *brief, *full; enum action action; size_t at; bool mode; } options[] = {
    {"-L", "--list-gpus", TAKES_NOTHING, offsetof(struct request, list), false},
    {"-q", "--query", TAKES_NOTHING, offsetof(struct request, full), false},
    {"-r", "--gpu-reset", TAKES_NOTHING, offsetof(struct request, reset), false},
    {NULL, "--help-query-gpu", TAKES_NOTHING, offsetof(struct request, help_query), false},
    {NULL, "--help-query-compute-apps", TAKES_NOTHING, offsetof(struct request, help_apps), false},
    {"-i", "--id", TAKES_VALUE, offsetof(struct request, ids), false},
    {"-d", "--display", TAKES_VALUE, offsetof(struct request, sections), false},
    {NULL, "--query-gpu", TAKES_VALUE, offsetof(struct request, query), false},
    {NULL, "--query-compute-apps", TAKES_VALUE, offsetof(struct request, apps), false},
    {NULL, "--format", TAKES_VALUE, offsetof(struct request, format), false},
    {"-pm", "--persistence-mode", TAKES_VALUE, 0, true},
    {"-e", "--ecc-config", TAKES_VALUE, 0, true},
    {"-c", "--compute-mode", TAKES_VALUE, 0, true},
    {"-pl", "--power-limit", TAKES_VALUE, 0, true},
    {"-mig", "--multi-instance-gpu", TAKES_VALUE, 0, true},
};

static const struct { const char *name; int (*run)(int argc, char **argv); } commands[] = {
    {"topo", run_topo}, {"mig", run_mig}, {"nvlink", run_nvlink}, {"compute-policy", run_compute_policy},
};

static int bad_option(const char *option)
{
    printf("Option \"%s\" is not recognized. Please run 'nvidia-smi -h'.\n\n", option);
    return EXIT_BAD_USE;
}

static int bad_combination(void)
{
    printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
    return EXIT_BAD_USE;
}

/* Does `word` spell the option? A long one may carry its value behind `=`. */
static bool spells(const char *word, const char *brief, const char *full, const char **value)
{
    size_t length = strlen(full);
    *value = NULL;
    if ((brief && strcmp(word, brief) == 0) || strcmp(word, full) == 0)
        return true;
    if (strncmp(word, full, length) != 0 || word[length] != '=')
        return false;
    *value = word + length + 1;
    return true;
}

static int parse_loop(struct request *r, const char *word, const char *next, int *used)
{
    const char *value;
    bool milliseconds = spells(word, "-lms", "--loop-ms", &value);
    if (!milliseconds && !spells(word, "-l", "--loop", &value))
        return 0;
    if (!value && next && next[0] >= '0' && next[0] <= '9') {
        value = next;
        *used = 2;
    }
    r->loop = value ? atof(value) : 5;
    if (milliseconds)
        r->loop /= 1000;
    return r->loop > 0 ? 1 : -1;
}

/* Takes the option at argv[0]; words used, or 0 when it is bad. */
static int parse_option(struct request *r, int argc, char **argv)
{
    const char *value;
    int used = 1, loop = parse_loop(r, argv[0], argc > 1 ? argv[1] : NULL, &used);
    if (loop)
        return loop > 0 ? used : 0;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!spells(argv[0], options[i].brief, options[i].full, &value))
            continue;
        char *at = (char *)r + options[i].at;
        if (options[i].action == TAKES_NOTHING) {
            *(bool *)at = true;
            return value ? 0 : 1;
        }
        if (!value && argc < 2)
            return 0;
        used = value ? 1 : 2;
        value = value ? value : argv[1];
        if (options[i].mode) {
            r->set_option = options[i].full;
            r->set_value = value;
        } else {
            *(const char **)at = value;
        }
        return used;
    }
    return 0;
}

static int parse_format(const char *format, bool *header, bool *units)
{
    char *copy = strdup(format ? format : ""), *rest = copy;
    bool csv = false, bad = copy == NULL;
    *header = *units = true;
    for (char *word = strsep(&rest, ","); word && !bad; word = strsep(&rest, ",")) {
        word += strspn(word, " ");
        if (strcmp(word, "csv") == 0)
            csv = true;
        else if (strcmp(word, "noheader") == 0)
            *header = false;
        else if (strcmp(word, "nounits") == 0)
            *units = false;
        else
            bad = true;
    }
    free(copy);
    if (csv && !bad)
        return 0;
    printf("\"--format=\" switch is missing or bad: it needs \"csv\", and may have \"noheader\" and \"nounits\".\n\n");
    return EXIT_BAD_USE;
}

static int view(const struct request *r, bool header, bool units)
{
    struct selection s;
    int code = select_gpus(&s, r->ids);
    if (code)
        return code;
    if (r->query)
        return show_query(&s, r->query, header, units);
    if (r->apps)
        return show_apps(&s, r->apps, header, units);
    if (r->list)
        return show_list(&s);
    if (r->full)
        return show_full(&s, r->sections);
    if (r->reset)
        return reset_gpus(&s);
    if (r->set_option)
        return set_modes(&s, r->set_option, r->set_value);
    return show_table(&s);
}

static int run(const struct request *r)
{
    bool header = true, units = true;
    int chosen = (r->query != NULL) + (r->apps != NULL) + r->list + r->full + r->reset + (r->set_option != NULL);
    if (chosen > 1 || (r->sections && !r->full))
        return bad_combination();
    if (r->query || r->apps) {
        int code = parse_format(r->format, &header, &units);
        if (code)
            return code;
    }
    int code = start_nvml();
    if (code)
        return code;
    for (;;) {
        code = view(r, header, units);
        if (r->loop <= 0 || code)
            break;
        fflush(stdout);
        header = false;
        struct timespec pause = {.tv_sec = (time_t)r->loop, .tv_nsec = (long)((r->loop - (double)(time_t)r->loop) * 1e9)};
        nanosleep(&pause, NULL);
    }
    nv(Shutdown)();
    return code;
}

static int dispatch(int argc, char **argv)
{
    struct request r = {0};
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 2, argv + 2);
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            return show_usage();
        if (strcmp(argv[i], "--version") == 0)
            return show_version();
        int used = parse_option(&r, argc - i, argv + i);
        if (!used)
            return bad_option(argv[i]);
        i += used;
    }
    if (r.help_query)
        return show_query_help();
    if (r.help_apps)
        return show_apps_help();
    return run(&r);
}

int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);
    return code > 255 ? 255 : code; /* NVML_ERROR_UNKNOWN is 999 */
}
