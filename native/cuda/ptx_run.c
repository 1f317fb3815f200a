/* The machine: runs a kernel's grid, block by block and thread by thread, on the calling CPU thread.
 *
 * Promises: no access leaves the memory that the launch's callback, the shared memory and the parameters
 * give; a kernel with barriers runs every thread of a block up to the barrier before any goes on. */
#define _GNU_SOURCE
#include "ptx_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TICK = 4096 };

struct machine {
    const struct ptx_module *module;
    const struct ptx_kernel *kernel;
    const struct ptx_launch *launch;
    uint8_t *shared;
    size_t shared_size, dynamic_base;
    uint64_t block_index;
    uint32_t block[3];
    struct ptx_result result;
    unsigned until_tick;
};

struct thread {
    uint64_t *regs;
    uint32_t id[3], flat;
    size_t pc;
    bool finished;
};

static uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static uint64_t read_sreg(const struct machine *m, const struct thread *t, uint32_t sreg)
{
    const struct ptx_launch *l = m->launch;
    uint32_t threads = l->block[0] * l->block[1] * l->block[2];
    uint32_t sms = l->sm_count ? l->sm_count : 1;
    if (sreg < SREG_NTID)
        return t->id[sreg - SREG_TID];
    if (sreg < SREG_CTAID)
        return l->block[sreg - SREG_NTID];
    if (sreg < SREG_NCTAID)
        return m->block[sreg - SREG_CTAID];
    if (sreg < SREG_LANEID)
        return l->grid[sreg - SREG_NCTAID];
    switch (sreg) {
    case SREG_LANEID: return t->flat % 32;
    case SREG_WARPID: return t->flat / 32;
    case SREG_NWARPID: return (threads + 31) / 32;
    case SREG_WARPSIZE: return 32;
    case SREG_SMID: return m->block_index % sms;
    case SREG_NSMID: return sms;
    case SREG_GLOBALTIMER: return nanoseconds();
    default: return m->result.instructions; /* %clock, %clock64 */
    }
}

static uint64_t read_operand(const struct machine *m, const struct thread *t, const struct ptx_operand *operand)
{
    switch (operand->kind) {
    case OPERAND_REG: return operand->negated ? !(t->regs[operand->index] & 1) : t->regs[operand->index];
    case OPERAND_IMM: case OPERAND_PARAM: return operand->bits;
    case OPERAND_SREG: return read_sreg(m, t, operand->index);
    case OPERAND_SYMBOL: return m->module->variables[operand->index].address;
    case OPERAND_SHARED: return operand->index ? m->dynamic_base : operand->bits;
    default: return 0;
    }
}

static void write_operand(struct thread *t, const struct ptx_operand *operand, uint64_t value)
{
    if (operand->kind == OPERAND_REG)
        t->regs[operand->index] = value & ptx_mask(ptx_type_bits(operand->type));
}

static uint8_t *locate_in(uint8_t *base, uint64_t size, uint64_t offset, uint64_t length)
{
    return length <= size && offset <= size - length ? base + offset : NULL;
}

/* Where an access of `length` bytes lands on the host, or NULL with the fault noted. */
static uint8_t *locate(struct machine *m, const struct thread *t, const struct ptx_insn *insn, uint64_t length)
{
    const struct ptx_operand *operand = &insn->op_[4];
    uint64_t address = read_operand(m, t, operand) + (uint64_t)operand->offset;
    uint8_t *at = NULL;
    bool shared = insn->space == PTX_SHARED;
    m->result.address = address;
    if (address % length) {
        m->result.fault = PTX_FAULT_MISALIGNED;
        return NULL;
    }
    if (insn->space == PTX_GENERIC && operand->kind == OPERAND_SHARED)
        address += PTX_SHARED_WINDOW;
    if (insn->space == PTX_GENERIC && address >= PTX_SHARED_WINDOW && address - PTX_SHARED_WINDOW < (1ull << 32)) {
        shared = true;
        address -= PTX_SHARED_WINDOW;
    }
    if (shared)
        at = locate_in(m->shared, m->shared_size, address, length);
    else if (insn->space == PTX_PARAM)
        at = locate_in((uint8_t *)(uintptr_t)m->launch->params, m->kernel->param_bytes, address, length);
    else if (address)
        at = m->launch->global(m->launch->user, address, length);
    if (!at)
        m->result.fault = shared ? PTX_FAULT_SHARED_ADDRESS : PTX_FAULT_ADDRESS;
    return at;
}

static bool run_memory(struct machine *m, struct thread *t, const struct ptx_insn *insn)
{
    unsigned width = ptx_type_bytes(insn->type), count = insn->vector ? insn->vector : 1;
    uint8_t *at = locate(m, t, insn, (uint64_t)width * count);
    if (!at)
        return false;
    if (insn->op == OP_ATOM || insn->op == OP_RED) {
        uint64_t old = 0;
        memcpy(&old, at, width);
        uint64_t value = ptx_atomic_result(insn, old, read_operand(m, t, &insn->op_[1]), read_operand(m, t, &insn->op_[2]));
        memcpy(at, &value, width);
        if (insn->op == OP_ATOM)
            write_operand(t, &insn->op_[0], old);
        return true;
    }
    for (unsigned i = 0; i < count; i++, at += width) {
        uint64_t value = 0;
        if (insn->op == OP_LD) {
            memcpy(&value, at, width);
            write_operand(t, &insn->op_[i], ptx_extend(value, insn->type));
        } else {
            value = read_operand(m, t, &insn->op_[i]);
            memcpy(at, &value, width);
        }
    }
    return true;
}

