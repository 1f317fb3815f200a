/* nvidia-smi topo: the matrix of connections between GPUs, with CPU and NUMA affinity. */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>

enum { LINKS = 36, SWITCH = 2, CPU_WORDS = 16, NODE_WORDS = 4 };

struct links { U to_switch, count; nvmlPciInfo_t remote[LINKS]; bool direct[LINKS]; };

static void read_links(D device, struct links *links)
{
    memset(links, 0, sizeof *links);
    for (U i = 0; i < LINKS; i++) {
        U state = 0, kind = 0;
        if (nv(DeviceGetNvLinkState)(device, i, &state) != NVML_SUCCESS || !state)
            continue;
        if (nv(DeviceGetNvLinkRemoteDeviceType)(device, i, &kind) == NVML_SUCCESS && kind == SWITCH)
            links->to_switch++;
        else
            links->direct[i] = nv(DeviceGetNvLinkRemotePciInfo_v2)(device, i, &links->remote[i]) == NVML_SUCCESS;
    }
}

/* NVLinks that join two GPUs: direct ones, or through the switches all of the one that has fewer. */
static U joined(const struct links *a, const struct links *b, const nvmlPciInfo_t *b_pci)
{
    U count = 0;
    for (U i = 0; i < LINKS; i++)
        if (a->direct[i] && a->remote[i].domain == b_pci->domain && a->remote[i].bus == b_pci->bus && a->remote[i].device == b_pci->device)
            count++;
    return count + (a->to_switch < b->to_switch ? a->to_switch : b->to_switch);
}

static const char *level_name(U level)
{
    static const struct { U level; const char *name; } names[] = {{0, "PIX"}, {10, "PIX"}, {20, "PXB"}, {30, "PHB"}, {40, "NODE"}, {50, "SYS"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].level == level)
            return names[i].name;
    return "?";
}

/* `0-3,8` of a bit set. */
static void set_text(char *out, size_t room, const unsigned long *set, U words)
{
    U total = words * 8 * (U)sizeof *set;
    size_t at = 0;
    out[0] = 0;
    for (U i = 0; i < total; i++) {
        if (!(set[i / 64] >> i % 64 & 1))
            continue;
        U last = i;
        while (last + 1 < total && (set[(last + 1) / 64] >> (last + 1) % 64 & 1))
            last++;
        int n = snprintf(out + at, room - at, last > i ? "%s%u-%u" : "%s%u", at ? "," : "", i, last);
        if (n < 0 || (at += (size_t)n) >= room)
            return;
        i = last;
    }
}

static void affinity(D device)
{
    unsigned long cpus[CPU_WORDS] = {0}, nodes[NODE_WORDS] = {0};
    char cpu_text[512] = "N/A", node_text[128] = "N/A", gpu_node[16] = "N/A";
    U node = 0;
    if (nv(DeviceGetCpuAffinity)(device, CPU_WORDS, cpus) == NVML_SUCCESS)
        set_text(cpu_text, sizeof cpu_text, cpus, CPU_WORDS);
    if (nv(DeviceGetMemoryAffinity)(device, NODE_WORDS, nodes, 0) == NVML_SUCCESS)
        set_text(node_text, sizeof node_text, nodes, NODE_WORDS);
    if (nv(DeviceGetNumaNodeId)(device, &node) == NVML_SUCCESS)
        snprintf(gpu_node, sizeof gpu_node, "%u", node);
    printf("\t%s\t%s\t\t%s\n", cpu_text, node_text, gpu_node);
}

static const char legend[] =
    "\nLegend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
    "  PIX  = Connection traversing at most a single PCIe bridge\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n\n";

static void matrix_cell(const struct selection *s, const struct links *links, unsigned row, unsigned column)
{
    nvmlPciInfo_t pci;
    U level = 0, count = 0;
    if (row == column) {
        fputs("\t X ", stdout);
        return;
    }
    if (nv(DeviceGetPciInfo_v3)(s->gpu[column].device, &pci) == NVML_SUCCESS)
        count = joined(&links[row], &links[column], &pci);
    if (count)
        printf("\tNV%u", count);
    else if (nv(DeviceGetTopologyCommonAncestor)(s->gpu[row].device, s->gpu[column].device, &level) == NVML_SUCCESS)
        printf("\t%s", level_name(level));
    else
        fputs("\tN/A", stdout);
}

static int show_matrix(const struct selection *s)
{
    static struct links links[MAX_GPUS];
    int code = report_lost(s);
    if (code)
        return code;
    for (unsigned i = 0; i < s->count; i++) {
        read_links(s->gpu[i].device, &links[i]);
        printf("\tGPU%u", s->gpu[i].index);
    }
    printf("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n");
    for (unsigned row = 0; row < s->count; row++) {
        printf("GPU%u", s->gpu[row].index);
        for (unsigned column = 0; column < s->count; column++)
            matrix_cell(s, links, row, column);
        affinity(s->gpu[row].device);
    }
    fputs(legend, stdout);
    return 0;
}

/* What one GPU may do with another's memory; `kind`: 0 read, 1 write, 2 NVLink, 3 atomics, 4 PCIe. */
static int show_p2p(const struct selection *s, const char *which)
{
    static const char *const statuses[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
    static const char kinds[] = "rwnap";
    const char *at = *which ? strchr(kinds, *which) : NULL;
    int code = report_lost(s);
    if (!at) {
        printf("topo -p2p needs one of r (read), w (write), n (NVLink), a (atomics), p (PCIe).\n\n");
        return EXIT_BAD_USE;
    }
    if (code)
        return code;
    for (unsigned i = 0; i < s->count; i++)
        printf(" \tGPU%u", s->gpu[i].index);
    putchar('\n');
    for (unsigned row = 0; row < s->count; row++) {
        printf(" GPU%u", s->gpu[row].index);
        for (unsigned column = 0; column < s->count; column++) {
            U status = 6;
            if (row != column)
                nv(DeviceGetP2PStatus)(s->gpu[row].device, s->gpu[column].device, (U)(at - kinds), &status);
            printf("\t%s", row == column ? "X" : statuses[status < 6 ? status : 6]);
        }
        putchar('\n');
    }
    fputs("\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  GNS  = GPU not supported\n"
          "  TNS  = Topology not supported\n  NS   = Not supported\n  U    = Unknown\n\n", stdout);
    return 0;
}

int run_topo(int argc, char **argv)
{
    struct selection s;
    const char *p2p = NULL;
    bool matrix = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "-m") == 0 || strcmp(argv[i], "--matrix") == 0)
            matrix = true;
        else if (strcmp(argv[i], "-p2p") == 0 && i + 1 < argc)
            p2p = argv[++i];
        else
            argc = -1;
    }
    if (argc < 0 || matrix == (p2p != NULL)) {
        printf("Usage: nvidia-smi topo -m | -p2p r|w|n|a|p\n\n");
        return EXIT_BAD_USE;
    }
    int code = start_nvml();
    if (code == 0)
        code = select_gpus(&s, NULL);
    if (code == 0)
        code = matrix ? show_matrix(&s) : show_p2p(&s, p2p);
    return code;
}
