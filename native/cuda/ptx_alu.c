/* The arithmetic of PTX instructions, one value at a time.
 *
 * Promises: no operand value is undefined behaviour in C: integer maths is done unsigned, shifts are clamped as PTX
 * says, division by zero gives all ones (what the hardware does), float to integer saturates, NaN becomes 0. */
#include "ptx_internal.h"

#include <math.h>
#include <string.h>

static float as_f32(uint64_t raw) { uint32_t bits = (uint32_t)raw; float value; memcpy(&value, &bits, sizeof value); return value; }
static double as_f64(uint64_t raw) { double value; memcpy(&value, &raw, sizeof value); return value; }
static uint64_t from_f32(float value) { uint32_t bits; memcpy(&bits, &value, sizeof bits); return bits; }
static uint64_t from_f64(double value) { uint64_t bits; memcpy(&bits, &value, sizeof bits); return bits; }

static float flush(float value, bool ftz) { return ftz && fpclassify(value) == FP_SUBNORMAL ? copysignf(0.0f, value) : value; }

static uint64_t finish_f32(const struct ptx_insn *insn, float value)
{
    value = flush(value, insn->ftz);
    if (insn->sat)
        value = isnan(value) || value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
    if (isnan(value))
        return 0x7fffffff; /* the canonical NaN of PTX */
    return from_f32(value);
}

static uint64_t finish_f64(double value) { return isnan(value) ? 0xfff8000000000000ull : from_f64(value); }

/* PTX min/max: a NaN loses against a number, and -0 is less than +0. */
static double min_f(double a, double b) { return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b; }
static double max_f(double a, double b) { return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b; }

static uint64_t alu_f32(const struct ptx_insn *insn, float a, float b, float c)
{
    a = flush(a, insn->ftz);
    b = flush(b, insn->ftz);
    c = flush(c, insn->ftz);
    float r = 0.0f;
    switch (insn->op) {
    case OP_ADD: r = a + b; break;
    case OP_SUB: r = a - b; break;
    case OP_MUL: r = a * b; break;
    case OP_MAD: case OP_FMA: r = fmaf(a, b, c); break;
    case OP_DIV: r = a / b; break;
    case OP_MIN: r = (float)min_f(a, b); break;
    case OP_MAX: r = (float)max_f(a, b); break;
    case OP_ABS: r = fabsf(a); break;
    case OP_NEG: r = -a; break;
    case OP_SQRT: r = sqrtf(a); break;
    case OP_RCP: r = 1.0f / a; break;
    case OP_RSQRT: r = 1.0f / sqrtf(a); break;
    case OP_EX2: r = exp2f(a); break;
    case OP_LG2: r = log2f(a); break;
    case OP_SIN: r = sinf(a); break;
    case OP_COS: r = cosf(a); break;
    default: break;
    }
    return finish_f32(insn, r);
}

static uint64_t alu_f64(const struct ptx_insn *insn, double a, double b, double c)
{
    double r = 0.0;
    switch (insn->op) {
    case OP_ADD: r = a + b; break;
    case OP_SUB: r = a - b; break;
    case OP_MUL: r = a * b; break;
    case OP_MAD: case OP_FMA: r = fma(a, b, c); break;
    case OP_DIV: r = a / b; break;
    case OP_MIN: r = min_f(a, b); break;
    case OP_MAX: r = max_f(a, b); break;
    case OP_ABS: r = fabs(a); break;
    case OP_NEG: r = -a; break;
    case OP_SQRT: r = sqrt(a); break;
    case OP_RCP: r = 1.0 / a; break;
    case OP_RSQRT: r = 1.0 / sqrt(a); break;
    default: break;
    }
    return finish_f64(r);
}

/* High `bits` of the product; 128-bit arithmetic covers every width. */
static uint64_t multiply_high(uint64_t a, uint64_t b, unsigned type)
{
    unsigned bits = ptx_type_bits(type);
    if (ptx_is_signed(type))
        return (uint64_t)(((__int128)(int64_t)a * (int64_t)b) >> bits);
    return (uint64_t)(((unsigned __int128)a * b) >> bits);
}

static uint64_t divide(uint64_t a, uint64_t b, unsigned type, bool remainder)
{
    if (b == 0)
        return remainder ? a : ~0ull;
    if (!ptx_is_signed(type))
        return remainder ? a % b : a / b;
    if (b == ~0ull) /* by -1: the quotient of the least value does not fit, negate modulo 2^n */
        return remainder ? 0 : 0 - a;
    return (uint64_t)(remainder ? (int64_t)a % (int64_t)b : (int64_t)a / (int64_t)b);
}

