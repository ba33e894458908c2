/* The process's environment, for what C libraries read of it, in one block: setenv(3) would touch a page for each name. */

#include "native.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

static size_t name_length(const char *entry)
{
    return (size_t)(strchrnul(entry, '=') - entry);
}

/* Put "name=value" in the place of another of that name, or at the end; the new number of entries. */
static size_t put(char **entries, size_t count, char *entry)
{
    size_t length = name_length(entry);

    for (size_t i = 0; i < count; i++)
        if (name_length(entries[i]) == length && memcmp(entries[i], entry, length) == 0) {
            entries[i] = entry;
            return count;
        }
    entries[count] = entry;
    return count + 1;
}

/* The bytes of all "name=value" with their ends; 0 with an exception (there is at least one pair). */
static size_t text_size(PyObject *variables)
{
    PyObject *name, *value;
    Py_ssize_t position = 0;
    size_t size = 0;

    while (PyDict_Next(variables, &position, &name, &value)) {
        if (!PyBytes_Check(name) || !PyBytes_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "names and values of an environment are bytes");
            return 0;
        }
        size += (size_t)PyBytes_Size(name) + (size_t)PyBytes_Size(value) + 2;
    }
    return size;
}

/* "name=value" to `at`; where the next one goes. */
static char *copy_pair(PyObject *name, PyObject *value, char *at)
{
    size_t name_size = (size_t)PyBytes_Size(name), value_size = (size_t)PyBytes_Size(value);

    memcpy(at, PyBytes_AsString(name), name_size);
    at += name_size;
    *at++ = '=';
    memcpy(at, PyBytes_AsString(value), value_size + 1); /* with the zero that ends every bytes object */
    return at + value_size + 1;
}

static size_t count_entries(void)
{
    size_t count = 0;

    while (environ && environ[count])
        count++;
    return count;
}

#define REQUEST_VARIABLES 3
#define REQUEST_VARIABLE_BYTES 640 /* the longest is TRACESTATE, of 512 characters (sockd/base/trace_context.py) */

/* Two for each, in turn: what is in the environment is not written to, as a thread may be passing it to execve(2). */
static char request_variables[REQUEST_VARIABLES][2][REQUEST_VARIABLE_BYTES];
static unsigned char next_of[REQUEST_VARIABLES];

/* -- for Python */

PyObject *native_set_request_variable(PyObject *module, PyObject *args)
{
    unsigned int place;
    PyObject *entry;
    const char *text;
    char *own;
    size_t size;

    (void)module;
    if (!PyArg_ParseTuple(args, "IS:set_request_variable", &place, &entry))
        return NULL;
    size = (size_t)PyBytes_Size(entry) + 1; /* with the zero that ends every bytes object */
    if (place >= REQUEST_VARIABLES || size > REQUEST_VARIABLE_BYTES) {
        PyErr_SetString(PyExc_ValueError, "no place for that variable");
        return NULL;
    }
    text = PyBytes_AsString(entry);
    if (!strchr(text, '=')) {
        if (unsetenv(text) != 0)
            return PyErr_SetFromErrno(PyExc_OSError);
        return none();
    }
    own = request_variables[place][next_of[place]];
    next_of[place] ^= 1;
    memcpy(own, text, size);
    if (putenv(own) != 0)
        return PyErr_NoMemory();
    return none();
}

PyObject *native_set_environment(PyObject *module, PyObject *args)
{
    PyObject *variables, *name, *value;
    Py_ssize_t position = 0;
    size_t count = count_entries(), most, size;
    char **entries, *at, *next;

    (void)module;
    if (!PyArg_ParseTuple(args, "O!:set_environment", &PyDict_Type, &variables))
        return NULL;
    if (PyDict_Size(variables) == 0)
        return none();
    size = text_size(variables);
    if (size == 0)
        return NULL;
    most = count + (size_t)PyDict_Size(variables) + 1;
    entries = malloc(most * sizeof *entries + size);
    if (!entries)
        return PyErr_NoMemory();
    if (count)
        memcpy(entries, environ, count * sizeof *entries);
    at = (char *)(entries + most);
    while (PyDict_Next(variables, &position, &name, &value)) {
        next = copy_pair(name, value, at);
        count = put(entries, count, at);
        at = next;
    }
    entries[count] = NULL;
    environ = entries; /* never freed: a library may have kept a pointer into the one before */
    return none();
}
