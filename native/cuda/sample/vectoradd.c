/* vectoradd: the vector-add sample. Adds two vectors on every CUDA device it sees (or on one) and checks the sum.
 *
 * Promises: speaks to the driver only, through dlopen("libcuda.so.1"), so the same program runs on the simulated driver
 * and on a real one, in any glibc image. The last line is `Done` after `Test PASSED` (exit 0), else `Test FAILED` (exit 1).
 * `--seconds S` keeps the devices busy for S seconds, `--hold S` keeps the memory for S more, `--bytes N` takes N extra,
 * `--memory` tells how much each device has for it. */
#define _GNU_SOURCE
#include "../cuda_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ELEMENTS = 50000, THREADS = 256 };

static const char kernel_text[] =
    ".version 7.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry vectorAdd(.param .u64 in_a, .param .u64 in_b, .param .u64 out_c, .param .u32 count)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .f32 %f<4>;\n"
    "    .reg .b32 %r<6>;\n"
    "    .reg .b64 %rd<11>;\n"
    "    ld.param.u64 %rd1, [in_a];\n"
    "    ld.param.u64 %rd2, [in_b];\n"
    "    ld.param.u64 %rd3, [out_c];\n"
    "    ld.param.u32 %r2, [count];\n"
    "    mov.u32 %r3, %ntid.x;\n"
    "    mov.u32 %r4, %ctaid.x;\n"
    "    mov.u32 %r5, %tid.x;\n"
    "    mad.lo.s32 %r1, %r4, %r3, %r5;\n"
    "    setp.ge.s32 %p1, %r1, %r2;\n"
    "    @%p1 bra DONE;\n"
    "    cvta.to.global.u64 %rd4, %rd1;\n"
    "    mul.wide.s32 %rd5, %r1, 4;\n"
    "    add.s64 %rd6, %rd4, %rd5;\n"
    "    cvta.to.global.u64 %rd7, %rd2;\n"
    "    add.s64 %rd8, %rd7, %rd5;\n"
    "    ld.global.f32 %f1, [%rd8];\n"
    "    ld.global.f32 %f2, [%rd6];\n"
    "    add.f32 %f3, %f2, %f1;\n"
    "    cvta.to.global.u64 %rd9, %rd3;\n"
    "    add.s64 %rd10, %rd9, %rd5;\n"
    "    st.global.f32 [%rd10], %f3;\n"
    "DONE:\n"
    "    ret;\n"
    "}\n";

static struct {
    CUresult (*Init)(unsigned);
    CUresult (*GetErrorName)(CUresult, const char **);
    CUresult (*GetErrorString)(CUresult, const char **);
    CUresult (*DriverGetVersion)(int *);
    CUresult (*DeviceGetCount)(int *);
    CUresult (*DeviceGet)(CUdevice *, int);
    CUresult (*DeviceGetName)(char *, int, CUdevice);
    CUresult (*DeviceGetAttribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*DeviceTotalMem)(size_t *, CUdevice);
    CUresult (*CtxCreate)(CUcontext *, unsigned, CUdevice);
    CUresult (*CtxDestroy)(CUcontext);
    CUresult (*CtxSynchronize)(void);
    CUresult (*ModuleLoadDataEx)(CUmodule *, const void *, unsigned, CUjit_option *, void **);
    CUresult (*ModuleGetFunction)(CUfunction *, CUmodule, const char *);
    CUresult (*MemAlloc)(CUdeviceptr *, size_t);
    CUresult (*MemFree)(CUdeviceptr);
    CUresult (*MemGetInfo)(size_t *, size_t *);
    CUresult (*MemcpyHtoD)(CUdeviceptr, const void *, size_t);
    CUresult (*MemcpyDtoH)(void *, CUdeviceptr, size_t);
    CUresult (*LaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
} cu;

static const struct { const char *name; void *slot; } wanted[] = {
    {"cuInit", &cu.Init}, {"cuGetErrorName", &cu.GetErrorName}, {"cuGetErrorString", &cu.GetErrorString},
    {"cuDriverGetVersion", &cu.DriverGetVersion}, {"cuDeviceGetCount", &cu.DeviceGetCount}, {"cuDeviceGet", &cu.DeviceGet},
    {"cuDeviceGetName", &cu.DeviceGetName}, {"cuDeviceGetAttribute", &cu.DeviceGetAttribute},
    {"cuDeviceTotalMem_v2", &cu.DeviceTotalMem}, {"cuCtxCreate_v2", &cu.CtxCreate}, {"cuCtxDestroy_v2", &cu.CtxDestroy},
    {"cuCtxSynchronize", &cu.CtxSynchronize}, {"cuModuleLoadDataEx", &cu.ModuleLoadDataEx},
    {"cuModuleGetFunction", &cu.ModuleGetFunction}, {"cuMemAlloc_v2", &cu.MemAlloc}, {"cuMemFree_v2", &cu.MemFree},
    {"cuMemGetInfo_v2", &cu.MemGetInfo},
    {"cuMemcpyHtoD_v2", &cu.MemcpyHtoD}, {"cuMemcpyDtoH_v2", &cu.MemcpyDtoH}, {"cuLaunchKernel", &cu.LaunchKernel},
};

struct options { int device, memory; double seconds, hold; size_t bytes; };

static void check(CUresult result, const char *what)
{
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS)
        return;
    if (cu.GetErrorName)
        cu.GetErrorName(result, &name);
    if (cu.GetErrorString)
        cu.GetErrorString(result, &text);
    fflush(stdout);
    fprintf(stderr, "%s failed: %s (%d): %s\n", what, name ? name : "?", (int)result, text ? text : "unknown error");
    printf("Test FAILED\n");
    exit(1);
}

