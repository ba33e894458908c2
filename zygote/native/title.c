/* What `ps` shows of this process: its command line, in the place where exec(2) put it, and its name.
 *
 * PR_SET_MM_ARG_START would need CAP_SYS_RESOURCE. Without it a process may still overwrite its own arguments: when their last byte
 * is not zero, the kernel shows what stands there up to the first zero (get_mm_cmdline in fs/proc/base.c, for setproctitle). The root
 * Zygote's arguments hold the seccomp filters, 2.5 KB: there is room for any title, and it costs a child one page.
 */

#include "native.h"

#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LONGEST_TITLE 200

static char *arguments; /* of this process's exec, one behind the other; a fork has them at the same place */
static size_t room;
static int is_searched;

/* proc(5): arg_start and arg_end are the 48th and the 49th field, and the name in parentheses may have spaces in it. */
static void find_arguments(void)
{
    char text[1024], *field;
    unsigned long begin, end;
    ssize_t length;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length < 0 ? 0 : length] = '\0';
    field = strrchr(text, ')');
    for (int number = 2; field && number < 48; number++)
        field = strchr(field + 1, ' ');
    if (!field || sscanf(field, "%lu %lu", &begin, &end) != 2)
        return;
    arguments = (char *)begin;
    room = (size_t)(end - begin);
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
    if (!is_searched) {
        is_searched = 1;
        find_arguments();
    }
    if (room < 2)
        return none();
    length = strnlen(title, room - 2 < LONGEST_TITLE ? room - 2 : LONGEST_TITLE);
    memcpy(arguments, title, length);
    arguments[length] = '\0';
    if (!arguments[room - 1])
        arguments[room - 1] = ' ';
    return none();
}