/* Converts between a space's own addresses and generic ones; only shared memory differs. */
static uint64_t convert_address(const struct ptx_insn *insn, uint64_t address)
{
    if (insn->space != PTX_SHARED)
        return address;
    return insn->to ? address - PTX_SHARED_WINDOW : address + PTX_SHARED_WINDOW;
}

static void run_arithmetic(struct machine *m, struct thread *t, const struct ptx_insn *insn)
{
    unsigned first = insn->op == OP_SETP ? 2 : 1;
    uint64_t in[4] = {0}, out[2];
    for (unsigned i = 0; i < 3 && first + i < PTX_MAX_OPERANDS; i++)
        in[i] = read_operand(m, t, &insn->op_[first + i]);
    if (insn->op == OP_CVTA)
        out[0] = convert_address(insn, in[0]);
    else
        ptx_alu(insn, in, out);
    write_operand(t, &insn->op_[0], out[0]);
    if (insn->op == OP_SETP)
        write_operand(t, &insn->op_[1], out[1]);
}

static bool tick(struct machine *m)
{
    m->until_tick = TICK;
    if (m->launch->tick && !m->launch->tick(m->launch->user)) {
        m->result.fault = PTX_FAULT_STOPPED;
        return false;
    }
    return true;
}

/* Runs one thread until it ends or stands at a barrier; false on a fault. */
static bool run_thread(struct machine *m, struct thread *t)
{
    const struct ptx_insn *insns = m->kernel->insns;
    for (;;) {
        const struct ptx_insn *insn = &insns[t->pc++];
        m->result.instructions++;
        if (--m->until_tick == 0 && !tick(m))
            return false;
        if (insn->guarded && (t->regs[insn->guard] & 1) == insn->guard_negated)
            continue;
        switch (insn->op) {
        case OP_LD: case OP_ST: case OP_ATOM: case OP_RED:
            if (!run_memory(m, t, insn))
                return false;
            break;
        case OP_BRA: t->pc = insn->op_[0].index; break;
        case OP_BAR: return true;
        case OP_RET: t->finished = true; return true;
        case OP_TRAP: m->result.fault = PTX_FAULT_TRAP; return false;
        case OP_NOP: break;
        default: run_arithmetic(m, t, insn); break;
        }
    }
}

static void start_thread(const struct machine *m, struct thread *t, uint32_t flat)
{
    const uint32_t *size = m->launch->block;
    t->flat = flat;
    t->id[0] = flat % size[0];
    t->id[1] = flat / size[0] % size[1];
    t->id[2] = flat / size[0] / size[1];
    t->pc = 0;
    t->finished = false;
    memset(t->regs, 0, m->kernel->regs * sizeof *t->regs);
}

static bool note_fault(struct machine *m, const struct thread *t)
{
    memcpy(m->result.thread, t->id, sizeof t->id);
    memcpy(m->result.block, m->block, sizeof m->block);
    return false;
}

/* With barriers all threads of a block are alive at once, each with its registers; without, one set serves all. */
static bool run_block(struct machine *m, struct thread *threads, uint32_t count)
{
    memset(m->shared, 0, m->shared_size);
    if (!m->kernel->has_barrier) {
        for (uint32_t i = 0; i < count; i++) {
            start_thread(m, threads, i);
            if (!run_thread(m, threads))
                return note_fault(m, threads);
        }
        return true;
    }
    for (uint32_t i = 0; i < count; i++)
        start_thread(m, &threads[i], i);
    for (bool running = true; running;) {
        running = false;
        for (uint32_t i = 0; i < count; i++) {
            if (threads[i].finished)
                continue;
            if (!run_thread(m, &threads[i]))
                return note_fault(m, &threads[i]);
            running |= !threads[i].finished;
        }
    }
    return true;
}

static void run_grid(struct machine *m, struct thread *threads, uint32_t count)
{
    const uint32_t *grid = m->launch->grid;
    for (m->block[2] = 0; m->block[2] < grid[2]; m->block[2]++)
        for (m->block[1] = 0; m->block[1] < grid[1]; m->block[1]++)
            for (m->block[0] = 0; m->block[0] < grid[0]; m->block[0]++) {
                if (!run_block(m, threads, count))
                    return;
                m->block_index++;
            }
}

struct ptx_result ptx_run(const struct ptx_module *module, const struct ptx_kernel *kernel, const struct ptx_launch *launch)
{
    struct machine m = {.module = module, .kernel = kernel, .launch = launch, .until_tick = TICK};
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    m.dynamic_base = (kernel->shared_bytes + 15) & ~(size_t)15;
    m.shared_size = m.dynamic_base + launch->dynamic_shared;
    size_t alive = kernel->has_barrier ? (size_t)threads : 1, regs = kernel->regs ? kernel->regs : 1;
    struct thread *states = NULL;
    uint64_t *registers = NULL;
    if (threads == 0 || threads > 1024 || m.shared_size > PTX_MAX_SHARED_BYTES) {
        m.result.fault = PTX_FAULT_MEMORY;
        return m.result;
    }
    m.shared = malloc(m.shared_size ? m.shared_size : 1);
    states = calloc(alive, sizeof *states);
    registers = malloc(alive * regs * sizeof *registers);
    if (m.shared && states && registers) {
        for (size_t i = 0; i < alive; i++)
            states[i].regs = registers + i * regs;
        run_grid(&m, states, (uint32_t)threads);
    } else {
        m.result.fault = PTX_FAULT_MEMORY;
    }
    free(m.shared);
    free(states);
    free(registers);
    return m.result;
}
