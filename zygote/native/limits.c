/* The limits that functions set and imports can see: of open files, which is set after the fork, and the size of /tmp.
 *
 * The functions below are found before the C library's (observe.c says how). Each does what that does. While imports are
 * observed, it notes that the limit was read, and answers as in a sandbox, whose hard limit is the soft one.
 */

#include "native.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INSTEAD_OF(name) __asm__(name) __attribute__((visibility("default")))
#define ALSO(name, other) __asm__(name) __attribute__((visibility("default"), alias(other)))

int seen_prlimit(pid_t pid, int resource, const struct rlimit *new, struct rlimit *old) INSTEAD_OF("prlimit");
int seen_prlimit64(pid_t pid, int resource, const struct rlimit *new, struct rlimit *old) ALSO("prlimit64", "prlimit");
int seen_getrlimit(int resource, struct rlimit *limit) INSTEAD_OF("getrlimit");
int seen_getrlimit64(int resource, struct rlimit *limit) ALSO("getrlimit64", "getrlimit");
long seen_sysconf(int name) INSTEAD_OF("sysconf");
int seen_getdtablesize(void) INSTEAD_OF("getdtablesize");

int seen_prlimit(pid_t pid, int resource, const struct rlimit *new, struct rlimit *old)
{
    int result = (int)syscall(SYS_prlimit64, pid, resource, new, old);

    if (result == 0 && old && resource == RLIMIT_NOFILE && saw_variable("RLIMIT_NOFILE"))
        old->rlim_max = old->rlim_cur;
    return result;
}

int seen_getrlimit(int resource, struct rlimit *limit)
{
    return seen_prlimit(0, resource, NULL, limit);
}

long seen_sysconf(int name)
{
    static long (*library)(int name);

    if (name == _SC_OPEN_MAX)
        saw_variable("RLIMIT_NOFILE");
    if (!library)
        *(void **)&library = dlsym(RTLD_NEXT, "sysconf");
    return library(name);
}

int seen_getdtablesize(void)
{
    return (int)seen_sysconf(_SC_OPEN_MAX);
}

/* Which file system is asked for is not looked at: hardly an import does, and few functions have another /tmp than the rest. */
#define SEEN_SIZE(name, type)                                                                                                \
    int seen_##name(type file, void *size) INSTEAD_OF(#name);                                                                \
    int seen_##name##64(type file, void *size) ALSO(#name "64", #name);                                                      \
    int seen_##name(type file, void *size)                                                                                   \
    {                                                                                                                        \
        static int (*library)(type file, void *size);                                                                        \
                                                                                                                             \
        saw_variable("TMP_SIZE");                                                                                            \
        if (!library)                                                                                                        \
            *(void **)&library = dlsym(RTLD_NEXT, #name);                                                                    \
        return library(file, size);                                                                                          \
    }

SEEN_SIZE(statvfs, const char *)
SEEN_SIZE(fstatvfs, int)
SEEN_SIZE(statfs, const char *)
SEEN_SIZE(fstatfs, int)
