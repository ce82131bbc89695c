/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service that does nothing but store descriptors, as many as the daemon would at most: tests/bench/store
 * runs it under systemd and under the keeper, and measures both.
 *
 *     stored COUNT FILE
 *
 * Appends lines to FILE: "started NS INHERITED" at its start; then, while it stores memory files until there are
 * COUNT, "stored NUMBER NS" after each further thousand, with the time that these took until the manager had
 * taken them; "ready NS" at the end. Times are of CLOCK_MONOTONIC. Then it waits to be killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/clock.h"

#define BATCH      1000
#define TIMEOUT_US UINT64_C(300000000)

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void fail(const char *what, int error) {
    fprintf(stderr, "stored: %s: %s\n", what, strerror(error));
    exit(EXIT_FAILURE);
}

/* Four characters, as the longest names of daemon/loop/store.h. */
static void store(int number) {
    char text[64];

    int fd = memfd_create("stored", MFD_CLOEXEC);
    if (fd < 0)
        fail("memfd_create", errno);
    snprintf(text, sizeof text, "FDSTORE=1\nFDPOLL=0\nFDNAME=S%c%c%c", digits[number / 4096 % 64],
             digits[number / 64 % 64], digits[number % 64]);
    int r = sd_pid_notify_with_fds(0, 0, text, &fd, 1);
    if (r < 0)
        fail("FDSTORE", -r);
    close(fd);
}

static void wait_for_manager(void) {
    int r = sd_notify_barrier(0, TIMEOUT_US);

    if (r < 0)
        fail("BARRIER", -r);
}

int main(int argc, char **argv) {
    uint64_t begin_ns = clock_now_ns();

    if (argc < 3) {
        fprintf(stderr, "usage: stored COUNT FILE\n");
        return EXIT_FAILURE;
    }
    int count = atoi(argv[1]), inherited = sd_listen_fds(0);
    FILE *file = fopen(argv[2], "a");
    if (file == NULL)
        fail(argv[2], errno);
    fprintf(file, "started %" PRIu64 " %d\n", begin_ns, inherited);
    fflush(file);
    uint64_t last_ns = begin_ns;
    for (int n = inherited; n < count; n++) {
        store(n);
        if ((n + 1) % BATCH != 0 && n + 1 != count)
            continue;
        wait_for_manager();
        uint64_t now_ns = clock_now_ns();
        fprintf(file, "stored %d %" PRIu64 "\n", n + 1, now_ns - last_ns);
        fflush(file);
        last_ns = now_ns;
    }
    fprintf(file, "ready %" PRIu64 "\n", clock_now_ns());
    fclose(file);
    sd_notify(0, "READY=1");
    for (;;)
        pause();
}
