/* Initialisation, shutdown, error texts and node-wide facts of the simulated NVML.
 *
 * nvmlInit maps the state and looks which device nodes exist, each time; without a state file or nvidiactl it answers
 * as a machine without the driver does. The map outlives shutdown, and the library is linked never to be unloaded, so
 * that load/unload cycles cost nothing and locks of other users of the file stay.
 */
#include "internal.h"

kg_map kg_m = KG_MAP_INIT;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;
static unsigned driver_major;
static uint32_t visible_count, visible[KG_MAX_GPUS];
static int32_t index_of[KG_MAX_GPUS];
static int control = -1, held[KG_MAX_GPUS]; /* device nodes: the descriptor + 1 of each GPU's, 0 for none */

/* Entry by entry, never through an in-between state: other threads read these tables while one initialises again. */
static void look_around(void) {
    uint32_t found = 0, count = kg_m.state->gpu_count;
    if (count > KG_MAX_GPUS) count = KG_MAX_GPUS;
    for (uint32_t i = 0; i < KG_MAX_GPUS; i++) {
        int seen = i < count && kg_m.state->gpu[i].used && kg_gpu_visible(&kg_m, kg_m.state->gpu[i].minor);
        __atomic_store_n(&index_of[i], seen ? (int32_t)found : -1, __ATOMIC_RELEASE);
        if (seen) __atomic_store_n(&visible[found++], i, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&visible_count, found, __ATOMIC_RELEASE);
}

/* The real library has the control node and that of every GPU open from its first initialisation to its last shutdown. */
static void hold_nodes(void) {
    if (control < 0) control = kg_node_hold(&kg_m, "nvidiactl");
    for (uint32_t i = 0; i < visible_count; i++) {
        uint32_t gpu = visible[i];
        if (!held[gpu]) held[gpu] = kg_gpu_hold(&kg_m, kg_m.state->gpu[gpu].minor) + 1;
        kg_client_set(&kg_m, gpu, F_RDLCK);
    }
}

static void leave_nodes(void) {
    for (uint32_t gpu = 0; gpu < KG_MAX_GPUS; gpu++) {
        if (held[gpu]) close(held[gpu] - 1);
        held[gpu] = 0;
        if (kg_m.pid == getpid()) kg_client_set(&kg_m, gpu, F_UNLCK); /* a fork shares its parent's lock */
    }
    if (control >= 0) close(control);
    control = -1;
}

static nvmlReturn_t init_locked(void) {
    if (kg_map_open(&kg_m) != 0 || !kg_node_exists(&kg_m, "nvidiactl")) return NVML_ERROR_DRIVER_NOT_LOADED;
    if (kg_m.state->slow_us) usleep(kg_m.state->slow_us > 60000000 ? 60000000 : kg_m.state->slow_us);
    if (kg_m.state->init_error) return (nvmlReturn_t)kg_m.state->init_error;
    char text[16];
    kg_text(text, sizeof text, kg_m.state->driver_version, sizeof kg_m.state->driver_version);
    driver_major = (unsigned)strtoul(text, NULL, 10);
    look_around();
    hold_nodes();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&guard);
    nvmlReturn_t rc = init_locked();
    if (rc == NVML_SUCCESS) references++;
    pthread_mutex_unlock(&guard);
    return rc;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&guard);
    nvmlReturn_t rc = references ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references && --references == 0) {
        leave_nodes();
        if (kg_m.writable) kg_wake(kg_m.state); /* who waits for events */
    }
    pthread_mutex_unlock(&guard);
    return rc;
}

nvmlReturn_t kg_ready(void) {
    if (__atomic_load_n(&references, __ATOMIC_ACQUIRE) == 0) return NVML_ERROR_UNINITIALIZED;
    return kg_map_broken(&kg_m) ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

int kg_driver_at_least(unsigned major) { return driver_major >= major; }
uint32_t kg_visible_count(void) { return visible_count; }
int kg_visible_slot(uint32_t index) { return index < visible_count ? (int)visible[index] : -1; }
int kg_visible_index(uint32_t gpu) { return gpu < KG_MAX_GPUS ? index_of[gpu] : -1; }

/* Give a text field to the caller: INSUFFICIENT_SIZE when it does not fit with its terminating zero. */
nvmlReturn_t kg_copy(char *out, unsigned room, const char *field, size_t size) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (strnlen(field, size) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    kg_text(out, room, field, size);
    return NVML_SUCCESS;
}

static const struct {
    nvmlReturn_t code;
    const char *text;
} errors[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {22, "The requested vgpu operation is not available on target device, because ECC is enabled"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency not supported"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "The provided version is invalid/unsupported"},
    {26, "The requested functionality has been deprecated"},
    {27, "The system is not ready for the request"},
    {28, "No GPUs were found"},
    {29, "Resource not in correct state to perform requested operation"},
    {NVML_ERROR_UNKNOWN, "Unknown Error"},
};

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == result) return errors[i].text;
    return "Unknown Error";
}

#define SYSTEM(ok)                                     \
    do {                                               \
        nvmlReturn_t rc_ = kg_ready();                 \
        if (rc_ != NVML_SUCCESS) return rc_;           \
        if (!(ok)) return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    SYSTEM(version);
    return KG_COPY(version, length, kg_m.state->driver_version);
}

/* The real library tells its version without initialisation too; the map is needed here. */
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    SYSTEM(version);
    return KG_COPY(version, length, kg_m.state->nvml_version);
}

/* v1 tells what the driver was built for; both work without initialisation in the real library. */
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    if (!kg_m.state && kg_map_open(&kg_m) != 0) return NVML_ERROR_LIBRARY_NOT_FOUND;
    *version = (int)kg_m.state->cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length) {
    SYSTEM(info);
    SINCE(560);
    VERSIONED(info, nvmlSystemDriverBranchInfo_t, 1);
    char text[96];
    snprintf(text, sizeof text, "r%u_00", driver_major / 5 * 5);
    return kg_copy(info->branch, length < sizeof info->branch ? length : sizeof info->branch, text, sizeof text);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    SYSTEM(name && length);
    char path[64], target[1024];
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n > 0) {
        target[n] = 0;
        snprintf(name, length, "%s", target);
        return NVML_SUCCESS;
    }
    for (uint32_t i = 0; i < visible_count; i++) {
        const kg_gpu *g = &kg_m.state->gpu[visible[i]];
        for (uint32_t k = 0; k < KG_MAX_PROCESSES; k++)
            if (g->process[k].used && g->process[k].pid == pid && g->process[k].name[0]) {
                kg_text(name, length, g->process[k].name, sizeof g->process[k].name);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state) {
    SYSTEM(state);
    memset(state, 0, sizeof *state);
    state->ccFeature = kg_m.state->cc_state;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned int *accepting) {
    SYSTEM(accepting);
    *accepting = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, void *entries) {
    (void)entries;
    SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count) {
    SYSTEM(count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count) {
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info) {
    (void)index, (void)info;
    return NVML_ERROR_INVALID_ARGUMENT;
}
