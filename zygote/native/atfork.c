/* What C libraries want done around each fork (pthread_atfork(3)). The C library runs these handlers in fork(3) only, and its
 * list of them is private; a Zygote forks by a raw clone(2). So their registration is replaced as getenv is in observe.c: it goes
 * through to the C library, for the forks of sandboxes, and is remembered here, for the Zygote's own.
 */

#include "native.h"

#include <dlfcn.h>
#include <stdatomic.h>

#define MAX_HANDLERS 256
#define PUBLIC __attribute__((visibility("default")))

typedef void (*handler)(void);
typedef int (*registration)(handler prepare, handler parent, handler child, void *library);

struct handlers {
    handler prepare, parent, child;
    void *library; /* an address in what registered them: its __dso_handle */
};

static struct handlers registered[MAX_HANDLERS];
static int count;
static int lost; /* there was no room for some */
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void remember(handler prepare, handler parent, handler child, void *library)
{
    while (atomic_flag_test_and_set(&busy))
        continue;
    if (count < MAX_HANDLERS)
        registered[count++] = (struct handlers){prepare, parent, child, library};
    else
        lost = 1;
    atomic_flag_clear(&busy);
}

/* What glibc's pthread_atfork(3), which is linked into each library, calls. */
PUBLIC int __register_atfork(handler prepare, handler parent, handler child, void *library)
{
    registration real = (registration)dlsym(RTLD_NEXT, "__register_atfork");
    int error = real ? real(prepare, parent, child, library) : ENOSYS;

    if (!error)
        remember(prepare, parent, child, library);
    return error;
}

/* musl's is in the C library, as is that of glibc for programs that were linked before 2.34. */
PUBLIC int pthread_atfork(handler prepare, handler parent, handler child)
{
    int (*real)(handler, handler, handler) = (int (*)(handler, handler, handler))dlsym(RTLD_NEXT, "pthread_atfork");
    int error = real ? real(prepare, parent, child) : ENOSYS;

    if (!error)
        remember(prepare, parent, child, (void *)(prepare ? prepare : parent ? parent : child));
    return error;
}

/* fork(3): before it the last one first, after it the first one first. */
void before_fork(void)
{
    for (int i = count - 1; i >= 0; i--)
        if (registered[i].prepare)
            registered[i].prepare();
}

void after_fork_in_parent(void)
{
    for (int i = 0; i < count; i++)
        if (registered[i].parent)
            registered[i].parent();
}

void after_fork_in_child(void)
{
    for (int i = 0; i < count; i++)
        if (registered[i].child)
            registered[i].child();
}

/* -- for Python */

PyObject *native_settle_atfork(PyObject *module, PyObject *args)
{
    Dl_info library;
    int kept = 0;

    (void)module;
    (void)args;
    for (int i = 0; i < count; i++) /* those of a library that was unloaded have gone with it (dlclose(3)) */
        if (!registered[i].library || dladdr(registered[i].library, &library))
            registered[kept++] = registered[i];
    count = kept;
    return PyBool_FromLong(!lost);
}
