/* sockd_app.h: what the initscript of a program has for it: messages, files, connections. For programs behind the Runtime API
 * and in container images, in C or C++. It needs nothing but this file, Linux and the C library; include it before other headers.
 *
 *     sockd_app app;
 *     sockd_message model;
 *     if (sockd_app_open(&app) == 0 && sockd_app_receive(&app, 0, 1000, &model) == 0)
 *         load(model.data, model.length);   // memory that the engine has received into: nothing is copied
 *     else
 *         load_from_network();              // as without a script
 *
 * There is a script for the first request of a new sandbox only. Until that is answered, a message can be asked for as often as
 * one likes; afterwards the answer is -EPIPE. Memory and descriptors that were given out stay valid.
 *
 * Results: 0 or more, or a negative errno. -ENOENT: this start has no script. -ENOMSG: the script has ended, or its request has
 * failed, without it. -ETIMEDOUT. -EPIPE: the first answer is out, or the engine is gone. -EPROTO: the engine broke the protocol.
 * Whatever it is, the program does the work itself: a script can make a start faster, and nothing else.
 *
 * A message is what the script has got when it asked. Read what the program may have changed itself from its source.
 * One thread at a time uses a sockd_app. Functions are static: each source file that includes this has its own. */

#ifndef SOCKD_APP_H
#define SOCKD_APP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SOCKD_APP_FN static __attribute__((unused))
#define SOCKD_APP_DATAGRAM (64 * 1024)
#define SOCKD_APP_PAYLOAD (32 * 1024) /* bytes of a message to the script */

/* A message of the script. */
typedef struct sockd_message {
    const void *data; /* read-only memory; valid as long as the process */
    size_t length;    /* bytes */
    int status;       /* of the reply that it is: an HTTP status, a gRPC status; 0 for what the script has made itself */
    const char *head; /* for sockd_app_header; valid until sockd_app_close */
} sockd_message;

/* Something that has come. */
typedef struct sockd_app_entry {
    struct sockd_app_entry *next;
    char *head; /* the datagram, which is JSON */
    uint64_t id;
    char kind; /* 'm'essage, 'f'ile, 'c'onnection, e'x'cuse */
    int fd;    /* of a file or connection */
    int given; /* a sockd_message points to the datagram */
    struct sockd_app_segment *segment;
    size_t offset, length;
} sockd_app_entry;

/* A piece of the engine's memory; several messages may lie in it. */
typedef struct sockd_app_segment {
    struct sockd_app_segment *next;
    long long index;
    int fd; /* until it is mapped */
    size_t size;
    char *map;
} sockd_app_segment;

typedef struct sockd_app {
    int fd;
    int has_ended; /* the script sends nothing more */
    int gone;      /* the errno of every later call, or 0 */
    sockd_app_entry *entries;
    sockd_app_segment *segments;
} sockd_app;

/* ---- The engine's JSON: one object without blanks, in ASCII */

/* The end of the value that begins here; 0 if there is none. */
SOCKD_APP_FN const char *sockd_app_skip(const char *p) {
    int depth = 0, quoted = 0;
    for (; *p; p++) {
        if (quoted) {
            if (*p == '\\' && !*++p) return 0;
            else if (*p == '"') quoted = 0;
        } else if (*p == '"') quoted = 1;
        else if (*p == '{' || *p == '[') depth++;
        else if (*p == '}' || *p == ']') {
            if (!depth--) return p;
        } else if (*p == ',' && !depth) return p;
    }
    return 0;
}

/* The value of a member; 0 if there is none. The name has no character that JSON escapes. */
SOCKD_APP_FN const char *sockd_app_member(const char *object, const char *name) {
    size_t length = strlen(name);
    const char *p = object;
    while (p && (*p == '{' || *p == ',') && p[1] == '"') {
        const char *key = p + 2, *end = key;
        while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
        if (*end != '"' || end[1] != ':') return 0;
        if ((size_t)(end - key) == length && !memcmp(key, name, length)) return end + 2;
        p = sockd_app_skip(end + 2);
    }
    return 0;
}

/* A member that is a whole number, not negative; `otherwise` if it is not there or something else. */
SOCKD_APP_FN uint64_t sockd_app_number(const char *object, const char *name, uint64_t otherwise) {
    const char *value = sockd_app_member(object, name);
    return value && *value >= '0' && *value <= '9' ? strtoull(value, 0, 10) : otherwise;
}

