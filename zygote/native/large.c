/* Large blocks of a template, so that its forks cost no more for them.
 *
 * fork(2) copies an entry of the page tables for each page that a process has written to: with 300 MB in pages of 4 KB, a fork takes ten
 * times as long as without. Pages of a file that is mapped MAP_PRIVATE are not copied: a child maps what it reads. So a large block is
 * joined to huge pages, and what the kernel does not join is moved into a memory file, at the same address.
 *
 * Only what is provably malloc(3)'s: a mapping that is glibc's mmapped chunks from its begin to its end. glibc gives these back with
 * munmap(2) alone. Other allocators expect zeros after MADV_DONTNEED, which a file would answer with its content. realloc(3) may let
 * such a chunk grow where it is (mremap(2)), so the file has room behind each; a page of that room is zeros.
 *
 * Nothing here allocates between the copy and the mapping, and the caller is the only thread: a write in between would be lost.
 */

#include "native.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE /* Linux 6.1, in younger headers */
#define MADV_COLLAPSE 25
#endif
#define LEAST_BYTES (32UL << 20)
#define HUGE_BYTES (2UL << 20)
#define STEP_BYTES (8UL << 20) /* copied before the original is let go: what the move needs in addition */
#define ROOM_BYTES (1UL << 40) /* of the file, for one block with what it may grow to */
#define PAGE_BYTES 4096UL
#define MAX_BLOCKS 64
#define LINE_BYTES 600
#define MMAPPED 2UL /* of a chunk's size (malloc.c: IS_MMAPPED) */
#define FLAGS 7UL
#define HEADER_BYTES (2 * sizeof(size_t)) /* not counted in a chunk's size from glibc 2.43 on */

struct block {
    char *begin, *end;
    unsigned long rss_kb, huge_kb;
};

static struct block blocks[MAX_BLOCKS];
static uint64_t page_flags[STEP_BYTES / PAGE_BYTES];

/* Whether a mapping is mmapped chunks and nothing else. */
static int is_of_malloc(const struct block *block)
{
    char *at = block->begin;
    size_t size, header[2]; /* bytes of the mapping in front of the chunk, and the chunk's size */

    while (at < block->end) {
        memcpy(header, at, sizeof header);
        size = header[1] & ~FLAGS;
        if (size % PAGE_BYTES == PAGE_BYTES - HEADER_BYTES)
            size += HEADER_BYTES;
        if (header[0] || (header[1] & FLAGS) != MMAPPED || !size || size % PAGE_BYTES || size > (size_t)(block->end - at))
            return 0;
        at += size;
    }
    return 1;
}

static int is_large_and_anonymous(const char *line, struct block *block)
{
    unsigned long begin, end;
    char permissions[5];
    int path = 0;

    if (sscanf(line, "%lx-%lx %4s %*x %*s %*u %n", &begin, &end, permissions, &path) != 3)
        return 0;
    *block = (struct block){(char *)begin, (char *)end, 0, 0};
    return end - begin >= LEAST_BYTES && strcmp(permissions, "rw-p") == 0 && (line[path] == 0 || line[path] == '\n');
}

/* How many there are; -1 with errno. */
static int find_blocks(void)
{
    FILE *smaps = fopen("/proc/self/smaps", "re");
    char line[LINE_BYTES];
    struct block next;
    int count = 0, is_one = 0;

    if (!smaps)
        return -1;
    while (fgets(line, sizeof line, smaps)) {
        if (strchr("0123456789abcdef", line[0])) {
            is_one = count < MAX_BLOCKS && is_large_and_anonymous(line, &next);
            if (is_one)
                blocks[count++] = next;
        } else if (is_one) {
            sscanf(line, "Rss: %lu kB", &blocks[count - 1].rss_kb);
            sscanf(line, "AnonHugePages: %lu kB", &blocks[count - 1].huge_kb);
        }
    }
    fclose(smaps);
    return count;
}

static void join(const struct block *block)
{
    char *begin = (char *)(((uintptr_t)block->begin + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));

    for (; begin + HUGE_BYTES <= block->end; begin += HUGE_BYTES)
        madvise(begin, HUGE_BYTES, MADV_COLLAPSE);
}

/* The pages of a piece that are there, into the file at the same offset; the others are holes. -1 with errno. */
static int copy(int pagemap, int file, const char *begin, size_t size, off_t offset)
{
    size_t count = size / PAGE_BYTES, first, last;
    off_t at = (off_t)((uintptr_t)begin / PAGE_BYTES * sizeof *page_flags);

    if (syscall(SYS_pread64, pagemap, page_flags, count * sizeof *page_flags, at) != (long)(count * sizeof *page_flags))
        return -1;
    for (first = 0; first < count; first = last + 1) {
        for (last = first; last < count && page_flags[last] >> 62; last++) /* present, or swapped */
            ;
        size = (last - first) * PAGE_BYTES;
        if (size && syscall(SYS_pwrite64, file, begin + first * PAGE_BYTES, size, offset + (off_t)(first * PAGE_BYTES)) != (long)size)
            return -1;
    }
    return 0;
}

/* -1 with errno: the rest stays as it is. */
static int move(int pagemap, int file, const struct block *block, off_t offset)
{
    for (char *begin = block->begin; begin < block->end; begin += STEP_BYTES) {
        size_t size = (size_t)(block->end - begin) < STEP_BYTES ? (size_t)(block->end - begin) : STEP_BYTES;
        off_t at = offset + (begin - block->begin);

        if (copy(pagemap, file, begin, size, at) < 0)
            return -1;
        if (mmap(begin, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, at) == MAP_FAILED)
            return -1;
    }
    return 0;
}

/* -- for Python */

PyObject *native_part_large(PyObject *module, PyObject *args)
{
    int joins, count, pagemap, file;
    unsigned long long moved = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "p:part_large", &joins))
        return NULL;
    count = find_blocks();
    for (int i = 0; joins && i < count; i++)
        join(&blocks[i]);
    if (joins)
        count = find_blocks();
    if (count < 0)
        return os_error("open(/proc/self/smaps)");
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    file = (int)syscall(SYS_memfd_create, "sockd-template", 1U /* MFD_CLOEXEC */);
    if (pagemap >= 0 && file >= 0 && syscall(SYS_ftruncate, file, (long)(ROOM_BYTES * MAX_BLOCKS)) == 0)
        for (int i = 0; i < count; i++) {
            const struct block *block = &blocks[i];

            if (block->huge_kb * 4 >= block->rss_kb * 3 || !is_of_malloc(block))
                continue;
            if (move(pagemap, file, block, (off_t)(ROOM_BYTES * (unsigned)i)) < 0)
                break; /* it is only slower */
            moved += (unsigned long long)(block->end - block->begin);
        }
    if (pagemap >= 0)
        close(pagemap);
    if (file >= 0)
        close(file);
    return PyLong_FromUnsignedLongLong(moved);
}