static uint64_t shift(const struct ptx_insn *insn, uint64_t a, uint64_t amount, unsigned bits)
{
    amount &= 0xffffffffu;
    if (insn->op == OP_SHL)
        return amount >= bits ? 0 : a << amount;
    if (ptx_is_signed(insn->type)) {
        unsigned by = amount >= bits ? bits - 1 : (unsigned)amount;
        return (a >> by) | ((int64_t)a < 0 && by ? ~(~0ull >> by) : 0);
    }
    return amount >= bits ? 0 : a >> amount;
}

static uint64_t saturate_s32(int64_t value) { return (uint64_t)(value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value); }

static uint64_t reverse_bits(uint64_t a, unsigned bits)
{
    uint64_t r = 0;
    for (unsigned i = 0; i < bits; i++)
        r |= ((a >> i) & 1) << (bits - 1 - i);
    return r;
}

static uint64_t alu_int(const struct ptx_insn *insn, uint64_t a, uint64_t b, uint64_t c)
{
    unsigned type = insn->type, bits = ptx_type_bits(type);
    bool is_signed = ptx_is_signed(type);
    switch (insn->op) {
    case OP_ADD: return insn->sat ? saturate_s32((int64_t)(a + b)) : a + b;
    case OP_SUB: return insn->sat ? saturate_s32((int64_t)(a - b)) : a - b;
    case OP_MUL: return insn->half == HALF_HI ? multiply_high(a, b, type) : a * b;
    case OP_MAD: {
        uint64_t product = insn->half == HALF_HI ? multiply_high(a, b, type) : a * b;
        return product + c;
    }
    case OP_DIV: return divide(a, b, type, false);
    case OP_REM: return divide(a, b, type, true);
    case OP_MIN: return is_signed ? ((int64_t)a < (int64_t)b ? a : b) : a < b ? a : b;
    case OP_MAX: return is_signed ? ((int64_t)a > (int64_t)b ? a : b) : a > b ? a : b;
    case OP_ABS: return (int64_t)a < 0 ? 0 - a : a;
    case OP_NEG: return 0 - a;
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
    case OP_NOT: return type == PTX_PRED ? !a : ~a;
    case OP_CNOT: return a == 0;
    case OP_SHL: case OP_SHR: return shift(insn, a, b, bits);
    case OP_POPC: return (uint64_t)__builtin_popcountll(a);
    case OP_CLZ: return a ? (uint64_t)__builtin_clzll(a) - (64 - bits) : bits;
    case OP_BREV: return reverse_bits(a, bits);
    default: return 0;
    }
}

static bool compare_float(unsigned cmp, double a, double b)
{
    bool unordered = isnan(a) || isnan(b);
    switch (cmp) {
    case CMP_EQ: return !unordered && a == b;
    case CMP_NE: return !unordered && a != b;
    case CMP_LT: return !unordered && a < b;
    case CMP_LE: return !unordered && a <= b;
    case CMP_GT: return !unordered && a > b;
    case CMP_GE: return !unordered && a >= b;
    case CMP_EQU: return unordered || a == b;
    case CMP_NEU: return unordered || a != b;
    case CMP_LTU: return unordered || a < b;
    case CMP_LEU: return unordered || a <= b;
    case CMP_GTU: return unordered || a > b;
    case CMP_GEU: return unordered || a >= b;
    case CMP_NUM: return !unordered;
    case CMP_NAN: return unordered;
    default: return false;
    }
}

static bool compare_int(unsigned cmp, uint64_t a, uint64_t b, bool is_signed)
{
    int order = is_signed ? ((int64_t)a > (int64_t)b) - ((int64_t)a < (int64_t)b) : (a > b) - (a < b);
    switch (cmp) {
    case CMP_EQ: return order == 0;
    case CMP_NE: return order != 0;
    case CMP_LT: case CMP_LO: return order < 0;
    case CMP_LE: case CMP_LS: return order <= 0;
    case CMP_GT: case CMP_HI: return order > 0;
    case CMP_GE: case CMP_HS: return order >= 0;
    default: return false;
    }
}

static bool combine(unsigned boolean, bool a, bool b)
{
    return boolean == BOOL_AND ? a && b : boolean == BOOL_OR ? a || b : boolean == BOOL_XOR ? a != b : a;
}

static void set_predicate(const struct ptx_insn *insn, const uint64_t in[4], uint64_t out[2])
{
    bool r;
    if (insn->type == PTX_F32)
        r = compare_float(insn->cmp, flush(as_f32(in[0]), insn->ftz), flush(as_f32(in[1]), insn->ftz));
    else if (insn->type == PTX_F64)
        r = compare_float(insn->cmp, as_f64(in[0]), as_f64(in[1]));
    else
        r = compare_int(insn->cmp, ptx_extend(in[0], insn->type), ptx_extend(in[1], insn->type), ptx_is_signed(insn->type));
    out[0] = combine(insn->boolean, r, in[2] & 1);
    out[1] = combine(insn->boolean, !r, in[2] & 1);
}

