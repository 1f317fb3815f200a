/* The instruction set as rows of data: opcodes, modifiers, special registers. What is not here is not supported. */
#include "ptx_parser.h"

#include <string.h>

#define BIT(type) (1u << (type))
#define B_TYPES (BIT(PTX_B16) | BIT(PTX_B32) | BIT(PTX_B64))
#define U_TYPES (BIT(PTX_U16) | BIT(PTX_U32) | BIT(PTX_U64))
#define S_TYPES (BIT(PTX_S16) | BIT(PTX_S32) | BIT(PTX_S64))
#define F_TYPES (BIT(PTX_F32) | BIT(PTX_F64))
#define BYTES (BIT(PTX_B8) | BIT(PTX_U8) | BIT(PTX_S8))
#define INTS (U_TYPES | S_TYPES)
#define PRED BIT(PTX_PRED)
#define MEMORY_TYPES (BYTES | B_TYPES | INTS | F_TYPES)
#define WIDE_INTS (BIT(PTX_U32) | BIT(PTX_U64) | BIT(PTX_S32) | BIT(PTX_S64))
#define FLOATING (MOD_ROUND | MOD_FTZ | MOD_SAT)

static const struct opcode opcodes[] = {
    {"mov", OP_MOV, "dm", PRED | B_TYPES | INTS | F_TYPES, 0, 0},
    {"cvt", OP_CVT, "Df", BYTES | INTS | F_TYPES, FLOATING, 0},
    {"cvta", OP_CVTA, "dm", BIT(PTX_U64), MOD_TO | MOD_SPACE, MOD_SPACE},
    {"ld", OP_LD, "Va", MEMORY_TYPES, MOD_SPACE | MOD_VECTOR | MOD_HINT, 0},
    {"ldu", OP_LD, "Va", MEMORY_TYPES, MOD_SPACE | MOD_VECTOR | MOD_HINT, 0},
    {"st", OP_ST, "aW", MEMORY_TYPES, MOD_SPACE | MOD_VECTOR | MOD_HINT, 0},
    {"atom", OP_ATOM, "das", BIT(PTX_B32) | BIT(PTX_B64) | WIDE_INTS | F_TYPES, MOD_SPACE | MOD_ATOMIC | MOD_HINT, MOD_ATOMIC},
    {"red", OP_RED, "as", BIT(PTX_B32) | BIT(PTX_B64) | WIDE_INTS | F_TYPES, MOD_SPACE | MOD_ATOMIC | MOD_HINT, MOD_ATOMIC},
    {"add", OP_ADD, "dss", INTS | F_TYPES, FLOATING, 0},
    {"sub", OP_SUB, "dss", INTS | F_TYPES, FLOATING, 0},
    {"mul", OP_MUL, "xss", INTS | F_TYPES, FLOATING | MOD_HALF, 0},
    {"mad", OP_MAD, "xssX", INTS | F_TYPES, FLOATING | MOD_HALF, 0},
    {"fma", OP_FMA, "dsss", F_TYPES, FLOATING, MOD_ROUND},
    {"div", OP_DIV, "dss", INTS | F_TYPES, FLOATING | MOD_APPROX, 0},
    {"rem", OP_REM, "dss", INTS, 0, 0},
    {"min", OP_MIN, "dss", INTS | F_TYPES, MOD_FTZ, 0},
    {"max", OP_MAX, "dss", INTS | F_TYPES, MOD_FTZ, 0},
    {"abs", OP_ABS, "ds", S_TYPES | F_TYPES, MOD_FTZ, 0},
    {"neg", OP_NEG, "ds", S_TYPES | F_TYPES, MOD_FTZ, 0},
    {"and", OP_AND, "dss", PRED | B_TYPES, 0, 0},
    {"or", OP_OR, "dss", PRED | B_TYPES, 0, 0},
    {"xor", OP_XOR, "dss", PRED | B_TYPES, 0, 0},
    {"not", OP_NOT, "ds", PRED | B_TYPES, 0, 0},
    {"cnot", OP_CNOT, "ds", B_TYPES, 0, 0},
    {"shl", OP_SHL, "dsu", B_TYPES, 0, 0},
    {"shr", OP_SHR, "dsu", B_TYPES | INTS, 0, 0},
    {"popc", OP_POPC, "cs", BIT(PTX_B32) | BIT(PTX_B64), 0, 0},
    {"clz", OP_CLZ, "cs", BIT(PTX_B32) | BIT(PTX_B64), 0, 0},
    {"brev", OP_BREV, "ds", BIT(PTX_B32) | BIT(PTX_B64), 0, 0},
    {"sqrt", OP_SQRT, "ds", F_TYPES, MOD_ROUND | MOD_APPROX | MOD_FTZ, 0},
    {"rcp", OP_RCP, "ds", F_TYPES, MOD_ROUND | MOD_APPROX | MOD_FTZ, 0},
    {"rsqrt", OP_RSQRT, "ds", F_TYPES, MOD_APPROX | MOD_FTZ, MOD_APPROX},
    {"ex2", OP_EX2, "ds", BIT(PTX_F32), MOD_APPROX | MOD_FTZ, MOD_APPROX},
    {"lg2", OP_LG2, "ds", BIT(PTX_F32), MOD_APPROX | MOD_FTZ, MOD_APPROX},
    {"sin", OP_SIN, "ds", BIT(PTX_F32), MOD_APPROX | MOD_FTZ, MOD_APPROX},
    {"cos", OP_COS, "ds", BIT(PTX_F32), MOD_APPROX | MOD_FTZ, MOD_APPROX},
    {"setp", OP_SETP, "2ss", B_TYPES | INTS | F_TYPES, MOD_CMP | MOD_BOOL | MOD_FTZ, MOD_CMP},
    {"selp", OP_SELP, "dssp", B_TYPES | INTS | F_TYPES, 0, 0},
    {"bra", OP_BRA, "l", 0, MOD_UNI, 0},
    {"bar", OP_BAR, "b", 0, MOD_SYNC, MOD_SYNC},
    {"barrier", OP_BAR, "b", 0, MOD_SYNC | MOD_HINT, MOD_SYNC},
    {"membar", OP_NOP, "", 0, MOD_HINT, 0},
    {"fence", OP_NOP, "", 0, MOD_HINT, 0},
    {"nanosleep", OP_NOP, "u", BIT(PTX_U32), 0, 0},
    {"ret", OP_RET, "", 0, MOD_UNI, 0},
    {"exit", OP_RET, "", 0, 0, 0},
    {"trap", OP_TRAP, "", 0, 0, 0},
    {"brkpt", OP_TRAP, "", 0, 0, 0},
};

