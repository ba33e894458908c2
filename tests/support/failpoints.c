/* The failpoints of failpoints.h: asks tests/support/plans.py, on loopback, and does what it says. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char action[16], step_to_fail[64];
static int error_number, nth;

/* One line there, one line back; empty when nobody listens. */
static void tell(const char *line, char *reply, size_t size)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(FAILPOINTS_PORT)};
    ssize_t count = 0, more;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && write(fd, line, strlen(line)) > 0)
        while ((size_t)count < size - 1 && (more = read(fd, reply + count, size - 1 - (size_t)count)) > 0)
            count += more;
    reply[count] = 0;
    close(fd);
}

void failpoints_ask(const char *kind)
{
    char line[32], reply[128];

    action[0] = step_to_fail[0] = 0;
    snprintf(line, sizeof line, "%s\n", kind);
    tell(line, reply, sizeof reply);
    sscanf(reply, "%15s %d %d %63[^\n]", action, &error_number, &nth, step_to_fail);
}

int failpoints_reach(const char *step)
{
    char line[96], reply[128];

    if (strcmp(step, step_to_fail) != 0)
        return 0;
    step_to_fail[0] = 0;
    snprintf(line, sizeof line, "reached %s\n", step);
    tell(line, reply, sizeof reply);
    errno = error_number;
    if (strcmp(action, "error") == 0)
        return -1;
    if (strcmp(action, "kill") == 0) {
        raise(SIGKILL);
        abort(); /* pid 1 of a pid namespace cannot kill itself by a signal, but it can crash */
    }
    for (;;)
        pause();
}
