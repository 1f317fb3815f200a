/* Modules from PTX text: loading, functions, variables, and the log a just-in-time compiler gives. */
#include "cu_sim.h"

struct log { char *buffer; size_t size; void **used; };

static void write_log(const struct log *log, const char *text)
{
    if (!log->buffer || log->size == 0)
        return;
    snprintf(log->buffer, log->size, "%s", text);
    if (log->used)
        *log->used = (void *)(uintptr_t)strlen(log->buffer);
}

static void read_options(unsigned count, const CUjit_option *options, void **values, struct log *info, struct log *error)
{
    for (unsigned i = 0; options && values && i < count; i++) {
        size_t size = (size_t)(uintptr_t)values[i] & 0xffffffffu; /* an unsigned int in a pointer */
        switch (options[i]) {
        case CU_JIT_INFO_LOG_BUFFER: info->buffer = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: info->size = size; info->used = &values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER: error->buffer = values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: error->size = size; error->used = &values[i]; break;
        default: break;
        }
    }
}

/* The newest PTX that a driver takes, by the CUDA version it supports (CUDA 11.x: 7.x, 12.x: 8.x, 13.x: 9.x). */
static unsigned newest_ptx(void)
{
    static const struct { unsigned cuda, ptx; } table[] = {
        {11000, 70}, {11010, 71}, {11020, 72}, {11030, 73}, {11040, 74}, {11050, 75}, {11060, 76}, {11070, 77}, {11080, 78},
        {12000, 80}, {12010, 81}, {12020, 82}, {12030, 83}, {12040, 84}, {12050, 85}, {12080, 87}, {12090, 88}, {13000, 90},
        {13010, 91}, {13020, 92},
    };
    unsigned found = 65;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (sim.map.state->cuda_version >= table[i].cuda)
            found = table[i].ptx;
    return found;
}

static CUresult check_version(const struct ptx_module *ptx, const struct cu_device *device, const struct log *error)
{
    char text[160];
    const kg_gpu *gpu = node_gpu(device);
    unsigned newest = newest_ptx(), version = ptx_version(ptx), capability = gpu->cc_major * 10 + gpu->cc_minor;
    if (version > newest) {
        snprintf(text, sizeof text, "ptxas application ptx input, line 1; fatal   : Unsupported .version %u.%u; current version is '%u.%u'",
                 version / 10, version % 10, newest / 10, newest % 10);
        write_log(error, text);
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (ptx_target(ptx) > capability) {
        snprintf(text, sizeof text, "ptxas fatal   : SM version specified by .target is higher than default SM version assumed");
        write_log(error, text);
        return CUDA_ERROR_INVALID_PTX;
    }
    return CUDA_SUCCESS;
}

static CUresult place_variables(CUcontext context, struct cu_device *device, struct ptx_module *ptx)
{
    for (size_t i = 0; i < ptx_variables(ptx); i++) {
        struct ptx_variable *variable = ptx_variable_at(ptx, i);
        CUresult result = heap_alloc(context, device, variable->size ? variable->size : 1, HEAP_DEVICE, 0, &variable->address);
        if (result != CUDA_SUCCESS)
            return result;
        pthread_rwlock_rdlock(&sim.heap_lock);
        uint8_t *at = heap_at(variable->address, variable->size);
        if (at && variable->init)
            memcpy(at, variable->init, variable->init_size);
        else if (at)
            memset(at, 0, variable->size);
        pthread_rwlock_unlock(&sim.heap_lock);
    }
    return CUDA_SUCCESS;
}

static void free_variables(struct ptx_module *ptx)
{
    for (size_t i = 0; i < ptx_variables(ptx); i++)
        if (ptx_variable_at(ptx, i)->address)
            heap_free(ptx_variable_at(ptx, i)->address, 1u << HEAP_DEVICE);
}

/* A module of a context that is destroyed: what it holds besides variables (memory of the context) and functions
 * (handles of their own). */
static void release_module(struct handle *handle) { ptx_free(((CUmodule)handle)->ptx); }

static CUresult load_text(CUmodule *module, const char *text, const struct log *error)
{
    CUcontext context;
    struct cu_device *device;
    struct ptx_module *ptx = NULL;
    char message[512];
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS || !module || !text)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    /* A cubin (ELF) or a fat binary holds machine code of a GPU that isn't there. */
    if (memcmp(text, "\177ELF", 4) == 0 || memcmp(text, "\x50\xed\x55\xba", 4) == 0)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    enum ptx_status status = ptx_parse(text, strlen(text), &ptx, message, sizeof message);
    if (status != PTX_PARSED) {
        write_log(error, message);
        return status == PTX_NO_MEMORY ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_PTX;
    }
    CUmodule made = NULL;
    pthread_mutex_lock(&sim.mutex);
    result = check_version(ptx, device, error);
    if (result == CUDA_SUCCESS)
        result = place_variables(context, device, ptx);
    if (result == CUDA_SUCCESS && !(made = calloc(1, sizeof *made)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        made->ptx = ptx;
        made->handle.release = release_module;
        handle_add(&made->handle, HANDLE_MODULE, context);
        *module = made;
    } else {
        free_variables(ptx);
        ptx_free(ptx);
    }
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    struct log info = {0}, error = {0};
    read_options(count, options, values, &info, &error);
    write_log(&info, "");
    write_log(&error, "");
    return load_text(module, image, &error);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cuModuleLoadData(module, image); }

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    char *text = NULL;
    size_t room = 0;
    ssize_t length = getdelim(&text, &room, 0, file);
    fclose(file);
    CUresult result = length < 4 ? CUDA_ERROR_INVALID_IMAGE : cuModuleLoadData(module, text);
    free(text);
    return result;
}

