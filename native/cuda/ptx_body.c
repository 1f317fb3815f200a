/* The body of a kernel: registers, labels and instructions, checked against the table in ptx_table.c.
 *
 * Promises: after a successful parse every register index, jump target and parameter offset is within bounds, so the
 * machine needs no checks there. */
#include "ptx_parser.h"

#include <string.h>

static struct ptx_insn *new_insn(struct parser *p)
{
    struct ptx_kernel *k = p->kernel;
    k->insns = parser_grow(p, k->insns, k->insn_count, &k->insn_cap, sizeof *k->insns, 1u << 20);
    struct ptx_insn *insn = &k->insns[k->insn_count++];
    memset(insn, 0, sizeof *insn);
    return insn;
}

static void declare_registers(struct parser *p)
{
    struct ptx_kernel *k = p->kernel;
    uint8_t type = parse_type(p);
    do {
        struct token word = expect_word(p);
        struct name name = {.text = word.text, .length = word.length, .kind = NAME_REG, .type = type, .value = k->regs, .count = 1};
        if (at_punct(p, '<')) {
            lex_next(&p->lex);
            name.kind = NAME_REGS;
            name.count = expect_int(p, PTX_MAX_REGS);
            expect_punct(p, '>');
        }
        if (k->regs + name.count > PTX_MAX_REGS)
            parser_fail(p, "too many registers (at most %u)", PTX_MAX_REGS);
        k->regs += (unsigned)name.count;
        add_name(p, name);
        if (!at_punct(p, ','))
            break;
        lex_next(&p->lex);
    } while (true);
    expect_punct(p, ';');
}

static struct ptx_operand register_operand(struct parser *p)
{
    struct token word = expect_word(p);
    uint64_t index = 0;
    const struct name *name = find_name(p, &word, &index);
    if (!name || (name->kind != NAME_REG && name->kind != NAME_REGS))
        parser_fail(p, "Unknown symbol '%.*s'", (int)(word.length > 40 ? 40 : word.length), word.text);
    return (struct ptx_operand){.kind = OPERAND_REG, .type = name->type, .index = (uint32_t)index};
}

static struct ptx_operand immediate(struct parser *p, uint8_t type)
{
    bool negative = at_punct(p, '-');
    if (negative)
        lex_next(&p->lex);
    struct token t = p->lex.token;
    uint64_t bits = t.bits;
    unsigned width = ptx_type_bits(type);
    if (t.kind == TOKEN_F32 || t.kind == TOKEN_F64) {
        if (ptx_is_signed(type) || type == PTX_PRED || width < 32 || (type >= PTX_U8 && type <= PTX_U64))
            parser_fail(p, "a floating-point constant where an integer is expected");
        double wide;
        float narrow;
        uint32_t raw = (uint32_t)bits;
        if (t.kind == TOKEN_F64 && width == 32) {
            memcpy(&wide, &bits, sizeof wide);
            narrow = (float)wide;
            memcpy(&raw, &narrow, sizeof raw);
            bits = raw;
        } else if (t.kind == TOKEN_F32 && width == 64) {
            memcpy(&narrow, &raw, sizeof narrow);
            wide = narrow;
            memcpy(&bits, &wide, sizeof bits);
        }
        if (negative)
            bits ^= 1ull << (width - 1);
    } else if (t.kind == TOKEN_INT) {
        if (ptx_is_float(type))
            parser_fail(p, "an integer constant where a floating-point one is expected");
        bits = negative ? 0 - bits : bits;
    } else {
        parser_unexpected(p, "an operand");
    }
    lex_next(&p->lex);
    return (struct ptx_operand){.kind = OPERAND_IMM, .type = type, .bits = bits & ptx_mask(width)};
}

