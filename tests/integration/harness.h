/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_HARNESS_H
#define TESTS_INTEGRATION_HARNESS_H
/*
 * The integration tests' harness: a real gpupoold in a temporary directory, watched from outside (its admin
 * socket, /proc) and stopped by SIGTERM, which has to give exit status 0: a sanitizer's report fails the test
 * that way.
 *
 * A test daemon is FRESH (zeroed), RUNNING from daemon_start() on, and DOWN after daemon_stop() or
 * daemon_crash(); a crashed one can be started again with daemon_restart(). daemon_stop() removes the
 * directory.
 *
 * The environment says what is tested, so that the programs also run by themselves, without ctest:
 *   GPUPOOL_TEST_DAEMON  the daemon, else the built one
 *   GPUPOOL_TEST_TOOL    gpupoolctl, else the built one
 *   GPUPOOL_TEST_GPU     sim (the default), cuda or none
 *   GPUPOOL_TEST_EXPORT  ipc (the default) or vmm: the kind of device memory's segments
 *   GPUPOOL_TEST_HOST_EXPORT  memfd (the default) or vmm: the kind of host memory's segments
 *   GPUPOOL_TEST_FULL    loops over every call run at full length
 * Clients are processes of their own: see puppet.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <pthread.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bounded.h"

#define TEST_PATH_SIZE 108u /* sockaddr_un.sun_path */
/* How long one test may take: long against each test under a sanitizer beside other load. A wait of a test
 * has a bound of its own (TEST_WAIT_NS). This one is for a call of the library that does not return, as when
 * another test failed and left its memory behind. It ends the program; the last line of the output is the
 * test's name. */
#define TEST_LIMIT_S 600u

/* Setup and teardown of each test: begins and ends its time. */
int test_begin(void **state);
int test_end(void **state);

#undef cmocka_unit_test
#define cmocka_unit_test(test) cmocka_unit_test_setup_teardown(test, test_begin, test_end)

/* How a daemon is started. Everything may be left 0. */
struct daemon_options {
    const char *config;             /* the file's text */
    const char *const *arguments;   /* further ones, NULL-terminated */
    const char *const *environment; /* NAME=VALUE, NULL-terminated; over the test's own */
    const char *gpu;                /* NULL: test_gpu() */
    unsigned sim_gpus;              /* 0: 1 */
    bool for_all_users;             /* sockets and directory are open to everybody */
    uid_t uid;                      /* that it runs under, without groups; 0: the test's own */
    unsigned descriptors;           /* its RLIMIT_NOFILE; 0: the test's own */
    bool unready;                   /* do not wait until it serves */
};

struct test_daemon {
    struct daemon_options options; /* borrowed strings */
    pid_t pid;                     /* 0: not running */
    int admin_fd; /* one connection for all questions, so that counts of descriptors hold still */
    char directory[TEST_PATH_SIZE / 2];
    char socket[TEST_PATH_SIZE], admin_socket[TEST_PATH_SIZE], config[TEST_PATH_SIZE], log[TEST_PATH_SIZE];
};

/* The settings from the environment. */
const char *test_gpu(void);
const char *test_daemon_path(void);
const char *test_tool_path(void);
bool test_is_simulated(void);
bool test_has_device(void); /* the daemon serves a device pool */
/* Whether a daemon can serve so many: a simulation serves any number. */
bool test_has_devices(unsigned count);
/* Whether this build, and so the daemon most likely, has a sanitizer's allocator in it. */
bool test_is_sanitized(void);
/* Whether device memory is exported as descriptors (GPUPOOL_TEST_EXPORT). Plans of failing and hanging calls
 * that are given to programs name the calls for legacy handles: test_spawn() puts their counterparts there.
 */
bool test_exports_vmm(void);
/* Whether a process of such memory has descriptors that the driver opens when it likes: a real one does. Tests
 * that count descriptors, or leave no more than some, cannot be run then. */
bool test_driver_has_descriptors(void);
/* Whether host memory is (GPUPOOL_TEST_HOST_EXPORT). A daemon without a GPU has memfds all the same. */
bool test_host_exports_vmm(void);
/* To be called first in main(), before there are threads: the daemons of this program have memfds, whatever
 * the environment says. Clients of the program have no CUDA, or it looks at the memfds, or counts
 * descriptors. */
void test_needs_memfds(void);
/* The counterpart of a call for legacy handles, by its name in the table or in the daemon's texts. */
const char *test_device_call(const char *call);
/* The daemon's text of an allocation that hangs. */
#define TEST_HANGS (test_exports_vmm() ? "cuMemCreate has not come back" : "cudaMalloc has not come back")

