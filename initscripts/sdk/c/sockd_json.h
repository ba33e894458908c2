/* sockd_json.h: fields of a JSON text, found by their path without parsing the whole. Part of sockd_text.h's contract. */

#ifndef SOCKD_JSON_H
#define SOCKD_JSON_H

#include "sockd_text.h"

SOCKD_FN const char *sockd_json_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

/* From the opening quote to behind the closing one; 0 if there is none. */
SOCKD_FN const char *sockd_json_skip_string(const char *p, const char *end) {
    for (p++; p < end; p++) {
        if (*p == '"') return p + 1;
        if (*p == '\\') p++;
    }
    return 0;
}

/* From the first byte of a value to behind its last; 0 if it does not end. */
SOCKD_FN const char *sockd_json_skip(const char *p, const char *end) {
    const char *begin = p;
    uint32_t depth = 0;
    while (p && p < end) {
        if (*p == '"') {
            p = sockd_json_skip_string(p, end);
        } else if (*p == '{' || *p == '[') {
            depth++, p++;
            continue;
        } else if (*p == '}' || *p == ']') {
            if (!depth) break;
            depth--, p++;
        } else if (depth) {
            p++;
            continue;
        } else if (*p == ',' || *p == ':' || *p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') {
            break;
        } else {
            p++;
            continue; /* within a number or a word */
        }
        if (!depth) return p;
    }
    return p && !depth && p > begin ? p : 0;
}

/* The text of a JSON string without its quotes and escapes; SOCKD_NONE if it is no string, or a malformed one. */
SOCKD_FN sockd_str sockd_json_text(sockd_str value) {
    if (!value.ptr || value.len < 2 || value.ptr[0] != '"' || value.ptr[value.len - 1] != '"') return SOCKD_NONE;
    const char *p = value.ptr + 1, *end = value.ptr + value.len - 1;
    while (p < end && *p != '\\') p++;
    if (p == end) return (sockd_str){value.ptr + 1, value.len - 2};
    sockd_builder b = {0};
    for (p = value.ptr + 1; p < end; p++) {
        if (*p != '\\') {
            sockd_put_char(&b, *p);
            continue;
        }
        if (++p == end) return SOCKD_NONE;
        static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        uint32_t i = 0;
        while (i < 8 && escapes[i] != *p) i++;
        if (i < 8) {
            sockd_put_char(&b, meant[i]);
            continue;
        }
        uint32_t units[2] = {0, 0};
        for (int unit = 0; unit < 2; unit++) {
            if (*p != 'u' || end - p < 5) return SOCKD_NONE;
            for (int digit = 1; digit <= 4; digit++) {
                if (sockd_hex(p[digit]) < 0) return SOCKD_NONE;
                units[unit] = units[unit] << 4 | (uint32_t)sockd_hex(p[digit]);
            }
            p += 4;
            /* Above 16 bits a character is written as two escapes, of which the first is one of d800 to dbff. */
            if (unit || units[0] < 0xd800 || units[0] > 0xdbff) break;
            if (end - p < 3 || p[1] != '\\') return SOCKD_NONE;
            p += 2;
        }
        if (units[1] && (units[1] < 0xdc00 || units[1] > 0xdfff)) return SOCKD_NONE;
        sockd_put_code(&b, units[1] ? 0x10000 + ((units[0] - 0xd800) << 10) + (units[1] - 0xdc00) : units[0]);
    }
    return sockd_built(&b);
}

/* Take the next element off an array: sockd_str rest = sockd_json_find(event, "shards"), one;
 * while (sockd_json_next(&rest, &one)) ...   Ends at the array's end, and at the first malformed element. */
SOCKD_FN int sockd_json_next(sockd_str *rest, sockd_str *element) {
    const char *p = rest->ptr, *end = rest->ptr + rest->len;
    if (!p || p >= end || (*p != '[' && *p != ',')) return 0;
    p = sockd_json_space(p + 1, end);
    const char *behind = p < end && *p != ']' ? sockd_json_skip(p, end) : 0;
    if (!behind) return 0;
    *element = (sockd_str){p, (uint32_t)(behind - p)};
    p = sockd_json_space(behind, end);
    *rest = (sockd_str){p, (uint32_t)(end - p)};
    return 1;
}

