/* nvidia-smi's own parts: the chosen GPUs, output helpers, one function per view. */
#ifndef KGPU_SMI_H
#define KGPU_SMI_H

#include "nvml_api.h"

#include <stdbool.h>
#include <stddef.h>

#define MAX_GPUS 128
#define EXIT_BAD_USE 2
#define NO_ID 0xffffffffu

struct gpu {
    U index;
    D device;
    nvmlReturn_t status; /* of getting the handle */
    char bus_id[32];     /* `00000000:07:00.0`, empty when it is not known */
};

struct selection {
    unsigned total; /* GPUs that the driver shows */
    unsigned count;
    struct gpu gpu[MAX_GPUS];
};

/* gpus.c */
int start_nvml(void);                                     /* 0, or the exit code after the message */
int select_gpus(struct selection *s, const char *ids);    /* `ids`: NULL for all, or a list; 0 or the exit code */
int report_lost(const struct selection *s);               /* names the GPUs without handle; their code, or 0 */
bool mig_enabled(D device);
D mig_device(D device, U index);                          /* NULL where there is none */
U mig_device_limit(D device);
void mig_profile_name(D mig, char *out, size_t room);     /* `1g.10gb` */
void format_time(char *out, size_t room, const char *format, bool milliseconds);

/* views; each gives the exit code */
int show_list(const struct selection *s);
int show_table(const struct selection *s);
int show_query(const struct selection *s, const char *fields, bool header, bool units);
int show_apps(const struct selection *s, const char *fields, bool header, bool units);
int show_query_help(void);
int show_apps_help(void);
int show_full(const struct selection *s, const char *sections);
int run_topo(int argc, char **argv);
int run_nvlink(int argc, char **argv);
int run_mig(int argc, char **argv);
int run_compute_policy(int argc, char **argv);
int set_modes(const struct selection *s, const char *option, const char *value);
int reset_gpus(const struct selection *s);
int show_usage(void);
int show_version(void);

/* csv.c: one table engine for --query-gpu and --query-compute-apps */
struct cell { D device; U index; unsigned total; const nvmlProcessInfo_t *process; };
struct field {
    const char *name, *alias;
    const char *unit; /* NULL: none; printed in the header as [unit] and after the value */
    nvmlReturn_t (*read)(const struct cell *cell, U argument, char *out, size_t room);
    U argument;
    const char *help;
};
struct csv { const struct field *chosen[256]; size_t count; bool header, units; };
int csv_choose(struct csv *csv, const struct field *fields, size_t count, const char *list);
void csv_header(const struct csv *csv);
void csv_row(const struct csv *csv, const struct cell *cell);
void csv_help(const struct field *fields, size_t count, const char *option);
const char *na_text(nvmlReturn_t code); /* `[N/A]` and its kin */

/* readings.c: the fields' readers */
extern const struct field gpu_fields[];
extern const size_t gpu_field_count;
#endif
