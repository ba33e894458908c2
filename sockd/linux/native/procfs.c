/* The module `sockd.linux._procfs`, described for Python in sockd/linux/_procfs.pyi: a procfs of another pid namespace, on kernels
 * before 6.18, whose procfs has no option for that.
 *
 * There the namespace of a new procfs is the one that its maker was born in. So a child is born there for one fsopen(2). It shares the
 * daemon's memory, as after vfork(2), and runs nothing but system calls on a stack of its own; and it is killed with the namespace,
 * if that ends meanwhile. It therefore has a descriptor table of its own, made by close_range(2) with the few lowest descriptors in
 * it: what it had opened when it was killed is closed with it. The descriptor comes over a socket.
 */

#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (64 << 10)
#define FSOPEN_CLOEXEC 1
#ifndef CLOSE_RANGE_UNSHARE /* in glibc's headers since 2.34 */
#define CLOSE_RANGE_UNSHARE 2
#endif

struct work {
    int socket;
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

/* In the other namespace. */
static int open_there(void *given)
{
    struct work *work = given;
    int context;

    if (syscall(SYS_close_range, work->socket + 1, ~0U, CLOSE_RANGE_UNSHARE) < 0 ||
        (context = (int)syscall(SYS_fsopen, "proc", FSOPEN_CLOEXEC)) < 0 || send_descriptor(work->socket, context) < 0)
        work->error = errno;
    return 0;
}

/* The child's wait status, or -1 with errno. */
static int run_child(struct work *work)
{
    char *stack = PyMem_Malloc(STACK_BYTES);
    int status = -1, error;
    pid_t pid;

    if (!stack) {
        errno = ENOMEM;
        return -1;
    }
    pid = clone(open_there, (void *)(((uintptr_t)stack + STACK_BYTES) & ~(uintptr_t)15), CLONE_VM | CLONE_VFORK | CLONE_FILES, work);
    if (pid > 0 && waitpid(pid, &status, __WALL) < 0)
        status = -1;
    error = errno;
    PyMem_Free(stack);
    errno = error;
    return status;
}

static PyObject *open_context(PyObject *module, PyObject *args)
{
    struct work work = {0};
    sigset_t every, before;
    int process, home, status, error;

    (void)module;
    if (!PyArg_ParseTuple(args, "iii:open_context", &process, &home, &work.socket))
        return NULL;
    sigfillset(&every); /* one to the process group would run a handler in the child, in our memory */
    sigprocmask(SIG_SETMASK, &every, &before);
    if (setns(process, CLONE_NEWPID) < 0) {
        status = -1;
        error = errno;
    } else {
        status = run_child(&work);
        error = status < 0 && errno == ENOMEM ? ESRCH : status < 0 ? errno : work.error; /* ENOMEM: its first process has ended */
        if (setns(home, CLONE_NEWPID) < 0)
            abort(); /* what the daemon starts from now on would be born in a sandbox's namespace */
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (status >= 0 && WIFSIGNALED(status))
        error = ESRCH; /* killed with the namespace */
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_INCREF(Py_None);
    return Py_None;
}

static PyMethodDef methods[] = {
    {"open_context", open_context, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_procfs", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__procfs(void)
{
    return PyModule_Create(&definition);
}