/* The address of a variable, as bits to load. */
static bool symbol_operand(struct parser *p, const struct token *word, struct ptx_operand *operand)
{
    static const uint8_t kinds[] = {[NAME_SHARED] = OPERAND_SHARED, [NAME_DYNAMIC_SHARED] = OPERAND_SHARED,
                                    [NAME_PARAM] = OPERAND_PARAM, [NAME_VARIABLE] = OPERAND_SYMBOL};
    uint64_t value = 0;
    const struct name *name = find_name(p, word, &value);
    if (!name || name->kind == NAME_REG || name->kind == NAME_REGS)
        return false;
    *operand = (struct ptx_operand){.kind = kinds[name->kind], .type = PTX_U64, .index = name->kind == NAME_DYNAMIC_SHARED, .bits = value};
    if (name->kind == NAME_VARIABLE)
        operand->index = (uint32_t)value;
    return true;
}

static struct ptx_operand source_operand(struct parser *p, uint8_t type, bool any)
{
    if (p->lex.token.kind != TOKEN_WORD) {
        if (at_punct(p, '{'))
            parser_fail(p, "vector operands are supported by the simulated GPU for ld and st only");
        return immediate(p, type);
    }
    struct lexer saved = p->lex;
    struct token word = expect_word(p);
    struct ptx_operand operand;
    if (any && symbol_operand(p, &word, &operand))
        return operand;
    uint32_t sreg;
    uint8_t sreg_type;
    if (any && find_sreg(&word, &p->lex.token, &sreg, &sreg_type)) {
        if (p->lex.token.kind == TOKEN_DOT)
            lex_next(&p->lex);
        return (struct ptx_operand){.kind = OPERAND_SREG, .type = sreg_type, .index = sreg};
    }
    p->lex = saved;
    return register_operand(p);
}

static void address_operand(struct parser *p, struct ptx_insn *insn)
{
    struct ptx_operand *operand = &insn->op_[4];
    expect_punct(p, '[');
    if (p->lex.token.kind == TOKEN_WORD) {
        struct token word = p->lex.token;
        if (symbol_operand(p, &word, operand))
            lex_next(&p->lex);
        else {
            *operand = register_operand(p);
            if (ptx_type_bits(operand->type) != 64)
                parser_fail(p, "an address needs a 64-bit register");
        }
    } else {
        *operand = immediate(p, PTX_U64);
    }
    if (at_punct(p, '+') || at_punct(p, '-')) {
        bool negative = at_punct(p, '-');
        lex_next(&p->lex);
        if (at_punct(p, '-') && !negative) {
            negative = true;
            lex_next(&p->lex);
        }
        int64_t offset = (int64_t)expect_int(p, INT32_MAX);
        operand->offset = negative ? -offset : offset;
    }
    expect_punct(p, ']');
    if (operand->kind == OPERAND_PARAM && insn->space != PTX_PARAM)
        parser_fail(p, "a parameter is read with ld.param");
}

static void check_width(struct parser *p, const struct ptx_operand *operand, unsigned type, bool at_least)
{
    bool shared_address = operand->kind == OPERAND_SHARED && ptx_type_bits(type) >= 32; /* fits 32 bits and 64 */
    if (operand->kind == OPERAND_NONE || operand->kind == OPERAND_IMM || shared_address)
        return;
    unsigned have = ptx_type_bits(operand->type), want = ptx_type_bits(type);
    bool both_values = (operand->type == PTX_PRED) == (type == PTX_PRED);
    if (!both_values || (at_least ? have < want : have != want))
        parser_fail(p, "Arguments mismatch for instruction: a %u-bit operand where %u bits are expected", have, want);
}

static struct ptx_operand destination(struct parser *p)
{
    if (token_is(&p->lex.token, "_")) {
        lex_next(&p->lex);
        return (struct ptx_operand){.kind = OPERAND_NONE};
    }
    return register_operand(p);
}

/* A register, or `{a, b}` of as many as the instruction's vector has, into op_[0...]. */
static void vector_operand(struct parser *p, struct ptx_insn *insn, bool is_destination)
{
    unsigned count = insn->vector ? insn->vector : 1;
    if (insn->vector)
        expect_punct(p, '{');
    for (unsigned i = 0; i < count; i++) {
        insn->op_[i] = is_destination ? destination(p) : source_operand(p, insn->type, false);
        check_width(p, &insn->op_[i], insn->type, true);
        if (i + 1 < count)
            expect_punct(p, ',');
    }
    if (insn->vector)
        expect_punct(p, '}');
}

