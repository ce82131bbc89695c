/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_SORTED_H
#define CLIENT_CTL_SORTED_H
/* Arrays in the order of a key: each element begins with its key, a uint64_t, and no two have the same one.
 * Zeroed: empty. The owner frees elements. */
#include <stddef.h>
#include <stdint.h>

struct sorted {
    void *elements;
    size_t count, capacity;
};

/* The element of a key; NULL: there is none. */
void *sorted_find(const struct sorted *array, uint64_t key, size_t element_bytes);

/* Adds an element of zeros with this key, which none has. Others may move. Returns it; NULL without memory,
 * and then the array stays as it was. */
void *sorted_add(struct sorted *array, uint64_t key, size_t element_bytes);

/* Those behind it move. */
void sorted_remove(struct sorted *array, void *element, size_t element_bytes);

#endif
