/* sockd_text.h: strings, JSON and XML for initscripts, as far as an initscript needs them; for one source file.
 *
 * Owns: the memory behind the program's own, which is given out and never taken back: a run is short.
 * A string that is not there (a field that the event lacks, memory that is used up) is SOCKD_NONE, and whatever is made
 * of it is SOCKD_NONE, too; so a script checks once, where it sends, and sockd_s3.h does that for it.
 * Nothing here trusts its input: malformed text gives SOCKD_NONE, nothing recurses, nothing is read past the end. */

#ifndef SOCKD_TEXT_H
#define SOCKD_TEXT_H

#include "sockd_init.h"

/* Without a hint to inline, which would double the size of a module; a script need not use all of them. */
#define SOCKD_FN static __attribute__((unused))

/* UTF-8 that ends where it says and not at a zero byte. */
typedef struct sockd_str {
    const char *ptr; /* 0: not there */
    uint32_t len;
} sockd_str;

#define SOCKD_NONE ((sockd_str){0, 0})
#define SOCKD_STR(literal) ((sockd_str){"" literal, sizeof(literal) - 1})

SOCKD_FN int sockd_equal(sockd_str a, sockd_str b) {
    if (!a.ptr || !b.ptr || a.len != b.len) return 0;
    for (uint32_t i = 0; i < a.len; i++)
        if (a.ptr[i] != b.ptr[i]) return 0;
    return 1;
}

/* ---- Memory */

extern unsigned char __heap_base; /* the linker's: where the program's own data ends */

/* Memory that is never given back; 0 when the function's budget for initscripts is used up. */
SOCKD_FN void *sockd_alloc(uint64_t size) {
    static uint64_t next;
    uint64_t start = (next ? next : (uint64_t)(uintptr_t)&__heap_base) + 7 & ~7ull;
    uint64_t have = (uint64_t)__builtin_wasm_memory_size(0) << 16;
    if (size > 1ull << 32 || start + size > 1ull << 32) return 0;
    if (start + size > have) {
        uint64_t pages = (start + size - have + 0xffff) >> 16;
        if (__builtin_wasm_memory_grow(0, pages) == (__SIZE_TYPE__)-1) return 0;
    }
    next = start + size;
    return (void *)(uintptr_t)start;
}

/* The invocation's event, or the function's fixed args. */
SOCKD_FN sockd_str sockd_input(void) {
    int32_t len = sockd_input_len();
    char *copy = len < 0 ? 0 : sockd_alloc((uint32_t)len);
    if (!copy || sockd_input_read(0, copy, (uint32_t)len) != len) return SOCKD_NONE;
    return (sockd_str){copy, (uint32_t)len};
}

/* The bytes of a reply or message, copied into the script's memory: for what the script itself has to read. */
SOCKD_FN sockd_str sockd_read(sockd_reply reply) {
    char *copy = reply.len > INT32_MAX ? 0 : sockd_alloc(reply.len);
    if (!copy || sockd_buf_read(reply.handle, 0, copy, (uint32_t)reply.len) != (int32_t)reply.len) return SOCKD_NONE;
    return (sockd_str){copy, (uint32_t)reply.len};
}

/* ---- Building text: sockd_builder b = {0}; sockd_put(&b, ...); ...; sockd_str text = sockd_built(&b); */

typedef struct sockd_builder {
    char *ptr;
    uint32_t len, room;
    int failed;
} sockd_builder;

SOCKD_FN void sockd_put_char(sockd_builder *b, char c) {
    if (b->len == b->room) {
        uint32_t room = b->room ? 2 * b->room : 64;
        char *larger = b->failed ? 0 : sockd_alloc(room);
        if (!larger) {
            b->failed = 1;
            return;
        }
        for (uint32_t i = 0; i < b->len; i++) larger[i] = b->ptr[i];
        b->ptr = larger;
        b->room = room;
    }
    b->ptr[b->len++] = c;
}

SOCKD_FN void sockd_put(sockd_builder *b, sockd_str text) {
    if (!text.ptr) b->failed = 1;
    for (uint32_t i = 0; i < text.len; i++) sockd_put_char(b, text.ptr[i]);
}

/* A string as JSON has it: quoted, and escaped where it must be. */
SOCKD_FN void sockd_put_json(sockd_builder *b, sockd_str text) {
    if (!text.ptr) b->failed = 1;
    sockd_put_char(b, '"');
    for (uint32_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c < 0x20) {
            sockd_put(b, SOCKD_STR("\\u00"));
            sockd_put_char(b, c & 0x10 ? '1' : '0');
            c = "0123456789abcdef"[c & 15];
        } else if (c == '"' || c == '\\') {
            sockd_put_char(b, '\\');
        }
        sockd_put_char(b, (char)c);
    }
    sockd_put_char(b, '"');
}

SOCKD_FN void sockd_put_int(sockd_builder *b, uint64_t number) {
    char digits[20];
    uint32_t n = 0;
    do digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    while (n) sockd_put_char(b, digits[--n]);
}

SOCKD_FN sockd_str sockd_built(const sockd_builder *b) {
    return b->failed ? SOCKD_NONE : (sockd_str){b->ptr ? b->ptr : "", b->len};
}

SOCKD_FN sockd_str sockd_concat_all(const sockd_str *parts, uint32_t count) {
    sockd_builder b = {0};
    for (uint32_t i = 0; i < count; i++) sockd_put(&b, parts[i]);
    return sockd_built(&b);
}

/* sockd_concat(a, b, ...): strings, one after the other. */
#define sockd_concat(...) \
    sockd_concat_all((sockd_str[]){__VA_ARGS__}, sizeof((sockd_str[]){__VA_ARGS__}) / sizeof(sockd_str))

/* A string as JSON has it, by itself. */
SOCKD_FN sockd_str sockd_quoted(sockd_str text) {
    sockd_builder b = {0};
    sockd_put_json(&b, text);
    return sockd_built(&b);
}

/* What os.path.join(a, b) gives: one "/" between them, and b alone if it begins with one. */
SOCKD_FN sockd_str sockd_join(sockd_str a, sockd_str b) {
    if (!a.ptr || !b.ptr) return SOCKD_NONE;
    if (!a.len || (b.len && b.ptr[0] == '/')) return b;
    return a.ptr[a.len - 1] == '/' ? sockd_concat(a, b) : sockd_concat(a, SOCKD_STR("/"), b);
}

SOCKD_FN int sockd_hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* What urllib.parse.unquote_plus gives: "+" is a space, "%41" is "A". */
SOCKD_FN sockd_str sockd_unquote_plus(sockd_str text) {
    sockd_builder b = {0};
    if (!text.ptr) return SOCKD_NONE;
    for (uint32_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        int high = -1, low = -1;
        if (c == '%' && text.len - i > 2) high = sockd_hex(text.ptr[i + 1]), low = sockd_hex(text.ptr[i + 2]);
        if (high >= 0 && low >= 0) c = (char)(high << 4 | low), i += 2;
        else if (c == '+') c = ' ';
        sockd_put_char(&b, c);
    }
    return sockd_built(&b);
}

/* One code point as UTF-8. */
SOCKD_FN void sockd_put_code(sockd_builder *b, uint32_t code) {
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        b->failed = 1;
        return;
    }
    if (code < 0x80) {
        sockd_put_char(b, (char)code);
        return;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    sockd_put_char(b, (char)(0xff00 >> (more + 1) | code >> 6 * more));
    while (more--) sockd_put_char(b, (char)(0x80 | (code >> 6 * more & 0x3f)));
}

#endif
