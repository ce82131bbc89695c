/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that has no descriptor free when a message with descriptors comes: that one call fails and names
 * the limit, and the session goes on.
 */
#include <fcntl.h>
#include <sys/resource.h>

#include "client/session/board.h"
#include "client/session/page.h"
#include "tests/integration/cache_fixture.h"

#define SIZE (64 * KIB)

static rlim_t usual;

/* Leaves so many numbers free that RLIMIT_NOFILE allows. */
static void leave_free(unsigned count) {
    struct rlimit limit;
    int fds[8], highest = -1;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    usual = limit.rlim_cur;
    for (unsigned i = 0; i <= count; i++) { /* the kernel gives the lowest number that is free */
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_true(fds[i] > highest);
        highest = fds[i];
    }
    for (unsigned i = 0; i <= count; i++)
        close(fds[i]);
    limit.rlim_cur = (rlim_t)highest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void free_all(void) {
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = usual;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

#define MUST_LACK_DESCRIPTORS(call)                                                                          \
    do {                                                                                                     \
        MUST_BE(call, GPUPOOL_E_DRIVER);                                                                     \
        if (strstr(gpupool_error_text(), "EMFILE") == NULL ||                                                \
            strstr(gpupool_error_text(), "RLIMIT_NOFILE") == NULL)                                           \
            fail_msg("no limit is named: %s", gpupool_error_text());                                         \
    } while (0)

/* A pool has at most so many segments of the least size: whether each new lease needs a segment. */
static void acquires_fail_while_no_descriptor_is_free(unsigned kind, uint32_t flags, uint64_t size_bytes) {
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    uint32_t pool = pool_of(client, kind);
    void *stream = stream_of(kind);
    struct gpupool_buffer buffer, first = acquire(client, kind, SIZE, stream);

    leave_free(0);
    for (unsigned i = 0; i < 2; i++)
        MUST_LACK_DESCRIPTORS(gpupool_acquire(client, pool, size_bytes, stream, TEST_WAIT_NS, 0, &buffer));
    free_all();
    MUST(gpupool_acquire(client, pool, size_bytes, stream, TEST_WAIT_NS, 0, &buffer));
    if (kind == GPUPOOL_POOL_HOST)
        memset(buffer.data, 1, size_bytes);
    MUST(gpupool_release(client, &buffer, stream));
    MUST(gpupool_release(client, &first, stream));
    close_cached(client);
    WAIT_UNTIL(pools_are_empty());
}

static void a_request_fails_while_no_descriptor_is_free(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        uint32_t flags = i == 0 ? 0 : GPUPOOL_OPEN_NO_CACHE;
        acquires_fail_while_no_descriptor_is_free(GPUPOOL_POOL_HOST, flags, 40 * MIB);
        if (test_has_device() && test_is_simulated()) /* which opens files for legacy handles, too */
            acquires_fail_while_no_descriptor_is_free(GPUPOOL_POOL_DEVICE, flags, 40 * MIB);
    }
}

/* Of the descriptors of one message some arrive. */
static void segments_whose_descriptors_were_lost_are_described_again(void **state) {
    (void)state;

    if (test_driver_has_descriptors())
        skip();
    if (!test_exports_vmm())
        return;
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffer;
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);

    leave_free(1);
    MUST_LACK_DESCRIPTORS(gpupool_acquire(client, pool, 40 * MIB, NULL, TEST_WAIT_NS, 0, &buffer));
    free_all();
    MUST(gpupool_acquire(client, pool, 40 * MIB, NULL, TEST_WAIT_NS, 0, &buffer));
    MUST(gpupool_release(client, &buffer, NULL));
    close_cached(client);
    WAIT_UNTIL(pools_are_empty());
}

static void what_is_attached_may_lack_its_descriptor_for_a_moment(void **state) {
    (void)state;

    if (test_driver_has_descriptors())
        skip();
    struct gpupool_client *sharer = open_cached(), *reader = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    const unsigned kinds[] = {GPUPOOL_POOL_HOST, GPUPOOL_POOL_DEVICE};

    for (unsigned i = 0; i < (test_exports_vmm() ? 2 : 1); i++) {
        /* A row, where device memory is mapped side by side. */
        struct gpupool_buffer buffer = acquire(sharer, kinds[i], 20 * MIB, stream_of(kinds[i])), other;
        struct gpupool_token token;
        MUST(gpupool_share(sharer, &buffer, GPUPOOL_NO_STREAM, &token));
        (void)pool_of(reader, kinds[i]);
        leave_free(0);
        MUST_LACK_DESCRIPTORS(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, 0, &other));
        free_all();
        MUST(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, 0, &other));
        MUST(gpupool_release(reader, &other, GPUPOOL_NO_STREAM));
        MUST(gpupool_release(sharer, &buffer, stream_of(kinds[i])));
    }
    gpupool_close(reader);
    close_cached(sharer);
    WAIT_UNTIL(pools_are_empty());
}

static void the_page_and_the_board_are_asked_for_again(void **state) {
    (void)state;

    if (test_driver_has_descriptors())
        skip();
    struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    struct session *session = &client->session;

    leave_free(0);
    MUST_LACK_DESCRIPTORS(page_need(&session->page, &session->connection, clock_now_ns() + TEST_WAIT_NS));
    MUST_LACK_DESCRIPTORS(board_need(session));
    free_all();
    MUST(page_need(&session->page, &session->connection, clock_now_ns() + TEST_WAIT_NS));
    MUST(board_need(session));
    assert_non_null(session->page.memory);
    assert_non_null(session->board.memory);
    gpupool_close(client);
}

static void a_client_that_cannot_be_opened_names_the_limit(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    int r = -1;

    (void)state;

    if (test_driver_has_descriptors())
        skip();
    options.socket = daemon_.socket;
    for (unsigned left = 0; left < 9 && r < 0; left++) {
        leave_free(left);
        r = gpupool_open(&options, &client);
        free_all();
        if (r < 0 && (strstr(gpupool_error_text(), "EMFILE") == NULL ||
                      strstr(gpupool_error_text(), "RLIMIT_NOFILE") == NULL))
            fail_msg("no limit is named: %s", gpupool_error_text());
    }
    MUST(r);
    close_cached(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_fails_while_no_descriptor_is_free),
        cmocka_unit_test(segments_whose_descriptors_were_lost_are_described_again),
        cmocka_unit_test(what_is_attached_may_lack_its_descriptor_for_a_moment),
        cmocka_unit_test(the_page_and_the_board_are_asked_for_again),
        cmocka_unit_test(a_client_that_cannot_be_opened_names_the_limit),
    };
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