static double round_to_integer(unsigned mode, double value)
{
    switch (mode) {
    case ROUND_RZI: return trunc(value);
    case ROUND_RMI: return floor(value);
    case ROUND_RPI: return ceil(value);
    case ROUND_RNI: return nearbyint(value);
    default: return value;
    }
}

static uint64_t float_to_int(double value, unsigned type)
{
    unsigned bits = ptx_type_bits(type);
    if (isnan(value))
        return 0;
    if (ptx_is_signed(type)) {
        double limit = ldexp(1.0, (int)bits - 1);
        if (value >= limit)
            return ptx_mask(bits - 1);
        if (value < -limit)
            return ~ptx_mask(bits - 1);
        return (uint64_t)(int64_t)value;
    }
    if (value <= 0.0)
        return 0;
    return value >= ldexp(1.0, (int)bits) ? ptx_mask(bits) : (uint64_t)value;
}

/* cvt.sat between integers clamps to the range of the destination. */
static uint64_t clamp_int(uint64_t value, unsigned from, unsigned to)
{
    unsigned bits = ptx_type_bits(to);
    bool negative = ptx_is_signed(from) && (int64_t)value < 0;
    if (!ptx_is_signed(to))
        return negative ? 0 : value > ptx_mask(bits) ? ptx_mask(bits) : value;
    if (negative)
        return (int64_t)value < (int64_t)~ptx_mask(bits - 1) ? ~ptx_mask(bits - 1) : value;
    return value > ptx_mask(bits - 1) ? ptx_mask(bits - 1) : value;
}

static uint64_t convert(const struct ptx_insn *insn, uint64_t raw)
{
    unsigned from = insn->from, to = insn->type;
    if (ptx_is_float(from)) {
        double value = from == PTX_F32 ? (double)flush(as_f32(raw), insn->ftz) : as_f64(raw);
        value = round_to_integer(insn->round, value);
        if (to == PTX_F32)
            return finish_f32(insn, (float)value);
        if (to == PTX_F64)
            return finish_f64(insn->sat ? min_f(max_f(isnan(value) ? 0.0 : value, 0.0), 1.0) : value);
        return float_to_int(value, to);
    }
    uint64_t value = ptx_extend(raw, from);
    if (to == PTX_F32)
        return finish_f32(insn, ptx_is_signed(from) ? (float)(int64_t)value : (float)value);
    if (to == PTX_F64)
        return finish_f64(ptx_is_signed(from) ? (double)(int64_t)value : (double)value);
    return insn->sat ? clamp_int(value, from, to) : value;
}

void ptx_alu(const struct ptx_insn *insn, const uint64_t in[4], uint64_t out[2])
{
    out[1] = 0;
    switch (insn->op) {
    case OP_MOV: out[0] = in[0]; return;
    case OP_CVT: out[0] = convert(insn, in[0]); return;
    case OP_SETP: set_predicate(insn, in, out); return;
    case OP_SELP: out[0] = in[2] & 1 ? in[0] : in[1]; return;
    default: break;
    }
    if (insn->type == PTX_F32)
        out[0] = alu_f32(insn, as_f32(in[0]), as_f32(in[1]), as_f32(in[2]));
    else if (insn->type == PTX_F64)
        out[0] = alu_f64(insn, as_f64(in[0]), as_f64(in[1]), as_f64(in[2]));
    else {
        unsigned wide = insn->half == HALF_WIDE ? insn->type + 1u : insn->type; /* the next type of its family is twice as wide */
        bool shifting = insn->op == OP_SHL || insn->op == OP_SHR;
        uint64_t b = shifting ? in[1] : ptx_extend(in[1], insn->type);
        out[0] = alu_int(insn, ptx_extend(in[0], insn->type), b, ptx_extend(in[2], wide));
    }
}

uint64_t ptx_atomic_result(const struct ptx_insn *insn, uint64_t old, uint64_t a, uint64_t b)
{
    static const uint8_t op_of[] = {[ATOMIC_ADD] = OP_ADD, [ATOMIC_MIN] = OP_MIN, [ATOMIC_MAX] = OP_MAX,
                                    [ATOMIC_AND] = OP_AND, [ATOMIC_OR] = OP_OR, [ATOMIC_XOR] = OP_XOR};
    uint64_t mask = ptx_mask(ptx_type_bits(insn->type));
    if (insn->atomic == ATOMIC_EXCH)
        return a & mask;
    if (insn->atomic == ATOMIC_CAS)
        return (old & mask) == (a & mask) ? b & mask : old & mask;
    struct ptx_insn arithmetic = {.op = op_of[insn->atomic], .type = insn->type};
    uint64_t in[4] = {old, a, 0, 0}, out[2];
    ptx_alu(&arithmetic, in, out);
    return out[0] & mask;
}
