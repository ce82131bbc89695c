/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/identity.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/text.h"

int identity_make(struct identity *identity) {
    *identity = (struct identity){.started_ns = clock_now_ns()};
    if (getrandom(identity->bytes, sizeof identity->bytes, 0) != (ssize_t)sizeof identity->bytes)
        return -EIO;
    hex_write(identity->bytes, sizeof identity->bytes, identity->text);
    return 0;
}

void identity_note_admin_path(struct identity *identity, const char *path) {
    char whole[PATH_MAX + PROTO_PATH_SIZE + 2] = "";
    size_t length = 0;

    if (path[0] != '/' && path[0] != '\0' && getcwd(whole, PATH_MAX) != NULL) {
        length = strlen(whole);
        whole[length++] = '/';
    }
    snprintf(whole + length, sizeof whole - length, "%s", path);
    length = strlen(whole);
    if (whole[0] == '/' && length < sizeof identity->admin_path && text_is_printable(whole, length))
        memcpy(identity->admin_path, whole, length);
}
