/* PTX text to a module: directives, variables and kernel headers (bodies are in ptx_body.c).
 *
 * Promises: the first problem ends the parse with one message and nothing leaked. */
#include "ptx_parser.h"

#include <stdlib.h>
#include <string.h>

static void parse_initializer(struct parser *p, struct ptx_variable *v, uint8_t type)
{
    size_t width = ptx_type_bytes(type), at = 0, depth = 0;
    v->init = calloc(1, v->size ? v->size : 1);
    if (!v->init) {
        p->status = PTX_NO_MEMORY;
        parser_fail(p, "out of memory");
    }
    v->init_size = v->size;
    do {
        while (at_punct(p, '{')) {
            depth++;
            lex_next(&p->lex);
        }
        bool negative = at_punct(p, '-');
        if (negative)
            lex_next(&p->lex);
        struct token t = p->lex.token;
        if (t.kind != TOKEN_INT && !(ptx_is_float(type) && (t.kind == TOKEN_F32 || t.kind == TOKEN_F64)))
            parser_unexpected(p, "a number");
        uint64_t bits = t.bits;
        if (t.kind == TOKEN_F64 && type == PTX_F32) {
            double wide;
            memcpy(&wide, &bits, sizeof wide);
            float narrow = (float)wide;
            uint32_t raw;
            memcpy(&raw, &narrow, sizeof raw);
            bits = raw;
        }
        if (negative)
            bits = ptx_is_float(type) ? bits ^ (1ull << (ptx_type_bits(type) - 1)) : 0 - bits;
        if (v->size - at < width)
            parser_fail(p, "too many initializers");
        memcpy(v->init + at, &bits, width);
        at += width;
        lex_next(&p->lex);
        while (depth && at_punct(p, '}')) {
            depth--;
            lex_next(&p->lex);
        }
        if (!depth || !at_punct(p, ','))
            break;
        lex_next(&p->lex);
    } while (true);
    if (depth)
        parser_unexpected(p, "'}'");
}

static void parse_variable(struct parser *p, enum ptx_space space, bool is_extern)
{
    struct declaration d = parse_declaration(p);
    if (is_extern || d.open_array)
        parser_fail(p, "external variables are not supported by the simulated GPU");
    if (space == PTX_CONST && d.size > 65536)
        parser_fail(p, "too much constant data (at most 0x10000 bytes)");
    struct ptx_module *m = p->module;
    if (m->variable_count >= MAX_NAMES)
        parser_fail(p, "too many variables");
    struct ptx_variable *grown = realloc(m->variables, (m->variable_count + 1) * sizeof *grown);
    if (!grown) {
        p->status = PTX_NO_MEMORY;
        parser_fail(p, "out of memory");
    }
    m->variables = grown;
    struct ptx_variable *v = &grown[m->variable_count];
    *v = (struct ptx_variable){.name = parser_copy(p, &d.name), .size = d.size, .align = d.align, .space = space};
    add_name(p, (struct name){.text = d.name.text, .length = d.name.length, .kind = NAME_VARIABLE, .type = d.type, .value = m->variable_count++});
    if (at_punct(p, '=')) {
        if (d.size > (16u << 20))
            parser_fail(p, "initializers of more than 16 MiB are not supported by the simulated GPU");
        lex_next(&p->lex);
        parse_initializer(p, v, d.type);
    }
    expect_punct(p, ';');
}

static void parse_params(struct parser *p)
{
    struct ptx_kernel *k = p->kernel;
    size_t cap = 0;
    expect_punct(p, '(');
    while (!at_punct(p, ')')) {
        if (!at_dot(p, ".param"))
            parser_unexpected(p, "'.param'");
        lex_next(&p->lex);
        struct declaration d = parse_declaration(p);
        size_t offset = align_up(k->param_bytes, d.align);
        if (d.open_array || d.size > PTX_MAX_PARAM_BYTES || offset + d.size > PTX_MAX_PARAM_BYTES)
            parser_fail(p, "Formal parameter space overflowed (0x%x bytes max)", PTX_MAX_PARAM_BYTES);
        k->params = parser_grow(p, k->params, k->param_count, &cap, sizeof *k->params, PTX_MAX_PARAM_BYTES);
        k->params[k->param_count] = (struct ptx_param){.name = NULL, .offset = offset, .size = d.size};
        k->params[k->param_count++].name = parser_copy(p, &d.name);
        k->param_bytes = offset + d.size;
        add_name(p, (struct name){.text = d.name.text, .length = d.name.length, .kind = NAME_PARAM, .type = d.type, .value = offset});
        if (!at_punct(p, ')'))
            expect_punct(p, ',');
    }
    expect_punct(p, ')');
}

/* Hints about launch bounds: no effect on what a kernel computes. */
static void skip_performance_directives(struct parser *p)
{
    static const char *const known[] = {".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".pragma"};
    while (p->lex.token.kind == TOKEN_DOT) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && !token_is(&p->lex.token, known[i]))
            i++;
        if (i == sizeof known / sizeof *known)
            parser_unexpected(p, "'{'");
        lex_next(&p->lex);
        while (p->lex.token.kind == TOKEN_INT || p->lex.token.kind == TOKEN_STRING || at_punct(p, ',') || at_punct(p, ';'))
            lex_next(&p->lex);
    }
}

