/* nvidia-smi nvlink: state and speed (-s), capabilities (-c), error counters (-e) of each NVLink. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINKS = 36, FIELD_SPEED = 164, FIELD_SPEED_L0 = 84 };

/* Megabytes per second of a link, 0 when not known; the older field goes to drivers that lack the newer. */
static U speed(D device, U link)
{
    nvmlFieldValue_t values[2] = {{.fieldId = FIELD_SPEED, .scopeId = link}, {.fieldId = FIELD_SPEED_L0 + (link < 6 ? link : 0)}};
    if (nv(DeviceGetFieldValues)(device, 2, values) != NVML_SUCCESS)
        return 0;
    return values[0].nvmlReturn == NVML_SUCCESS ? values[0].value.uiVal : values[1].nvmlReturn == NVML_SUCCESS ? values[1].value.uiVal : 0;
}

static void show_state(D device, U link, bool active)
{
    U mbps = active ? speed(device, link) : 0;
    if (!active)
        printf("\t Link %u: <inactive>\n", link);
    else
        printf("\t Link %u: %u.%03u GB/s\n", link, mbps / 1000, mbps % 1000);
}

static void show_capabilities(D device, U link, bool active)
{
    static const struct { U capability; const char *text; } rows[] = {
        {0, "P2P is supported"}, {1, "Access to system memory supported"}, {2, "P2P atomics supported"},
        {3, "System memory atomics supported"}, {4, "SLI is supported"}, {5, "Link is supported"}};
    for (size_t i = 0; active && i < sizeof rows / sizeof *rows; i++) {
        U value = 0;
        if (nv(DeviceGetNvLinkCapability)(device, link, rows[i].capability, &value) == NVML_SUCCESS)
            printf("\t Link %u, %s: %s\n", link, rows[i].text, value ? "true" : "false");
    }
}

static void show_errors(D device, U link, bool active)
{
    static const struct { U counter; const char *text; } rows[] = {{0, "Replay Errors"}, {1, "Recovery Errors"}, {2, "CRC Errors"}};
    for (size_t i = 0; active && i < sizeof rows / sizeof *rows; i++) {
        U64 value = 0;
        if (nv(DeviceGetNvLinkErrorCounter)(device, link, rows[i].counter, &value) == NVML_SUCCESS)
            printf("\t Link %u: %s: %llu\n", link, rows[i].text, value);
    }
}

static const struct { const char *brief, *full; void (*show)(D device, U link, bool active); } views[] = {
    {"-s", "--status", show_state}, {"-c", "--capabilities", show_capabilities}, {"-e", "--errorcounters", show_errors},
};

int run_nvlink(int argc, char **argv)
{
    struct selection s;
    const char *ids = NULL;
    void (*show)(D, U, bool) = NULL;
    bool bad = false;
    for (int i = 0; i < argc; i++) {
        bool known = false;
        for (size_t k = 0; k < sizeof views / sizeof *views; k++)
            if (strcmp(argv[i], views[k].brief) == 0 || strcmp(argv[i], views[k].full) == 0) {
                show = views[k].show;
                known = true;
            }
        if (!known && strcmp(argv[i], "-i") == 0 && i + 1 < argc)
            ids = argv[++i];
        else
            bad |= !known;
    }
    if (bad || !show) {
        printf("Usage: nvidia-smi nvlink [-i GPU] -s | -c | -e\n\n");
        return EXIT_BAD_USE;
    }
    int code = start_nvml();
    if (code == 0)
        code = select_gpus(&s, ids);
    for (unsigned i = 0; code == 0 && i < s.count; i++) {
        char name[96] = "", uuid[96] = "";
        D device = s.gpu[i].device;
        if (s.gpu[i].status != NVML_SUCCESS)
            continue;
        nv(DeviceGetName)(device, name, sizeof name);
        nv(DeviceGetUUID)(device, uuid, sizeof uuid);
        printf("GPU %u: %s (UUID: %s)\n", s.gpu[i].index, name, uuid);
        for (U link = 0; link < LINKS; link++) {
            U active = 0;
            if (nv(DeviceGetNvLinkState)(device, link, &active) == NVML_SUCCESS)
                show(device, link, active != 0);
        }
    }
    return code ? code : report_lost(&s);
}
