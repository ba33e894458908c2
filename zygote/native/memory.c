/* Where a Zygote's memory lies, so that its children fault on fewer pages of it.
 *
 * A fault is 1.5-2 us, and a child's first answer was made of 260. Some are for what it allocates: the allocators
 * give it gaps between the Zygote's objects, nearly each in another page. And a fifth is reading: fork(2) does not copy the page
 * tables of a file that a process maps and has not written to, so each child maps the interpreter's code anew.
 */

#include "native.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGEST_CHUNK 1040 /* of the gaps in malloc(3)'s heap that are filled; larger ones hold many blocks */
#define LARGEST_BLOCK 512  /* of pymalloc's */
#define STEP 16            /* between the sizes of either */
#define MOST_BYTES (256 * 1024) /* for one size */
#define IN_A_ROW 3              /* blocks behind each other: this is no gap */
#define POOL_BYTES 16384UL      /* pymalloc's unit on 64-bit machines, since Python 3.10; its blocks are of one size */
#define POOL_HEADER_BYTES 48UL
#define LARGE_BYTES (512 * 1024UL) /* a mapping that children fault on so often that inheriting it, some 5 us, costs less */
#define MAX_MAPPINGS 256
#define LINE_BYTES 600
#define PERMISSIONS_BYTES 5 /* "r-xp" */

struct mapping {
    char *begin, *end;
    int protection;
};

/* Take malloc(3)'s gaps of one size, for good: what is allocated next lies behind each other. */
static void fill_gaps(size_t size)
{
    char *before = NULL, *block;
    int in_a_row = 0;

    for (size_t taken = 0; taken < MOST_BYTES && in_a_row < IN_A_ROW; taken += size) {
        block = malloc(size);
        if (!block)
            return;
        in_a_row = before && block > before && block <= before + size + STEP ? in_a_row + 1 : 0;
        before = block;
    }
}

/* Take the free blocks of pools that are in use: the next block of this size comes from a pool that is not. (If pools were
 * made otherwise, some memory would be lost, and nothing else.) */
static void fill_pools(size_t size)
{
    char *block = PyObject_Malloc(size), *next;

    for (size_t taken = 0; block && taken < MOST_BYTES; taken += size) {
        next = PyObject_Malloc(size);
        if (next == block + size && ((uintptr_t)block & (POOL_BYTES - 1)) == POOL_HEADER_BYTES) {
            PyObject_Free(next); /* the first two of a pool: it was empty, and is again */
            PyObject_Free(block);
            return;
        }
        block = next;
    }
}

/* Write to a mapping that is only read, what stands there, and forget it: from now on fork(2) copies the table of the pages
 * that are used again. */
static void inherit(const struct mapping *mapping)
{
    size_t size = (size_t)(mapping->end - mapping->begin);
    volatile char *first = mapping->begin;

    if (mprotect(mapping->begin, size, mapping->protection | PROT_WRITE) < 0)
        return; /* only slower */
    *first = *first;
    mprotect(mapping->begin, size, mapping->protection);
    madvise(mapping->begin, size, MADV_DONTNEED);
}

/* Whether this line of /proc/self/smaps begins the description of a file's code or constants, and where they are. */
static int is_read_only_file(const char *line, struct mapping *mapping)
{
    char permissions[PERMISSIONS_BYTES];
    unsigned long begin, end;
    int path = 0;

    if (sscanf(line, "%lx-%lx %4s %*x %*s %*u %n", &begin, &end, permissions, &path) != 3 || line[path] != '/')
        return 0;
    *mapping = (struct mapping){(char *)begin, (char *)end, PROT_READ | (permissions[2] == 'x' ? PROT_EXEC : 0)};
    return permissions[0] == 'r' && permissions[1] == '-' && permissions[3] == 'p' && end - begin >= LARGE_BYTES;
}

/* -- for Python */

PyObject *native_fill_gaps(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    for (size_t size = LARGEST_CHUNK - STEP / 2; size > STEP; size -= STEP) /* sixteen's multiples, less the chunk's header */
        fill_gaps(size);
    for (size_t size = STEP; size <= LARGEST_BLOCK; size += STEP)
        fill_pools(size);
    return none();
}

PyObject *native_share_code(PyObject *module, PyObject *args)
{
    struct mapping mappings[MAX_MAPPINGS];
    char line[LINE_BYTES];
    FILE *smaps = fopen("/proc/self/smaps", "re");
    unsigned long own_kb;
    int count = 0, is_found = 0;

    (void)module;
    (void)args;
    if (!smaps)
        return os_error("open(/proc/self/smaps)");
    while (count < MAX_MAPPINGS && fgets(line, sizeof line, smaps))
        if (sscanf(line, "Anonymous: %lu kB", &own_kb) == 1) {
            count += is_found && own_kb == 0; /* others are inherited anyway, and what was written there is needed */
            is_found = 0;
        } else if (is_read_only_file(line, &mappings[count]))
            is_found = 1;
    fclose(smaps);
    for (int i = 0; i < count; i++)
        inherit(&mappings[i]);
    return none();
}
