/* What a Zygote's imports look for in the function's directory, in which there is nothing when packages are imported ahead.
 *
 * The functions below are found before the C library's (observe.c says how). Each does what that does and tells `saw_path`,
 * which notes nothing in a sandbox. Listings are audit events. On 64 bits there is one layout of a status, so the names with
 * 64 are the same functions, and so are those that a C library before 2.33 has, with a version in front.
 */

#include "native.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INSTEAD_OF(name) __asm__(name) __attribute__((visibility("default")))
#define ALSO(name, other) __asm__(name) __attribute__((visibility("default"), alias(other)))

static struct {
    int (*openat)(int directory, const char *path, int flags, ...);
    int (*faccessat)(int directory, const char *path, int mode, int flags);
    FILE *(*fopen)(const char *path, const char *mode);
} library; /* the C library's own, found in the root Zygote by its first call of any */

static void find_library(void)
{
    if (library.fopen)
        return;
    *(void **)&library.openat = dlsym(RTLD_NEXT, "openat");
    *(void **)&library.faccessat = dlsym(RTLD_NEXT, "faccessat");
    *(void **)&library.fopen = dlsym(RTLD_NEXT, "fopen");
}

/* -- status */

int seen_fstatat(int directory, const char *path, void *status, int flags) INSTEAD_OF("fstatat");
int seen_fstatat64(int directory, const char *path, void *status, int flags) ALSO("fstatat64", "fstatat");
int seen_stat(const char *path, void *status) INSTEAD_OF("stat");
int seen_stat64(const char *path, void *status) ALSO("stat64", "stat");
int seen_lstat(const char *path, void *status) INSTEAD_OF("lstat");
int seen_lstat64(const char *path, void *status) ALSO("lstat64", "lstat");
int seen_xstat(int version, const char *path, void *status) INSTEAD_OF("__xstat");
int seen_xstat64(int version, const char *path, void *status) ALSO("__xstat64", "__xstat");
int seen_lxstat(int version, const char *path, void *status) INSTEAD_OF("__lxstat");
int seen_lxstat64(int version, const char *path, void *status) ALSO("__lxstat64", "__lxstat");
int seen_statx(int directory, const char *path, int flags, unsigned mask, void *status) INSTEAD_OF("statx");

int seen_fstatat(int directory, const char *path, void *status, int flags)
{
    saw_path(path);
    return (int)syscall(SYS_newfstatat, directory, path, status, flags);
}

int seen_stat(const char *path, void *status)
{
    return seen_fstatat(AT_FDCWD, path, status, 0);
}

int seen_lstat(const char *path, void *status)
{
    return seen_fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int seen_xstat(int version, const char *path, void *status)
{
    (void)version;
    return seen_stat(path, status);
}

int seen_lxstat(int version, const char *path, void *status)
{
    (void)version;
    return seen_lstat(path, status);
}

int seen_statx(int directory, const char *path, int flags, unsigned mask, void *status)
{
    saw_path(path);
    return (int)syscall(SYS_statx, directory, path, flags, mask, status);
}

/* -- access */

int seen_faccessat(int directory, const char *path, int mode, int flags) INSTEAD_OF("faccessat");
int seen_access(const char *path, int mode) INSTEAD_OF("access");

int seen_faccessat(int directory, const char *path, int mode, int flags)
{
    saw_path(path);
    find_library();
    return library.faccessat(directory, path, mode, flags);
}

int seen_access(const char *path, int mode)
{
    return seen_faccessat(AT_FDCWD, path, mode, 0);
}

/* -- open */

int seen_openat(int directory, const char *path, int flags, ...) INSTEAD_OF("openat");
int seen_openat64(int directory, const char *path, int flags, ...) ALSO("openat64", "openat");
int seen_open(const char *path, int flags, ...) INSTEAD_OF("open");
int seen_open64(const char *path, int flags, ...) ALSO("open64", "open");
int seen_open_2(const char *path, int flags) INSTEAD_OF("__open_2");
int seen_open64_2(const char *path, int flags) ALSO("__open64_2", "__open_2");
FILE *seen_fopen(const char *path, const char *mode) INSTEAD_OF("fopen");
FILE *seen_fopen64(const char *path, const char *mode) ALSO("fopen64", "fopen");

static int opened(int directory, const char *path, int flags, unsigned mode)
{
    saw_path(path);
    find_library();
    return library.openat(directory, path, flags, mode);
}

/* open(2): only what may make a file has a mode. */
static unsigned mode_of(int flags, va_list rest)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, unsigned) : 0;
}

int seen_openat(int directory, const char *path, int flags, ...)
{
    va_list rest;
    unsigned mode;

    va_start(rest, flags);
    mode = mode_of(flags, rest);
    va_end(rest);
    return opened(directory, path, flags, mode);
}

int seen_open(const char *path, int flags, ...)
{
    va_list rest;
    unsigned mode;

    va_start(rest, flags);
    mode = mode_of(flags, rest);
    va_end(rest);
    return opened(AT_FDCWD, path, flags, mode);
}

int seen_open_2(const char *path, int flags)
{
    return opened(AT_FDCWD, path, flags, 0);
}

FILE *seen_fopen(const char *path, const char *mode)
{
    saw_path(path);
    find_library();
    return library.fopen(path, mode);
}
