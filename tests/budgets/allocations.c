/* Preloaded into a daemon: counts what it asks malloc(3) for, once it has said where to. Python asks for each object with
 * PYTHONMALLOC=malloc, but for those of its free lists. */

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static uint64_t *counts; /* calls, bytes */

void count_allocations_in(uint64_t *where)
{
    counts = where;
}

static void count(size_t size)
{
    if (!counts)
        return;
    __atomic_add_fetch(&counts[0], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counts[1], size, __ATOMIC_RELAXED);
}

void *malloc(size_t size)
{
    count(size);
    return __libc_malloc(size);
}

void *calloc(size_t members, size_t size)
{
    count(members * size);
    return __libc_calloc(members, size);
}

void *realloc(void *old, size_t size)
{
    count(size);
    return __libc_realloc(old, size);
}
