/* Where a Zygote's memory grows while it imports, so that it becomes huge pages afterwards.
 *
 * fork(2) copies an entry for each page that a Zygote has written to and looks up what the kernel knows of it; the end of the
 * child does so again. Where nothing was done for 10 ms that is 0.3 us a page, so with numpy, of 3 700 pages, half of the fork.
 * A huge page is one entry; and 512 that are handled at once, when somebody has written to it.
 */

#include "native.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE /* Linux 6.1, in younger headers */
#define MADV_COLLAPSE 25
#endif
#define HUGE_BYTES (2UL << 20)
#define ARENA_BYTES (1UL << 20) /* pymalloc's, since Python 3.10 */
#define REGION_BYTES (256UL << 20) /* of addresses, which are nothing yet; who needs more has the usual arenas then */

/* PyObjectArenaAllocator: documented, not in the stable ABI, and the same since Python 3.4. */
struct arena_allocator {
    void *context;
    void *(*take)(void *context, size_t size);
    void (*give_back)(void *context, void *arena, size_t size);
};
PyAPI_FUNC(void) PyObject_GetArenaAllocator(struct arena_allocator *allocator);
PyAPI_FUNC(void) PyObject_SetArenaAllocator(struct arena_allocator *allocator);

static struct arena_allocator usual;
static char *next_arena, *region_end;
static char *arenas_from, *heap_from; /* what this Zygote has allocated itself */

static char *aligned(char *address)
{
    return (char *)(((uintptr_t)address + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
}

/* One behind the other, as long as there is room; given back, it leaves a hole. What is smaller is a piece of the interpreter's
 * stack: those come and go by the hundred in an import, and libraries would be mapped into their holes. */
static void *take_arena(void *context, size_t size)
{
    char *arena = next_arena;

    if (size < ARENA_BYTES || size > (size_t)(region_end - arena) || mprotect(arena, size, PROT_READ | PROT_WRITE) < 0)
        return usual.take(context, size);
    next_arena += size;
    return arena;
}

static void collapse(char *begin, char *end)
{
    for (; begin + HUGE_BYTES <= end; begin += HUGE_BYTES)
        madvise(begin, HUGE_BYTES, MADV_COLLAPSE); /* where there is a hole, or no huge page to be had, it is only slower */
}

/* -- for Python */

PyObject *native_gather_arenas(PyObject *module, PyObject *args)
{
    struct arena_allocator ours;
    char *region = mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)module;
    (void)args;
    if (region == MAP_FAILED)
        return none(); /* only slower */
    next_arena = aligned(region);
    region_end = region + REGION_BYTES;
    PyObject_GetArenaAllocator(&usual);
    ours = usual;
    ours.take = take_arena;
    PyObject_SetArenaAllocator(&ours);
    return none();
}

PyObject *native_separate_growth(PyObject *module, PyObject *args)
{
    char *heap_end = sbrk(0);

    (void)module;
    (void)args;
    heap_from = aligned(heap_end);
    if (sbrk(heap_from - heap_end) == (void *)-1) /* malloc(3) bears with others who move it */
        heap_from = NULL;
    arenas_from = aligned(next_arena);
    if (arenas_from > region_end)
        arenas_from = region_end;
    next_arena = arenas_from;
    return none();
}

PyObject *native_join_pages(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    if (heap_from)
        collapse(heap_from, sbrk(0));
    collapse(arenas_from, next_arena);
    return none();
}
