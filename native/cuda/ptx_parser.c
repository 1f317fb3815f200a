/* What the files of the parser share: how it fails, what it expects next, names, and declarations of variables. */
#define _POSIX_C_SOURCE 200809L
#include "ptx_parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void parser_fail(struct parser *p, const char *format, ...)
{
    char message[256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (p->log_size)
        snprintf(p->log, p->log_size, "ptxas application ptx input, line %u; error   : %s\nptxas fatal   : Ptx assembly aborted due to errors\n",
                 p->lex.line, message);
    if (p->status == PTX_PARSED)
        p->status = PTX_SYNTAX;
    longjmp(p->failed, 1);
}

void parser_unexpected(struct parser *p, const char *wanted)
{
    const struct token *t = &p->lex.token;
    if (t->kind == TOKEN_END)
        parser_fail(p, "unexpected end of text, expected %s", wanted);
    parser_fail(p, "Parsing error near '%.*s': syntax error, expected %s", (int)(t->length > 40 ? 40 : t->length), t->text, wanted);
}

void *parser_grow(struct parser *p, void *items, size_t count, size_t *cap, size_t item_size, size_t limit)
{
    if (count >= limit)
        parser_fail(p, "too many items (at most %zu)", limit);
    if (count < *cap)
        return items;
    size_t wanted = *cap ? *cap * 2 : 16;
    void *grown = realloc(items, wanted * item_size);
    if (!grown) {
        p->status = PTX_NO_MEMORY;
        parser_fail(p, "out of memory");
    }
    *cap = wanted;
    return grown;
}

char *parser_copy(struct parser *p, const struct token *token)
{
    char *copy = strndup(token->text, token->length);
    if (!copy) {
        p->status = PTX_NO_MEMORY;
        parser_fail(p, "out of memory");
    }
    return copy;
}

bool at_punct(const struct parser *p, char c) { return p->lex.token.kind == TOKEN_PUNCT && p->lex.token.punct == c; }
bool at_dot(const struct parser *p, const char *text) { return p->lex.token.kind == TOKEN_DOT && token_is(&p->lex.token, text); }

void expect_punct(struct parser *p, char c)
{
    char wanted[4] = {'\'', c, '\'', 0};
    if (!at_punct(p, c))
        parser_unexpected(p, wanted);
    lex_next(&p->lex);
}

struct token expect_word(struct parser *p)
{
    struct token token = p->lex.token;
    if (token.kind != TOKEN_WORD)
        parser_unexpected(p, "a name");
    lex_next(&p->lex);
    return token;
}

uint64_t expect_int(struct parser *p, uint64_t limit)
{
    if (p->lex.token.kind != TOKEN_INT)
        parser_unexpected(p, "a number");
    uint64_t value = p->lex.token.bits;
    if (value > limit)
        parser_fail(p, "number %llu is out of range (at most %llu)", (unsigned long long)value, (unsigned long long)limit);
    lex_next(&p->lex);
    return value;
}

void skip_line(struct parser *p)
{
    unsigned line = p->lex.line;
    while (p->lex.token.kind != TOKEN_END && p->lex.line == line)
        lex_next(&p->lex);
}

int find_type(const struct token *token)
{
    static const char *const names[PTX_TYPE_COUNT] = {NULL, ".pred", ".b8", ".b16", ".b32", ".b64", ".u8", ".u16", ".u32",
                                                      ".u64", ".s8", ".s16", ".s32", ".s64", ".f32", ".f64"};
    if (token->kind == TOKEN_DOT)
        for (int type = 1; type < PTX_TYPE_COUNT; type++)
            if (token_is(token, names[type]))
                return type;
    return -1;
}

uint8_t parse_type(struct parser *p)
{
    int type = find_type(&p->lex.token);
    if (type < 0)
        parser_unexpected(p, "a type that the simulated GPU supports");
    lex_next(&p->lex);
    return (uint8_t)type;
}

void add_name(struct parser *p, struct name name)
{
    p->names = parser_grow(p, p->names, p->name_count, &p->name_cap, sizeof *p->names, MAX_NAMES);
    p->names[p->name_count++] = name;
}

/* `%r12` of `.reg .b32 %r<20>`: the digits after the family's name, without leading zero. */
static bool family_member(const struct name *name, const struct token *token, uint64_t *index)
{
    if (token->length <= name->length || token->length - name->length > 6 || memcmp(token->text, name->text, name->length) != 0)
        return false;
    uint64_t value = 0;
    for (size_t i = name->length; i < token->length; i++) {
        char c = token->text[i];
        if (c < '0' || c > '9' || (c == '0' && i == name->length && token->length - i > 1))
            return false;
        value = value * 10 + (uint64_t)(c - '0');
    }
    *index = name->value + value;
    return value < name->count;
}

const struct name *find_name(const struct parser *p, const struct token *token, uint64_t *index)
{
    for (size_t i = p->name_count; i-- > 0;) { /* the innermost scope wins */
        const struct name *name = &p->names[i];
        if (name->kind == NAME_REGS ? family_member(name, token, index)
                                    : name->length == token->length && memcmp(name->text, token->text, token->length) == 0) {
            if (name->kind != NAME_REGS)
                *index = name->value;
            return name;
        }
    }
    return NULL;
}

struct declaration parse_declaration(struct parser *p)
{
    struct declaration d = {0};
    if (at_dot(p, ".align")) {
        lex_next(&p->lex);
        d.align = (size_t)expect_int(p, 128);
        if (d.align == 0 || (d.align & (d.align - 1)))
            parser_fail(p, "alignment %zu is not a power of two", d.align);
    }
    d.type = parse_type(p);
    if (d.type == PTX_PRED)
        parser_fail(p, "variables cannot be predicates");
    while (at_dot(p, ".ptr") || at_dot(p, ".global") || at_dot(p, ".shared") || at_dot(p, ".const") || at_dot(p, ".align")) {
        bool align = at_dot(p, ".align"); /* attributes of a pointer parameter: no effect on its layout */
        lex_next(&p->lex);
        if (align)
            expect_int(p, 1u << 20);
    }
    d.name = expect_word(p);
    d.size = ptx_type_bytes(d.type);
    if (!d.align)
        d.align = d.size;
    while (at_punct(p, '[')) {
        lex_next(&p->lex);
        if (at_punct(p, ']')) {
            d.open_array = true;
            d.size = 0;
        } else {
            uint64_t length = expect_int(p, 1u << 30);
            if (length == 0 || d.size > (1ull << 32) / length)
                parser_fail(p, "array size is out of range");
            d.size *= (size_t)length;
        }
        expect_punct(p, ']');
    }
    return d;
}

size_t align_up(size_t value, size_t align) { return (value + align - 1) & ~(align - 1); }

void declare_shared(struct parser *p, bool is_extern, size_t *total)
{
    struct declaration d = parse_declaration(p);
    struct name name = {.text = d.name.text, .length = d.name.length, .kind = NAME_SHARED, .type = d.type};
    if (d.open_array || is_extern) {
        if (!is_extern || !d.open_array)
            parser_fail(p, "shared memory of unknown size must be '.extern' with '[]'");
        name.kind = NAME_DYNAMIC_SHARED;
    } else {
        name.value = align_up(*total, d.align);
        if (d.size > PTX_MAX_SHARED_BYTES || name.value + d.size > PTX_MAX_SHARED_BYTES)
            parser_fail(p, "too much shared data (at most 0x%x bytes)", PTX_MAX_SHARED_BYTES);
        *total = (size_t)name.value + d.size;
    }
    add_name(p, name);
    expect_punct(p, ';');
}
