/* A Zygote's loop: wait for a request, clone a child, tell the daemon; what is not a fork is handed to Python.
 *
 * A forked child shares all pages with its Zygote, and each that either of them writes to is copied first (2-3 us, and a
 * cold start is made of hundreds). Python writes wherever it looks, for it counts references. So all that is system calls
 * only is done in C: nothing of it touches the interpreter's memory.
 *
 * os.fork() would need unshare(CLONE_NEWPID) and a setns() back, which a Zygote without capabilities over the farm's pid
 * namespace may not do (pid_namespaces(7)). A raw clone skips pthread_atfork(3) handlers, which atfork.c runs, and leaves
 * its locks as they are; a Zygote is therefore single-threaded or judged by its canary (ADR 0001). clone(2), not clone3: seccomp can read its flags.
 */

#include "native.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIGNALLED 128 /* and the signal, as shells tell it; sockd/linux/processes/pidfds.py reads it */
#define MESSAGE_MAX_BYTES (128 * 1024) /* protocol.CONTROL_MAX_BYTES */
#define FORK_OP 'F'                    /* the first byte of a protocol.FORK; JSON begins with another */
#define STATUS_OP 'W'                  /* the first byte of a protocol.STATUS */
#define ANSWER_BYTES 300
#define MUSL_WORDS 32   /* of a thread's structure, that its id is looked for in */
#define GLIBC_WORDS 256 /* likewise */

/* What `serve` returns, as in fork_server.py. */
enum { MESSAGE = 0, IS_SANDBOX = 1, IS_SPARE = 2, IS_ZYGOTE = 3 };

/* protocol.FORK; what follows it is for the child. */
struct request {
    uint8_t op;
    uint8_t kind;
    uint8_t has_network; /* a sandbox is born in a network namespace that comes last with the message */
    uint8_t is_spare;
    uint32_t first_uid;
    uint32_t uid_count;
    uint32_t waits; /* not 0: for the daemon to move it into its cgroups, on a pipe that comes in the place of their files */
    uint64_t id;
};

/* protocol.STATUS */
struct question {
    uint8_t op;
    uint8_t zero[3];
    uint32_t pid;
    uint64_t id;
};

static char buffer[MESSAGE_MAX_BYTES];
static const char *message_start = buffer; /* the message, or what is for the child */
static Py_ssize_t message_length;
static struct fd_list message_fds; /* came with the message, until Python takes them */
static int reaps;        /* whether the daemon asks how children ended */
static int *tid_address; /* which the kernel clears when this thread ends */
static pid_t *own_tid;   /* where the C library keeps this thread's id: without it pthread calls in the child would lie */

