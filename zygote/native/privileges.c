/* What a process may give up for good, or have given back: capabilities, securebits, filters, limits, descriptors.
 *
 * For a child in confine.c; and, by way of zygote/linux.py, for the processes that are confined in Python: farm init, the root Zygote,
 * the engine of initscripts.
 */

#include "native.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int drop_bounding_set(unsigned long long keep)
{
    for (unsigned long capability = 0; capability < 64; capability++) {
        if (keep >> capability & 1)
            continue;
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0)
            return errno == EINVAL ? 0 : -1; /* the first that this kernel does not know */
    }
    return 0;
}

/* Effective and permitted as given, inheritable and ambient empty. */
int set_capabilities(unsigned long long keep)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}};

    for (int i = 0; i < 2; i++)
        data[i].effective = data[i].permitted = (uint32_t)(keep >> (32 * i));
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return -1;
    return (int)syscall(SYS_capset, &header, data);
}

/* Uid 0 an ordinary uid, for this process and its descendants, for good. */
int lock_securebits(void)
{
    const unsigned long bits = SECBIT_NOROOT | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_CAP_AMBIENT_RAISE;
    const unsigned long locks =
        SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

    return prctl(PR_SET_SECUREBITS, bits | locks, 0, 0, 0);
}

/* -- for Python */

PyObject *native_limit_open_files(PyObject *module, PyObject *args)
{
    struct rlimit limit;
    unsigned long count;

    (void)module;
    if (!PyArg_ParseTuple(args, "k:limit_open_files", &count))
        return NULL;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return os_error("getrlimit");
    if (count < limit.rlim_max) /* RLIM_INFINITY is the largest number */
        limit.rlim_max = count;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return os_error("setrlimit");
    return none();
}

PyObject *native_drop_bounding_set(PyObject *module, PyObject *args)
{
    unsigned long long keep;

    (void)module;
    if (!PyArg_ParseTuple(args, "K:drop_bounding_set", &keep))
        return NULL;
    if (drop_bounding_set(keep) < 0)
        return os_error("prctl(PR_CAPBSET_DROP)");
    return none();
}

PyObject *native_set_capabilities(PyObject *module, PyObject *args)
{
    unsigned long long keep;

    (void)module;
    if (!PyArg_ParseTuple(args, "K:set_capabilities", &keep))
        return NULL;
    if (set_capabilities(keep) < 0)
        return os_error("capset");
    return none();
}

PyObject *native_lock_securebits(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    if (lock_securebits() < 0)
        return os_error("prctl(PR_SET_SECUREBITS)");
    return none();
}

PyObject *native_install_filter(PyObject *module, PyObject *args)
{
    PyObject *program;
    struct sock_fprog filter;

    (void)module;
    if (!PyArg_ParseTuple(args, "S:install_filter", &program))
        return NULL;
    filter.len = (unsigned short)((size_t)PyBytes_Size(program) / sizeof(struct sock_filter));
    filter.filter = (struct sock_filter *)PyBytes_AsString(program);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) < 0)
        return os_error("prctl(PR_SET_SECCOMP)");
    return none();
}

PyObject *native_set_no_new_privs(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return os_error("prctl(PR_SET_NO_NEW_PRIVS)");
    return none();
}

PyObject *native_set_dumpable(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)
        return os_error("prctl(PR_SET_DUMPABLE)");
    return none();
}

PyObject *native_close_fds_from(PyObject *module, PyObject *args)
{
    unsigned int first, last = ~0U;

    (void)module;
    if (!PyArg_ParseTuple(args, "I|I:close_fds_from", &first, &last))
        return NULL;
    if (syscall(SYS_close_range, first, last, 0) < 0)
        return os_error("close_range");
    return none();
}
