/* Real time, set apart by SKEWED_CLOCK_S seconds: a library to preload. Other clocks go as they do.

   It covers a process's calls of libc, which Python's clocks and its libraries in C and Rust make. The kernel's own times, of
   files and of certificates that another process checks, stay. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t skew_s(void)
{
    const char *value = getenv("SKEWED_CLOCK_S");

    return value ? atol(value) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);

    if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += skew_s();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    int failed = (int)syscall(SYS_gettimeofday, now, zone);

    if (failed == 0)
        now->tv_sec += skew_s();
    return failed;
}

time_t time(time_t *where)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (where)
        *where = now.tv_sec;
    return now.tv_sec;
}