static void label_operand(struct parser *p)
{
    struct token word = expect_word(p);
    p->jumps = parser_grow(p, p->jumps, p->jump_count, &p->jump_cap, sizeof *p->jumps, 1u << 20);
    p->jumps[p->jump_count++] = (struct label){.text = word.text, .length = word.length, .target = p->kernel->insn_count - 1};
}

static struct ptx_operand predicate_operand(struct parser *p)
{
    bool negated = at_punct(p, '!');
    if (negated)
        lex_next(&p->lex);
    struct ptx_operand operand = register_operand(p);
    check_width(p, &operand, PTX_PRED, false);
    operand.negated = negated;
    return operand;
}

/* Parses the operand that `c` of a signature stands for; `slot` is the next free place in op_. */
static void parse_operand(struct parser *p, struct ptx_insn *insn, char c, unsigned *slot)
{
    uint8_t wide = insn->half == HALF_WIDE ? insn->type + 1 : insn->type;
    struct ptx_operand operand = {0};
    switch (c) {
    case 'a': address_operand(p, insn); return;
    case 'V': case 'W': vector_operand(p, insn, c == 'V'); return;
    case 'l': label_operand(p); return;
    case 'b': /* only the barrier of the whole block, under any number */
        expect_int(p, 15);
        return;
    case '2':
        insn->op_[0] = destination(p);
        check_width(p, &insn->op_[0], PTX_PRED, false);
        if (at_punct(p, '|')) {
            lex_next(&p->lex);
            insn->op_[1] = destination(p);
            check_width(p, &insn->op_[1], PTX_PRED, false);
        }
        *slot = 2;
        return;
    case 'd': operand = destination(p); check_width(p, &operand, insn->type, false); break;
    case 'D': operand = destination(p); check_width(p, &operand, insn->type, true); break;
    case 'x': operand = destination(p); check_width(p, &operand, wide, false); break;
    case 'c': operand = destination(p); check_width(p, &operand, PTX_U32, false); break;
    case 's': operand = source_operand(p, insn->type, false); check_width(p, &operand, insn->type, false); break;
    case 'X': operand = source_operand(p, wide, false); check_width(p, &operand, wide, false); break;
    case 'f': operand = source_operand(p, insn->from, false); check_width(p, &operand, insn->from, true); break;
    case 'u': operand = source_operand(p, PTX_U32, false); check_width(p, &operand, PTX_U32, false); break;
    case 'm': operand = source_operand(p, insn->type, true); check_width(p, &operand, insn->type, false); break;
    default: operand = predicate_operand(p); break;
    }
    insn->op_[(*slot)++] = operand;
}

static void apply_modifier(struct ptx_insn *insn, const struct modifier *modifier)
{
    switch (modifier->class) {
    case MOD_HALF: insn->half = modifier->value; break;
    case MOD_ROUND: case MOD_APPROX: insn->round = modifier->value; break;
    case MOD_CMP: insn->cmp = modifier->value; break;
    case MOD_BOOL: insn->boolean = modifier->value; break;
    case MOD_SPACE: insn->space = modifier->value; break;
    case MOD_VECTOR: insn->vector = modifier->value; break;
    case MOD_ATOMIC: insn->atomic = modifier->value; break;
    case MOD_FTZ: insn->ftz = true; break;
    case MOD_SAT: insn->sat = true; break;
    case MOD_TO: insn->to = true; break;
    default: break;
    }
}

static void parse_modifiers(struct parser *p, struct ptx_insn *insn, const struct opcode *opcode)
{
    unsigned seen = 0, types = 0;
    for (; p->lex.token.kind == TOKEN_DOT; lex_next(&p->lex)) {
        struct token t = p->lex.token;
        int type = find_type(&t);
        if (type >= 0 && types < (opcode->op == OP_CVT ? 2u : 1u)) {
            *(types++ ? &insn->from : &insn->type) = (uint8_t)type;
            if (opcode->types & (1u << type))
                continue;
        }
        const struct modifier *modifier = type >= 0 ? NULL : find_modifier(&t, opcode->modifiers & ~(seen & ~(unsigned)MOD_HINT));
        if (!modifier)
            parser_fail(p, "Illegal modifier '%.*s' for instruction '%s' (or not supported by the simulated GPU)",
                        (int)(t.length > 40 ? 40 : t.length), t.text, opcode->name);
        seen |= modifier->class;
        apply_modifier(insn, modifier);
    }
    if (types != (opcode->op == OP_CVT ? 2u : opcode->types ? 1u : 0u))
        parser_fail(p, "instruction '%s' without its type", opcode->name);
    if ((seen & opcode->required) != opcode->required)
        parser_fail(p, "instruction '%s' lacks a modifier it needs", opcode->name);
}

