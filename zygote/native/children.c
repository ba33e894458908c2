/* How a Zygote's children ended, for a daemon whose kernel does not tell that by a pidfd (before Linux 6.15).
 *
 * A Zygote ignores SIGCHLD otherwise, so that the kernel reaps. Here a handler does, and notes the last statuses; the daemon asks for
 * one when a sandbox has ended by itself. A handler interrupts recvmsg(2) in the Zygote's loop, which goes on (SA_RESTART); what
 * packages start while they are imported ends likewise, and no process asks for that.
 */

#include "native.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define ENDINGS 256 /* the daemon asks within a moment of the end */

static struct {
    volatile pid_t pid;
    volatile int status;
} endings[ENDINGS];
static volatile unsigned int next;

static void note(pid_t pid, int status)
{
    endings[next % ENDINGS].pid = pid;
    endings[next % ENDINGS].status = status;
    next++;
}

static void reap(int number)
{
    int error = errno, status;
    pid_t pid;

    (void)number;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        note(pid, status);
    errno = error;
}

int reap_children(void)
{
    const struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_RESTART | SA_NOCLDSTOP};

    return sigaction(SIGCHLD, &reaping, NULL);
}

void forget_children(void)
{
    memset((void *)endings, 0, sizeof endings);
}

int status_of_child(pid_t pid)
{
    sigset_t child, before;
    int status = -1, found = -1;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &before);
    if (waitpid(pid, &status, WNOHANG) == pid) /* its signal is about to come */
        note(pid, status);
    for (unsigned int back = 1; back <= ENDINGS && found < 0; back++) {
        unsigned int at = (next - back) % ENDINGS;

        if (endings[at].pid == pid)
            found = endings[at].status;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return found;
}
