/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that are sent: a token holds its buffer until it is taken, is revoked, or its time is up. The
 * sender gives its own buffer back meanwhile, or ends.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "tests/integration/gate.h"
#include "tests/integration/passed_buffers.h"

#define LIFETIME_NS (3600 * NS_PER_S)

static void set(struct gpupool_client *client, const struct gpupool_buffer *buffer, int byte, void *stream) {
    MUST(gpupool_set(client, 0, buffer->data, byte, SIZE, stream));
}

static uint64_t parcels(void) {
    return daemon_sum(&daemon_, "parcels");
}

static void expect_no_token(struct gpupool_client *client, const struct gpupool_token *token) {
    struct gpupool_buffer buffer;
    assert_int_equal(gpupool_attach(client, token, GPUPOOL_NO_STREAM, 0, &buffer), GPUPOOL_E_NO_TOKEN);
    assert_int_equal(gpupool_revoke(client, token), GPUPOOL_E_NO_TOKEN);
}

static void a_buffer_that_was_sent_and_released_reaches_its_taker(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        void *stream, *other;
        struct gpupool_client *sender = open_cached_with_stream(&stream);
        struct gpupool_client *taker = open_cached_with_stream(&other);
        struct gpupool_buffer buffer = acquire(sender, kinds[kind], SIZE, stream), next, taken;
        struct gpupool_token token;
        struct gate gate;

        /* The work that writes it has not begun when the buffer is given back. */
        gate_init(&gate, sender);
        gate_close(&gate);
        set(sender, &buffer, 7, gate.stream);
        MUST(gpupool_send(sender, &buffer, gate.stream, 1, LIFETIME_NS, &token));
        MUST(gpupool_release(sender, &buffer, gate.stream));
        assert_int_equal(parcels(), 1);
        next = acquire(sender, kinds[kind], SIZE, stream);
        set(sender, &next, 9, stream); /* the sender's next buffer is another one */
        MUST(gpupool_attach(taker, &token, other, 0, &taken));
        assert_int_equal(parcels(), 0);
        assert_false(gate_was_passed(&gate));
        gate_open(&gate);
        expect_bytes(taker, &taken, 7, other);
        expect_no_token(taker, &token);
        MUST(gpupool_release(taker, &taken, other));
        MUST(gpupool_release(sender, &next, stream));
        gate_deinit(&gate);
        close_with_stream(taker, other);
        close_with_stream(sender, stream);
        WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    }
}

/* Frames on their way from process to process, of which one is in use at a time, need the memory of one or,
 * where the daemon reads the taker's message last, of two. */
static void what_is_sent_again_and_again_needs_little_memory(void **state) {
    struct gpupool_client *sender = open_cached(), *taker = open_cached();
    const void *seen[2] = {NULL, NULL};

    (void)state;
    for (unsigned i = 0; i < 30; i++) {
        struct gpupool_buffer buffer = acquire(sender, GPUPOOL_POOL_HOST, MIB + 300 * KIB, NULL), taken;
        struct gpupool_token token;

        unsigned known = seen[0] == NULL || buffer.data == seen[0] ? 0 : 1;
        assert_true(seen[known] == NULL || seen[known] == buffer.data);
        seen[known] = buffer.data;
        MUST(gpupool_send(sender, &buffer, GPUPOOL_NO_STREAM, 1, LIFETIME_NS, &token));
        MUST(gpupool_release(sender, &buffer, GPUPOOL_NO_STREAM));
        MUST(gpupool_attach(taker, &token, GPUPOOL_NO_STREAM, 0, &taken));
        MUST(gpupool_release(taker, &taken, GPUPOOL_NO_STREAM));
    }
    gpupool_close(taker);
    close_cached(sender);
}