/* One datagram, with at most one descriptor with it. */
static int answer(int control, const char *text, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } rights = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec data = {(void *)text, strlen(text)};
    struct msghdr packet = {.msg_iov = &data, .msg_iovlen = 1};

    if (fd >= 0) {
        memcpy(CMSG_DATA(&rights.header), &fd, sizeof fd);
        packet.msg_control = &rights;
        packet.msg_controllen = sizeof rights;
    }
    return sendmsg(control, &packet, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static int refuse(int control, uint64_t id, const char *call)
{
    char text[ANSWER_BYTES];

    snprintf(text, sizeof text, "{\"op\":\"refused\",\"id\":%llu,\"error\":\"%s: %s\"}", (unsigned long long)id, call,
             strerror(errno));
    return answer(control, text, -1);
}

static int tell_forked(int control, uint64_t id, pid_t pid, int pidfd)
{
    char text[ANSWER_BYTES];

    snprintf(text, sizeof text, "{\"op\":\"forked\",\"id\":%llu,\"pid\":%d}", (unsigned long long)id, (int)pid);
    return answer(control, text, pidfd);
}

static int tell_status(int control)
{
    struct question question;
    char text[ANSWER_BYTES];

    memcpy(&question, buffer, sizeof question);
    snprintf(text, sizeof text, "{\"op\":\"status\",\"id\":%llu,\"status\":%d}", (unsigned long long)question.id,
             status_of_child((pid_t)question.pid));
    return answer(control, text, -1);
}

static int write_map(pid_t pid, const char *name, const char *line)
{
    char path[64];
    ssize_t written;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    written = write(fd, line, strlen(line));
    close(fd);
    return written < 0 ? -1 : 0;
}

/* user_namespaces(7): the numbers outside are as seen from here. */
static int write_id_maps(pid_t pid, const struct request *request)
{
    char line[64];

    snprintf(line, sizeof line, "%u %u %u", SANDBOX_UID, (unsigned)request->first_uid, (unsigned)request->uid_count);
    return write_map(pid, "uid_map", line) < 0 ? -1 : write_map(pid, "gid_map", line);
}

static pid_t clone_child(const struct request *request, int *pidfd)
{
    unsigned long flags = CLONE_NEWUSER | CLONE_PIDFD | CLONE_CHILD_CLEARTID | SIGCHLD;
    pid_t pid;
#ifdef __x86_64__
    long fourth = (long)tid_address, fifth = 0;
#else /* clone(2): elsewhere the child's thread-local storage comes before the place of its id */
    long fourth = 0, fifth = (long)tid_address;
#endif

    if (request->kind == SANDBOX)
        flags |= CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
    if (own_tid == tid_address)
        flags |= CLONE_CHILD_SETTID;
    pid = (pid_t)syscall(SYS_clone, flags, NULL, pidfd, fourth, fifth);
    if (pid == 0 && own_tid != tid_address)
        *own_tid = (pid_t)syscall(SYS_gettid);
    return pid;
}

/* As `clone_child`, in a network namespace (-1: the Zygote's own). A Zygote that cannot leave it again ends: its next child, or what
 * it imports, would be on a network that is somebody else's. */
static pid_t clone_in(const struct request *request, int network, int *pidfd)
{
    int home = -1, error;
    pid_t pid;

    if (network >= 0 && (home = enter_network(network)) < 0)
        return -1;
    pid = clone_child(request, pidfd);
    if (pid == 0 || home < 0)
        return pid; /* the child closes all that it does not keep */
    error = errno;
    if (return_from_network(home) < 0)
        _exit(1);
    errno = error;
    return pid;
}

/* The child's half. A failure ends it in there. */
static void be_child(const struct request *request, const struct fd_list *given, int maps_ready)
{
    int waits = request->waits != 0, is_sandbox = request->kind == SANDBOX;
    int moved = is_sandbox ? confine_sandbox(given, waits, maps_ready) : confine_zygote(given, waits, maps_ready, request->kind);

    after_fork_in_child();
    PyOS_AfterFork_Child();
    if (is_sandbox)
        PyGC_Enable(); /* off in a Zygote, whose objects are frozen */
    await_move(moved);
}

static int has_ended(int pidfd)
{
    struct pollfd process = {.fd = pidfd, .events = POLLIN};

    return poll(&process, 1, 0) > 0;
}

/* The Zygote's half: id maps, the go-ahead, the answer. A child without its maps ends by itself; one that ended before it had
 * them has sent the daemon the reason, which is to arrive however soon it was. */
static int be_parent(int control, const struct request *request, pid_t pid, int pidfd, int maps_written)
{
    if (write_id_maps(pid, request) < 0 && !has_ended(pidfd))
        return refuse(control, request->id, "writing the id maps");
    if (write(maps_written, "1", 1) < 0)
        return refuse(control, request->id, "write");
    if (tell_forked(control, request->id, pid, pidfd) < 0)
        return -1;
    sched_yield(); /* the child may have been put behind us, on our processor */
    return 0;
}

static int is_well_formed(const struct request *request, const struct fd_list *given, int network)
{
    int own = request->kind == SANDBOX ? 3 : 1;

    return request->kind < KINDS && !!request->has_network == (network >= 0) && given->count >= own && (request->waits == 0 || given->count == own + 1);
}

/* 1 in the child, 0 in the Zygote; -1 when the daemon cannot be answered. Between PyOS_BeforeFork and its counterparts. */
static int fork_child(int control, const struct request *request, const struct fd_list *given, int network)
{
    int maps[2], pidfd = -1, result;
    pid_t pid;

    errno = EINVAL;
    if (!is_well_formed(request, given, network))
        return refuse(control, request->id, "fork");
    if (pipe2(maps, O_CLOEXEC) < 0)
        return refuse(control, request->id, "pipe2");
    before_fork();
    pid = clone_in(request, network, &pidfd);
    if (pid == 0) {
        close(maps[1]); /* or the end of a Zygote that dies would not be seen */
        be_child(request, given, maps[0]);
        return 1;
    }
    after_fork_in_parent();
    result = pid < 0 ? refuse(control, request->id, "clone") : be_parent(control, request, pid, pidfd, maps[1]);
    close(maps[0]);
    close(maps[1]);
    if (pidfd >= 0)
        close(pidfd);
    return result;
}

static int child_is(const struct request *request)
{
    if (request->kind != SANDBOX)
        return IS_ZYGOTE;
    return request->is_spare ? IS_SPARE : IS_SANDBOX;
}

/* Keep what came with a message, at numbers that imports do not see. */
static void keep_message_fds(const struct fd_list *given)
{
    close_all(&message_fds);
    message_fds = *given;
    for (int i = 0; i < given->count; i++)
        message_fds.fds[i] = move_up(given->fds[i]);
}

/* Fork until there is something else to do: the role, or -1 with an exception. */
static int serve(int control)
{
    struct request request;
    struct fd_list given;
    int forked, cut, network;

    for (;;) {
        message_start = buffer;
        message_length = receive_packet(control, buffer, sizeof buffer, 0, &given, &cut);
        if (message_length < 0) {
            if (!PyErr_Occurred())
                os_error("recvmsg");
            return -1;
        }
        if (cut) {
            close_all(&given);
            errno = EMSGSIZE;
            os_error("recvmsg");
            return -1;
        }
        if (message_length == (Py_ssize_t)sizeof(struct question) && buffer[0] == STATUS_OP) {
            close_all(&given);
            if (tell_status(control) < 0) {
                os_error("sendmsg");
                return -1;
            }
            continue;
        }
        if (message_length < (Py_ssize_t)sizeof request || buffer[0] != FORK_OP) {
            keep_message_fds(&given);
            return MESSAGE;
        }
        memcpy(&request, buffer, sizeof request);
        network = request.has_network && given.count ? given.fds[--given.count] : -1;
        forked = fork_child(control, &request, &given, network);
        if (forked > 0) {
            message_start += sizeof request;
            message_length -= (Py_ssize_t)sizeof request;
            return child_is(&request);
        }
        if (network >= 0)
            close(network);
        close_all(&given);
        if (forked < 0) {
            os_error("sendmsg");
            return -1;
        }
    }
}

/* Signals that by default end a process, but for those of faults, which end pid 1, too; SIGINT, SIGPIPE and SIGXFSZ are Python's. */
static const int ending[] = {
    SIGABRT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGXCPU,
};

/* Such a signal in a child. A handler is pid 1 of its namespace, which no signal ends that has no handler (pid_namespaces(7)):
 * os.kill(os.getpid(), SIGTERM) would do nothing, and abort(3) would go on to an instruction that faults, whose end would be taken
 * for a segmentation fault. Python finds the default, as it looks for it when it starts, and execve(2) restores it. */
static void end_as_by_default(int number)
{
    if (getpid() == 1)
        _exit(SIGNALLED + number);
    raise(number); /* SA_RESETHAND: by default it ends any other process */
}

/* What the C library takes for this thread's id: from its function where that reads it in memory (musl), else from the number of the
 * thread's clock, which glibc makes of it. */
static pid_t id_by_library(void)
{
    pid_t (*library)(void) = (pid_t (*)(void))dlsym(RTLD_DEFAULT, "gettid");
    clockid_t clock;

    if (!dlsym(RTLD_DEFAULT, "gnu_get_libc_version"))
        return library ? library() : -1;
    return pthread_getcpuclockid(pthread_self(), &clock) ? 0 : ~(clock >> 3);
}

/* Where the C library keeps this thread's id; NULL if that is not found. A word is the place if the library's answer changes with it. */
static pid_t *search_own_tid(int word_count)
{
    pid_t tid = (pid_t)syscall(SYS_gettid), *words = (pid_t *)pthread_self();
    int is_place;

    for (int i = 0; i < word_count; i++) {
        if (words[i] != tid)
            continue;
        words[i] = 1;
        is_place = id_by_library() == 1;
        words[i] = tid;
        if (is_place)
            return &words[i];
    }
    return NULL;
}

/* Find what a child needs right: `tid_address`, and `own_tid`. -1 with an exception.
 *
 * The kernel clears the place of the id of glibc's threads. Of musl's it clears a lock, the list of threads, which a child must not
 * inherit as taken. A kernel without CONFIG_CHECKPOINT_RESTORE does not say what it clears. */
static int find_thread_id(void)
{
    int is_glibc = dlsym(RTLD_DEFAULT, "gnu_get_libc_version") != NULL, is_known;

    is_known = prctl(PR_GET_TID_ADDRESS, &tid_address, 0, 0, 0) == 0;
    if (!is_known && !is_glibc) {
        os_error("prctl(PR_GET_TID_ADDRESS): an image with musl needs a kernel with CONFIG_CHECKPOINT_RESTORE");
        return -1;
    }
    if (is_known && *tid_address == (pid_t)syscall(SYS_gettid))
        own_tid = tid_address;
    else
        own_tid = search_own_tid(is_glibc ? GLIBC_WORDS : MUSL_WORDS);
    if (!is_known)
        tid_address = own_tid;
    if (!own_tid) {
        PyErr_SetString(PyExc_RuntimeError, "the C library is neither glibc nor musl: it keeps a thread's id elsewhere");
        return -1;
    }
    return 0;
}

/* Have children that end be reaped without anybody who waits for them: by the kernel, or with a note of their status. */
static int disown_children(void)
{
    const struct sigaction ignored = {.sa_handler = SIG_IGN};

    return reaps ? reap_children() : sigaction(SIGCHLD, &ignored, NULL);
}

/* -- for Python */

PyObject *native_prepare(PyObject *module, PyObject *args)
{
    const struct sigaction by_default = {.sa_handler = end_as_by_default, .sa_flags = SA_RESETHAND | SA_NODEFER};

    (void)module;
    if (!PyArg_ParseTuple(args, "p:prepare", &reaps))
        return NULL;
    /* The kernel reaps where the daemon reads exit statuses from its pidfds. Not signal.signal(): a sandbox is to find the default,
     * which it has again, where Python looks for it, too. */
    if (disown_children() < 0)
        return os_error("sigaction");
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        if (sigaction(ending[i], &by_default, NULL) < 0)
            return os_error("sigaction");
    return find_thread_id() < 0 ? NULL : none();
}

/* While imports run: children that end wait to be asked how, as in a sandbox. */
PyObject *native_await_children(PyObject *module, PyObject *args)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};

    (void)module;
    (void)args;
    return sigaction(SIGCHLD, &by_default, NULL) < 0 ? os_error("sigaction") : none();
}

