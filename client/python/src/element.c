/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/element.h"

#include <string.h>

#include "client/python/src/dlpack_abi.h"

#define NAME_BYTES_MAX 32

const struct element element_byte = {"uint8", "B", "u1", DLPACK_UINT, 1};

static const struct element elements[] = {
    {"bool", "?", "b1", DLPACK_BOOL, 1},          {"int8", "b", "i1", DLPACK_INT, 1},
    {"int16", "h", "i2", DLPACK_INT, 2},          {"int32", "i", "i4", DLPACK_INT, 4},
    {"int64", "l", "i8", DLPACK_INT, 8},          {"uint16", "H", "u2", DLPACK_UINT, 2},
    {"uint32", "I", "u4", DLPACK_UINT, 4},        {"uint64", "L", "u8", DLPACK_UINT, 8},
    {"float16", "e", "f2", DLPACK_FLOAT, 2},      {"bfloat16", NULL, NULL, DLPACK_BFLOAT, 2},
    {"float32", "f", "f4", DLPACK_FLOAT, 4},      {"float64", "d", "f8", DLPACK_FLOAT, 8},
    {"complex64", "Zf", "c8", DLPACK_COMPLEX, 8}, {"complex128", "Zd", "c16", DLPACK_COMPLEX, 16},
};

/* Other names of the types: Python's own, and further ones of NumPy and PyTorch. */
static const char *const aliases[][2] = {
    {"int", "int64"},        {"float", "float64"},  {"complex", "complex128"},
    {"bool_", "bool"},       {"half", "float16"},   {"double", "float64"},
    {"cfloat", "complex64"}, {"longlong", "int64"}, {"ulonglong", "uint64"},
};

static const struct element *find(const char *name) {
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    if (name[0] == '<' || name[0] == '|' || name[0] == '=') /* the machine is little-endian */
        name++;
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcmp(name, aliases[i][0]) == 0)
            name = aliases[i][1];
    if (strcmp(name, element_byte.name) == 0 || strcmp(name, element_byte.typestr) == 0)
        return &element_byte;
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        if (strcmp(name, elements[i].name) == 0 ||
            (elements[i].typestr != NULL && strcmp(name, elements[i].typestr) == 0))
            return &elements[i];
    return NULL;
}

/* The text that names a type: itself, a class's name, a NumPy type's typestr, else what str() says. */
static PyObject *name_of(PyObject *value) {
    static const char *const attributes[] = {"str", "__name__", "name"};
    if (PyUnicode_Check(value))
        return Py_NewRef(value);
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if (i == 0 && PyType_Check(value))
            continue; /* a class's attribute "str" is a method, if any */
        PyObject *name = PyObject_GetAttrString(value, attributes[i]);
        if (name != NULL && PyUnicode_Check(name))
            return name;
        Py_XDECREF(name);
        PyErr_Clear();
    }
    return PyObject_Str(value);
}

const struct element *element_read(PyObject *value) {
    char text[NAME_BYTES_MAX] = "";
    Py_ssize_t length;
    PyObject *name = name_of(value);

    if (name == NULL)
        return NULL;
    const char *utf8 = PyUnicode_AsUTF8AndSize(name, &length);
    if (utf8 != NULL && length < NAME_BYTES_MAX)
        memcpy(text, utf8, (size_t)length + 1);
    Py_DECREF(name);
    if (utf8 == NULL)
        return NULL;
    const struct element *element = find(text);
    if (element == NULL)
        PyErr_Format(
            PyExc_TypeError,
            "dtype %R: known are bool, int8 to int64, uint8 to uint64, float16 to float64, bfloat16, "
            "complex64 and complex128, in the machine's byte order",
            value);
    return element;
}
