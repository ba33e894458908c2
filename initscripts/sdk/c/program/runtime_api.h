/* runtime_api.h: the Runtime API for a program in C, one request at a time: just enough for the example next to it.
 *
 *     int main(void) { runtime_serve(answer); }   // answer(event, length) gives the answer's JSON, which is freed
 *
 * A function with `runtime = "provided"`, and a container image whose program this is, get requests and give answers by it. */

#ifndef RUNTIME_API_H
#define RUNTIME_API_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define RUNTIME_PATH "/2018-06-01/runtime/invocation/"

typedef char *(*runtime_answer)(const char *event, size_t length);

static _Noreturn void runtime_fail(const char *what) {
    perror(what);
    exit(1);
}

static int runtime_connect(void) {
    const char *address = getenv("AWS_LAMBDA_RUNTIME_API"), *colon = address ? strrchr(address, ':') : 0;
    struct sockaddr_in to = {.sin_family = AF_INET};
    char host[64];
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!colon || (size_t)snprintf(host, sizeof host, "%.*s", (int)(colon - address), address) >= sizeof host)
        runtime_fail("AWS_LAMBDA_RUNTIME_API");
    to.sin_port = htons((unsigned short)atoi(colon + 1));
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1 || connect(sock, (struct sockaddr *)&to, sizeof to))
        runtime_fail(address);
    return sock;
}

/* Read a response; its body, to be freed. id: gets the request's, if it has one. */
static char *runtime_response(FILE *api, char *id, size_t room, size_t *length) {
    static const char id_header[] = "lambda-runtime-aws-request-id:", length_header[] = "content-length:";
    char line[8192], *body;
    *length = 0;
    do {
        if (!fgets(line, sizeof line, api)) exit(0); /* the sandbox ends */
        line[strcspn(line, "\r\n")] = 0;
        if (!strncasecmp(line, length_header, strlen(length_header))) *length = strtoul(line + strlen(length_header), 0, 10);
        if (id && !strncasecmp(line, id_header, strlen(id_header)))
            snprintf(id, room, "%s", line + strlen(id_header) + strspn(line + strlen(id_header), " "));
    } while (*line);
    body = (char *)malloc(*length + 1);
    if (!body || fread(body, 1, *length, api) != *length) runtime_fail("runtime API");
    body[*length] = 0;
    return body;
}

static _Noreturn void runtime_serve(runtime_answer answer) {
    int sock = runtime_connect();
    FILE *api = fdopen(sock, "r"), *to = fdopen(dup(sock), "w");
    if (!api || !to) runtime_fail("fdopen");
    for (;;) {
        char id[128] = "", *event, *text;
        size_t length;
        fprintf(to, "GET " RUNTIME_PATH "next HTTP/1.1\r\nHost: runtime\r\n\r\n");
        fflush(to);
        event = runtime_response(api, id, sizeof id, &length);
        text = answer(event, length);
        free(event);
        fprintf(to, "POST " RUNTIME_PATH "%s/response HTTP/1.1\r\nHost: runtime\r\nContent-Length: %zu\r\n\r\n%s", id,
                strlen(text), text);
        fflush(to);
        free(text);
        free(runtime_response(api, 0, 0, &length));
    }
}

#endif
