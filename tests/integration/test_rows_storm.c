/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes with several threads each hand buffers to each other, most of which lie in several segments.
 * Each thread puts its buffer's token on a board that all share, and takes other threads' tokens from it.
 * Contents are compared, and at the end nothing is leased and nothing is left in the daemon.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/rows_fixture.h"

#define PROCESSES  2u
#define THREADS    3u
#define PLACES     8u
#define ROUNDS     250u
#define BYTES_MAX  (14 * MIB)
#define ACQUIRE_NS (5 * NS_PER_MS)
#define MARKS      16u /* words of a buffer that are written and compared */

enum place_state {
    PLACE_EMPTY,
    PLACE_BEING_FILLED,
    PLACE_FULL,
    PLACE_TAKEN, /* the buffer is attached, and read and written */
    PLACE_DONE,
};

struct place {
    _Atomic unsigned state;
    struct gpupool_token token;
    uint64_t seed;
};

struct bulletin {
    struct place places[PLACES];
};

struct worker {
    struct gpupool_client *client;
    struct bulletin *board;
    uint32_t pool;
    uint64_t random;
    unsigned handed, taken;
    int error;
};

/* --- contents: simulated device memory can be reached by the CPU --- */

static uint64_t *mark_of(const struct gpupool_buffer *buffer, unsigned i) {
    uint64_t offset = (buffer->size_bytes - sizeof(uint64_t)) / (MARKS - 1) * i / 8 * 8;
    return (uint64_t *)(void *)((char *)buffer->data + offset);
}

static void write_marks(const struct gpupool_buffer *buffer, uint64_t seed) {
    for (unsigned i = 0; i < MARKS; i++)
        __atomic_store_n(mark_of(buffer, i), seed + i, __ATOMIC_RELAXED);
}

static bool has_marks(const struct gpupool_buffer *buffer, uint64_t seed) {
    for (unsigned i = 0; i < MARKS; i++)
        if (__atomic_load_n(mark_of(buffer, i), __ATOMIC_RELAXED) != seed + i)
            return false;
    return true;
}

/* --- a thread --- */

static bool note(struct worker *worker, int result, const char *call) {
    if (result == 0)
        return true;
    fprintf(stderr, "%s: %s: %s\n", call, gpupool_error_name(result),
            result < 0 ? gpupool_error_text() : "the contents are not there");
    worker->error = result;
    return false;
}

static struct place *claim(struct bulletin *board, enum place_state from, enum place_state to,
                           uint64_t *random) {
    unsigned first = (unsigned)(test_random(random) % PLACES);

    for (unsigned i = 0; i < PLACES; i++) {
        struct place *place = &board->places[(first + i) % PLACES];
        unsigned expected = from;
        if (atomic_compare_exchange_strong(&place->state, &expected, to))
            return place;
    }
    return NULL;
}

/* Takes a buffer that a thread has put on the board, if there is one, and writes into it. */
static void take_one(struct worker *worker) {
    struct gpupool_buffer buffer;
    struct place *place = claim(worker->board, PLACE_FULL, PLACE_TAKEN, &worker->random);

    if (place == NULL) {
        sched_yield();
        return;
    }
    if (note(worker, gpupool_attach(worker->client, &place->token, GPUPOOL_NO_STREAM, 0, &buffer),
             "attach")) {
        note(worker, has_marks(&buffer, place->seed) ? 0 : 1, "an attached buffer");
        write_marks(&buffer, ++place->seed);
        note(worker, gpupool_release(worker->client, &buffer, NULL), "release of an attached buffer");
        worker->taken++;
    }
    atomic_store(&place->state, PLACE_DONE);
}

