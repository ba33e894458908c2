/* What `ps` shows of this process: its command line, in the place where exec(2) put it, and its name.
 *
 * PR_SET_MM_ARG_START would need CAP_SYS_RESOURCE. Without it a process may still overwrite its own arguments: when their last byte
 * is not zero, the kernel shows what stands there up to the first zero (get_mm_cmdline in fs/proc/base.c, for setproctitle). The root
 * Zygote's arguments hold the seccomp filters, 2.5 KB: there is room for any title, and it costs a child one page.
 */

#include "native.h"

#include <string.h>
#include <sys/prctl.h>

#define LONGEST_TITLE 200

static char *arguments; /* of this process's exec, one behind the other */
static size_t room;

/* glibc calls constructors with main's arguments, also those of libraries that are loaded later. */
__attribute__((constructor)) static void find_arguments(int argc, char **argv, char **environment)
{
    char *end = argv[0];

    (void)environment;
    for (int i = 0; i < argc && argv[i] == end; i++)
        end += strlen(end) + 1;
    arguments = argv[0];
    room = (size_t)(end - arguments);
}

/* -- for Python */

PyObject *native_set_title(PyObject *module, PyObject *args)
{
    const char *title, *name;
    size_t length;

    (void)module;
    if (!PyArg_ParseTuple(args, "ss:set_title", &title, &name))
        return NULL;
    prctl(PR_SET_NAME, name, 0, 0, 0); /* it fails for no pointer of ours; cut at 15 bytes */
    if (room < 2)
        return none();
    length = strnlen(title, room - 2 < LONGEST_TITLE ? room - 2 : LONGEST_TITLE);
    memcpy(arguments, title, length);
    arguments[length] = '\0';
    if (!arguments[room - 1])
        arguments[room - 1] = ' ';
    return none();
}
