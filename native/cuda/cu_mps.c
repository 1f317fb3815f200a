/* The Multi-Process Service as a CUDA program meets it.
 *
 * By the manual page nvidia-cuda-mps-control(1), the driver tries the control daemon at CUDA_MPS_PIPE_DIRECTORY (else
 * /tmp/nvidia-mps) when it is initialised, and goes on without MPS where none listens. A client's own variables only make
 * its share smaller. When the server goes, every call of its clients fails from then on. */
#include "cu_sim.h"

#include "kgpu_mps.h"

static struct kg_mps_input input;

/* An MPS server calls this before cuInit: it must not become a client of itself. */
EXPORT void kgpuSimMpsServer(void);
EXPORT void kgpuSimMpsServer(void) { sim.mps.server = true; }

/* ---- becoming a client ---- */

static CUresult gone(void)
{
    if (sim.mps.fd >= 0)
        close(sim.mps.fd);
    sim.mps.fd = -1;
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
}

/* `refuse CODE`, or anything else than an answer. */
static CUresult refused(const char *line)
{
    int code = CUDA_ERROR_MPS_CONNECTION_FAILED;
    sscanf(line, "refuse %d", &code);
    gone();
    return (CUresult)code;
}

/* Ask the daemon for a server. SUCCESS with an empty name: go on without MPS. */
static CUresult find_server(char name[64])
{
    char line[KG_MPS_LINE] = "";
    const char *told = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct kg_mps_input answer = {.have = 0};
    name[0] = 0;
    int fd = kg_mps_connect(KG_MPS_CONTROL); /* the driver looks first, which the daemon's log shows, and then asks */
    if (fd >= 0)
        close(fd);
    fd = fd >= 0 ? kg_mps_connect(KG_MPS_CONTROL) : -1;
    if (fd < 0)
        return CUDA_SUCCESS;
    kg_mps_say(fd, "client %llu %llu", (unsigned long long)sim.map.dev, (unsigned long long)sim.map.ino);
    int got = kg_mps_line(fd, &answer, line, 0);
    close(fd);
    if (strcmp(line, "other") == 0) /* the daemon of another simulated node that shares this directory */
        return CUDA_SUCCESS;
    if (got > 0 && sscanf(line, "server %63s", name) == 1)
        return CUDA_SUCCESS;
    if (got < 0 && !(told && *told)) /* something else listens in the usual place, such as a real driver's daemon */
        return CUDA_SUCCESS;
    return refused(line);
}

static CUresult read_devices(void)
{
    char line[KG_MPS_LINE] = "";
    int count = -1;
    if (kg_mps_say(sim.mps.fd, "client") != 0 || kg_mps_line(sim.mps.fd, &input, line, 0) < 0 || sscanf(line, "devices %d", &count) != 1)
        return refused(line);
    if (count < 0 || count > (int)KG_MAX_GPUS)
        return gone();
    for (sim.mps.count = 0; sim.mps.count < count; sim.mps.count++) {
        unsigned long long limit = 0;
        double percent = 100;
        char uuid[64];
        if (kg_mps_line(sim.mps.fd, &input, line, 0) < 0 || sscanf(line, "%63s %lf %llu", uuid, &percent, &limit) != 3)
            return gone();
        strcpy(sim.mps.device[sim.mps.count].uuid, uuid);
        sim.mps.device[sim.mps.count].percent = percent;
        sim.mps.device[sim.mps.count].limit = limit;
    }
    sim.mps.client = true;
    return CUDA_SUCCESS;
}

CUresult mps_attach(void)
{
    char name[64];
    if (sim.mps.server || sim.mps.client)
        return sim.mps.lost;
    CUresult result = find_server(name);
    if (result != CUDA_SUCCESS || !name[0])
        return result;
    input.have = 0;
    sim.mps.fd = kg_mps_connect(name);
    return sim.mps.fd < 0 ? CUDA_ERROR_MPS_CONNECTION_FAILED : read_devices();
}

void mps_forked(void)
{
    if (sim.mps.fd >= 0)
        close(sim.mps.fd); /* the server sees its client go when the parent goes */
    sim.mps.fd = -1;
}

/* ---- what it may have ---- */

/* CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, such as `0=1G,1=512M`; a device is named by number or UUID. 0: none. */
static uint64_t limit_of_environment(const struct cu_device *device, int ordinal)
{
    const char *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *uuid = sim.mps.device[device->mps].uuid;
    char *copy = list ? strdup(list) : NULL, *rest = NULL;
    uint64_t found = 0;
    for (char *entry = copy ? strtok_r(copy, ",", &rest) : NULL; entry; entry = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(entry, '='), *end;
        if (!value)
            continue;
        *value++ = 0;
        long number = strtol(entry, &end, 10);
        if (strcasecmp(entry, uuid) == 0 || (end != entry && !*end && number == ordinal))
            found = kg_mps_bytes(value);
    }
    free(copy);
    return found;
}

/* A share of the multiprocessors. The vendor rounds up to what the hardware can part: two, which share a TPC. */
static uint32_t share(uint32_t all, double percent)
{
    double wanted = all * percent / 100;
    uint32_t whole = (uint32_t)wanted + (wanted > (uint32_t)wanted);
    whole += whole % 2;
    return whole < all ? whole : all;
}

void mps_provision(struct cu_device *device, int ordinal)
{
    if (!sim.mps.client || device->mps < 0)
        return;
    const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double percent = sim.mps.device[device->mps].percent, wish = own ? kg_mps_percent(own) : 0;
    uint64_t limit = limit_of_environment(device, ordinal);
    device->limit = sim.mps.device[device->mps].limit;
    if (limit && (!device->limit || limit < device->limit))
        device->limit = limit;
    if (wish > 0 && wish < percent)
        percent = wish;
    if (sim.map.state->gpu[device->gpu].cc_major >= 7) /* execution resource provisioning came with Volta */
        device->sm_count = share(device->sm_count, percent);
}

/* ---- while it runs ---- */

static void hear(const char *line)
{
    int device;
    if (sscanf(line, "fault %d", &device) == 1 && device >= 0 && device < sim.mps.count)
        sim.mps.device[device].faulted = true;
    else if (strcmp(line, "terminated") == 0)
        sim.mps.lost = CUDA_ERROR_MPS_CLIENT_TERMINATED;
}

/* Take in what the server has said of itself. */
static void listen_to_server(void)
{
    char line[KG_MPS_LINE];
    int got;
    while ((got = kg_mps_line(sim.mps.fd, &input, line, MSG_DONTWAIT)) > 0)
        hear(line);
    if (got < 0 && sim.mps.lost == CUDA_SUCCESS)
        sim.mps.lost = CUDA_ERROR_MPS_RPC_FAILURE;
}

CUresult mps_state(const struct cu_device *device)
{
    if (!sim.mps.client)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&sim.mutex);
    if (sim.mps.lost == CUDA_SUCCESS)
        listen_to_server();
    CUresult result = sim.mps.lost;
    if (result == CUDA_SUCCESS && device->mps >= 0 && sim.mps.device[device->mps].faulted)
        result = CUDA_ERROR_LAUNCH_FAILED;
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

CUresult mps_open(const struct cu_device *device)
{
    char line[KG_MPS_LINE] = "";
    CUresult result = mps_state(device);
    if (!sim.mps.client || result != CUDA_SUCCESS)
        return result;
    bool sent = kg_mps_say(sim.mps.fd, "open %d", device->mps) == 0;
    while (sent && kg_mps_line(sim.mps.fd, &input, line, 0) > 0) {
        int code;
        if (strcmp(line, "ok") == 0)
            return CUDA_SUCCESS;
        if (sscanf(line, "refuse %d", &code) == 1)
            return (CUresult)code;
        hear(line);
    }
    sim.mps.lost = sim.mps.lost != CUDA_SUCCESS ? sim.mps.lost : CUDA_ERROR_MPS_RPC_FAILURE;
    return sim.mps.lost;
}

void mps_close(const struct cu_device *device)
{
    if (sim.mps.client && sim.mps.fd >= 0)
        kg_mps_say(sim.mps.fd, "close %d", device->mps);
}

void mps_fault(const struct cu_device *device)
{
    if (sim.mps.client && sim.mps.fd >= 0)
        kg_mps_say(sim.mps.fd, "fault %d", device->mps);
}
