/* A small PTX machine: parses PTX text and runs its kernels on the CPU.
 *
 * Promises: pure (no globals, no files, no GPU state): memory is reached only through the launch's `global`
 * callback; every access of a kernel is bounds-checked; any text, however malformed, gives either a module or
 * a message in the log, never undefined behaviour; an instruction outside the subset is refused at parse time,
 * not skipped. Subset: integer, float and predicate arithmetic, loads and stores over
 * global/shared/const/param, atomics, branches and block barriers of 64-bit PTX. */
#ifndef KGPU_PTX_H
#define KGPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTX_MAX_REGS 16384u
#define PTX_MAX_PARAM_BYTES 4352u
#define PTX_MAX_SHARED_BYTES (227u * 1024u)
#define PTX_SHARED_WINDOW (1ull << 56) /* generic addresses of shared memory start here: never a real pointer */

enum ptx_type {
    PTX_NONE, PTX_PRED,
    PTX_B8, PTX_B16, PTX_B32, PTX_B64,
    PTX_U8, PTX_U16, PTX_U32, PTX_U64,
    PTX_S8, PTX_S16, PTX_S32, PTX_S64,
    PTX_F32, PTX_F64,
    PTX_TYPE_COUNT
};

enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_CONST, PTX_PARAM };

struct ptx_module;
struct ptx_kernel;

enum ptx_status { PTX_PARSED, PTX_SYNTAX, PTX_UNSUPPORTED_VERSION, PTX_NO_MEMORY };

/* Parses `text` of `length` bytes. On failure *module is NULL and `log` holds one message in the style of ptxas. */
enum ptx_status ptx_parse(const char *text, size_t length, struct ptx_module **module, char *log, size_t log_size);
void ptx_free(struct ptx_module *module);

/* 10 * major + minor of `.target sm_XY`, and of `.version X.Y`. */
unsigned ptx_target(const struct ptx_module *module);
unsigned ptx_version(const struct ptx_module *module);

const struct ptx_kernel *ptx_kernel_find(const struct ptx_module *module, const char *name);
const struct ptx_kernel *ptx_kernel_at(const struct ptx_module *module, size_t index); /* NULL past the end */
const char *ptx_kernel_name(const struct ptx_kernel *kernel);
size_t ptx_kernel_params(const struct ptx_kernel *kernel);
bool ptx_kernel_param(const struct ptx_kernel *kernel, size_t index, size_t *offset, size_t *size);
size_t ptx_kernel_param_bytes(const struct ptx_kernel *kernel);
unsigned ptx_kernel_regs(const struct ptx_kernel *kernel);
size_t ptx_kernel_shared(const struct ptx_kernel *kernel);

/* Module variables in global or constant space; the loader gives each an address before the first launch. */
struct ptx_variable {
    char *name;
    size_t size, align, init_size;
    uint8_t *init; /* NULL: zero */
    uint64_t address;
    enum ptx_space space;
};
size_t ptx_variables(const struct ptx_module *module);
struct ptx_variable *ptx_variable_at(struct ptx_module *module, size_t index);

enum ptx_fault {
    PTX_OK, PTX_FAULT_ADDRESS, PTX_FAULT_SHARED_ADDRESS, PTX_FAULT_MISALIGNED, PTX_FAULT_TRAP, PTX_FAULT_MEMORY, PTX_FAULT_STOPPED
};

struct ptx_launch {
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared;
    uint32_t sm_count;
    const uint8_t *params; /* ptx_kernel_param_bytes() long */
    /* Host address of [address, address + size), or NULL when not all of it is mapped. */
    uint8_t *(*global)(void *user, uint64_t address, uint64_t size);
    /* Called every few thousand instructions; false ends the launch with PTX_FAULT_STOPPED. May be NULL. */
    bool (*tick)(void *user);
    void *user;
};

struct ptx_result {
    enum ptx_fault fault;
    uint64_t address; /* of the faulting access */
    uint32_t block[3], thread[3];
    uint64_t instructions;
};

struct ptx_result ptx_run(const struct ptx_module *module, const struct ptx_kernel *kernel, const struct ptx_launch *launch);

#endif