/* What the table cannot say: combinations of type and modifier. */
static void check_combination(struct parser *p, const struct ptx_insn *insn, const char *name)
{
    bool is_float = ptx_is_float(insn->type), is_int = !is_float && insn->type >= PTX_B8;
    bool multiplies = insn->op == OP_MUL || insn->op == OP_MAD;
    bool rounds_to_int = insn->round >= ROUND_RNI && insn->round <= ROUND_RPI;
    const char *bad = NULL;
    if (multiplies && is_int && !insn->half)
        bad = "needs .lo, .hi or .wide";
    else if (insn->half && (is_float || (insn->half == HALF_WIDE && ptx_type_bits(insn->type) == 64)))
        bad = "does not take that half";
    else if (is_int && insn->op != OP_CVT && (insn->round || insn->ftz))
        bad = "takes no rounding for integers";
    else if (rounds_to_int && insn->op != OP_CVT)
        bad = "does not round to integer";
    else if (insn->sat && insn->op != OP_CVT && insn->type != PTX_F32 && !(insn->type == PTX_S32 && (insn->op == OP_ADD || insn->op == OP_SUB)))
        bad = "does not saturate this type";
    else if (insn->op == OP_SETP && insn->cmp >= CMP_EQU && !is_float)
        bad = "compares unordered for floats only";
    else if (insn->op == OP_SETP && insn->cmp >= CMP_LO && insn->cmp <= CMP_HS && !(insn->type >= PTX_U16 && insn->type <= PTX_U64))
        bad = "has lo, ls, hi, hs for unsigned types only";
    else if (insn->op == OP_SETP && insn->type >= PTX_B8 && insn->type <= PTX_B64 && insn->cmp > CMP_NE)
        bad = "orders typed values only";
    else if (insn->op == OP_CVT && ptx_is_float(insn->from) && is_int && !rounds_to_int)
        bad = "from float to integer needs .rni, .rzi, .rmi or .rpi";
    else if (insn->op == OP_ST && (insn->space == PTX_PARAM || insn->space == PTX_CONST))
        bad = "cannot write to that space";
    else if ((insn->op == OP_ATOM || insn->op == OP_RED) && (insn->space == PTX_PARAM || insn->space == PTX_CONST))
        bad = "cannot write to that space";
    else if (insn->op == OP_RED && (insn->atomic == ATOMIC_EXCH || insn->atomic == ATOMIC_CAS))
        bad = "has no such operation";
    else if (insn->op == OP_ATOM || insn->op == OP_RED) {
        bool bitwise = insn->atomic >= ATOMIC_EXCH, typed = insn->type >= PTX_U8;
        if ((is_float && insn->atomic != ATOMIC_ADD) || (!is_float && bitwise == typed))
            bad = "has no such operation for this type";
    }
    if (bad)
        parser_fail(p, "instruction '%s' %s", name, bad);
}

static void parse_instruction(struct parser *p, const struct ptx_operand *guard)
{
    struct token word = expect_word(p);
    const struct opcode *opcode = find_opcode(&word);
    if (!opcode)
        parser_fail(p, "instruction '%.*s' is not supported by the simulated GPU", (int)(word.length > 40 ? 40 : word.length), word.text);
    struct ptx_insn *insn = new_insn(p);
    insn->op = opcode->op;
    if (guard) {
        insn->guarded = true;
        insn->guard = guard->index;
        insn->guard_negated = guard->negated;
    }
    parse_modifiers(p, insn, opcode);
    check_combination(p, insn, opcode->name);
    unsigned slot = 0;
    for (const char *c = opcode->signature; *c; c++) {
        if (c != opcode->signature)
            expect_punct(p, ',');
        if (*c == 's' && insn->op == OP_RED)
            slot = 1;
        parse_operand(p, insn, *c, &slot);
    }
    if (insn->op == OP_ATOM && insn->atomic == ATOMIC_CAS) {
        expect_punct(p, ',');
        parse_operand(p, insn, 's', &slot);
    }
    if (insn->op == OP_SETP && insn->boolean) {
        expect_punct(p, ',');
        parse_operand(p, insn, 'p', &slot);
    }
    if (insn->op == OP_BAR)
        p->kernel->has_barrier = true;
    expect_punct(p, ';');
}