static void each_of_several_takers_gets_it(void **state) {
    struct gpupool_client *sender = open_cached(), *taker = open_cached();
    struct gpupool_buffer buffer = acquire(sender, GPUPOOL_POOL_HOST, SIZE, NULL), taken[3];
    struct gpupool_token token;

    (void)state;
    memset(buffer.data, 5, SIZE);
    MUST(gpupool_send(sender, &buffer, GPUPOOL_NO_STREAM, 3, LIFETIME_NS, &token));
    assert_int_equal(gpupool_reuse(sender, &buffer, GPUPOOL_NO_STREAM), GPUPOOL_E_SHARED);
    MUST(gpupool_release(sender, &buffer, GPUPOOL_NO_STREAM));
    for (unsigned i = 0; i < 3; i++) {
        MUST(gpupool_attach(i == 0 ? sender : taker, &token, GPUPOOL_NO_STREAM, 0, &taken[i]));
        assert_int_equal(((const uint8_t *)taken[i].data)[SIZE - 1], 5);
    }
    expect_no_token(taker, &token);
    for (unsigned i = 0; i < 3; i++)
        MUST(gpupool_release(i == 0 ? sender : taker, &taken[i], GPUPOOL_NO_STREAM));
    gpupool_close(taker);
    close_cached(sender);
}

static void what_is_revoked_or_too_late_comes_back(void **state) {
    struct gpupool_client *sender = open_cached(), *other = open_cached();
    struct gpupool_buffer buffer = acquire(sender, GPUPOOL_POOL_DEVICE, SIZE, NULL);
    struct gpupool_token first, second;

    (void)state;
    MUST(gpupool_send(sender, &buffer, GPUPOOL_NO_STREAM, 1, LIFETIME_NS, &first));
    MUST(gpupool_send(sender, &buffer, GPUPOOL_NO_STREAM, 1, NS_PER_MS, &second));
    MUST(gpupool_release(sender, &buffer, GPUPOOL_NO_STREAM));
    WAIT_UNTIL(parcels() == 1);
    expect_no_token(other, &second);
    assert_true(daemon_sum(&daemon_, "parcel_bytes") >= SIZE);
    MUST(gpupool_revoke(other, &first));
    expect_no_token(sender, &first);
    gpupool_close(other);
    close_cached(sender);
}

static void an_operator_sees_and_ends_what_is_on_its_way(void **state) {
    struct gpupool_client *sender = open_cached();
    struct gpupool_buffer buffer = acquire(sender, GPUPOOL_POOL_DEVICE, SIZE, NULL);
    struct gpupool_token token;
    char request[96];

    (void)state;
    MUST(gpupool_send(sender, &buffer, GPUPOOL_NO_STREAM, 2, LIFETIME_NS, &token));
    MUST(gpupool_release(sender, &buffer, GPUPOOL_NO_STREAM));
    cJSON *reply = daemon_ask(&daemon_, "{\"command\":\"parcels\"}");
    const cJSON *parcel = cJSON_GetArrayItem(cJSON_GetObjectItem(reply, "parcels"), 0);
    assert_non_null(parcel);
    assert_int_equal(cJSON_GetObjectItem(parcel, "pid")->valueint, getpid());
    assert_int_equal(cJSON_GetObjectItem(parcel, "takers")->valueint, 2);
    snprintf(request, sizeof request, "{\"command\":\"parcels-revoke\",\"session\":%llu}",
             (unsigned long long)sender->session.id + 1);
    cJSON_Delete(reply);
    cJSON_Delete(daemon_ask(&daemon_, request));
    assert_int_equal(parcels(), 1); /* another session sent nothing */
    cJSON_Delete(daemon_ask(&daemon_, "{\"command\":\"parcels-revoke\"}"));
    expect_no_token(sender, &token);
    close_cached(sender);
}

static void wrong_arguments_are_refused(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, SIZE, NULL);
    struct gpupool_token token;

    (void)state;
    assert_int_equal(gpupool_send(client, &buffer, NULL, 0, LIFETIME_NS, &token), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_send(client, &buffer, NULL, 1, 0, &token), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_send(client, &buffer, NULL, 1, GPUPOOL_FOREVER, &token), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "a day"));
    assert_int_equal(gpupool_send(client, &buffer, NULL, 1, LIFETIME_NS, NULL), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_send(client, NULL, NULL, 1, LIFETIME_NS, &token), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_revoke(client, NULL), GPUPOOL_E_INVALID);
    MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    assert_int_equal(gpupool_revoke(client, &token), GPUPOOL_E_NO_TOKEN); /* it was shared, and not sent */
    MUST(gpupool_release(client, &buffer, NULL));
    close_cached(client);
}

/* --- ends --- */

