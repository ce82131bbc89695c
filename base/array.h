/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H
/* The length of arrays, and arrays that grow at their end. */
#include <stddef.h>
#include <stdlib.h>

#define ARRAY_LENGTH(array) (sizeof(array) / sizeof *(array))

#define ARRAY_CAPACITY_MIN 16u

/* Makes room for one more element. The array is its owner's, NULL while its capacity is 0, and may move.
 * Returns it; NULL without memory, and then it stays as it was. */
static inline void *array_room(void *array, size_t count, size_t *capacity, size_t element_bytes) {
    size_t more = *capacity == 0 ? ARRAY_CAPACITY_MIN : *capacity * 2;

    if (count < *capacity)
        return array;
    void *moved = realloc(array, more * element_bytes);
    if (moved != NULL)
        *capacity = more;
    return moved;
}

#endif