/* Decode a string, with a zero byte at its end as far as there is room; its length without it. */
SOCKD_APP_FN long sockd_app_text(const char *value, char *to, size_t room) {
    size_t length = 0;
    if (!value || *value != '"') return -ENOENT;
    while (*++value && *value != '"') {
        unsigned code = (unsigned char)*value;
        if (code == '\\') {
            static const char escapes[] = "b\bf\fn\nr\rt\t";
            const char *found = strchr(escapes, *++value);
            if (!*value) return -EPROTO;
            if (*value == 'u') {
                if (sscanf(value + 1, "%4x", &code) != 1) return -EPROTO;
                value += 4;
            } else code = (unsigned char)(found ? found[1] : *value);
        }
        if (length + 1 < room) to[length] = (char)code; /* headers are latin-1 */
        length++;
    }
    if (room) to[length < room ? length : room - 1] = 0;
    return (long)length;
}

/* ---- What comes */

/* Nothing can be asked for any more: drop what was not given out. all: and what sockd_app_header would look at. */
SOCKD_APP_FN void sockd_app_forget(sockd_app *app, int all) {
    sockd_app_entry **at = &app->entries, *entry;
    sockd_app_segment *segment;
    while ((entry = *at)) {
        if (entry->given && !all) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        if (entry->fd >= 0) close(entry->fd);
        free(entry->head);
        free(entry);
    }
    while ((segment = app->segments)) {
        app->segments = segment->next;
        if (segment->fd >= 0) close(segment->fd);
        free(segment);
    }
}

SOCKD_APP_FN sockd_app_entry *sockd_app_find(const sockd_app *app, char kind, uint64_t id) {
    sockd_app_entry *entry = app->entries;
    while (entry && (entry->kind != kind || entry->id != id)) entry = entry->next;
    return entry;
}

/* The segment that a message lies in; 0 if the message is wrong. A new one has its descriptor with it, which is taken. */
SOCKD_APP_FN sockd_app_segment *sockd_app_segment_of(sockd_app *app, const char *head, int *fd) {
    const uint64_t none = UINT64_MAX;
    uint64_t index = sockd_app_number(head, "segment", none), size = sockd_app_number(head, "size", none);
    sockd_app_segment *segment = app->segments;
    struct stat file;
    while (segment && segment->index != (long long)index) segment = segment->next;
    if (segment || index == none || *fd < 0 || fstat(*fd, &file) || (uint64_t)file.st_size < size) return segment;
    segment = (sockd_app_segment *)calloc(1, sizeof *segment);
    if (!segment) return 0;
    segment->next = app->segments;
    segment->index = (long long)index;
    segment->size = (size_t)size;
    segment->fd = *fd;
    *fd = -1;
    return app->segments = segment;
}

/* Take in a datagram; 0, or a negative errno. A descriptor that is kept is taken out of `fd`. */
SOCKD_APP_FN int sockd_app_file(sockd_app *app, const char *head, int *fd) {
    char operation[16];
    sockd_app_entry entry = {0, 0, 0, 0, -1, 0, 0, 0, 0}, *kept;
    if (sockd_app_text(sockd_app_member(head, "op"), operation, sizeof operation) < 0) return -EPROTO;
    if (!strcmp(operation, "end")) app->has_ended = 1;
    else if (!strcmp(operation, "message")) entry.kind = 'm';
    else if (!strcmp(operation, "file")) entry.kind = 'f';
    else if (!strcmp(operation, "connection")) entry.kind = 'c';
    else if (!strcmp(operation, "failed")) entry.kind = 'x';
    if (!entry.kind) return 0;
    entry.id = sockd_app_number(head, "id", 0);
    entry.length = (size_t)sockd_app_number(head, "length", 0);
    entry.offset = (size_t)sockd_app_number(head, "offset", 0);
    if (entry.kind == 'm' && entry.length) {
        entry.segment = sockd_app_segment_of(app, head, fd);
        if (!entry.segment || entry.length > entry.segment->size || entry.offset > entry.segment->size - entry.length)
            return -EPROTO;
    } else if (entry.kind == 'f' || entry.kind == 'c') {
        if (*fd < 0) return -EPROTO;
        entry.fd = *fd;
    }
    if (sockd_app_find(app, entry.kind, entry.id)) return 0; /* the first one counts */
    kept = (sockd_app_entry *)malloc(sizeof *kept);
    entry.head = (char *)malloc(strlen(head) + 1);
    if (!kept || !entry.head) {
        free(kept);
        free(entry.head);
        return -ENOMEM;
    }
    strcpy(entry.head, head);
    if (entry.fd >= 0) *fd = -1;
    entry.next = app->entries;
    *kept = entry;
    app->entries = kept;
    return 0;
}

