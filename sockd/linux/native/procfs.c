/* The module `sockd.linux._procfs`, described for Python in sockd/linux/_procfs.pyi: a thread that mounts the procfs of other pid
 * namespaces, on kernels before 6.18, whose procfs has no option for that.
 *
 * There the namespace of a new procfs is the one that its maker was born in. So a child is born there for one fsopen(2). It shares the
 * daemon's memory, as after vfork(2), and runs nothing but system calls on a stack of its own; and it is killed with the namespace,
 * if that ends meanwhile. It therefore has a descriptor table of its own, made by close_range(2) with the few lowest descriptors in
 * it: what it had opened when it was killed is closed with it. The descriptor comes over a socket.
 *
 * A thread waits for the child, since the daemon has others to start meanwhile. It holds nothing of Python's.
 */

#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (64 << 10)
#define MAKER "sockd.linux._procfs.maker" /* a capsule's name */
#define FSOPEN_CLOEXEC 1
#define FSMOUNT_CLOEXEC 1
#define FSCONFIG_SET_STRING 1
#define FSCONFIG_CMD_CREATE 6
#ifndef CLOSE_RANGE_UNSHARE /* in glibc's headers since 2.34 */
#define CLOSE_RANGE_UNSHARE 2
#endif

/* One procfs that is asked for, or made. */
struct wanted {
    struct wanted *next;
    long long number;
    int process; /* whose namespace: a pidfd, ours; -1: closed */
    int only_own;
    unsigned attributes;
    int mount; /* -1: there is none */
    int error; /* why */
};

struct queue {
    struct wanted *first, **end;
};

struct maker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    struct queue wanted, made; /* with the lock held, as is the next */
    int is_over;
    int notify;   /* an eventfd, written whenever one is made */
    int home;     /* the thread's own pid namespace */
    int wires[2]; /* the child's end and ours */
    char *stack;  /* the child's */
};

static void append(struct queue *queue, struct wanted *wanted)
{
    wanted->next = NULL;
    *queue->end = wanted;
    queue->end = &wanted->next;
}

static struct wanted *take_first(struct queue *queue)
{
    struct wanted *first = queue->first;

    if (first && !(queue->first = first->next))
        queue->end = &queue->first;
    return first;
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void free_wanted(struct wanted *wanted)
{
    close_one(&wanted->process);
    close_one(&wanted->mount);
    free(wanted);
}

/* -- in the other namespace: system calls alone */

struct work {
    int wire;
    int error;
};

static int send_descriptor(int socket, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } rights = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec data = {"p", 1};
    struct msghdr packet = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights};

    memcpy(CMSG_DATA(&rights.header), &fd, sizeof fd);
    return sendmsg(socket, &packet, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static int open_there(void *given)
{
    struct work *work = given;
    int context;

    if (syscall(SYS_close_range, work->wire + 1, ~0U, CLOSE_RANGE_UNSHARE) < 0 ||
        (context = (int)syscall(SYS_fsopen, "proc", FSOPEN_CLOEXEC)) < 0 || send_descriptor(work->wire, context) < 0)
        work->error = errno;
    return 0;
}

/* -- in the thread */

/* The descriptor that the child has sent; -1 with errno: none. */
static int receive_descriptor(int socket)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } rights;
    char byte;
    int fd = -1;
    struct iovec data = {&byte, 1};
    struct msghdr packet = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights};

    if (recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
        return -1;
    if (packet.msg_controllen < sizeof rights.header) {
        errno = EMFILE; /* our table has no room for it */
        return -1;
    }
    memcpy(&fd, CMSG_DATA(&rights.header), sizeof fd);
    return fd;
}

/* A file system context of procfs for the pid namespace that the thread's children are born in; -1 with errno. */
static int open_context(struct maker *maker)
{
    struct work work = {.wire = maker->wires[0]};
    char *top = (char *)(((uintptr_t)maker->stack + STACK_BYTES) & ~(uintptr_t)15);
    pid_t pid = clone(open_there, top, CLONE_VM | CLONE_VFORK | CLONE_FILES, &work);
    int status, context;

    if (pid < 0) {
        if (errno == ENOMEM)
            errno = ESRCH; /* its first process has ended */
        return -1;
    }
    if (waitpid(pid, &status, __WALL) < 0)
        return -1;
    context = receive_descriptor(maker->wires[1]);
    if (!WIFSIGNALED(status) && !work.error)
        return context;
    close_one(&context);
    errno = work.error ? work.error : ESRCH; /* killed with the namespace */
    return -1;
}

static int mount_context(int context, const struct wanted *wanted)
{
    if (wanted->only_own && syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "hidepid", "invisible", 0) < 0)
        return -1;
    if (syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, wanted->attributes);
}

static int make(struct maker *maker, const struct wanted *wanted)
{
    int context, mount, error;

    if (setns(wanted->process, CLONE_NEWPID) < 0)
        return -1;
    context = open_context(maker);
    error = errno;
    if (setns(maker->home, CLONE_NEWPID) < 0)
        abort(); /* it would keep the namespace of a sandbox that has ended */
    errno = error;
    if (context < 0)
        return -1;
    mount = mount_context(context, wanted);
    error = errno;
    close(context);
    errno = error;
    return mount;
}