/* Sends a buffer whose work is done, releases it, and sends another one behind work that never ends. */
static int send_and_wait(int fd, const char *argument) {
    struct gpupool_token tokens[2];
    struct gpupool_client *client = NULL;
    struct gate gate;
    char byte;

    (void)argument;
    MUST(gpupool_open(NULL, &client));
    struct gpupool_buffer done = acquire(client, GPUPOOL_POOL_DEVICE, SIZE, NULL),
                          stuck = acquire(client, GPUPOOL_POOL_DEVICE, SIZE, NULL);
    gate_init(&gate, client);
    MUST(gpupool_set(client, 0, done.data, 3, SIZE, gate.stream));
    MUST(gpupool_send(client, &done, gate.stream, 1, LIFETIME_NS, &tokens[0]));
    MUST(gpupool_release(client, &done, gate.stream));
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    gate_close(&gate);
    MUST(gpupool_set(client, 0, stuck.data, 4, SIZE, gate.stream));
    MUST(gpupool_send(client, &stuck, gate.stream, 2, LIFETIME_NS, &tokens[1]));
    if (send(fd, tokens, sizeof tokens, 0) != (ssize_t)sizeof tokens)
        return 1;
    if (recv(fd, &byte, 1, 0) != 1) /* to be killed, or to leave well */
        return 1;
    gate_open(&gate);
    MUST(gpupool_release(client, &stuck, gate.stream));
    gate_deinit(&gate);
    gpupool_close(client);
    return 0;
}

static void start_sender(struct puppet *worker, struct gpupool_token tokens[static 2]) {
    puppet_start_role(worker, &daemon_, "send", "");
    assert_int_equal(recv(worker->fd, tokens, 2 * sizeof *tokens, 0), 2 * sizeof *tokens);
}

static void what_was_sent_outlives_a_sender_that_leaves(void **state) {
    struct gpupool_token tokens[2];
    struct puppet worker;
    void *stream;

    (void)state;
    start_sender(&worker, tokens);
    assert_int_equal(send(worker.fd, "", 1, 0), 1);
    int status = test_wait(worker.pid);
    close_fd(worker.fd);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 0);
    struct gpupool_client *taker = open_cached_with_stream(&stream);
    for (unsigned i = 0; i < 2; i++) {
        struct gpupool_buffer taken;
        MUST(gpupool_attach(taker, &tokens[i], stream, 0, &taken));
        expect_bytes(taker, &taken, i == 0 ? 3 : 4, stream);
        MUST(gpupool_release(taker, &taken, stream));
    }
    MUST(gpupool_revoke(taker, &tokens[1])); /* it was for two */
    close_with_stream(taker, stream);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

/* The one whose work was done is whole. The other one says that its work is lost. */
static void what_was_sent_outlives_a_sender_that_dies(void **state) {
    struct gpupool_token tokens[2];
    struct gpupool_buffer taken;
    struct puppet worker;
    void *stream;
    struct gpupool_client *taker = open_cached_with_stream(&stream);

    (void)state;
    start_sender(&worker, tokens);
    puppet_kill(&worker);
    WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 1);
    MUST(gpupool_attach(taker, &tokens[0], stream, 0, &taken));
    expect_bytes(taker, &taken, 3, stream);
    MUST(gpupool_release(taker, &taken, stream));
    assert_int_equal(gpupool_attach(taker, &tokens[1], stream, 0, &taken), GPUPOOL_E_LOST);
    MUST(gpupool_revoke(taker, &tokens[1]));
    close_with_stream(taker, stream);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

/* Whether the daemon has a board of any user. */
static bool daemon_has_board(void) {
    char path[64], line[512];
    bool has = false;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)daemon_.pid);
    _cleanup_(fclosep) FILE *maps = fopen(path, "re");
    assert_non_null(maps);
    while (!has && fgets(line, sizeof line, maps) != NULL)
        has = strstr(line, "gpupool-board") != NULL;
    return has;
}

/* The token names a fence on the board, which stays although the user has no session. It ends with the last
 * parcel. */