static void load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "cannot load the CUDA driver: %s\n", dlerror());
        printf("Test FAILED\n");
        exit(1);
    }
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (!symbol) {
            fprintf(stderr, "the CUDA driver has no %s\n", wanted[i].name);
            printf("Test FAILED\n");
            exit(1);
        }
        memcpy(wanted[i].slot, &symbol, sizeof symbol);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void hold(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static void load_kernel(CUmodule *module, CUfunction *function)
{
    char log[2048] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CUresult result = cu.ModuleLoadDataEx(module, kernel_text, 2, options, values);
    if (result != CUDA_SUCCESS && log[0])
        fprintf(stderr, "%s\n", log);
    check(result, "cuModuleLoadDataEx");
    check(cu.ModuleGetFunction(function, *module, "vectorAdd"), "cuModuleGetFunction");
}

static int verify(const float *a, const float *b, const float *c)
{
    for (int i = 0; i < ELEMENTS; i++)
        if (fabsf(a[i] + b[i] - c[i]) > 1e-5f) {
            fprintf(stderr, "Result verification failed at element %d!\n", i);
            return 0;
        }
    return 1;
}

static int add_on(int ordinal, const struct options *options, const float *a, const float *b, float *c)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr da, db, dc, extra = 0;
    char name[256] = "";
    int major = 0, minor = 0;
    unsigned count = ELEMENTS, blocks = (ELEMENTS + THREADS - 1) / THREADS;
    size_t size = ELEMENTS * sizeof *a, memory = 0;
    check(cu.DeviceGet(&device, ordinal), "cuDeviceGet");
    check(cu.DeviceGetName(name, sizeof name, device), "cuDeviceGetName");
    check(cu.DeviceGetAttribute(&major, 75, device), "cuDeviceGetAttribute");
    check(cu.DeviceGetAttribute(&minor, 76, device), "cuDeviceGetAttribute");
    check(cu.DeviceTotalMem(&memory, device), "cuDeviceTotalMem");
    printf("Device %d: %s, compute capability %d.%d, %zu MiB\n", ordinal, name, major, minor, memory >> 20);
    check(cu.CtxCreate(&context, 0, device), "cuCtxCreate");
    if (options->memory) {
        size_t available = 0, total = 0;
        check(cu.MemGetInfo(&available, &total), "cuMemGetInfo");
        printf("Memory: %zu MiB free of %zu MiB\n", available >> 20, total >> 20);
        fflush(stdout);
    }
    load_kernel(&module, &function);
    check(cu.MemAlloc(&da, size), "cuMemAlloc");
    check(cu.MemAlloc(&db, size), "cuMemAlloc");
    check(cu.MemAlloc(&dc, size), "cuMemAlloc");
    if (options->bytes)
        check(cu.MemAlloc(&extra, options->bytes), "cuMemAlloc (--bytes)");
    printf("Copy input data from the host memory to the CUDA device\n");
    check(cu.MemcpyHtoD(da, a, size), "cuMemcpyHtoD");
    check(cu.MemcpyHtoD(db, b, size), "cuMemcpyHtoD");
    printf("CUDA kernel launch with %u blocks of %d threads\n", blocks, THREADS);
    void *arguments[] = {&da, &db, &dc, &count};
    double end = now() + options->seconds;
    do {
        check(cu.LaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL), "cuLaunchKernel");
        check(cu.CtxSynchronize(), "cuCtxSynchronize");
    } while (now() < end);
    memset(c, 0, size);
    check(cu.MemcpyDtoH(c, dc, size), "cuMemcpyDtoH");
    printf("Copy output data from the CUDA device to the host memory\n");
    fflush(stdout);
    int ok = verify(a, b, c);
    hold(options->hold);
    if (extra)
        check(cu.MemFree(extra), "cuMemFree");
    check(cu.MemFree(da), "cuMemFree");
    check(cu.MemFree(db), "cuMemFree");
    check(cu.MemFree(dc), "cuMemFree");
    check(cu.CtxDestroy(context), "cuCtxDestroy");
    return ok;
}

