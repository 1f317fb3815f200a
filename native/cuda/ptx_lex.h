/* Tokens of PTX text. Private to the parser. */
#ifndef KGPU_PTX_LEX_H
#define KGPU_PTX_LEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum token_kind {
    TOKEN_END,
    TOKEN_WORD,    /* names and opcodes: `add`, `%rd1`, `$L__BB0_2` */
    TOKEN_DOT,     /* a directive or modifier with its dot: `.u32`, `.shared::cta` */
    TOKEN_INT, TOKEN_F32, TOKEN_F64, /* numbers; `bits` holds the raw value */
    TOKEN_STRING,
    TOKEN_PUNCT,   /* one character */
    TOKEN_BAD
};

struct token {
    enum token_kind kind;
    const char *text;
    size_t length;
    uint64_t bits;
    char punct;
};

struct lexer {
    const char *at, *end;
    unsigned line;
    struct token token; /* the current one */
};

void lex_start(struct lexer *lexer, const char *text, size_t length);
void lex_next(struct lexer *lexer);
bool token_is(const struct token *token, const char *text);

#endif
