/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CLIENT_FIXTURE_H
#define TESTS_CLIENT_FIXTURE_H
/*
 * The fixture of the client library's tests: one false daemon a test, an exporter for the whole program,
 * assertions that show the library's error text, and a count of the process's descriptors before and after
 * each test. The library's objects are linked in rather than the library, so that a test may look into a
 * client.
 */
#include "base/clock.h"
#include "client/api/client.h"
#include "tests/unit/false_daemon.h"
#include "tests/unit/unit.h"

#define assert_text_has(word)                                                                                \
    do {                                                                                                     \
        if (strstr(gpupool_error_text(), word) == NULL)                                                      \
            fail_msg("error text \"%s\" lacks \"%s\"", gpupool_error_text(), word);                          \
    } while (0)

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        int r_ = (call);                                                                                     \
        if (r_ != 0)                                                                                         \
            fail_msg("%s: %s: %s", #call, gpupool_error_name(r_), gpupool_error_text());                     \
    } while (0)

#define assert_error(call, error)                                                                            \
    do {                                                                                                     \
        int r_ = (call);                                                                                     \
        if (r_ != (error))                                                                                   \
            fail_msg("%s: %s, not %s: %s", #call, gpupool_error_name(r_), #error, gpupool_error_text());     \
    } while (0)

/* Long enough that no slow machine meets it where an answer is expected. */
#define PATIENT_NS (60 * NS_PER_S)
/* Where no answer will come. */
#define IMPATIENT_NS (50 * NS_PER_MS)

extern struct exporter exporter;
extern struct false_daemon daemon_;

/* Starts the exporter and lets the simulated driver open what it opens once for a process. First thing in
 * main. */
void fixture_init(void);
void fixture_deinit(void);

/* Set-up and tear-down of a test: a daemon that does not run yet; afterwards nothing of it and no descriptor
 * more. */
int set_up(void **state);
int tear_down(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* Options for a patient client. */
struct gpupool_options options_for(const char *path);
struct gpupool_client *open_client(void);
/* Runs the daemon, with a test's own answers or NULL, and opens a client. */
struct gpupool_client *start(bool (*handle)(struct false_daemon *, struct false_session *,
                                            const struct proto_message *));

/* Puts a copy of the driver's table in its place, for the test to change. Returns the table itself, to pass
 * calls on to. Before other threads use the client. */
const struct gpu *table_over(struct gpupool_client *client, struct gpu *ret_table);

#endif
