/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BESIDE_H
#define BASE_BESIDE_H
/* The paths of what lies beside a socket. */
#include <stdio.h>
#include <string.h>

/* Writes a socket's path with another end: suffix in place of ".sock", or behind a path that does not end so.
 * Returns the length as snprintf(). */
static inline int path_beside(const char *socket_path, const char *suffix, char *path, size_t size) {
    size_t length = strlen(socket_path), end = strlen(".sock");

    if (length > end && strcmp(socket_path + length - end, ".sock") == 0)
        length -= end;
    return snprintf(path, size, "%.*s%s", (int)length, socket_path, suffix);
}

#endif
