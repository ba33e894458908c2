/* sockd_s3.h: S3 requests in one line, and passing their replies on to the function. Includes all the others.
 *
 * `index` is always the number of the function's storage read: see "Naming" in sockd_init.h. A request that is made of
 * a field that the event lacks is not sent, and its reply not passed on: the function goes to the network for it. */

#ifndef SOCKD_S3_H
#define SOCKD_S3_H

#include "sockd_json.h"

SOCKD_FN int32_t sockd_open(sockd_str address) {
    return address.ptr ? sockd_connect(address.ptr, address.len) : -SOCKD_EINVAL;
}

SOCKD_FN int32_t sockd_send(int32_t conn, int64_t index, sockd_str method, sockd_str body) {
    if (!method.ptr || !body.ptr) return -SOCKD_EINVAL;
    return sockd_send_rpc(conn, index, method.ptr, method.len, body.ptr, body.len);
}

/* {"bucket":...,name:...} and, where it is there, {more_name: more} as well. Names are literals that need no escapes. */
SOCKD_FN sockd_str sockd_s3_body(sockd_str bucket, sockd_str name, sockd_str value, sockd_str more_name,
                                      sockd_str more) {
    sockd_builder b = {0};
    sockd_put(&b, SOCKD_STR("{\"bucket\":"));
    sockd_put_json(&b, bucket);
    sockd_put(&b, SOCKD_STR(",\""));
    sockd_put(&b, name);
    sockd_put(&b, SOCKD_STR("\":"));
    sockd_put_json(&b, value);
    if (more.ptr) {
        sockd_put(&b, SOCKD_STR(",\""));
        sockd_put(&b, more_name);
        sockd_put(&b, SOCKD_STR("\":"));
        sockd_put_json(&b, more);
    }
    sockd_put_char(&b, '}');
    return sockd_built(&b);
}

SOCKD_FN int32_t sockd_s3_get(int32_t s3, int64_t index, sockd_str bucket, sockd_str key) {
    sockd_str body = sockd_s3_body(bucket, SOCKD_STR("key"), key, SOCKD_NONE, SOCKD_NONE);
    return sockd_send(s3, index, SOCKD_STR("GetObject"), body);
}

/* A part of an object: a range as HTTP has it, "bytes=0-99" or "bytes=-500". */
SOCKD_FN int32_t sockd_s3_get_range(int32_t s3, int64_t index, sockd_str bucket, sockd_str key, sockd_str range) {
    sockd_str body = range.ptr ? sockd_s3_body(bucket, SOCKD_STR("key"), key, SOCKD_STR("range"), range) : SOCKD_NONE;
    return sockd_send(s3, index, SOCKD_STR("GetObject"), body);
}

SOCKD_FN int32_t sockd_s3_head(int32_t s3, int64_t index, sockd_str bucket, sockd_str key) {
    sockd_str body = sockd_s3_body(bucket, SOCKD_STR("key"), key, SOCKD_NONE, SOCKD_NONE);
    return sockd_send(s3, index, SOCKD_STR("HeadObject"), body);
}

/* One page of a list; `continuation` is SOCKD_NONE for the first. */
SOCKD_FN int32_t sockd_s3_list(int32_t s3, int64_t index, sockd_str bucket, sockd_str prefix,
                                    sockd_str continuation) {
    sockd_str body = sockd_s3_body(bucket, SOCKD_STR("prefix"), prefix, SOCKD_STR("continuation"), continuation);
    return sockd_send(s3, index, SOCKD_STR("ListObjectsV2"), body);
}

/* A page of a list by all that can be asked for; an empty text stands for what is not. */
SOCKD_FN int32_t sockd_s3_list_page(int32_t s3, int64_t index, sockd_str bucket, sockd_str prefix,
                                         sockd_str continuation, sockd_str delimiter, sockd_str max_keys,
                                         sockd_str start_after) {
    const struct {
        sockd_str name, value;
    } fields[] = {{SOCKD_STR("{\"bucket\":"), bucket},
                  {SOCKD_STR(",\"prefix\":"), prefix},
                  {SOCKD_STR(",\"continuation\":"), continuation},
                  {SOCKD_STR(",\"delimiter\":"), delimiter},
                  {SOCKD_STR(",\"max_keys\":"), max_keys},
                  {SOCKD_STR(",\"start_after\":"), start_after}};
    sockd_builder b = {0};
    for (uint32_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        sockd_put(&b, fields[i].name);
        sockd_put_json(&b, fields[i].value);
    }
    sockd_put_char(&b, '}');
    return sockd_send(s3, index, SOCKD_STR("ListObjectsV2"), sockd_built(&b));
}

