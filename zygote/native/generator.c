/* The memory of a generator of random numbers of NumPy: each child writes other numbers there.
 *
 * `BitGenerator.ctypes` has its address, too, but imports ctypes and leaves types in its caches, which functions see.
 */

#include "native.h"

#define CAPSULE "BitGenerator" /* numpy/random/bit_generator.pyx */

struct bitgen { /* bitgen_t in numpy/random/bitgen.h: a stable part of NumPy's C API, as far as it is named here */
    void *state;
};

/* (capsule of a BitGenerator, bytes) -> a view of so many bytes of its state. Raises: ValueError, for another object. */
PyObject *native_generator_state(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    Py_ssize_t bytes;
    const struct bitgen *generator;

    (void)module;
    if (!PyArg_ParseTuple(args, "On", &capsule, &bytes))
        return NULL;
    generator = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!generator)
        return NULL;
    return PyMemoryView_FromMemory(generator->state, bytes, PyBUF_WRITE);
}