/* Hands a buffer to another thread, and waits until it is done with it. */
static void hand_over(struct worker *worker, const struct gpupool_buffer *buffer) {
    struct place *place;
    uint64_t seed = test_random(&worker->random);

    while ((place = claim(worker->board, PLACE_EMPTY, PLACE_BEING_FILLED, &worker->random)) == NULL &&
           worker->error == 0)
        take_one(worker);
    if (place == NULL)
        return;
    write_marks(buffer, seed);
    place->seed = seed;
    if (!note(worker, gpupool_share(worker->client, buffer, GPUPOOL_NO_STREAM, &place->token), "share")) {
        atomic_store(&place->state, PLACE_EMPTY);
        return;
    }
    atomic_store(&place->state, PLACE_FULL);
    while (atomic_load(&place->state) != PLACE_DONE && worker->error == 0)
        take_one(worker);
    note(worker, has_marks(buffer, seed + 1) ? 0 : 1, "a buffer that was handed over");
    atomic_store(&place->state, PLACE_EMPTY);
    worker->handed++;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct gpupool_buffer buffer;

    while (worker->handed < ROUNDS && worker->error == 0) {
        uint64_t size_bytes = MIB + test_random(&worker->random) % (BYTES_MAX - MIB);
        int r = gpupool_acquire(worker->client, worker->pool, size_bytes, NULL, ACQUIRE_NS, 0, &buffer);
        if (r == GPUPOOL_E_EXHAUSTED) { /* the others have it */
            take_one(worker);
            continue;
        }
        if (!note(worker, r, "acquire"))
            break;
        hand_over(worker, &buffer);
        note(worker, gpupool_release(worker->client, &buffer, NULL), "release");
    }
    return NULL;
}

/* --- a process --- */

static struct bulletin *board_open(const char *path) {
    _cleanup_(close_fdp) int fd = open(path, O_RDWR | O_CLOEXEC);
    void *memory = mmap(NULL, sizeof(struct bulletin), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* The last threads would wait for each other's tokens to be taken: this process takes those that are left,
 * until the test says that all are done. */
static void take_the_rest(struct worker *worker, int fd) {
    char byte = 1;

    if (write(fd, &byte, 1) != 1)
        worker->error = 1;
    while (worker->error == 0 && recv(fd, &byte, 1, MSG_DONTWAIT) < 0)
        take_one(worker);
}

static int run_process(int fd, const char *argument) {
    struct worker workers[THREADS];
    struct gpupool_client *client;
    pthread_t threads[THREADS];
    char path[64];
    unsigned number;
    uint32_t pool;
    int failed = 0;

    if (sscanf(argument, "%u %63s", &number, path) != 2 || setenv("GPUPOOL_ARENAS", "1", 1) != 0 ||
        gpupool_open(NULL, &client) != 0 || gpupool_device_pool(client, 0, &pool) != 0)
        return 2;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){
            .client = client, .board = board_open(path), .pool = pool, .random = number * THREADS + i + 1};
        if (workers[i].board == NULL || pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            return 3;
    }
    for (unsigned i = 0; i < THREADS; i++) {
        failed += test_join(threads[i], NULL) != 0;
        failed += workers[i].error != 0;
    }
    if (failed == 0)
        take_the_rest(&workers[0], fd);
    failed += workers[0].error != 0;
    gpupool_close(client);
    return failed == 0 ? 0 : 1;
}

static const struct puppet_role roles[] = {{"process", run_process}, {NULL, NULL}};

static void processes_hand_rows_to_each_other(void **state) {
    struct puppet processes[PROCESSES];
    char path[] = "/tmp/gpupool-board-XXXXXX", argument[96], byte;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(struct bulletin)), 0);
    close(fd);
    rows_start(&daemon, 1);
    unsigned descriptors = daemon_descriptors_at_rest(&daemon);
    for (unsigned i = 0; i < PROCESSES; i++) {
        snprintf(argument, sizeof argument, "%u %s", i, path);
        puppet_start_role(&processes[i], &daemon, "process", argument);
    }
    for (unsigned i = 0; i < PROCESSES; i++)
        assert_int_equal(recv(processes[i].fd, &byte, 1, 0), 1);
    for (unsigned i = 0; i < PROCESSES; i++)
        assert_int_equal(send(processes[i].fd, &byte, 1, MSG_NOSIGNAL), 1);
    for (unsigned i = 0; i < PROCESSES; i++) {
        assert_int_equal(test_wait(processes[i].pid), 0);
        close(processes[i].fd);
    }
    unlink(path);
    WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
    cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "reserved_bytes") == 0);
    WAIT_UNTIL(daemon_descriptors(&daemon) <= descriptors);
    rows_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_hand_rows_to_each_other),
    };

    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
