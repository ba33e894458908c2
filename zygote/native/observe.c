/* What a Zygote's imports do that Python alone cannot see: variables and files that C code looks for, and audit events.
 *
 * The root Zygote is exec'd with this file preloaded (LD_PRELOAD), so `getenv` below is found before the C library's by every
 * library that is loaded later. It does what that does, and while it is switched on, it records the name. In a sandbox it costs one
 * load and one branch a call. zygote/forks/observer.py is the other half.
 */

#include "native.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#define NAMES_BYTES (64 * 1024)
#define CODE "/var/task" /* surroundings.CODE: where imports run */
#define PUBLIC __attribute__((visibility("default")))

/* Documented, not in the limited API, and the same since Python 3.8. */
typedef int (*audit_hook)(const char *event, PyObject *arguments, void *data);
PyAPI_FUNC(int) PySys_AddAuditHook(audit_hook hook, void *data);

extern char **environ;

static const char *const EVENTS[] = {
    "os.listdir", "os.scandir", "os.putenv", "os.unsetenv", "subprocess.Popen", "os.posix_spawn", "os.system", "os.exec",
    "os.fork", "os.forkpty", NULL,
};

static atomic_int observing;
static atomic_flag busy = ATOMIC_FLAG_INIT;
static struct names {
    char text[NAMES_BYTES]; /* one behind the other, each with its end */
    size_t length;
    int complete;
} variables, files;
static PyObject *observer; /* called with (event, arguments) while it is there */
static int is_hooked;

static int is_recorded(const struct names *names, const char *name, size_t length)
{
    for (size_t at = 0; at < names->length; at += strlen(names->text + at) + 1)
        if (strncmp(names->text + at, name, length) == 0 && names->text[at + length] == 0)
            return 1;
    return 0;
}

/* By any thread, with or without the interpreter's lock. */
static void note(struct names *names, const char *name, size_t length)
{
    while (atomic_flag_test_and_set(&busy))
        continue;
    if (length > 0 && !is_recorded(names, name, length)) {
        if (names->length + length < sizeof names->text) {
            memcpy(names->text + names->length, name, length);
            names->length += length;
            names->text[names->length++] = 0;
        } else {
            names->complete = 0;
        }
    }
    atomic_flag_clear(&busy);
}

/* Called for every file that is looked for (files.c): of those in the working directory, the name at its top is recorded. A path
 * without a slash in front is taken to be relative to it, whatever to it is. */
void saw_path(const char *path)
{
    if (!atomic_load_explicit(&observing, memory_order_relaxed) || !path)
        return;
    if (*path == '/') {
        if (strncmp(path, CODE "/", sizeof CODE) != 0)
            return;
        path += sizeof CODE;
    }
    for (;;) {
        size_t length = strcspn(path, "/");

        if (length > 1 || (length == 1 && *path != '.')) {
            note(&files, path, length);
            return;
        }
        if (path[length] == 0)
            return; /* the directory itself */
        path += length + 1;
    }
}

/* Also for what is no variable, and what functions may have otherwise (limits.c). */
int saw_variable(const char *name)
{
    if (!atomic_load_explicit(&observing, memory_order_relaxed))
        return 0;
    note(&variables, name, strlen(name));
    return 1;
}

static char *look_up(const char *name)
{
    size_t length = strlen(name);

    saw_variable(name);
    if (length == 0)
        return NULL;
    for (char **entry = environ; entry && *entry; entry++)
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
            return *entry + length + 1;
    return NULL;
}

/* The root Zygote is exec'd by its own uid: its environment is trusted (AT_SECURE is 0), so both are the same. */
PUBLIC char *getenv(const char *name) __attribute__((alias("look_up")));
PUBLIC char *secure_getenv(const char *name) __attribute__((alias("look_up")));

static int hear(const char *event, PyObject *arguments, void *data)
{
    PyObject *result;

    (void)data;
    if (!observer)
        return 0;
    for (const char *const *known = EVENTS; *known; known++)
        if (strcmp(event, *known) == 0) {
            result = PyObject_CallFunction(observer, "sO", event, arguments);
            if (!result) { /* it must not be the package's failure */
                PyErr_Clear();
                variables.complete = 0;
            }
            Py_XDECREF(result);
        }
    return 0;
}

/* -- for Python */

PyObject *native_observe(PyObject *module, PyObject *args)
{
    PyObject *callable;

    (void)module;
    if (!PyArg_ParseTuple(args, "O:observe", &callable))
        return NULL;
    if (dlsym(RTLD_DEFAULT, "getenv") != (void *)look_up) { /* not `getenv`: that is whichever is in effect */
        PyErr_SetString(PyExc_RuntimeError, "the C library's getenv is not replaced: LD_PRELOAD was not in effect");
        return NULL;
    }
    if (!is_hooked && PySys_AddAuditHook(hear, NULL) < 0)
        return NULL;
    is_hooked = 1;
    variables.length = files.length = 0;
    variables.complete = files.complete = 1;
    Py_INCREF(callable);
    observer = callable;
    atomic_store(&observing, 1);
    return none();
}

static PyObject *as_bytes(const struct names *names)
{
    return PyBytes_FromStringAndSize(names->text, (Py_ssize_t)names->length);
}

PyObject *native_stop_observing(PyObject *module, PyObject *args)
{
    PyObject *seen = observer;

    (void)module;
    (void)args;
    atomic_store(&observing, 0);
    observer = NULL;
    Py_XDECREF(seen);
    return Py_BuildValue("NiNi", as_bytes(&variables), variables.complete, as_bytes(&files), files.complete);
}
