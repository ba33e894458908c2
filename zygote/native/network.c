/* The network namespaces of a walled Zygote: its own, in which nothing is, and those that it forks sandboxes in.
 *
 * The daemon has them made, owned by the Zygote's user namespace. setns(2) asks for CAP_SYS_ADMIN there and nothing else, so the
 * Zygote keeps no capability over networks; it never comes back to where it was before it settled, the host's included.
 */

#include "native.h"

#include <sched.h>
#include <unistd.h>

/* Where its next child is to be born. Returned is where it was, for `return_from_network`. */
int enter_network(int network)
{
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), error;

    if (home < 0 || setns(network, CLONE_NEWNET) == 0)
        return home;
    error = errno;
    close(home);
    errno = error;
    return -1;
}

int return_from_network(int home)
{
    int result = setns(home, CLONE_NEWNET), error = errno;

    close(home);
    errno = error;
    return result;
}

/* -- for Python */

PyObject *native_settle_in_network(PyObject *module, PyObject *args)
{
    int network;

    (void)module;
    if (!PyArg_ParseTuple(args, "i:settle_in_network", &network))
        return NULL;
    return return_from_network(network) < 0 ? os_error("setns") : none();
}
