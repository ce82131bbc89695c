/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_ELEMENT_H
#define CLIENT_PYTHON_ELEMENT_H
/* The types of elements, under the names of the array API standard, and how each protocol calls them. */
#include "client/python/src/module.h"

struct element {
    const char *name;
    const char *format;  /* of the buffer protocol; NULL: it has none */
    const char *typestr; /* of NumPy and __cuda_array_interface__, without the byte order */
    uint8_t code;        /* of DLPack */
    uint8_t bytes;
};

extern const struct element element_byte;

/* The type that a caller passed: a name, a typestr, a type of Python, NumPy or PyTorch. NULL with an
 * exception. */
const struct element *element_read(PyObject *value);

#endif
