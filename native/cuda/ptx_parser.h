/* Shared by the files of the parser: its state, and how it fails. Private to ptx_parse.c, ptx_body.c, ptx_table.c, which
 * call what is in ptx_parser.c; that calls none of them. */
#ifndef KGPU_PTX_PARSER_H
#define KGPU_PTX_PARSER_H

#include "ptx_internal.h"
#include "ptx_lex.h"

#include <setjmp.h>

enum name_kind { NAME_REG, NAME_REGS, NAME_SHARED, NAME_DYNAMIC_SHARED, NAME_PARAM, NAME_VARIABLE };

/* What a word means: a register, a family `%r<5>` (`value` is its first index), or a variable. */
struct name {
    const char *text;
    size_t length;
    enum name_kind kind;
    uint8_t type;
    uint64_t value, count;
};

struct label { const char *text; size_t length; size_t target; };

#define MAX_NAMES 8192
#define MAX_LABELS 16384

struct parser {
    struct lexer lex;
    struct ptx_module *module;
    struct ptx_kernel *kernel; /* being parsed */
    struct name *names;
    size_t name_count, name_cap;
    struct label *labels, *jumps; /* jumps: target is the instruction to patch */
    size_t label_count, label_cap, jump_count, jump_cap;
    size_t module_shared;
    jmp_buf failed;
    enum ptx_status status;
    char *log;
    size_t log_size;
};

_Noreturn void parser_fail(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void parser_unexpected(struct parser *p, const char *wanted);
/* Grows *items to hold one more; fails the parse when memory or `limit` is exhausted. */
void *parser_grow(struct parser *p, void *items, size_t count, size_t *cap, size_t item_size, size_t limit);
char *parser_copy(struct parser *p, const struct token *token);

bool at_punct(const struct parser *p, char c);
bool at_dot(const struct parser *p, const char *text);
void expect_punct(struct parser *p, char c);
struct token expect_word(struct parser *p);
uint64_t expect_int(struct parser *p, uint64_t limit);
void skip_line(struct parser *p);

uint8_t parse_type(struct parser *p); /* `.u32`; fails on anything else */
int find_type(const struct token *token); /* -1 when it is no type */
void add_name(struct parser *p, struct name name);
const struct name *find_name(const struct parser *p, const struct token *token, uint64_t *index);

/* A variable of any space: what stands after `.shared`, `.param`, `.global`. */
struct declaration {
    struct token name;
    uint8_t type;
    size_t align, size;
    bool open_array; /* `name[]` */
};
size_t align_up(size_t value, size_t align); /* to a power of two */
struct declaration parse_declaration(struct parser *p);
void declare_shared(struct parser *p, bool is_extern, size_t *total);

void parse_body(struct parser *p); /* ptx_body.c */

/* ---- the instruction table ---- */
enum modifier_class {
    MOD_HALF = 1 << 0, MOD_ROUND = 1 << 1, MOD_CMP = 1 << 2, MOD_BOOL = 1 << 3, MOD_SPACE = 1 << 4, MOD_VECTOR = 1 << 5,
    MOD_ATOMIC = 1 << 6, MOD_FTZ = 1 << 7, MOD_SAT = 1 << 8, MOD_TO = 1 << 9, MOD_HINT = 1 << 10, MOD_UNI = 1 << 11,
    MOD_SYNC = 1 << 12, MOD_APPROX = 1 << 13
};
struct modifier { const char *text; unsigned class; uint8_t value; };

/* `signature`, one character an operand:
 * d destination of the instruction's type   x the same, twice as wide with .wide   D at least as wide   c a 32-bit count
 * s source of the type   X the same, twice as wide with .wide   S, f source at least as wide as the (second) type
 * u 32-bit amount   p predicate   m source, special register or address   2 predicate pair `p|q`
 * a address   V, W register or vector to load, to store   l label   b barrier number */
struct opcode {
    const char *name;
    uint8_t op;
    const char *signature;
    unsigned types;     /* bit per ptx_type; 0: takes none */
    unsigned modifiers; /* classes it may have */
    unsigned required;  /* classes it must have */
};
const struct opcode *find_opcode(const struct token *token);
const struct modifier *find_modifier(const struct token *token, unsigned classes);
bool find_sreg(const struct token *word, const struct token *dot, uint32_t *sreg, uint8_t *type);

#endif