static void *serve(void *given)
{
    struct maker *maker = given;
    struct wanted *wanted;

    pthread_mutex_lock(&maker->lock);
    while (!maker->is_over) {
        if (!(wanted = take_first(&maker->wanted))) {
            pthread_cond_wait(&maker->asked, &maker->lock);
            continue;
        }
        pthread_mutex_unlock(&maker->lock);
        wanted->mount = make(maker, wanted);
        wanted->error = errno;
        close_one(&wanted->process);
        pthread_mutex_lock(&maker->lock);
        append(&maker->made, wanted);
        eventfd_write(maker->notify, 1);
    }
    pthread_mutex_unlock(&maker->lock);
    return NULL;
}

/* -- for Python */

static void free_maker(struct maker *maker)
{
    struct wanted *wanted;

    while ((wanted = take_first(&maker->wanted)) || (wanted = take_first(&maker->made)))
        free_wanted(wanted);
    close_one(&maker->home);
    close_one(&maker->wires[0]);
    close_one(&maker->wires[1]);
    close_one(&maker->notify);
    pthread_cond_destroy(&maker->asked);
    pthread_mutex_destroy(&maker->lock);
    free(maker->stack);
    free(maker);
}

static void end_maker(PyObject *capsule)
{
    struct maker *maker = PyCapsule_GetPointer(capsule, MAKER);

    pthread_mutex_lock(&maker->lock);
    maker->is_over = 1;
    pthread_cond_signal(&maker->asked);
    pthread_mutex_unlock(&maker->lock);
    pthread_join(maker->thread, NULL);
    free_maker(maker);
}

static int start_thread(struct maker *maker)
{
    sigset_t every, before;
    int error;

    sigfillset(&every); /* one to the process group would run a handler in the child, in our memory */
    pthread_sigmask(SIG_SETMASK, &every, &before);
    error = pthread_create(&maker->thread, NULL, serve, maker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_setname_np(maker->thread, "procfs");
    return error;
}

static struct maker *new_maker(void)
{
    struct maker *maker = calloc(1, sizeof *maker);

    if (!maker)
        return NULL;
    maker->wanted.end = &maker->wanted.first;
    maker->made.end = &maker->made.first;
    maker->notify = maker->home = maker->wires[0] = maker->wires[1] = -1;
    pthread_mutex_init(&maker->lock, NULL);
    pthread_cond_init(&maker->asked, NULL);
    return maker;
}

static PyObject *start(PyObject *module, PyObject *args)
{
    struct maker *maker;
    PyObject *capsule;
    int notify, error;

    (void)module;
    if (!PyArg_ParseTuple(args, "i:start", &notify))
        return NULL;
    if (!(maker = new_maker()))
        return PyErr_NoMemory();
    if (!(maker->stack = malloc(STACK_BYTES)) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, maker->wires) < 0 ||
        (maker->home = open("/proc/thread-self/ns/pid", O_RDONLY | O_CLOEXEC)) < 0 ||
        (maker->notify = fcntl(notify, F_DUPFD_CLOEXEC, 0)) < 0 || (errno = start_thread(maker))) {
        error = errno;
        free_maker(maker);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (!(capsule = PyCapsule_New(maker, MAKER, end_maker)))
        abort(); /* the thread has it */
    return capsule;
}

static PyObject *ask(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    struct maker *maker;
    struct wanted *wanted;
    long long number;
    int process, only_own, copy;
    unsigned attributes;

    (void)module;
    if (!PyArg_ParseTuple(args, "OLipI:ask", &capsule, &number, &process, &only_own, &attributes) ||
        !(maker = PyCapsule_GetPointer(capsule, MAKER)))
        return NULL;
    if ((copy = fcntl(process, F_DUPFD_CLOEXEC, 0)) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (!(wanted = malloc(sizeof *wanted))) {
        close(copy);
        return PyErr_NoMemory();
    }
    *wanted = (struct wanted){.number = number, .attributes = attributes, .only_own = only_own, .process = copy, .mount = -1};
    pthread_mutex_lock(&maker->lock);
    append(&maker->wanted, wanted);
    pthread_cond_signal(&maker->asked);
    pthread_mutex_unlock(&maker->lock);
    Py_RETURN_NONE;
}

static PyObject *take(PyObject *module, PyObject *capsule)
{
    struct maker *maker = PyCapsule_GetPointer(capsule, MAKER);
    struct wanted *made;
    PyObject *result;

    (void)module;
    if (!maker)
        return NULL;
    pthread_mutex_lock(&maker->lock);
    made = take_first(&maker->made);
    pthread_mutex_unlock(&maker->lock);
    if (!made)
        Py_RETURN_NONE;
    result = Py_BuildValue("Lii", made->number, made->mount, made->mount < 0 ? made->error : 0);
    if (result)
        made->mount = -1; /* the caller's */
    free_wanted(made);
    return result;
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, NULL},
    {"ask", ask, METH_VARARGS, NULL},
    {"take", take, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_procfs", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__procfs(void)
{
    return PyModule_Create(&definition);
}
