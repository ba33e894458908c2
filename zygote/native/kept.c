/* What imports left in a Zygote that a fork would share with it, and a sandbox is to have of its own: open files, and memory
 * that is mapped MAP_SHARED (the semaphores of `multiprocessing`); of a template, sockets, too. zygote/forks/kept.py finds them,
 * before the forks.
 */

#include "native.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_KEPT 64 /* kept.MOST: of either */

struct kept_file {
    int fd, flags, closes_on_exec;
    int in_tmp; /* it is made in the sandbox, too, and is there only when its code is */
    long long offset;
    char *path; /* NULL: an unconnected socket */
    int family, type;
};

struct kept_mapping {
    char *address;
    size_t size;
};

static struct kept_file files[MAX_KEPT];
static struct kept_mapping mappings[MAX_KEPT];
static int file_count, mapping_count;

static int place(int fd, int number, int closes_on_exec)
{
    int result;

    if (fd == number)
        return fcntl(fd, F_SETFD, closes_on_exec ? FD_CLOEXEC : 0);
    result = dup3(fd, number, closes_on_exec ? O_CLOEXEC : 0);
    close(fd);
    return result;
}

/* A description of its own at the same number; or for now /dev/null, so that nothing else takes that number. */
static int reopen(const struct kept_file *file, int is_there)
{
    int held_by = file->path ? O_RDONLY : O_PATH;
    int fd = is_there ? open(file->path, file->flags | O_CLOEXEC | O_NOCTTY) : open("/dev/null", held_by | O_CLOEXEC);

    if (fd < 0 || place(fd, file->fd, file->closes_on_exec) < 0)
        return -1;
    return is_there && file->offset > 0 && lseek(file->fd, file->offset, SEEK_SET) < 0 ? -1 : 0;
}

/* The same bytes at the same address, shared with no process yet. */
static int part(const struct kept_mapping *mapping)
{
    char *copy = mmap(NULL, mapping->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (copy == MAP_FAILED)
        return -1;
    memcpy(copy, mapping->address, mapping->size);
    copy = mremap(copy, mapping->size, mapping->size, MREMAP_MAYMOVE | MREMAP_FIXED, mapping->address);
    return copy == MAP_FAILED ? -1 : 0;
}

/* In the child, in its own root. -1 with errno. */
int take_over_kept(void)
{
    for (int i = 0; i < file_count; i++)
        if (reopen(&files[i], files[i].path && !files[i].in_tmp) < 0)
            return -1;
    for (int i = 0; i < mapping_count; i++)
        if (part(&mappings[i]) < 0)
            return -1;
    return 0;
}

static int holds_number(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && flags & O_PATH;
}

/* In the child, in its own cgroups: a socket stays with its maker's, whose programs count its use. -1 with errno. */
int make_kept_sockets(void)
{
    for (int i = 0; i < file_count; i++) {
        int fd;

        if (files[i].path || !holds_number(files[i].fd)) /* a hook of the fork may have closed it */
            continue;
        fd = socket(files[i].family, files[i].type | SOCK_CLOEXEC, 0);
        if (fd < 0 || place(fd, files[i].fd, files[i].closes_on_exec) < 0)
            return -1;
    }
    return 0;
}

/* `fd`, or a copy of it beyond the numbers that kept files will have. -1 with errno. */
int out_of_the_way(int fd)
{
    int beyond = 0;

    for (int i = 0; i < file_count; i++)
        if (files[i].fd >= beyond)
            beyond = files[i].fd + 1;
    return fd < 0 || fd >= beyond ? fd : fcntl(fd, F_DUPFD_CLOEXEC, beyond);
}

/* -- for Python */

PyObject *native_keep_file(PyObject *module, PyObject *args)
{
    struct kept_file file;
    PyObject *path;

    (void)module;
    if (!PyArg_ParseTuple(args, "iiiiLS:keep_file", &file.fd, &file.flags, &file.closes_on_exec, &file.in_tmp,
                          &file.offset, &path))
        return NULL;
    if (file_count == MAX_KEPT) {
        errno = EMFILE;
        return os_error("keep_file");
    }
    file.path = strdup(PyBytes_AsString(path));
    if (!file.path)
        return PyErr_NoMemory();
    files[file_count++] = file;
    return none();
}

PyObject *native_keep_socket(PyObject *module, PyObject *args)
{
    struct kept_file file = {0};

    (void)module;
    if (!PyArg_ParseTuple(args, "iiip:keep_socket", &file.fd, &file.family, &file.type, &file.closes_on_exec))
        return NULL;
    if (file_count == MAX_KEPT) {
        errno = EMFILE;
        return os_error("keep_socket");
    }
    files[file_count++] = file;
    return none();
}

PyObject *native_keep_mapping(PyObject *module, PyObject *args)
{
    unsigned long long address, size;

    (void)module;
    if (!PyArg_ParseTuple(args, "KK:keep_mapping", &address, &size))
        return NULL;
    if (mapping_count == MAX_KEPT) {
        errno = ENOMEM;
        return os_error("keep_mapping");
    }
    mappings[mapping_count++] = (struct kept_mapping){(char *)(uintptr_t)address, (size_t)size};
    return none();
}

PyObject *native_forget_kept(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    while (file_count > 0)
        free(files[--file_count].path);
    mapping_count = 0;
    return none();
}

PyObject *native_reopen_in_tmp(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    for (int i = 0; i < file_count; i++)
        if (files[i].in_tmp && reopen(&files[i], 1) < 0)
            return os_error(files[i].path);
    return none();
}