/* The first process of a container gets no default action for signals: without this it would outlive its pod's grace. */
static void on_signal(int number) { _exit(128 + number); }

static void usage(FILE *to)
{
    fprintf(to, "Usage: vectoradd [--device N] [--seconds S] [--hold S] [--bytes N] [--memory]\n"
                "  --device N   run on device N only (default: on every visible one)\n"
                "  --seconds S  launch again and again for S seconds\n"
                "  --hold S     keep the memory for S seconds after the sum\n"
                "  --bytes N    allocate N bytes more\n"
                "  --memory     say how much memory the device has for this program\n");
}

static int parse_options(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        double number = strtod(value, &end);
        int bad = *value == 0 || *end != 0 || !(number >= 0);
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--memory") == 0) {
            options->memory = 1;
            continue;
        }
        if (strcmp(argv[i], "--device") == 0 && !bad && number < 1024)
            options->device = (int)number;
        else if (strcmp(argv[i], "--seconds") == 0 && !bad && number < 1e9)
            options->seconds = number;
        else if (strcmp(argv[i], "--hold") == 0 && !bad && number < 1e9)
            options->hold = number;
        else if (strcmp(argv[i], "--bytes") == 0 && !bad && number < 1e18)
            options->bytes = (size_t)number;
        else
            return 0;
        i++;
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct options options = {.device = -1};
    if (!parse_options(argc, argv, &options)) {
        usage(stderr);
        return 2;
    }
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    printf("[Vector addition of %d elements]\n", ELEMENTS);
    load_driver();
    int count = 0, version = 0, passed = 1;
    check(cu.Init(0), "cuInit");
    check(cu.DriverGetVersion(&version), "cuDriverGetVersion");
    check(cu.DeviceGetCount(&count), "cuDeviceGetCount");
    printf("CUDA %d.%d, %d device%s\n", version / 1000, version % 1000 / 10, count, count == 1 ? "" : "s");
    float *a = malloc(ELEMENTS * sizeof *a), *b = malloc(ELEMENTS * sizeof *b), *c = malloc(ELEMENTS * sizeof *c);
    if (!a || !b || !c)
        check(CUDA_ERROR_OUT_OF_MEMORY, "malloc");
    srand(1);
    for (int i = 0; i < ELEMENTS; i++) {
        a[i] = (float)rand() / (float)RAND_MAX;
        b[i] = (float)rand() / (float)RAND_MAX;
    }
    if (count == 0 || options.device >= count)
        check(CUDA_ERROR_INVALID_DEVICE, "choosing the device");
    for (int i = options.device < 0 ? 0 : options.device; i < (options.device < 0 ? count : options.device + 1); i++)
        passed &= add_on(i, &options, a, b, c);
    free(a);
    free(b);
    free(c);
    if (!passed) {
        printf("Test FAILED\n");
        return 1;
    }
    printf("Test PASSED\nDone\n");
    return 0;
}