static const struct modifier modifiers[] = {
    {".lo", MOD_HALF, HALF_LO}, {".hi", MOD_HALF, HALF_HI}, {".wide", MOD_HALF, HALF_WIDE},
    {".rn", MOD_ROUND, ROUND_RN}, {".rni", MOD_ROUND, ROUND_RNI}, {".rzi", MOD_ROUND, ROUND_RZI},
    {".rmi", MOD_ROUND, ROUND_RMI}, {".rpi", MOD_ROUND, ROUND_RPI},
    {".approx", MOD_APPROX, ROUND_APPROX}, {".full", MOD_APPROX, ROUND_FULL},
    {".eq", MOD_CMP, CMP_EQ}, {".ne", MOD_CMP, CMP_NE}, {".lt", MOD_CMP, CMP_LT}, {".le", MOD_CMP, CMP_LE},
    {".gt", MOD_CMP, CMP_GT}, {".ge", MOD_CMP, CMP_GE}, {".lo", MOD_CMP, CMP_LO}, {".ls", MOD_CMP, CMP_LS},
    {".hi", MOD_CMP, CMP_HI}, {".hs", MOD_CMP, CMP_HS}, {".equ", MOD_CMP, CMP_EQU}, {".neu", MOD_CMP, CMP_NEU},
    {".ltu", MOD_CMP, CMP_LTU}, {".leu", MOD_CMP, CMP_LEU}, {".gtu", MOD_CMP, CMP_GTU}, {".geu", MOD_CMP, CMP_GEU},
    {".num", MOD_CMP, CMP_NUM}, {".nan", MOD_CMP, CMP_NAN},
    {".and", MOD_BOOL, BOOL_AND}, {".or", MOD_BOOL, BOOL_OR}, {".xor", MOD_BOOL, BOOL_XOR},
    {".global", MOD_SPACE, PTX_GLOBAL}, {".shared", MOD_SPACE, PTX_SHARED}, {".shared::cta", MOD_SPACE, PTX_SHARED},
    {".const", MOD_SPACE, PTX_CONST}, {".param", MOD_SPACE, PTX_PARAM}, {".param::entry", MOD_SPACE, PTX_PARAM},
    {".v2", MOD_VECTOR, 2}, {".v4", MOD_VECTOR, 4},
    {".add", MOD_ATOMIC, ATOMIC_ADD}, {".min", MOD_ATOMIC, ATOMIC_MIN}, {".max", MOD_ATOMIC, ATOMIC_MAX},
    {".exch", MOD_ATOMIC, ATOMIC_EXCH}, {".cas", MOD_ATOMIC, ATOMIC_CAS}, {".and", MOD_ATOMIC, ATOMIC_AND},
    {".or", MOD_ATOMIC, ATOMIC_OR}, {".xor", MOD_ATOMIC, ATOMIC_XOR},
    {".ftz", MOD_FTZ, 1}, {".sat", MOD_SAT, 1}, {".to", MOD_TO, 1}, {".uni", MOD_UNI, 1}, {".sync", MOD_SYNC, 1},
    /* How and for whom memory is ordered or cached: without meaning where threads run one after another. */
    {".volatile", MOD_HINT, 0}, {".weak", MOD_HINT, 0}, {".relaxed", MOD_HINT, 0}, {".acquire", MOD_HINT, 0},
    {".release", MOD_HINT, 0}, {".acq_rel", MOD_HINT, 0}, {".sc", MOD_HINT, 0}, {".cta", MOD_HINT, 0}, {".gpu", MOD_HINT, 0},
    {".sys", MOD_HINT, 0}, {".gl", MOD_HINT, 0}, {".ca", MOD_HINT, 0}, {".cg", MOD_HINT, 0}, {".cs", MOD_HINT, 0},
    {".lu", MOD_HINT, 0}, {".cv", MOD_HINT, 0}, {".wb", MOD_HINT, 0}, {".wt", MOD_HINT, 0}, {".nc", MOD_HINT, 0},
    {".aligned", MOD_HINT, 0}, {".L1::evict_normal", MOD_HINT, 0}, {".L1::evict_first", MOD_HINT, 0},
    {".L1::evict_last", MOD_HINT, 0}, {".L1::no_allocate", MOD_HINT, 0}, {".L2::64B", MOD_HINT, 0}, {".L2::128B", MOD_HINT, 0},
};

