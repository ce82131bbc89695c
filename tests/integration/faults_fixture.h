/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_FAULTS_FIXTURE_H
#define TESTS_INTEGRATION_FAULTS_FIXTURE_H
/*
 * The fixture of the tests in which calls of another process fail (call_faults.h): the file that names the
 * calls, as a group's set-up and tear-down, and the environment of that process. To be included once, by a
 * test program that is built with GPUPOOL_CALL_FAULTS, the library's path.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/call_faults.h"
#include "tests/integration/harness.h"

static char faults_path[64];
static struct call_faults *faults;

static inline int make_faults(void **state) {
    (void)state;
    snprintf(faults_path, sizeof faults_path, "/tmp/gpupool-faults-XXXXXX");
    _cleanup_(close_fdp) int fd = mkstemp(faults_path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof *faults), 0);
    faults = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(faults != MAP_FAILED);
    return 0;
}

static inline int drop_faults(void **state) {
    (void)state;
    munmap(faults, sizeof *faults);
    unlink(faults_path);
    return 0;
}

static inline void arm(enum call_kind kind, int error, uint32_t nth, uint32_t every) {
    atomic_store(&faults->nth, nth);
    atomic_store(&faults->every, every);
    atomic_store(&faults->error, error);
    atomic_store(&faults->seen, 0);
    atomic_store(&faults->hits, 0);
    atomic_store(&faults->kind, (uint32_t)kind);
}

/* Returns how often something failed. */
static inline uint32_t disarm(void) {
    atomic_store(&faults->kind, CALL_NONE);
    return atomic_load(&faults->hits);
}

/* Beside the program, where it was carried to another machine, or where it was built. */
static inline const char *call_faults_library(void) {
    static char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    char *name = strrchr(path, '/');
    if (name != NULL) {
        snprintf(name + 1, sizeof path - (size_t)(name + 1 - path), "libgpupool-call-faults.so");
        if (access(path, R_OK) == 0)
            return path;
    }
    return GPUPOOL_CALL_FAULTS;
}

static inline const char *const *environment(void) {
    static char preload[544], path[128];
    static const char *variables[] = {preload, path, "GPUPOOL_TEST_FAULTS_SPARE=3", NULL};
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", call_faults_library());
    snprintf(path, sizeof path, "GPUPOOL_TEST_FAULTS=%s", faults_path);
    return variables;
}

/* Else the program cannot run here, and this says why. */
static inline bool has_call_faults(void) {
    if (access(call_faults_library(), R_OK) == 0)
        return true;
    fprintf(stderr, "the library that fails calls is neither beside the program nor where it was built: %s\n",
            GPUPOOL_CALL_FAULTS);
    return false;
}

#endif