static void free_functions(CUmodule module)
{
    while (module->functions) {
        CUfunction function = module->functions;
        module->functions = function->next_of_module;
        handle_remove(&function->handle);
        free(function);
    }
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.launch_mutex); /* not under a running kernel */
    pthread_mutex_lock(&sim.mutex);
    if (handle_ok(module, HANDLE_MODULE)) {
        free_functions(module);
        free_variables(module->ptx);
        ptx_free(module->ptx);
        handle_remove(&module->handle);
        free(module);
    } else {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_unlock(&sim.mutex);
    pthread_mutex_unlock(&sim.launch_mutex);
    return result;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.mutex);
    const struct ptx_kernel *kernel = NULL;
    CUfunction made = NULL;
    if (!handle_ok(module, HANDLE_MODULE))
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!(kernel = ptx_kernel_find(module->ptx, name)))
        result = CUDA_ERROR_NOT_FOUND;
    for (made = kernel ? module->functions : NULL; made && made->kernel != kernel; made = made->next_of_module)
        ;
    if (kernel && !made && (made = calloc(1, sizeof *made))) {
        made->module = module;
        made->kernel = kernel;
        made->next_of_module = module->functions;
        module->functions = made;
        handle_add(&made->handle, HANDLE_FUNCTION, module->handle.context);
    }
    if (kernel && !made)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (made)
        *function = made;
    pthread_mutex_unlock(&sim.mutex);
    return result;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    CUcontext context;
    struct cu_device *device;
    CUresult result = sim_context(&context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!name || !handle_ok(module, HANDLE_MODULE))
        return name ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < ptx_variables(module->ptx); i++) {
        const struct ptx_variable *variable = ptx_variable_at(module->ptx, i);
        if (strcmp(variable->name, name) != 0)
            continue;
        if (address)
            *address = variable->address;
        if (size)
            *size = variable->size;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}
ALIAS(cuModuleGetGlobal, cuModuleGetGlobal_v2);

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = 1; /* eager */
    return CUDA_SUCCESS;
}