/* Wait for the reply of an RPC that has another number than the read, and pass it on as that read. */
SOCKD_FN int32_t sockd_pass_as(int32_t conn, int64_t rpc_id, int64_t index) {
    sockd_reply reply;
    int32_t failed = sockd_recv_rpc_reply(conn, rpc_id, &reply);
    return failed ? failed : sockd_send_msg(index, reply.handle, 0, (int64_t)reply.len);
}

/* Wait for a reply and pass it on; `reply` is filled in for a caller that wants to look at it. Answers 0 or -errno. */
SOCKD_FN int32_t sockd_pass_reply(int32_t conn, int64_t index, sockd_reply *reply) {
    int32_t failed = sockd_recv_rpc_reply(conn, index, reply);
    return failed ? failed : sockd_send_msg(index, reply->handle, 0, (int64_t)reply->len);
}

SOCKD_FN int32_t sockd_pass(int32_t conn, int64_t index) {
    sockd_reply reply;
    return sockd_pass_reply(conn, index, &reply);
}

/* Pass on the replies of first, first + 1, ... up to but without `end`; one that failed stops none of the others. */
SOCKD_FN void sockd_pass_all(int32_t conn, int64_t first, int64_t end) {
    for (; first < end; first++) sockd_pass(conn, first);
}

/* ---- Lists */

/* Take the text of the next <name> element off an XML text, entities decoded; 0 when there is none left. */
SOCKD_FN int sockd_xml_next(sockd_str *rest, sockd_str name, sockd_str *text) {
    const char *p = rest->ptr, *end = rest->ptr + rest->len;
    for (; p && (uint64_t)(end - p) >= name.len + 2ull; p++) {
        if (*p != '<' || p[name.len + 1] != '>' || !sockd_equal((sockd_str){p + 1, name.len}, name)) continue;
        sockd_builder b = {0};
        for (p += name.len + 2; p < end && *p != '<'; p++) {
            const char *entity = p + 1, *semicolon = entity;
            while (*p == '&' && semicolon < end && semicolon - entity < 10 && *semicolon != ';') semicolon++;
            if (*p != '&' || semicolon == end || *semicolon != ';') {
                sockd_put_char(&b, *p);
                continue;
            }
            static const struct {
                char name[5], meant;
            } known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
            uint32_t len = (uint32_t)(semicolon - entity), code = 0;
            for (uint32_t i = 0; i < sizeof known / sizeof known[0]; i++) {
                uint32_t same = 0;
                while (same < 4 && known[i].name[same] && same < len && known[i].name[same] == entity[same]) same++;
                if (same == len && !known[i].name[same]) code = (unsigned char)known[i].meant;
            }
            if (len > 1 && *entity == '#') { /* &#13; or &#xd; */
                uint32_t hex = entity[1] == 'x', base = hex ? 16 : 10;
                for (uint32_t i = 1 + hex; i < len; i++) {
                    int digit = sockd_hex(entity[i]);
                    code = digit < 0 || digit >= (int)base || code > 0x10ffff ? 0x110000 : code * base + (uint32_t)digit;
                }
            }
            if (code) sockd_put_code(&b, code);
            else b.failed = 1;
            p = semicolon;
        }
        if (p == end) return 0;
        *text = sockd_built(&b);
        *rest = (sockd_str){p, (uint32_t)(end - p)};
        return 1;
    }
    return 0;
}

/* The rest of a directory, whose LIST was sent as `index`: wait for it, pass it on, and likewise all further pages, as
 * index + 1, ...; then send a GET of each listed key under the numbers behind those. Answers the GETs' numbers, from
 * `first` up to but without `end`; their replies are for the caller to pass on. */
typedef struct sockd_listed {
    int64_t first, end;
} sockd_listed;

SOCKD_FN sockd_listed sockd_s3_get_listed(int32_t s3, int64_t index, sockd_str bucket, sockd_str prefix) {
    struct page {
        sockd_str text;
        struct page *next;
    } *first = 0, **last = &first;
    sockd_str continuation, key;
    sockd_reply reply;
    int whole;
    do {
        if (sockd_pass_reply(s3, index++, &reply) || reply.status != 200) break;
        struct page *page = sockd_alloc(sizeof *page);
        if (!page) break;
        *page = (struct page){sockd_read(reply), 0};
        *last = page;
        last = &page->next;
        sockd_str rest = page->text;
        whole = !sockd_xml_next(&rest, SOCKD_STR("NextContinuationToken"), &continuation);
    } while (!whole && !sockd_s3_list(s3, index, bucket, prefix, continuation));

    sockd_listed gets = {index, index};
    for (; first; first = first->next)
        while (sockd_xml_next(&first->text, SOCKD_STR("Key"), &key))
            if (sockd_s3_get(s3, gets.end++, bucket, key) == -SOCKD_EDQUOT) return gets;
    return gets;
}

#endif