/* Whether GPUPOOL_TEST_FULL is set, as ./dev test full does: loops over every call run at full length. */
bool test_is_full(void);
/* The distance between the calls that such a loop tries: 1, or the shorter run's. */
unsigned test_stride(unsigned short_run);
/* A number from the environment, else the default. */
unsigned test_number(const char *name, unsigned otherwise);

/* Pools of these limits, small steps, and nothing else. limit in MiB. Returns a text that lives in text. */
#define TEST_CONFIG_SIZE 512u
const char *test_config(char text[TEST_CONFIG_SIZE], unsigned device_mib, unsigned host_mib);
/* The lines by which the daemon sets new device memory to zero, of whichever kind it is: for tests of the
 * driver's calls that it makes for that. To be put at the end of a configuration. */
const char *test_zero_lines(void);

/* Starts a daemon and waits until it serves; a failure fails the test. The strings of options are borrowed
 * until daemon_stop(). */
void daemon_start(struct test_daemon *daemon, const struct daemon_options *options);
/* Its command line, as daemon_start() uses it: for tests that run it in another way. argv has room for 64. */
void daemon_command(const struct test_daemon *daemon, const char *argv[static 64]);
/* Makes directory, configuration and names, and starts nothing. */
void daemon_prepare(struct test_daemon *daemon, const struct daemon_options *options);
/* Starts what daemon_prepare() prepared, or what crashed, in the same place. */
void daemon_restart(struct test_daemon *daemon);
/* Stops it: SIGTERM, exit status 0. */
void daemon_stop(struct test_daemon *daemon);
/* Kills it; files stay. */
void daemon_crash(struct test_daemon *daemon);
/* Waits for its end and returns wait()'s status. */
int daemon_wait(struct test_daemon *daemon);
/* Removes the directory of one that does not run. */
void daemon_remove(struct test_daemon *daemon);
void daemon_signal(struct test_daemon *daemon, int number);
void daemon_write_config(struct test_daemon *daemon, const char *text);
/* Whether the log has the text; the log itself, for messages, to be freed. */
bool daemon_logged(const struct test_daemon *daemon, const char *text);
char *daemon_log(const struct test_daemon *daemon);

/* The figures that the kernel has of it. */
unsigned daemon_descriptors(const struct test_daemon *daemon);
/* To count from: after the daemon has closed what ended before, which takes it a turn of its loop. */
unsigned daemon_descriptors_at_rest(struct test_daemon *daemon);
unsigned daemon_threads(const struct test_daemon *daemon);
uint64_t
daemon_private_bytes(const struct test_daemon *daemon); /* resident and not shared: no pool's memory */

/* Asks the admin socket; the answer is the caller's to delete. Fails the test when none comes. */
cJSON *daemon_ask(struct test_daemon *daemon, const char *request);
/* A member of one pool ("device" or "host", the n-th of its kind) or of the sum of all pools. */
uint64_t daemon_pool(struct test_daemon *daemon, const char *kind, unsigned nth, const char *member);
uint64_t daemon_sum(struct test_daemon *daemon, const char *member);
/* A member of stats' "daemon". */
uint64_t daemon_number(struct test_daemon *daemon, const char *member);
/* How many sessions are in the state ("active", "quarantined"), and whether the one of a pid is. */
unsigned daemon_sessions(struct test_daemon *daemon, const char *state);
bool daemon_has_session(struct test_daemon *daemon, pid_t pid, const char *state);

/* The exit status of main(), from the result of cmocka_run_group_tests(): cmocka itself does not count a
 * fixture that fails, and a daemon that did not end well fails the program. */
int test_finish(int failed);

/* Starts a program with the environment changed (NAME=VALUE, or NAME= to unset) and descriptor fd as its
 * number 3
 * (-1: none), output to log (NULL: the test's own). */
pid_t test_spawn(const char *const *argv, const char *const *environment, int fd, const char *log);
/* For a child that is forked: becomes a user without groups. Returns whether it did; uid 0: nothing to do. */
bool test_become(uid_t uid);
/* Makes a script that runs the daemon by a command ("unshare --user …"), and has the tests start that. path
 * ends with XXXXXX, and is the caller's to unlink. */
void test_run_daemon_by(char *path, const char *command);
/* Waits for a child with a bound; a child that does not end is killed and fails the test. */
int test_wait(pid_t pid);
/* Whether the process is gone or a zombie. */
bool test_has_ended(pid_t pid);

#endif
