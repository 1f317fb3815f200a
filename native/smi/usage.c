/* nvidia-smi -h and --version. */
#include "smi.h"

#include <stdio.h>

int show_usage(void)
{
    char driver[80] = "";
    if (nvml_load() == NVML_SUCCESS && nv(Init_v2)() == NVML_SUCCESS)
        nv(SystemGetDriverVersion)(driver, sizeof driver);
    printf("NVIDIA System Management Interface -- v%s\n\n", driver[0] ? driver : "N/A");
    fputs("nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n\n"
          "    -h,   --help                Print usage information and exit.\n"
          "          --version             Print version information and exit.\n\n"
          "  LIST OPTIONS:\n\n"
          "    -L,   --list-gpus           Display a list of GPUs connected to the system.\n\n"
          "  SUMMARY OPTIONS:\n\n"
          "    <no arguments>              Show a summary of GPUs connected to the system.\n\n"
          "    [plus any of]\n\n"
          "    -i,   --id=                 Target a specific GPU: index, UUID, serial or PCI address; a list with commas.\n"
          "    -l,   --loop=               Probe until Ctrl+C at this interval in seconds.\n"
          "    -lms, --loop-ms=            Probe until Ctrl+C at this interval in milliseconds.\n\n"
          "  QUERY OPTIONS:\n\n"
          "    -q,   --query               Display GPU info.\n"
          "    -d,   --display=            Display only selected information: MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER,\n"
          "                                CLOCK, COMPUTE, PIDS, PERFORMANCE, SUPPORTED_CLOCKS, PAGE_RETIREMENT, ACCOUNTING,\n"
          "                                ROW_REMAPPER.\n\n"
          "  SELECTIVE QUERY OPTIONS:\n\n"
          "    --query-gpu                 Information about the GPU: see --help-query-gpu.\n"
          "    --query-compute-apps        Processes computing on the GPU: see --help-query-compute-apps.\n"
          "    --format=                   csv, with noheader (skip the first line) and nounits (numbers alone).\n\n"
          "  DEVICE MODIFICATION OPTIONS:\n\n"
          "    -pm,  --persistence-mode=   Set persistence mode: 0/DISABLED, 1/ENABLED\n"
          "    -e,   --ecc-config=         Toggle ECC support: 0/DISABLED, 1/ENABLED\n"
          "    -c,   --compute-mode=       Set compute mode: 0/DEFAULT, 1/EXCLUSIVE_THREAD (deprecated), 2/PROHIBITED,\n"
          "                                3/EXCLUSIVE_PROCESS\n"
          "    -pl,  --power-limit=        Set the power limit in watts.\n"
          "    -mig, --multi-instance-gpu= Enable or disable MIG: 0/DISABLED, 1/ENABLED\n"
          "    -r    --gpu-reset           Trigger a reset of the GPU.\n\n"
          "  SUBCOMMANDS:\n\n"
          "    topo                        Display the topology of the system: topo -m, topo -p2p\n"
          "    mig                         MIG: mig -lgip|-lgipp|-lgi|-lcip|-lci|-cgi|-cci|-dgi|-dci\n"
          "    nvlink                      NVLinks: nvlink -s|-c|-e\n"
          "    compute-policy              Time slices: compute-policy -l|--set-timeslice\n", stdout);
    return 0;
}

int show_version(void)
{
    char driver[80] = "N/A", nvml[80] = "N/A";
    int version = 0;
    int code = start_nvml();
    if (code)
        return code;
    nv(SystemGetDriverVersion)(driver, sizeof driver);
    nv(SystemGetNVMLVersion)(nvml, sizeof nvml);
    nv(SystemGetCudaDriverVersion_v2)(&version);
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n", driver, nvml,
           driver, version / 1000, version % 1000 / 10);
    return 0;
}