/* Take in one datagram, if there is one: 1; 0: there is none now; or a negative errno, which is that of every later call. */
SOCKD_APP_FN int sockd_app_hear(sockd_app *app) {
    static const size_t room = SOCKD_APP_DATAGRAM;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part;
    struct msghdr message;
    struct cmsghdr *header;
    char *data = (char *)malloc(room + 1), *newline;
    ssize_t length;
    int fd = -1, result = 1;
    if (!data) return -ENOMEM;
    part.iov_base = data;
    part.iov_len = room;
    memset(&message, 0, sizeof message);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    do length = recvmsg(app->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (length < 0 && (errno == EINTR || errno == ECONNRESET));
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        free(data);
        return 0;
    }
    if (length <= 0) result = -EPIPE;
    else {
        header = CMSG_FIRSTHDR(&message);
        if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(header), sizeof fd);
        data[length] = 0;
        newline = (char *)memchr(data, '\n', (size_t)length);
        if (newline) *newline = 0;
        if (!newline || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) result = -EPROTO;
        else if (sockd_app_file(app, data, &fd) < 0) result = -EPROTO;
    }
    if (fd >= 0) close(fd);
    free(data);
    if (result < 0) {
        app->gone = result;
        sockd_app_forget(app, 0);
    }
    return result;
}

/* Nanoseconds of the trace's clock. */
SOCKD_APP_FN uint64_t sockd_app_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Wait for something; it stays. 0, or a negative errno. */
SOCKD_APP_FN int sockd_app_wait(sockd_app *app, char kind, uint64_t id, int timeout_ms, sockd_app_entry **found) {
    uint64_t until = sockd_app_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
    for (;;) {
        int heard = 1;
        struct pollfd readable = {app->fd, POLLIN, 0};
        uint64_t now;
        while (heard > 0 && !app->gone) heard = sockd_app_hear(app);
        if (app->gone) return app->gone;
        if (heard < 0) return heard;
        if ((*found = sockd_app_find(app, kind, id))) return 0;
        if (app->has_ended || (kind == 'm' && sockd_app_find(app, 'x', id))) return -ENOMSG;
        now = sockd_app_now_ns();
        if (timeout_ms >= 0 && now >= until) return -ETIMEDOUT;
        if (poll(&readable, 1, timeout_ms < 0 ? -1 : (int)((until - now + 999999u) / 1000000u)) < 0 && errno != EINTR)
            return -errno;
    }
}

/* Wait for something that is a descriptor, and take it. It, or a negative errno. */
SOCKD_APP_FN int sockd_app_take(sockd_app *app, char kind, uint64_t id, int timeout_ms) {
    sockd_app_entry *entry;
    int fd, result = sockd_app_wait(app, kind, id, timeout_ms, &entry);
    if (result < 0) return result;
    fd = entry->fd;
    entry->fd = -1;
    entry->kind = 0;
    return fd;
}

/* ---- The interface */

/* Find the link of this start. -ENOENT: there is none. Children do not inherit it. */
SOCKD_APP_FN int sockd_app_open(sockd_app *app) {
    const char *variable = getenv("SOCKD_INITSCRIPT_FD");
    unsigned long long inode;
    struct stat file;
    memset(app, 0, sizeof *app);
    app->gone = -ENOENT;
    app->fd = -1;
    if (!variable || sscanf(variable, "%d:%llu", &app->fd, &inode) != 2) return app->gone;
    if (fstat(app->fd, &file) || !S_ISSOCK(file.st_mode) || file.st_ino != inode) return app->gone;
    fcntl(app->fd, F_SETFD, FD_CLOEXEC);
    return app->gone = 0;
}

