/* Pages that a child writes to anyway, copied before somebody waits for it: one call for a row of them, in place of a fault for each.
 */

#include "native.h"

#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14, in younger headers */
#define MADV_POPULATE_WRITE 23
#endif
#define PAGE_BYTES 4096UL

/* -- for Python */

PyObject *native_copy_pages(PyObject *module, PyObject *args)
{
    unsigned long long first, count;

    (void)module;
    if (!PyArg_ParseTuple(args, "KK:copy_pages", &first, &count))
        return NULL;
    /* What is not mapped here, or cannot be written to, is an error and no signal. */
    madvise((void *)(uintptr_t)(first * PAGE_BYTES), count * PAGE_BYTES, MADV_POPULATE_WRITE);
    return none();
}
