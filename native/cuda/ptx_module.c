/* What a loader may ask of a parsed module. */
#include "ptx_internal.h"

#include <stdlib.h>
#include <string.h>

unsigned ptx_target(const struct ptx_module *module) { return module->target; }
unsigned ptx_version(const struct ptx_module *module) { return module->version; }

const struct ptx_kernel *ptx_kernel_at(const struct ptx_module *module, size_t index)
{
    return index < module->kernel_count ? module->kernels[index] : NULL;
}

const struct ptx_kernel *ptx_kernel_find(const struct ptx_module *module, const char *name)
{
    for (size_t i = 0; i < module->kernel_count; i++)
        if (strcmp(module->kernels[i]->name, name) == 0)
            return module->kernels[i];
    return NULL;
}

const char *ptx_kernel_name(const struct ptx_kernel *kernel) { return kernel->name; }
size_t ptx_kernel_params(const struct ptx_kernel *kernel) { return kernel->param_count; }
size_t ptx_kernel_param_bytes(const struct ptx_kernel *kernel) { return kernel->param_bytes; }
unsigned ptx_kernel_regs(const struct ptx_kernel *kernel) { return kernel->regs; }
size_t ptx_kernel_shared(const struct ptx_kernel *kernel) { return kernel->shared_bytes; }

bool ptx_kernel_param(const struct ptx_kernel *kernel, size_t index, size_t *offset, size_t *size)
{
    if (index >= kernel->param_count)
        return false;
    *offset = kernel->params[index].offset;
    *size = kernel->params[index].size;
    return true;
}

size_t ptx_variables(const struct ptx_module *module) { return module->variable_count; }
struct ptx_variable *ptx_variable_at(struct ptx_module *module, size_t index)
{
    return index < module->variable_count ? &module->variables[index] : NULL;
}

static void free_kernel(struct ptx_kernel *kernel)
{
    for (size_t i = 0; i < kernel->param_count; i++)
        free(kernel->params[i].name);
    free(kernel->params);
    free(kernel->insns);
    free(kernel->name);
    free(kernel);
}

void ptx_free(struct ptx_module *module)
{
    if (!module)
        return;
    for (size_t i = 0; i < module->kernel_count; i++)
        free_kernel(module->kernels[i]);
    for (size_t i = 0; i < module->variable_count; i++) {
        free(module->variables[i].name);
        free(module->variables[i].init);
    }
    free(module->kernels);
    free(module->variables);
    free(module);
}
