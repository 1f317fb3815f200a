/* What the parser hands to the machine: decoded instructions, kernels, modules. Private to ptx_*.c. */
#ifndef KGPU_PTX_INTERNAL_H
#define KGPU_PTX_INTERNAL_H

#include "ptx.h"

enum ptx_op {
    OP_MOV, OP_CVT, OP_CVTA, OP_LD, OP_ST, OP_ATOM, OP_RED,
    OP_ADD, OP_SUB, OP_MUL, OP_MAD, OP_FMA, OP_DIV, OP_REM, OP_MIN, OP_MAX, OP_ABS, OP_NEG,
    OP_AND, OP_OR, OP_XOR, OP_NOT, OP_CNOT, OP_SHL, OP_SHR, OP_POPC, OP_CLZ, OP_BREV,
    OP_SQRT, OP_RCP, OP_RSQRT, OP_EX2, OP_LG2, OP_SIN, OP_COS,
    OP_SETP, OP_SELP, OP_BRA, OP_BAR, OP_RET, OP_TRAP, OP_NOP
};

enum ptx_cmp {
    CMP_NONE, CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_LO, CMP_LS, CMP_HI, CMP_HS,
    CMP_EQU, CMP_NEU, CMP_LTU, CMP_LEU, CMP_GTU, CMP_GEU, CMP_NUM, CMP_NAN
};
enum ptx_bool { BOOL_NONE, BOOL_AND, BOOL_OR, BOOL_XOR };
enum ptx_half { HALF_NONE, HALF_LO, HALF_HI, HALF_WIDE };
enum ptx_round { ROUND_NONE, ROUND_RN, ROUND_RNI, ROUND_RZI, ROUND_RMI, ROUND_RPI, ROUND_APPROX, ROUND_FULL, ROUND_RZ, ROUND_RM, ROUND_RP };
enum ptx_atomic { ATOMIC_NONE, ATOMIC_ADD, ATOMIC_MIN, ATOMIC_MAX, ATOMIC_EXCH, ATOMIC_CAS, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR };

enum ptx_sreg {
    SREG_TID, SREG_NTID = SREG_TID + 3, SREG_CTAID = SREG_NTID + 3, SREG_NCTAID = SREG_CTAID + 3,
    SREG_LANEID = SREG_NCTAID + 3, SREG_WARPID, SREG_NWARPID, SREG_WARPSIZE, SREG_SMID, SREG_NSMID,
    SREG_CLOCK, SREG_CLOCK64, SREG_GLOBALTIMER
};

enum ptx_operand_kind { OPERAND_NONE, OPERAND_REG, OPERAND_IMM, OPERAND_SREG, OPERAND_SYMBOL, OPERAND_SHARED, OPERAND_PARAM, OPERAND_LABEL };

/* A register (index), an immediate (bits), a special register, the address of a variable, or a label.
 * As an address operand, `offset` is added to the value. */
struct ptx_operand {
    uint8_t kind;
    uint8_t type;  /* of the register or immediate */
    bool negated;  /* predicate source `!p` */
    uint32_t index;
    uint64_t bits;
    int64_t offset;
};

#define PTX_MAX_VECTOR 4
#define PTX_MAX_OPERANDS 5

struct ptx_insn {
    uint8_t op, type, from; /* `from`: second type of cvt */
    uint8_t cmp, boolean, half, round, atomic, space, vector;
    bool ftz, sat, to;      /* `to`: cvta.to */
    bool guarded, guard_negated;
    uint16_t line_hint;
    uint32_t guard;
    uint8_t operands;
    struct ptx_operand op_[PTX_MAX_OPERANDS];
};

struct ptx_param { char *name; size_t offset, size; };

struct ptx_kernel {
    char *name;
    struct ptx_insn *insns;
    size_t insn_count, insn_cap;
    struct ptx_param *params;
    size_t param_count, param_bytes;
    unsigned regs;
    size_t shared_bytes;
    bool has_barrier;
};

struct ptx_module {
    unsigned version, target;
    struct ptx_kernel **kernels;
    size_t kernel_count;
    struct ptx_variable *variables;
    size_t variable_count;
};

static inline unsigned ptx_type_bits(unsigned type)
{
    static const uint8_t bits[PTX_TYPE_COUNT] = {0, 1, 8, 16, 32, 64, 8, 16, 32, 64, 8, 16, 32, 64, 32, 64};
    return type < PTX_TYPE_COUNT ? bits[type] : 0;
}
static inline unsigned ptx_type_bytes(unsigned type) { return type == PTX_PRED ? 1 : ptx_type_bits(type) / 8; }
static inline bool ptx_is_float(unsigned type) { return type == PTX_F32 || type == PTX_F64; }
static inline bool ptx_is_signed(unsigned type) { return type >= PTX_S8 && type <= PTX_S64; }
static inline uint64_t ptx_mask(unsigned bits) { return bits >= 64 ? ~0ull : (1ull << bits) - 1; }
/* The value of `raw` read as `type`, in 64 bits: sign-extended when the type is signed, else zero-extended. */
static inline uint64_t ptx_extend(uint64_t raw, unsigned type)
{
    unsigned bits = ptx_type_bits(type);
    raw &= ptx_mask(bits);
    if (ptx_is_signed(type) && bits < 64 && (raw >> (bits - 1)) & 1)
        raw |= ~ptx_mask(bits);
    return raw;
}

/* Arithmetic of one instruction: `in` are the raw source values in order, `out` the raw result
 * (out[1]: the second predicate of setp). Pure. */
void ptx_alu(const struct ptx_insn *insn, const uint64_t in[4], uint64_t out[2]);
uint64_t ptx_atomic_result(const struct ptx_insn *insn, uint64_t old, uint64_t a, uint64_t b);

#endif