static void parse_entry(struct parser *p)
{
    struct ptx_module *m = p->module;
    struct token name = expect_word(p);
    if (m->kernel_count >= 4096)
        parser_fail(p, "too many kernels");
    struct ptx_kernel **grown = realloc(m->kernels, (m->kernel_count + 1) * sizeof *grown);
    struct ptx_kernel *k = calloc(1, sizeof *k);
    if (grown)
        m->kernels = grown;
    if (!grown || !k) {
        free(k);
        p->status = PTX_NO_MEMORY;
        parser_fail(p, "out of memory");
    }
    m->kernels[m->kernel_count++] = p->kernel = k; /* owned by the module from here on, also when the parse fails */
    k->name = parser_copy(p, &name);
    for (size_t i = 0; i + 1 < m->kernel_count; i++)
        if (strcmp(m->kernels[i]->name, k->name) == 0)
            parser_fail(p, "Duplicate definition of function '%.60s'", k->name);
    size_t scope = p->name_count;
    k->shared_bytes = p->module_shared;
    if (at_punct(p, '('))
        parse_params(p);
    skip_performance_directives(p);
    parse_body(p);
    p->name_count = scope;
}

static void skip_section(struct parser *p)
{
    while (p->lex.token.kind != TOKEN_END && !at_punct(p, '{'))
        lex_next(&p->lex);
    while (p->lex.token.kind != TOKEN_END && !at_punct(p, '}'))
        lex_next(&p->lex);
    expect_punct(p, '}');
}

static void parse_header(struct parser *p)
{
    struct ptx_module *m = p->module;
    if (!at_dot(p, ".version"))
        parser_fail(p, "Missing .version directive at start of file '<ptx input>'");
    lex_next(&p->lex);
    if (p->lex.token.kind != TOKEN_F64 || p->lex.token.length != 3)
        parser_unexpected(p, "a version such as 7.0");
    m->version = (unsigned)(p->lex.token.text[0] - '0') * 10 + (unsigned)(p->lex.token.text[2] - '0');
    lex_next(&p->lex);
    if (!at_dot(p, ".target"))
        parser_unexpected(p, "'.target'");
    lex_next(&p->lex);
    struct token target = expect_word(p);
    unsigned sm = 0;
    for (size_t i = 3; i < target.length && i < 6 && target.text[i] >= '0' && target.text[i] <= '9'; i++)
        sm = sm * 10 + (unsigned)(target.text[i] - '0');
    if (target.length < 5 || memcmp(target.text, "sm_", 3) != 0 || sm < 10)
        parser_fail(p, "Unknown .target '%.*s'", (int)(target.length > 20 ? 20 : target.length), target.text);
    m->target = sm;
    while (at_punct(p, ',')) {
        lex_next(&p->lex);
        expect_word(p);
    }
    if (at_dot(p, ".address_size")) {
        lex_next(&p->lex);
        if (expect_int(p, 64) != 64)
            parser_fail(p, "only '.address_size 64' is supported");
    }
}

static void parse_module(struct parser *p)
{
    parse_header(p);
    bool is_extern = false;
    while (p->lex.token.kind != TOKEN_END) {
        struct token t = p->lex.token;
        if (t.kind != TOKEN_DOT)
            parser_unexpected(p, "a directive");
        if (token_is(&t, ".file") || token_is(&t, ".loc")) {
            skip_line(p);
            continue;
        }
        lex_next(&p->lex);
        if (token_is(&t, ".visible") || token_is(&t, ".weak") || token_is(&t, ".extern")) {
            is_extern = token_is(&t, ".extern");
            continue;
        }
        if (token_is(&t, ".entry"))
            parse_entry(p);
        else if (token_is(&t, ".global") || token_is(&t, ".const"))
            parse_variable(p, token_is(&t, ".const") ? PTX_CONST : PTX_GLOBAL, is_extern);
        else if (token_is(&t, ".shared"))
            declare_shared(p, is_extern, &p->module_shared);
        else if (token_is(&t, ".section"))
            skip_section(p);
        else if (token_is(&t, ".pragma")) {
            lex_next(&p->lex);
            expect_punct(p, ';');
        } else
            parser_fail(p, "directive '%.*s' is not supported by the simulated GPU", (int)(t.length > 40 ? 40 : t.length), t.text);
        is_extern = false;
    }
}

static bool guarded_parse(struct parser *p)
{
    if (setjmp(p->failed))
        return false;
    parse_module(p);
    return true;
}

enum ptx_status ptx_parse(const char *text, size_t length, struct ptx_module **module, char *log, size_t log_size)
{
    *module = NULL;
    if (log_size)
        log[0] = 0;
    struct parser *p = calloc(1, sizeof *p);
    struct ptx_module *m = calloc(1, sizeof *m);
    if (!p || !m) {
        free(p);
        free(m);
        return PTX_NO_MEMORY;
    }
    p->module = m;
    p->log = log;
    p->log_size = log_size;
    lex_start(&p->lex, text, length);
    bool ok = guarded_parse(p);
    enum ptx_status status = ok ? PTX_PARSED : p->status;
    free(p->names);
    free(p->labels);
    free(p->jumps);
    free(p);
    if (ok)
        *module = m;
    else
        ptx_free(m);
    return status;
}
