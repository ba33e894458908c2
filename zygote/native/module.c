/* The module `sockd_zygote._native`: its table of functions, described for Python in zygote/_native.pyi. */

#include "native.h"

#include <string.h>

PyObject *os_error(const char *call)
{
    int error = errno;
    PyObject *args = Py_BuildValue("iN", error, PyUnicode_FromFormat("%s: %s", call, strerror(error)));

    if (args) {
        PyErr_SetObject(PyExc_OSError, args);
        Py_DECREF(args);
    }
    return NULL;
}

static PyMethodDef methods[] = {
    {"serve", native_serve, METH_VARARGS, NULL},
    {"message", native_message, METH_NOARGS, NULL},
    {"message_fds", native_message_fds, METH_NOARGS, NULL},
    {"settle_atfork", native_settle_atfork, METH_NOARGS, NULL},
    {"keep_file", native_keep_file, METH_VARARGS, NULL},
    {"keep_socket", native_keep_socket, METH_VARARGS, NULL},
    {"keep_mapping", native_keep_mapping, METH_VARARGS, NULL},
    {"forget_kept", native_forget_kept, METH_NOARGS, NULL},
    {"reopen_in_tmp", native_reopen_in_tmp, METH_NOARGS, NULL},
    {"observe", native_observe, METH_VARARGS, NULL},
    {"stop_observing", native_stop_observing, METH_NOARGS, NULL},
    {"prepare", native_prepare, METH_VARARGS, NULL},
    {"await_children", native_await_children, METH_NOARGS, NULL},
    {"disown_children", native_disown_children, METH_NOARGS, NULL},
    {"move_up", native_move_up, METH_VARARGS, NULL},
    {"keep_filters", native_keep_filters, METH_VARARGS, NULL},
    {"settle_in_network", native_settle_in_network, METH_VARARGS, NULL},
    {"fill_gaps", native_fill_gaps, METH_NOARGS, NULL},
    {"share_code", native_share_code, METH_NOARGS, NULL},
    {"gather_arenas", native_gather_arenas, METH_NOARGS, NULL},
    {"separate_growth", native_separate_growth, METH_NOARGS, NULL},
    {"join_pages", native_join_pages, METH_NOARGS, NULL},
    {"part_large", native_part_large, METH_VARARGS, NULL},
    {"copy_pages", native_copy_pages, METH_VARARGS, NULL},
    {"receive", native_receive, METH_VARARGS, NULL},
    {"reply", native_reply, METH_VARARGS, NULL},
    {"set_environment", native_set_environment, METH_VARARGS, NULL},
    {"set_request_variable", native_set_request_variable, METH_VARARGS, NULL},
    {"limit_open_files", native_limit_open_files, METH_VARARGS, NULL},
    {"drop_bounding_set", native_drop_bounding_set, METH_VARARGS, NULL},
    {"set_capabilities", native_set_capabilities, METH_VARARGS, NULL},
    {"lock_securebits", native_lock_securebits, METH_NOARGS, NULL},
    {"install_filter", native_install_filter, METH_VARARGS, NULL},
    {"set_no_new_privs", native_set_no_new_privs, METH_NOARGS, NULL},
    {"set_dumpable", native_set_dumpable, METH_NOARGS, NULL},
    {"close_fds_from", native_close_fds_from, METH_VARARGS, NULL},
    {"generator_state", native_generator_state, METH_VARARGS, NULL},
    {"set_title", native_set_title, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&definition);
}