/* As from `prepare` on; whether no code has installed a handler meanwhile, which no sandbox would have. */
PyObject *native_disown_children(PyObject *module, PyObject *args)
{
    struct sigaction before;

    (void)module;
    (void)args;
    if (sigaction(SIGCHLD, NULL, &before) < 0 || disown_children() < 0)
        return os_error("sigaction");
    return PyBool_FromLong(before.sa_handler == SIG_DFL);
}

PyObject *native_serve(PyObject *module, PyObject *args)
{
    PyObject *kind, *error, *trace;
    int control, role;

    (void)module;
    if (!PyArg_ParseTuple(args, "i:serve", &control))
        return NULL;
    /* Once for all forks: what packages want done before each (locks are taken) is Python, and nothing else of that runs here. */
    PyOS_BeforeFork();
    role = serve(control);
    if (role > MESSAGE)
        return PyLong_FromLong(role); /* the child has had its own PyOS_AfterFork_Child */
    PyErr_Fetch(&kind, &error, &trace);
    PyOS_AfterFork_Parent();
    PyErr_Restore(kind, error, trace);
    return role < 0 ? NULL : PyLong_FromLong(role);
}

PyObject *native_message(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyBytes_FromStringAndSize(message_start, message_length);
}

PyObject *native_message_fds(PyObject *module, PyObject *args)
{
    PyObject *fds = PyList_New(message_fds.count);

    (void)module;
    (void)args;
    for (int i = 0; fds && i < message_fds.count; i++)
        PyList_SetItem(fds, i, PyLong_FromLong(message_fds.fds[i]));
    message_fds.count = 0;
    return fds;
}