static void the_board_stays_for_what_is_on_its_way(void **state) {
    struct gpupool_token tokens[2];
    struct puppet worker;
    void *stream;

    (void)state;
    start_sender(&worker, tokens);
    puppet_kill(&worker);
    WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 0);
    assert_true(daemon_has_board());
    struct gpupool_client *taker = open_cached_with_stream(&stream);
    struct gpupool_buffer taken;
    assert_int_equal(gpupool_attach(taker, &tokens[1], stream, 0, &taken), GPUPOOL_E_LOST);
    MUST(gpupool_revoke(taker, &tokens[1]));
    MUST(gpupool_revoke(taker, &tokens[0]));
    close_with_stream(taker, stream);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    WAIT_UNTIL(!daemon_has_board());
}

/* --- many --- */

#define WORKERS 3u
#define ROUNDS  200u

struct letter {
    struct gpupool_token token;
    uint8_t byte;
};

/* Takes what comes, looks at it, and sends it on; the last one gives it back. argument: the socket to send on
 * to, or -1. */
static int pass_on(int fd, const char *argument) {
    int next = atoi(argument);
    struct gpupool_client *client = NULL;
    struct letter letter;
    void *stream;

    MUST(gpupool_open(NULL, &client));
    MUST(gpupool_stream_create(client, 0, &stream));
    if (send(fd, "", 1, 0) != 1)
        return 1;
    while (recv(fd, &letter, sizeof letter, 0) == (ssize_t)sizeof letter) {
        struct gpupool_buffer taken;
        MUST(gpupool_attach(client, &letter.token, stream, 0, &taken));
        expect_bytes(client, &taken, letter.byte, stream);
        if (next >= 0) {
            set(client, &taken, ++letter.byte, stream);
            MUST(gpupool_send(client, &taken, stream, 1, LIFETIME_NS, &letter.token));
        }
        MUST(gpupool_release(client, &taken, stream));
        if (send(next >= 0 ? next : fd, &letter, sizeof letter, 0) != (ssize_t)sizeof letter)
            return 1;
    }
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    return 0;
}

static void buffers_pass_through_several_processes(void **state) {
    struct puppet workers[WORKERS];
    void *stream;
    struct gpupool_client *client = open_cached_with_stream(&stream);
    char ready;

    (void)state;
    for (unsigned i = WORKERS; i-- > 0;) {
        char argument[16];
        int next = -1;
        if (i + 1 < WORKERS) {
            next = dup(workers[i + 1].fd); /* without close-on-exec: the worker sends there */
            assert_true(next >= 0);
        }
        snprintf(argument, sizeof argument, "%d", next);
        puppet_start_role(&workers[i], &daemon_, "pass", argument);
        if (next >= 0)
            close(next);
        assert_int_equal(recv(workers[i].fd, &ready, 1, 0), 1);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct gpupool_buffer buffer = acquire(client, kinds[round % 2], SIZE, stream);
        struct letter letter = {.byte = (uint8_t)round};
        set(client, &buffer, letter.byte, stream);
        MUST(gpupool_send(client, &buffer, stream, 1, LIFETIME_NS, &letter.token));
        MUST(gpupool_release(client, &buffer, stream));
        assert_int_equal(send(workers[0].fd, &letter, sizeof letter, 0), sizeof letter);
        if (round >= 8) /* so many are under way */
            assert_int_equal(recv(workers[WORKERS - 1].fd, &letter, sizeof letter, 0), sizeof letter);
    }
    for (unsigned i = 0; i < 8; i++) {
        struct letter letter;
        assert_int_equal(recv(workers[WORKERS - 1].fd, &letter, sizeof letter, 0), sizeof letter);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        shutdown(workers[i].fd, SHUT_WR);
        int status = test_wait(workers[i].pid);
        close_fd(workers[i].fd);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    close_with_stream(client, stream);
    assert_int_equal(parcels(), 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"send", send_and_wait}, {"pass", pass_on}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_that_was_sent_and_released_reaches_its_taker),
        cmocka_unit_test(what_is_sent_again_and_again_needs_little_memory),
        cmocka_unit_test(each_of_several_takers_gets_it),
        cmocka_unit_test(what_is_revoked_or_too_late_comes_back),
        cmocka_unit_test(an_operator_sees_and_ends_what_is_on_its_way),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(what_was_sent_outlives_a_sender_that_leaves),
        cmocka_unit_test(what_was_sent_outlives_a_sender_that_dies),
        cmocka_unit_test(the_board_stays_for_what_is_on_its_way),
        cmocka_unit_test(buffers_pass_through_several_processes),
    };
    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
