/* nvidia-cuda-mps-server: holds the GPUs for its clients, tells each its limits, and says when one has damaged a GPU.
 *
 * Started by the control daemon only, with four descriptors: 3 the socket that clients come to, 4 the channel to the
 * daemon, 5 server.log, 2 where the daemon was started in the foreground. Promise: it takes the daemon's settings before it
 * answers a client that comes later, and it ends with its last client once the daemon has gone or has said `stop`. */
#define _GNU_SOURCE
#include "server.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>

static struct {
    void (*MpsServer)(void);
    int (*Init)(unsigned);
    int (*DeviceGetCount)(int *);
    int (*DeviceGetName)(char *, int, int);
    int (*DeviceGetUuid)(unsigned char[16], int);
    int (*DeviceComputeCapability)(int *, int *, int);
    int (*CtxCreate)(void **, unsigned, int);
} cu;

static bool load_driver(void)
{
    static const struct { const char *name; void *slot; } wanted[] = {
        {"kgpuSimMpsServer", &cu.MpsServer}, {"cuInit", &cu.Init}, {"cuDeviceGetCount", &cu.DeviceGetCount},
        {"cuDeviceGetName", &cu.DeviceGetName}, {"cuDeviceGetUuid_v2", &cu.DeviceGetUuid},
        {"cuDeviceComputeCapability", &cu.DeviceComputeCapability}, {"cuCtxCreate_v2", &cu.CtxCreate},
    };
    char path[PATH_MAX + 64];
    const char *root = kg_mps_own_root();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    snprintf(path, sizeof path, "%s/" KG_MPS_LIBRARIES "/libcuda.so.1", root);
    if (!library && *root)
        library = dlopen(path, RTLD_NOW);
    for (size_t i = 0; library && i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (!symbol)
            return false;
        memcpy(wanted[i].slot, &symbol, sizeof symbol);
    }
    return library != NULL;
}

static void describe(struct mps_device *device, int ordinal)
{
    unsigned char id[16] = {0};
    int major = 0, minor = 0;
    cu.DeviceGetName(device->name, sizeof device->name, ordinal);
    cu.DeviceGetUuid(id, ordinal);
    cu.DeviceComputeCapability(&major, &minor, ordinal);
    bool slice = strstr(device->name, " MIG ") != NULL;
    char *at = device->uuid + sprintf(device->uuid, slice ? "MIG-" : "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    device->most = major >= 7 ? MOST_CLIENTS : MOST_CLIENTS_BEFORE_VOLTA;
}

/* A context on every device, which keeps other programs off it in the mode EXCLUSIVE_PROCESS. 0, or the driver's error. */
static int take_devices(void)
{
    int count = 0, result = load_driver() ? 0 : 100;
    if (result == 0) {
        cu.MpsServer();
        result = cu.Init(0);
    }
    if (result == 0)
        result = cu.DeviceGetCount(&count);
    if (result != 0)
        note("Failed to start : %s", result == 100 ? "no CUDA-capable device is detected" : "the driver can't be initialised");
    for (int i = 0; result == 0 && i < count && i < MOST_DEVICES; i++) {
        void *context;
        describe(&server.device[i], i);
        note("Creating server context on device %d (%s)", i, server.device[i].name);
        result = cu.CtxCreate(&context, 0, i);
        if (result != 0)
            note("Failed to create a context on device %d: error %d", i, result);
        server.devices++;
    }
    return result;
}

/* A line of the daemon's. */
static void obey(const char *line)
{
    char value[64];
    int device;
    if (sscanf(line, "threads %63s", value) == 1) {
        server.percent = kg_mps_percent(value);
        if (server.started)
            note("Active Threads Percentage set to %.1f", server.percent);
    } else if (sscanf(line, "limit %d %63s", &device, value) == 2 && device >= 0 && device < MOST_DEVICES) {
        server.device[device].limit = kg_mps_bytes(value);
        if (server.started)
            note("Device pinned memory limit for device %d set to 0x%llx bytes", device, server.device[device].limit);
    } else if (sscanf(line, "terminate %d", &device) == 1) {
        clients_terminate(device);
    } else if (strcmp(line, "stop") == 0) {
        note("Server has been notified to shutdown");
        server.stopping = true;
    }
}

static void read_daemon(void)
{
    static struct kg_mps_input input;
    char line[KG_MPS_LINE];
    int got;
    while ((got = kg_mps_line(CHANNEL_FD, &input, line, MSG_DONTWAIT)) > 0)
        obey(line);
    if (got < 0)
        server.stopping = server.alone = true;
}

static bool start(void)
{
    note("Startup");
    note("Connecting to control daemon on socket: %s/" KG_MPS_CONTROL, kg_mps_pipes());
    note("Initializing server process");
    read_daemon();
    if (take_devices() != 0)
        return false;
    server.started = true;
    note("Active Threads Percentage set to %.1f", server.percent);
    for (int i = 0; i < server.devices; i++) {
        if (server.device[i].limit)
            note("Device pinned memory limit for device %d set to 0x%llx bytes", i, server.device[i].limit);
        tell_daemon("device %d %s", i, server.device[i].uuid);
    }
    note("Server has started");
    tell_daemon("ready");
    return true;
}

int main(void)
{
    struct pollfd watched[2 + MOST_CONNECTIONS];
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* of the terminal of a daemon in the foreground, which ends its servers itself */
    if (fcntl(CHANNEL_FD, F_GETFD) < 0 || fcntl(LOG_FD, F_GETFD) < 0) {
        fputs("nvidia-cuda-mps-server is started by nvidia-cuda-mps-control\n", stderr);
        return 1;
    }
    if (!start())
        return 1;
    while (!(server.stopping && clients_count() == 0)) {
        watched[0] = (struct pollfd){.fd = server.alone ? -1 : CHANNEL_FD, .events = POLLIN};
        watched[1] = (struct pollfd){.fd = LISTEN_FD, .events = POLLIN};
        int count = clients_watch(watched + 2);
        if (poll(watched, (nfds_t)(2 + count), -1) < 0 && errno != EINTR)
            break;
        if (watched[0].revents)
            read_daemon();
        clients_serve(watched + 2, count);
        if (watched[1].revents)
            clients_accept();
    }
    note("Exiting");
    return 0;
}
