/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/sorted.h"

#include <string.h>

#include "base/array.h"

static char *element_at(const struct sorted *array, size_t place, size_t element_bytes) {
    return (char *)array->elements + place * element_bytes;
}

static uint64_t key_at(const struct sorted *array, size_t place, size_t element_bytes) {
    uint64_t key;

    memcpy(&key, element_at(array, place, element_bytes), sizeof key);
    return key;
}

/* The place of the first element whose key is not less. */
static size_t place_of(const struct sorted *array, uint64_t key, size_t element_bytes) {
    size_t low = 0, high = array->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (key_at(array, middle, element_bytes) < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void *sorted_find(const struct sorted *array, uint64_t key, size_t element_bytes) {
    size_t place = place_of(array, key, element_bytes);

    if (place == array->count || key_at(array, place, element_bytes) != key)
        return NULL;
    return element_at(array, place, element_bytes);
}

void *sorted_add(struct sorted *array, uint64_t key, size_t element_bytes) {
    size_t place = place_of(array, key, element_bytes);
    void *elements = array_room(array->elements, array->count, &array->capacity, element_bytes);

    if (elements == NULL)
        return NULL;
    array->elements = elements;
    char *element = element_at(array, place, element_bytes);
    memmove(element + element_bytes, element, (array->count++ - place) * element_bytes);
    memset(element, 0, element_bytes);
    memcpy(element, &key, sizeof key);
    return element;
}

void sorted_remove(struct sorted *array, void *element, size_t element_bytes) {
    const char *next = (char *)element + element_bytes;

    memmove(element, next, (size_t)(element_at(array, array->count--, element_bytes) - next));
}
