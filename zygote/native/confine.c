/* How a forked child becomes a handler sandbox, or a Zygote of its own, before any Python runs in it.
 *
 * The order is the contract: the cgroups first, so that every page is charged right (if the daemon moves it, while
 * it goes on, as `await_move` says); then the root, the uid, the descriptors; last what cannot be taken back: capabilities,
 * no_new_privs, seccomp. A step that fails is reported to the daemon and ends the child here: no half-confined child goes on.
 */

#include "native.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FAILED 6 /* protocol.FAILED */
#define TEXT_BYTES 200
#define FILTER_MAX_INSTRUCTIONS 512
#define NETWORK_CAPABILITIES (1ULL << CAP_NET_ADMIN | 1ULL << CAP_NET_RAW)

/* One FAILED frame: protocol.HEADER, protocol.TIMES, words. */
struct failure {
    uint32_t length;
    uint8_t kind;
    uint8_t flags;
    uint16_t zero;
    uint64_t number;
    uint64_t times[2];
    char text[TEXT_BYTES];
};

static int report_fd = -1; /* the child's connection to the daemon */
static struct sock_filter instructions[KINDS][FILTER_MAX_INSTRUCTIONS];
static struct sock_fprog filters[KINDS] = {{0, instructions[SANDBOX]}, {0, instructions[ZYGOTE]}}; /* a walled one: none */

static void fail(const char *call)
{
    struct failure failure = {.kind = FAILED};
    const char *reason = strerror(errno);
    size_t length;

    snprintf(failure.text, sizeof failure.text, "%s: %s", call, reason);
    length = strlen(failure.text);
    failure.length = (uint32_t)(sizeof failure.times + length);
    /* If the daemon is gone, too, no process is left to tell. */
    _exit(write(report_fd, &failure, offsetof(struct failure, text) + length) < 0 ? 2 : 1);
}

static void must(long result, const char *call)
{
    if (result < 0)
        fail(call);
}

/* Somebody else does something for us; the pipe ends without a byte when he died or failed before. */
static void await_byte(int fd, const char *what)
{
    char byte;
    ssize_t count = read(fd, &byte, 1);

    if (count == 0)
        errno = EPIPE;
    must(count > 0 ? 0 : -1, what);
}

/* From `first` on: the files of its cgroups. */
static void join_cgroups(const struct fd_list *given, int first)
{
    for (int i = first; i < given->count; i++)
        must(write(given->fds[i], "0", 1), "joining its cgroups"); /* "0" is the writer itself (cgroups(7)) */
}

static void set_ids(unsigned int id)
{
    must(setresgid(id, id, id), "setresgid");
    must(setresuid(id, id, id), "setresuid");
    /* A changed uid turns the process's own /proc files root's (prctl(2)), and with them a Zygote's children's. */
    must(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)");
}

static void close_between(int first, unsigned int last)
{
    if ((unsigned int)first <= last)
        must(syscall(SYS_close_range, first, last, 0), "close_range");
}

/* Stdin, stdout, stderr and the one connection; and for now `moved`, unless it is -1. What is given is never one of 0 to 3: a
 * Zygote has those from the start. Stdin is opened here: an open file description that children shared would carry status flags,
 * an owner for signals and locks from one to the others (fcntl(2)). */
static void keep_only(int connection, int output, int moved)
{
    must(close(0), "close");
    must(open("/dev/null", O_RDWR), "open(/dev/null)"); /* the lowest free number: 0 */
    must(dup2(output, 1), "dup2");
    must(dup2(output, 2), "dup2");
    must(dup3(connection, CHANNEL_FD, O_CLOEXEC), "dup3");
    report_fd = CHANNEL_FD;
    if (moved >= 0)
        close_between(CHANNEL_FD + 1, (unsigned int)moved - 1);
    close_between(moved >= 0 ? moved + 1 : CHANNEL_FD + 1, ~0U);
}

static void filter_calls(int kind)
{
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)");
    if (filters[kind].len)
        must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filters[kind], 0, 0), "prctl(PR_SET_SECCOMP)");
}

/* Everything between clone(2) and user code. Afterwards: own uid, no capability, own root, fds 0-3 and no more; but if it waits,
 * the descriptor that is returned, for `await_move`.
 *
 * given: root (a detached mount tree: it has no parent mount, so `..` ends there), channel, output, then procs or a pipe. */
