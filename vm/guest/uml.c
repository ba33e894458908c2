/* What user-mode-linux has differently, hidden from the programs of the guest: loaded into each (/etc/ld.so.preload).
 *
 * The kernel refills the memory of eBPF maps by work that is to begin at once. There it begins at the next tick, and a second element
 * within one tick fails with ENOMEM.
 *
 * The memory of a map may be mapped into a process (BPF_F_MMAPABLE). There Linux 6.12 crashes when the process ends: "Bad page map".
 * Such maps are refused (REFUSES_SHARED_MAPS), as by kernels that have none: the worker goes without its count of sockets. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>

#define TRIES 50

long syscall(long number, ...)
{
    static long (*libc)(long, ...);
    const struct timespec tick = {0, 10 * 1000 * 1000};
    long a[6], result;
    va_list list;

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (!libc)
        libc = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    if (REFUSES_SHARED_MAPS && number == SYS_bpf && a[0] == BPF_MAP_CREATE && ((const union bpf_attr *)a[1])->map_flags & BPF_F_MMAPABLE) {
        errno = EINVAL;
        return -1;
    }
    result = libc(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    for (int tries = 0; number == SYS_bpf && result < 0 && errno == ENOMEM && tries < TRIES; tries++) {
        nanosleep(&tick, 0);
        result = libc(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    return result;
}