static const struct { const char *word; bool axes; uint8_t sreg, type; } sregs[] = {
    {"%tid", true, SREG_TID, PTX_U32}, {"%ntid", true, SREG_NTID, PTX_U32},
    {"%ctaid", true, SREG_CTAID, PTX_U32}, {"%nctaid", true, SREG_NCTAID, PTX_U32},
    {"%laneid", false, SREG_LANEID, PTX_U32}, {"%warpid", false, SREG_WARPID, PTX_U32}, {"%nwarpid", false, SREG_NWARPID, PTX_U32},
    {"WARP_SZ", false, SREG_WARPSIZE, PTX_U32}, {"%smid", false, SREG_SMID, PTX_U32}, {"%nsmid", false, SREG_NSMID, PTX_U32},
    {"%clock", false, SREG_CLOCK, PTX_U32}, {"%clock64", false, SREG_CLOCK64, PTX_U64},
    {"%globaltimer", false, SREG_GLOBALTIMER, PTX_U64},
};

const struct opcode *find_opcode(const struct token *token)
{
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++)
        if (token_is(token, opcodes[i].name))
            return &opcodes[i];
    return NULL;
}

const struct modifier *find_modifier(const struct token *token, unsigned classes)
{
    for (size_t i = 0; i < sizeof modifiers / sizeof *modifiers; i++)
        if ((modifiers[i].class & classes) && token_is(token, modifiers[i].text))
            return &modifiers[i];
    return NULL;
}

bool find_sreg(const struct token *word, const struct token *dot, uint32_t *sreg, uint8_t *type)
{
    for (size_t i = 0; i < sizeof sregs / sizeof *sregs; i++) {
        if (!token_is(word, sregs[i].word))
            continue;
        *type = sregs[i].type;
        *sreg = sregs[i].sreg;
        if (!sregs[i].axes)
            return true;
        static const char *const axes[] = {".x", ".y", ".z"};
        for (uint32_t axis = 0; axis < 3; axis++)
            if (dot->kind == TOKEN_DOT && token_is(dot, axes[axis])) {
                *sreg += axis;
                return true;
            }
    }
    return false;
}
