/* A vector database in C. Its vectors are searched where they are: in memory that the engine has received into, or that this
 * has fetched them into, by one request for STATE_URL, or in ranges over as many connections as STATE_CONNECTIONS says.
 *
 * GET /nearest/N answers with the number of the vector that is nearest to number N, which is N. */

#include "sockd_app.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>

#define DIMENSIONS 128
#define HOST "169.254.1.1" /* the host's loopback, as a sandbox with a private network reaches it */
#define FIRST_BYTES ((size_t)2 << 20) /* what is asked for first, of several ranges */
#define MOST_CONNECTIONS 16
#define WAIT_MS 30000

/* A request for the state, or a part of it. */
typedef struct request {
    char *to; /* where its bytes go */
    size_t start, end;
    int fd;
    char head[8192]; /* of the answer, and the first bytes of its body */
    size_t begun, body;
} request;

static void fail(const char *why) {
    perror(why);
    exit(1);
}

/* Ask for the bytes from `start` to `end`, or for all if `end` is 0. The length of the whole object. */
static size_t ask(request *part) {
    const char *url = getenv("STATE_URL"), *target, *port, *field;
    char text[4096], range[64] = "";
    struct sockaddr_in address = {.sin_family = AF_INET};
    size_t length = 0;
    if (!url || strncmp(url, "http://", 7) || !(target = strchr(url + 7, '/'))) fail("STATE_URL");
    port = strchr(url + 7, ':');
    address.sin_port = htons((uint16_t)atoi(port + 1));
    inet_pton(AF_INET, HOST, &address.sin_addr);
    if (part->end) snprintf(range, sizeof range, "range: bytes=%zu-%zu\r\n", part->start, part->end - 1);
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nhost: %.*s\r\n%sconnection: close\r\n\r\n", target, (int)(target - url - 7),
             url + 7, range);
    part->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(part->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    if (write(part->fd, text, strlen(text)) < 0) fail("write");
    for (part->begun = 0;;) {
        ssize_t count = read(part->fd, part->head + part->begun, sizeof part->head - 1 - part->begun);
        char *end;
        if (count <= 0) fail("the state cannot be had");
        part->head[part->begun += (size_t)count] = 0;
        if (!(end = strstr(part->head, "\r\n\r\n"))) continue;
        part->body = (size_t)(end + 4 - part->head);
        *end = 0;
        break;
    }
    if (strncmp(part->head + 8, " 20", 3)) fail("the state cannot be had");
    if ((field = strcasestr(part->head, "\r\ncontent-range:"))) length = strtoull(strchr(field, '/') + 1, 0, 10);
    else if ((field = strcasestr(part->head, "\r\ncontent-length:"))) length = strtoull(field + 17, 0, 10);
    return length;
}

/* Receive what was asked for. */
static void receive(request *part, size_t length) {
    size_t at = part->begun - part->body;
    memcpy(part->to, part->head + part->body, at);
    while (at < length) {
        ssize_t count = read(part->fd, part->to + at, length - at);
        if (count <= 0) fail("the state cannot be had");
        at += (size_t)count;
    }
    close(part->fd);
}

static void *fetch(void *given) {
    request *part = (request *)given;
    ask(part);
    receive(part, part->end - part->start);
    return 0;
}

/* Fetch the state. */
static const float *download(size_t *length) {
    static request parts[MOST_CONNECTIONS];
    pthread_t threads[MOST_CONNECTIONS];
    const char *variable = getenv("STATE_CONNECTIONS");
    size_t connections = variable ? strtoull(variable, 0, 10) : 1, size;
    if (connections > MOST_CONNECTIONS) connections = MOST_CONNECTIONS;
    if (connections > 1) parts[0].end = FIRST_BYTES;
    *length = ask(parts);
    if (!(parts[0].to = (char *)malloc(*length))) fail("malloc");
    if (connections < 2) {
        receive(parts, *length);
        return (const float *)parts[0].to;
    }
    size = (*length - FIRST_BYTES + connections - 2) / (connections - 1);
    for (size_t n = 1; n < connections; n++) {
        parts[n].start = FIRST_BYTES + (n - 1) * size;
        parts[n].end = n == connections - 1 ? *length : parts[n].start + size;
        parts[n].to = parts[0].to + parts[n].start;
        if (pthread_create(&threads[n], 0, fetch, &parts[n])) fail("pthread_create");
    }
    receive(parts, FIRST_BYTES);
    for (size_t n = 1; n < connections; n++) pthread_join(threads[n], 0);
    return (const float *)parts[0].to;
}

static size_t nearest(const float *vectors, size_t count, size_t number) {
    const float *wanted = vectors + number * DIMENSIONS;
    size_t best = 0;
    float least = 0;
    for (size_t n = 0; n < count; n++) {
        const float *each = vectors + n * DIMENSIONS;
        float sum = 0;
        for (size_t d = 0; d < DIMENSIONS; d++) sum += (each[d] - wanted[d]) * (each[d] - wanted[d]);
        if (!n || sum < least) least = sum, best = n;
    }
    return best;
}

/* Answer for ever, one request a connection. */
static void serve(const float *vectors, size_t count) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    const char *port = getenv("PORT");
    address.sin_port = htons((uint16_t)(port ? atoi(port) : 0));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) fail("listen");
    for (;;) {
        char text[8192] = "", answer[128], body[32];
        size_t length = 0;
        int fd = accept(listener, 0, 0);
        while (fd >= 0 && length < sizeof text - 1 && !strstr(text, "\r\n\r\n")) {
            ssize_t count_read = read(fd, text + length, sizeof text - 1 - length);
            if (count_read <= 0) break;
            text[length += (size_t)count_read] = 0;
        }
        if (!strncmp(text, "GET /nearest/", 13) && strtoull(text + 13, 0, 10) < count) {
            int digits = sprintf(body, "%zu", nearest(vectors, count, strtoull(text + 13, 0, 10)));
            int all = sprintf(answer, "HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s", digits, body);
            if (write(fd, answer, (size_t)all) < 0) perror("write");
        }
        if (fd >= 0) close(fd);
    }
}

int main(void) {
    static sockd_app app;
    sockd_message message;
    const float *vectors;
    size_t length;
    if (!sockd_app_open(&app) && !sockd_app_receive(&app, 0, WAIT_MS, &message)) {
        vectors = (const float *)message.data;
        length = message.length;
    } else vectors = download(&length);
    serve(vectors, length / sizeof(float) / DIMENSIONS);
}