/* The member of an object, or element of an array, that one part of a path names. Of equal names the last, as Python. */
SOCKD_FN sockd_str sockd_json_member(sockd_str value, sockd_str name) {
    sockd_str found = SOCKD_NONE;
    if (!value.ptr || !value.len) return found;
    const char *p = value.ptr, *end = p + value.len;
    if (*p == '[') {
        uint64_t index = 0;
        for (uint32_t i = 0; i < name.len; i++) {
            if (name.ptr[i] < '0' || name.ptr[i] > '9' || i > 9) return found;
            index = index * 10 + (uint64_t)(name.ptr[i] - '0');
        }
        for (sockd_str one; name.len && sockd_json_next(&value, &one); index--)
            if (!index) return one;
        return found;
    }
    if (*p != '{') return found;
    while (p < end && (*p == '{' || *p == ',')) {
        p = sockd_json_space(p + 1, end);
        if (p >= end || *p != '"') break;
        const char *behind = sockd_json_skip_string(p, end);
        if (!behind) return SOCKD_NONE;
        sockd_str key = sockd_json_text((sockd_str){p, (uint32_t)(behind - p)});
        p = sockd_json_space(behind, end);
        if (p >= end || *p != ':') return SOCKD_NONE;
        p = sockd_json_space(p + 1, end);
        behind = p < end ? sockd_json_skip(p, end) : 0;
        if (!behind) return SOCKD_NONE;
        if (sockd_equal(key, name)) found = (sockd_str){p, (uint32_t)(behind - p)};
        p = sockd_json_space(behind, end);
    }
    return p < end && *p == '}' ? found : SOCKD_NONE;
}

/* The value at a path such as "object.key" or "records.0.name", as it is written; a "\\" before a dot makes it part of
 * a name. "" is the whole. SOCKD_NONE if there is no such value. */
SOCKD_FN sockd_str sockd_json_find(sockd_str json, const char *path) {
    if (!json.ptr) return SOCKD_NONE;
    const char *end = json.ptr + json.len, *begin = sockd_json_space(json.ptr, end);
    const char *behind = begin < end ? sockd_json_skip(begin, end) : 0;
    if (!behind) return SOCKD_NONE;
    sockd_str value = {begin, (uint32_t)(behind - begin)};
    while (*path) {
        sockd_builder name = {0};
        for (; *path && *path != '.'; path++) {
            if (*path == '\\' && path[1]) path++;
            sockd_put_char(&name, *path);
        }
        value = sockd_json_member(value, sockd_built(&name));
        if (*path) path++;
    }
    return value;
}

/* The string at a path, decoded; of a number its digits, as they are written. */
SOCKD_FN sockd_str sockd_json_string(sockd_str json, const char *path) {
    sockd_str value = sockd_json_find(json, path);
    int number = value.ptr && (*value.ptr == '-' || (*value.ptr >= '0' && *value.ptr <= '9'));
    return number ? value : sockd_json_text(value);
}

/* The integer at a path; `otherwise` where there is none, or one that needs more than 18 digits. */
SOCKD_FN int64_t sockd_json_int(sockd_str json, const char *path, int64_t otherwise) {
    sockd_str value = sockd_json_find(json, path);
    int negative = value.len && value.ptr[0] == '-';
    int64_t number = 0;
    if (value.len <= (uint32_t)negative || value.len > 18) return otherwise;
    for (uint32_t i = (uint32_t)negative; i < value.len; i++) {
        if (value.ptr[i] < '0' || value.ptr[i] > '9') return otherwise;
        number = number * 10 + (value.ptr[i] - '0');
    }
    return negative ? -number : number;
}

#endif