/* Wait for a message; asked again, it is the same one. timeout_ms: a negative one waits for ever. A failure leaves it empty. */
SOCKD_APP_FN int sockd_app_receive(sockd_app *app, uint64_t id, int timeout_ms, sockd_message *message) {
    sockd_app_entry *entry;
    sockd_app_segment *segment;
    int result = sockd_app_wait(app, 'm', id, timeout_ms, &entry);
    message->data = message->head = "";
    message->length = 0;
    message->status = 0;
    if (result < 0) return result;
    segment = entry->segment;
    if (segment && !segment->map) {
        void *map = mmap(0, segment->size, PROT_READ, MAP_SHARED, segment->fd, 0);
        if (map == MAP_FAILED) return -errno;
        segment->map = (char *)map;
        close(segment->fd);
        segment->fd = -1;
    }
    if (segment) message->data = segment->map + entry->offset;
    message->length = entry->length;
    message->status = (int)sockd_app_number(entry->head, "status", 0);
    message->head = entry->head;
    entry->given = 1;
    return 0;
}

/* A header of a reply of S3, by its name in lower case: its length, and as much of it as there is room for, with a zero byte.
 * -ENOENT: there is none. */
SOCKD_APP_FN long sockd_app_header(const sockd_message *message, const char *name, char *to, size_t room) {
    const char *headers = sockd_app_member(message->head, "headers");
    return headers ? sockd_app_text(sockd_app_member(headers, name), to, room) : -ENOENT;
}

/* Wait for a file of the script: a descriptor, the caller's, of a file in memory that no other process has. It may be written to,
 * made longer and mapped as one likes; /proc/self/fd/N is its path. Given once; children do not inherit it. */
SOCKD_APP_FN int sockd_app_receive_file(sockd_app *app, uint64_t id, int timeout_ms) {
    return sockd_app_take(app, 'f', id, timeout_ms);
}

/* Wait for a connection of the script: a stream socket, the caller's. Given once; children do not inherit it. */
SOCKD_APP_FN int sockd_app_get_connection(sockd_app *app, uint64_t id, int timeout_ms) {
    return sockd_app_take(app, 'c', id, timeout_ms);
}

/* Send the script a message. -EMSGSIZE: over SOCKD_APP_PAYLOAD bytes. -EAGAIN: the engine takes none now. */
SOCKD_APP_FN int sockd_app_send(sockd_app *app, uint64_t id, const void *data, size_t length) {
    char head[64];
    struct iovec parts[2];
    struct msghdr message;
    if (app->gone) return app->gone;
    if (length > SOCKD_APP_PAYLOAD) return -EMSGSIZE;
    memset(&message, 0, sizeof message);
    parts[0].iov_base = head;
    parts[0].iov_len = (size_t)sprintf(head, "{\"op\":\"message\",\"id\":%llu}\n", (unsigned long long)id);
    parts[1].iov_base = (void *)data;
    parts[1].iov_len = length;
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    return sendmsg(app->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Tell the trace of a read: what was asked for, as the engine names it ({"s3.GetObject", bucket, key, 0}), from where it came
 * ("region" or "network"), and from when to when by sockd_app_now_ns. Never waits: what cannot be sent at once is dropped. */
SOCKD_APP_FN void sockd_app_report(sockd_app *app, const char *const *rpc, const char *served, uint64_t start_ns,
                                   uint64_t end_ns) {
    char text[8192], *p = text, *end = text + sizeof text - 256;
    if (app->gone) return;
    p += sprintf(p, "{\"op\":\"read\",\"rpc\":[");
    for (size_t n = 0; rpc[n]; n++) {
        p += sprintf(p, n ? ",\"" : "\"");
        for (const char *c = rpc[n]; *c; c++) {
            if (p >= end) return;
            if ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\') p += sprintf(p, "\\u%04x", (unsigned)(unsigned char)*c);
            else *p++ = *c;
        }
        *p++ = '"';
    }
    p += sprintf(p, "],\"served\":\"%s\",\"start_ns\":%llu,\"end_ns\":%llu,\"why\":\"\"}\n",
                 strcmp(served, "region") ? "network" : "region", (unsigned long long)start_ns, (unsigned long long)end_ns);
    if (send(app->fd, text, (size_t)(p - text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

/* End the link. Memory, files and connections that were given out stay. */
SOCKD_APP_FN void sockd_app_close(sockd_app *app) {
    sockd_app_forget(app, 1);
    if (app->fd >= 0 && app->gone != -ENOENT) close(app->fd);
    app->fd = -1;
    app->gone = -EPIPE;
}

#endif
