/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_DEVICE_EXPORT_H
#define TESTS_DEVICE_EXPORT_H
/* The configuration of a test's daemon, with the kinds of segments that the environment asks for:
 * GPUPOOL_TEST_EXPORT of device memory, ipc (the default) or vmm, and GPUPOOL_TEST_HOST_EXPORT of host
 * memory, memfd (the default) or vmm. For C, C++ and programs without the harness of tests/integration. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static inline bool device_export_is_vmm(void) {
    const char *value = getenv("GPUPOOL_TEST_EXPORT");
    return value != NULL && strcmp(value, "vmm") == 0;
}

static inline bool host_export_is_vmm(void) {
    const char *value = getenv("GPUPOOL_TEST_HOST_EXPORT");
    return value != NULL && strcmp(value, "vmm") == 0;
}

/* The lines that a configuration needs at its end: so its own lines keep their numbers. A text that says the
 * kind itself needs none. */
static inline const char *device_export_lines(const char *text) {
    static const char *const lines[] = {"", "\n[device]\nexport = vmm\n", "\n[host]\nexport = vmm\n",
                                        "\n[device]\nexport = vmm\n[host]\nexport = vmm\n"};
    return strstr(text, "export") == NULL
               ? lines[(host_export_is_vmm() ? 2 : 0) + (device_export_is_vmm() ? 1 : 0)]
               : "";
}

/* Makes a configuration file of the text and these lines. path ends with XXXXXX, and is the caller's to
 * unlink. Returns whether it is there. */
static inline bool device_export_write_config(char *path, const char *text) {
    const char *lines = device_export_lines(text);
    int fd = mkstemp(path);
    bool is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) &&
                      write(fd, lines, strlen(lines)) == (ssize_t)strlen(lines);

    if (fd >= 0)
        close(fd);
    return is_written;
}

#endif
