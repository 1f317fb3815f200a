/* Test host of the PTX machine: a loop over stdin/stdout, so that a property test can run thousands of programs in one
 * process built with the address and undefined-behaviour sanitizers.
 *
 * Request: u32 text length, text, u32 parameter length, parameters, u32 memory length, memory (mapped at BASE),
 * u32 grid[3], block[3], dynamic shared bytes, u64 instruction limit. The first kernel is run.
 * Answer: u32 parse status, u32 fault, u64 fault address, u64 instructions, u32 log length, log, u32 memory length, memory. */
#include "ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE 0x7f0000000000ull

struct host { uint8_t *memory; uint32_t size; uint64_t left; };

static uint8_t *locate(void *user, uint64_t address, uint64_t size)
{
    struct host *host = user;
    return address >= BASE && size <= host->size && address - BASE <= host->size - size ? host->memory + (address - BASE) : NULL;
}

static bool tick(void *user)
{
    struct host *host = user;
    host->left -= host->left < 4096 ? host->left : 4096;
    return host->left > 0;
}

static void *read_block(uint32_t *length)
{
    if (fread(length, 4, 1, stdin) != 1)
        exit(0);
    uint8_t *block = malloc(*length ? *length : 1); /* exactly as long as it is: the sanitizer sees any overrun */
    if (!block || fread(block, 1, *length, stdin) != *length)
        exit(3);
    return block;
}

static void write_block(const void *block, uint32_t length)
{
    fwrite(&length, 4, 1, stdout);
    fwrite(block, 1, length, stdout);
}

int main(void)
{
    for (;;) {
        uint32_t text_length, param_length, shape[7];
        struct host host;
        char *text = read_block(&text_length);
        uint8_t *given = read_block(&param_length);
        host.memory = read_block(&host.size);
        if (fread(shape, 4, 7, stdin) != 7 || fread(&host.left, 8, 1, stdin) != 1)
            return 3;
        char log[512] = "";
        struct ptx_module *module = NULL;
        uint32_t status = ptx_parse(text, text_length, &module, log, sizeof log);
        struct ptx_result result = {0};
        const struct ptx_kernel *kernel = module ? ptx_kernel_at(module, 0) : NULL;
        if (kernel) {
            size_t bytes = ptx_kernel_param_bytes(kernel);
            uint8_t *params = calloc(1, bytes ? bytes : 1);
            memcpy(params, given, bytes < param_length ? bytes : param_length);
            struct ptx_launch launch = {.grid = {shape[0], shape[1], shape[2]}, .block = {shape[3], shape[4], shape[5]},
                                        .dynamic_shared = shape[6], .sm_count = 4, .params = params, .global = locate, .tick = tick, .user = &host};
            result = ptx_run(module, kernel, &launch);
            free(params);
        }
        uint32_t fault = result.fault;
        fwrite(&status, 4, 1, stdout);
        fwrite(&fault, 4, 1, stdout);
        fwrite(&result.address, 8, 1, stdout);
        fwrite(&result.instructions, 8, 1, stdout);
        write_block(log, (uint32_t)strlen(log));
        write_block(host.memory, host.size);
        fflush(stdout);
        ptx_free(module);
        free(text);
        free(given);
        free(host.memory);
    }
}
