/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_place.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "gpupool/gpupoold.conf"

/* The length of the prefix, without a slash at its end, where the program lies in the folder sbin below it.
 * -1: it lies elsewhere. */
static int prefix_length(const char *program, const char *sbin) {
    const char *name = strrchr(program, '/');
    size_t length = name == NULL ? 0 : (size_t)(name - program), tail = strlen(sbin);

    if (sbin[0] == '/' || length <= tail || program[length - tail - 1] != '/' ||
        strncmp(program + length - tail, sbin, tail) != 0)
        return -1;
    return (int)(length - tail - 1);
}

const char *config_place_of(const char *program, const char *sbin, const char *etc, const char *configured,
                            char path[static PATH_MAX]) {
    int length = prefix_length(program, sbin), n = -1;

    if (etc[0] != '/' && length >= 0) {
        if (strncmp(program, "/usr/", 5) == 0 && length == 4) /* /usr has its etc in / */
            length = 0;
        n = snprintf(path, PATH_MAX, "%.*s/%s/" NAME, length, program, etc);
    }
    if (n < 0 || n >= PATH_MAX)
        snprintf(path, PATH_MAX, "%s", configured);
    return path;
}

const char *config_place(char path[static PATH_MAX]) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    program[length > 0 ? length : 0] = '\0';
    return config_place_of(program, GPUPOOL_SBINDIR, GPUPOOL_SYSCONFDIR, GPUPOOL_CONFIG_FILE, path);
}
