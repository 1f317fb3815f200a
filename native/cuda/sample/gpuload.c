/* gpu-load: a program that has a CUDA context on every device it sees (or on one) until it is told to end.
 *
 * On the simulated driver a context loads its device by the profile that KGPU_SIMULATED_LOAD names, so this is what
 * sample images run in the place of a program that trains or serves. Speaks to the driver only, through
 * dlopen("libcuda.so.1"). Exit 0 after `--seconds S`, 128 + the signal when one ends it, 1 without a usable device. */
#define _GNU_SOURCE
#include "../cuda_api.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUresult (*init)(unsigned), (*count_devices)(int *), (*get_name)(char *, int, CUdevice);
static CUresult (*create)(CUcontext *, unsigned, CUdevice), (*error_name)(CUresult, const char **);

static const struct { const char *name; void *to; } symbols[] = {
    {"cuInit", &init}, {"cuDeviceGetCount", &count_devices}, {"cuDeviceGetName", &get_name},
    {"cuCtxCreate_v2", &create}, {"cuGetErrorName", &error_name},
};

static void check(CUresult result, const char *what)
{
    const char *name = "unknown error";
    if (result == CUDA_SUCCESS)
        return;
    error_name(result, &name);
    fprintf(stderr, "gpu-load: %s: %s\n", what, name);
    exit(1);
}

/* The first process of a container gets no default action for signals: without this it would outlive its pod's grace. */
static void on_signal(int number) { _exit(128 + number); }

int main(int argc, char **argv)
{
    long device = -1, seconds = -1;
    for (int i = 1; i < argc; i += 2) {
        long *to = strcmp(argv[i], "--device") == 0 ? &device : strcmp(argv[i], "--seconds") == 0 ? &seconds : NULL;
        char *end = NULL;
        if (to && i + 1 < argc)
            *to = strtol(argv[i + 1], &end, 10);
        if (!end || *end || *to < 0 || *to > 1000000000) {
            fprintf(stderr, "Usage: gpu-load [--device N] [--seconds S]\n");
            return 2;
        }
    }
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; driver && i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(driver, symbols[i].name);
        if (!found)
            driver = NULL;
        memcpy(symbols[i].to, &found, sizeof found);
    }
    if (!driver) {
        fprintf(stderr, "gpu-load: libcuda.so.1 can't be loaded: no driver is here\n");
        return 1;
    }
    int count = 0;
    check(init(0), "cuInit");
    check(count_devices(&count), "cuDeviceGetCount");
    if (device >= count || !count)
        check(CUDA_ERROR_INVALID_DEVICE, "choosing the device");
    for (int i = device < 0 ? 0 : (int)device; i < (device < 0 ? count : (int)device + 1); i++) {
        char name[160] = "";
        CUcontext context;
        check(get_name(name, sizeof name, i), "cuDeviceGetName");
        check(create(&context, 0, i), "cuCtxCreate");
        printf("device %d: %s\n", i, name);
    }
    fflush(stdout);
    if (seconds >= 0)
        sleep((unsigned)seconds);
    while (seconds < 0)
        pause();
    return 0;
}