int confine_sandbox(const struct fd_list *given, int waits, int maps_ready)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    int root = given->fds[0], channel = given->fds[1], output = given->fds[2];
    int moved = waits ? out_of_the_way(given->fds[3]) : -1;

    report_fd = channel;
    must(waits && moved < 0 ? -1 : 0, "fcntl(F_DUPFD_CLOEXEC)");
    if (!waits)
        join_cgroups(given, 3);
    must(sigaction(SIGCHLD, &by_default, NULL), "sigaction");
    must(drop_bounding_set(0), "prctl(PR_CAPBSET_DROP)"); /* a new user namespace starts with a full one */
    must(fchdir(root), "fchdir");
    must(chroot("."), "chroot");
    must(setsid(), "setsid");
    await_byte(maps_ready, "waiting for the id maps");
    set_ids(SANDBOX_UID);
    keep_only(channel, output, moved);
    must(lock_securebits(), "prctl(PR_SET_SECUREBITS)");
    must(set_capabilities(0), "capset");
    filter_calls(SANDBOX);
    must(take_over_kept(), "taking over what imports left open");
    return moved;
}

/* The same descriptor at a number that imports do not see. -1 with errno. */
int move_up(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, OWN_FDS_FROM);

    close(fd);
    return copy;
}

/* Everything between clone(2) and the first import: all capabilities in a user namespace over its block of uids, whose first
 * has the number of every handler's; fds 0-3 and what imports left open before. Returned is what `confine_sandbox` returns.
 * Its children are reaped as its parent's are.
 *
 * A walled one has no capability over the networks that its user namespace will own, and goes on entering them.
 *
 * given: control, then procs or a pipe. */
int confine_zygote(const struct fd_list *given, int waits, int maps_ready, int kind)
{
    int control = given->fds[0], moved = waits ? out_of_the_way(given->fds[1]) : -1;

    report_fd = control;
    forget_children();
    must(waits && moved < 0 ? -1 : 0, "fcntl(F_DUPFD_CLOEXEC)");
    if (!waits)
        join_cgroups(given, 1);
    must(setsid(), "setsid");
    await_byte(maps_ready, "waiting for the id maps");
    set_ids(SANDBOX_UID);
    keep_only(control, 0, moved); /* it writes to its own /dev/null */
    if (kind == WALLED_ZYGOTE) {
        must(drop_bounding_set(~NETWORK_CAPABILITIES), "prctl(PR_CAPBSET_DROP)");
        must(set_capabilities(~NETWORK_CAPABILITIES), "capset");
    }
    filter_calls(kind);
    must(take_over_kept(), "taking over what imports left open");
    return moved;
}

/* Until the daemon has moved it into its cgroups, which it does while this one confines itself. What a child of packages runs
 * until here, and its old cgroup is charged for, are their hooks (`os.register_at_fork`): 0.3 MB; nothing is for it to read yet. */
void await_move(int moved)
{
    if (moved >= 0) {
        await_byte(moved, "waiting for its cgroups");
        close(moved);
    }
    must(make_kept_sockets(), "making sockets in place of connections");
}

/* -- for Python */

static int keep_filter(int kind, PyObject *program)
{
    size_t length = (size_t)PyBytes_Size(program);

    if (length > sizeof instructions[kind]) {
        PyErr_SetString(PyExc_ValueError, "a seccomp filter that is too long");
        return -1;
    }
    memcpy(instructions[kind], PyBytes_AsString(program), length);
    filters[kind].len = (unsigned short)(length / sizeof(struct sock_filter));
    return 0;
}

PyObject *native_move_up(PyObject *module, PyObject *args)
{
    int fd;

    (void)module;
    if (!PyArg_ParseTuple(args, "i:move_up", &fd))
        return NULL;
    fd = move_up(fd);
    return fd < 0 ? os_error("fcntl(F_DUPFD_CLOEXEC)") : PyLong_FromLong(fd);
}

PyObject *native_keep_filters(PyObject *module, PyObject *args)
{
    PyObject *sandbox, *zygote;

    (void)module;
    if (!PyArg_ParseTuple(args, "SS:keep_filters", &sandbox, &zygote))
        return NULL;
    if (keep_filter(SANDBOX, sandbox) < 0 || keep_filter(ZYGOTE, zygote) < 0)
        return NULL;
    return none();
}
