/* The PTX tokeniser: text in, one token at a time out. Promises to stop at the end of the text whatever it holds. */
#define _GNU_SOURCE
#include "ptx_lex.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_name(char c) { return is_letter(c) || is_digit(c) || c == '$'; }

static int hex_value(char c)
{
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void skip_blank(struct lexer *lexer)
{
    while (lexer->at < lexer->end) {
        char c = *lexer->at;
        if (c == '\n')
            lexer->line++;
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            lexer->at++;
        } else if (c == '/' && lexer->end - lexer->at > 1 && lexer->at[1] == '/') {
            while (lexer->at < lexer->end && *lexer->at != '\n')
                lexer->at++;
        } else if (c == '/' && lexer->end - lexer->at > 1 && lexer->at[1] == '*') {
            lexer->at += 2;
            while (lexer->end - lexer->at > 1 && !(lexer->at[0] == '*' && lexer->at[1] == '/'))
                lexer->line += *lexer->at++ == '\n';
            lexer->at = lexer->end - lexer->at > 1 ? lexer->at + 2 : lexer->end;
        } else {
            return;
        }
    }
}

/* `0fXXXXXXXX` and `0dXXXXXXXXXXXXXXXX`: the bits of a float. */
static bool lex_float_bits(struct lexer *lexer)
{
    const char *p = lexer->at;
    if (lexer->end - p < 2 || p[0] != '0')
        return false;
    bool wide = p[1] == 'd' || p[1] == 'D';
    if (!wide && p[1] != 'f' && p[1] != 'F')
        return false;
    size_t digits = wide ? 16 : 8;
    if ((size_t)(lexer->end - p) < 2 + digits)
        return false;
    uint64_t bits = 0;
    for (size_t i = 0; i < digits; i++) {
        int value = hex_value(p[2 + i]);
        if (value < 0)
            return false;
        bits = bits << 4 | (uint64_t)value;
    }
    lexer->token.kind = wide ? TOKEN_F64 : TOKEN_F32;
    lexer->token.bits = bits;
    lexer->at += 2 + digits;
    return true;
}

/* `1.5`, `2.0e-3`: copied out because the text need not end in NUL. */
static bool lex_decimal_float(struct lexer *lexer)
{
    char copy[64];
    const char *p = lexer->at;
    while (p < lexer->end && is_digit(*p))
        p++;
    if (p == lexer->end || *p != '.' || p + 1 == lexer->end || !is_digit(p[1]))
        return false;
    p++;
    while (p < lexer->end && is_digit(*p))
        p++;
    if (p + 1 < lexer->end && (*p == 'e' || *p == 'E')) {
        const char *exponent = p + 1;
        if (*exponent == '+' || *exponent == '-')
            exponent++;
        if (exponent < lexer->end && is_digit(*exponent)) {
            while (exponent < lexer->end && is_digit(*exponent))
                exponent++;
            p = exponent;
        }
    }
    size_t length = (size_t)(p - lexer->at);
    if (length >= sizeof copy)
        return false;
    memcpy(copy, lexer->at, length);
    copy[length] = 0;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* the host program's locale may have a decimal comma */
    if (plain == (locale_t)0)
        return false;
    double value = strtod_l(copy, NULL, plain);
    freelocale(plain);
    memcpy(&lexer->token.bits, &value, sizeof value);
    lexer->token.kind = TOKEN_F64;
    lexer->at = p;
    return true;
}

static void lex_integer(struct lexer *lexer)
{
    unsigned base = 10;
    const char *p = lexer->at;
    if (*p == '0' && lexer->end - p > 1) {
        char mark = p[1];
        base = mark == 'x' || mark == 'X' ? 16 : mark == 'b' || mark == 'B' ? 2 : 8;
        p += base == 8 ? 1 : 2;
    }
    uint64_t value = 0;
    bool overflow = false;
    for (; p < lexer->end; p++) {
        int digit = hex_value(*p);
        if (digit < 0 || (unsigned)digit >= base)
            break;
        overflow |= value > (UINT64_MAX - (uint64_t)digit) / base;
        value = value * base + (uint64_t)digit;
    }
    if (p < lexer->end && *p == 'U')
        p++;
    lexer->token.kind = overflow || (p < lexer->end && is_name(*p)) ? TOKEN_BAD : TOKEN_INT;
    lexer->token.bits = value;
    lexer->at = p;
}

static void lex_dot(struct lexer *lexer)
{
    const char *p = lexer->at + 1;
    while (p < lexer->end) {
        if (is_name(*p))
            p++;
        else if (lexer->end - p > 2 && p[0] == ':' && p[1] == ':' && is_name(p[2]))
            p += 2;
        else
            break;
    }
    lexer->token.kind = p == lexer->at + 1 ? TOKEN_BAD : TOKEN_DOT;
    lexer->at = p;
}

static void lex_string(struct lexer *lexer)
{
    const char *p = lexer->at + 1;
    while (p < lexer->end && *p != '"' && *p != '\n')
        p++;
    lexer->token.kind = p < lexer->end && *p == '"' ? TOKEN_STRING : TOKEN_BAD;
    lexer->at = p < lexer->end ? p + 1 : p;
}

void lex_next(struct lexer *lexer)
{
    skip_blank(lexer);
    lexer->token = (struct token){.kind = TOKEN_END, .text = lexer->at};
    if (lexer->at >= lexer->end || *lexer->at == 0) {
        lexer->at = lexer->end;
        return;
    }
    char c = *lexer->at;
    if (is_digit(c)) {
        if (!lex_float_bits(lexer) && !lex_decimal_float(lexer))
            lex_integer(lexer);
    } else if (is_letter(c) || c == '$' || c == '%') {
        lexer->token.kind = TOKEN_WORD;
        lexer->at++;
        while (lexer->at < lexer->end && is_name(*lexer->at))
            lexer->at++;
    } else if (c == '.') {
        lex_dot(lexer);
    } else if (c == '"') {
        lex_string(lexer);
    } else {
        lexer->token.kind = TOKEN_PUNCT;
        lexer->token.punct = c;
        lexer->at++;
    }
    lexer->token.length = (size_t)(lexer->at - lexer->token.text);
}

void lex_start(struct lexer *lexer, const char *text, size_t length)
{
    *lexer = (struct lexer){.at = text, .end = text + length, .line = 1};
    lex_next(lexer);
}

bool token_is(const struct token *token, const char *text)
{
    size_t length = strlen(text);
    return token->length == length && memcmp(token->text, text, length) == 0;
}
