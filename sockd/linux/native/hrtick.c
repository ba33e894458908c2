/* The module `sockd.linux._hrtick`, described for Python in sockd/linux/_hrtick.pyi: on each processor a thread that wakes
 * several times a tick and does nothing.
 *
 * Whenever a processor passes from one thread to another, the kernel picks the one that is owed it most. A thread that was
 * woken a moment too early, when by nanoseconds another one was owed more, is not looked at again before the scheduler's tick
 * otherwise: up to 4 ms with CONFIG_HZ=250. (A timer of the kernel's would do the same, kernel/sched/features.h: HRTICK. It
 * is off, and only debugfs switches it on.)
 */

#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define STACK_BYTES (64 << 10)
#define NAME_BYTES 16 /* of a thread, with the zero that ends it (pthread_setname_np(3)) */
#define SHORTEST_SLICE_NS 100000 /* syscalls.SHORTEST_SLICE_NS */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;
static _Atomic long long until_ns; /* CLOCK_MONOTONIC */
static int is_over;                /* with the lock held */
static struct timespec period;
static pthread_t *threads;
static Py_ssize_t running;

static long long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

/* It runs for 2 us, so it may go before all others; where it may not (CAP_SYS_NICE), at least before those with longer slices. */
static void go_first(void)
{
    struct sched_param lowest = {.sched_priority = 1};
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes, .policy = SCHED_OTHER, .runtime = SHORTEST_SLICE_NS};

    if (sched_setscheduler(0, SCHED_FIFO, &lowest) < 0)
        syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static int wait_until_wanted(void)
{
    int goes_on;

    pthread_mutex_lock(&lock);
    while (!is_over && now_ns() >= until_ns)
        pthread_cond_wait(&wanted, &lock);
    goes_on = !is_over;
    pthread_mutex_unlock(&lock);
    return goes_on;
}

static void *tick(void *unused)
{
    go_first();
    while (wait_until_wanted())
        while (now_ns() < until_ns)
            clock_nanosleep(CLOCK_MONOTONIC, 0, &period, NULL);
    return unused;
}

static int start_on(long processor, pthread_t *thread)
{
    cpu_set_t *set = CPU_ALLOC(processor + 1);
    size_t size = CPU_ALLOC_SIZE(processor + 1);
    pthread_attr_t attributes;
    char name[sizeof "hrtick/" + 20];
    int error;

    if (!set)
        return ENOMEM;
    CPU_ZERO_S(size, set);
    CPU_SET_S(processor, size, set);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    error = pthread_attr_setaffinity_np(&attributes, size, set);
    if (!error)
        error = pthread_create(thread, &attributes, tick, NULL);
    pthread_attr_destroy(&attributes);
    CPU_FREE(set);
    if (!error) {
        snprintf(name, sizeof name, "hrtick/%ld", processor);
        name[NAME_BYTES - 1] = '\0';
        pthread_setname_np(*thread, name);
    }
    return error;
}

static void end_all(void)
{
    pthread_mutex_lock(&lock);
    is_over = 1;
    until_ns = 0;
    pthread_cond_broadcast(&wanted);
    pthread_mutex_unlock(&lock);
    while (running)
        pthread_join(threads[--running], NULL);
    PyMem_Free(threads);
    threads = NULL;
}

/* -- for Python */

static PyObject *start(PyObject *module, PyObject *args)
{
    PyObject *processors;
    long long period_ns;
    sigset_t every, before;
    Py_ssize_t count;
    int error = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "OL:start", &processors, &period_ns) || (count = PyList_Size(processors)) < 0)
        return NULL;
    if (threads || period_ns <= 0) {
        PyErr_SetString(PyExc_ValueError, threads ? "they run already" : "a period is more than 0 ns");
        return NULL;
    }
    threads = PyMem_Malloc((count ? count : 1) * sizeof *threads);
    if (!threads)
        return PyErr_NoMemory();
    period = (struct timespec){period_ns / SECOND_NS, period_ns % SECOND_NS};
    is_over = 0;
    sigfillset(&every); /* signals are for Python's threads */
    pthread_sigmask(SIG_SETMASK, &every, &before);
    while (running < count && !error) {
        long processor = PyLong_AsLong(PyList_GetItem(processors, running));

        error = processor < 0 ? EINVAL : start_on(processor, &threads[running]);
        running += !error;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        Py_RETURN_NONE;
    end_all();
    PyErr_Clear();
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *run_until(PyObject *module, PyObject *args)
{
    long long end_ns;

    (void)module;
    if (!PyArg_ParseTuple(args, "L:run_until", &end_ns))
        return NULL;
    pthread_mutex_lock(&lock);
    until_ns = end_ns;
    pthread_cond_broadcast(&wanted);
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    end_all();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, NULL},
    {"run_until", run_until, METH_VARARGS, NULL},
    {"stop", stop, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_hrtick", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__hrtick(void)
{
    return PyModule_Create(&definition);
}