static void add_label(struct parser *p, const struct token *word)
{
    for (size_t i = 0; i < p->label_count; i++)
        if (p->labels[i].length == word->length && memcmp(p->labels[i].text, word->text, word->length) == 0)
            parser_fail(p, "Duplicate definition of label '%.*s'", (int)(word->length > 40 ? 40 : word->length), word->text);
    p->labels = parser_grow(p, p->labels, p->label_count, &p->label_cap, sizeof *p->labels, MAX_LABELS);
    p->labels[p->label_count++] = (struct label){.text = word->text, .length = word->length, .target = p->kernel->insn_count};
}

static void resolve_jumps(struct parser *p)
{
    for (size_t i = 0; i < p->jump_count; i++) {
        const struct label *jump = &p->jumps[i];
        size_t l = 0;
        while (l < p->label_count && !(p->labels[l].length == jump->length && memcmp(p->labels[l].text, jump->text, jump->length) == 0))
            l++;
        if (l == p->label_count)
            parser_fail(p, "Unknown label '%.*s'", (int)(jump->length > 40 ? 40 : jump->length), jump->text);
        struct ptx_insn *insn = &p->kernel->insns[jump->target];
        insn->op_[0] = (struct ptx_operand){.kind = OPERAND_LABEL, .index = (uint32_t)p->labels[l].target};
    }
    p->label_count = p->jump_count = 0;
}

static void parse_directive(struct parser *p)
{
    struct token t = p->lex.token;
    if (token_is(&t, ".loc") || token_is(&t, ".file")) {
        skip_line(p);
        return;
    }
    lex_next(&p->lex);
    if (token_is(&t, ".reg"))
        declare_registers(p);
    else if (token_is(&t, ".shared"))
        declare_shared(p, false, &p->kernel->shared_bytes);
    else if (token_is(&t, ".pragma")) {
        lex_next(&p->lex);
        expect_punct(p, ';');
    } else
        parser_fail(p, "directive '%.*s' is not supported by the simulated GPU", (int)(t.length > 40 ? 40 : t.length), t.text);
}

static void parse_statement(struct parser *p)
{
    struct token t = p->lex.token;
    if (t.kind == TOKEN_DOT) {
        parse_directive(p);
        return;
    }
    if (at_punct(p, ';')) {
        lex_next(&p->lex);
        return;
    }
    if (at_punct(p, '@')) {
        lex_next(&p->lex);
        struct ptx_operand guard = predicate_operand(p);
        parse_instruction(p, &guard);
        return;
    }
    struct lexer saved = p->lex;
    expect_word(p);
    if (at_punct(p, ':')) {
        lex_next(&p->lex);
        add_label(p, &t);
        return;
    }
    p->lex = saved;
    parse_instruction(p, NULL);
}

#define MAX_DEPTH 64

void parse_body(struct parser *p)
{
    size_t scopes[MAX_DEPTH], depth = 0;
    do {
        if (at_punct(p, '{')) {
            if (depth == MAX_DEPTH)
                parser_fail(p, "blocks nested too deeply");
            scopes[depth++] = p->name_count;
            lex_next(&p->lex);
        } else if (depth && at_punct(p, '}')) {
            p->name_count = scopes[--depth];
            lex_next(&p->lex);
        } else if (!depth) {
            parser_unexpected(p, "'{'");
        } else {
            parse_statement(p);
        }
    } while (depth);
    struct ptx_insn *end = new_insn(p); /* falling off the end returns */
    end->op = OP_RET;
    resolve_jumps(p);
}
