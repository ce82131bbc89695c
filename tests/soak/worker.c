/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker of the soak. Each buffer's first and last word get a mark that tells the user and is looked at
 * before the buffer goes back; the old contents of a new buffer may be anything but another user's mark.
 * Each error other than "there is no room" and "you have enough" ends the worker with an exit
 * status that fails the test.
 */
#include "tests/soak/soak.h"

#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"

#define HELD_MAX    10u
#define STREAMS     2u
#define PLAYERS_MAX 2u
#define FAILED      70 /* exit status */
#define MARK_TAG    UINT64_C(0x50ac)
#define REST_EACH   4u              /* steps */
#define REST_NS     (2 * NS_PER_MS) /* at most: a machine's processors are to be shared, not filled */
#define ALLOC_NS    (50 * NS_PER_MS)
#define DECAY_NS    (200 * NS_PER_MS)

struct held {
    struct gpupool_buffer buffer;
    uint64_t mark;
    bool is_shared;  /* no process writes to it any more */
    bool is_pointer; /* from gpupool_alloc() */
};

/* One thread of a worker. */
struct player {
    struct worker *worker;
    uint64_t random;
    unsigned n_held;
    struct held held[HELD_MAX];
    void *streams[STREAMS];
    pthread_t thread;
};

struct worker {
    int fd;
    uid_t uid;
    const char *style;
    struct gpupool_client *client;
    uint32_t pools[2];
    unsigned n_pools;
    struct player players[PLAYERS_MAX];
    unsigned n_players;
    atomic_bool stopped;
};

static bool is_style(const struct worker *worker, enum soak_style style) {
    return strchr(worker->style, (int)style) != NULL;
}

static _Noreturn void fail_worker(const struct worker *worker, const char *what, int result) {
    fprintf(stderr, "soak: worker %d of user %u (%s): %s: %s: %s\n", (int)getpid(), (unsigned)worker->uid,
            worker->style, what, gpupool_error_name(result), result < 0 ? gpupool_error_text() : "");
    _exit(FAILED);
}

static void must(const struct worker *worker, int result, const char *what) {
    if (result != 0)
        fail_worker(worker, what, result);
}

/* The errors of a full pool, of a quota that is used up, and of a machine so loaded that the daemon did not
 * answer within the call's time. */
static bool is_refused(int result) {
    return result == GPUPOOL_E_EXHAUSTED || result == GPUPOOL_E_LIMIT || result == GPUPOOL_E_TIMED_OUT;
}

/* --- marks --- */

static uint64_t make_mark(struct player *player) {
    return (uint64_t)(player->worker->uid & 0xffff) << 48 | MARK_TAG << 32 |
           (test_random(&player->random) & 0xffffffff) | 1;
}

static bool is_foreign(const struct worker *worker, uint64_t word) {
    return (word >> 32 & 0xffff) == MARK_TAG && word >> 48 != (worker->uid & 0xffff);
}

static uint64_t last_offset(const struct gpupool_buffer *buffer) {
    return (buffer->size_bytes - sizeof(uint64_t)) & ~(uint64_t)7;
}

static void move_word(struct worker *worker, const struct gpupool_buffer *buffer, uint64_t offset,
                      uint64_t *word, bool write, void *stream) {
    void *memory = (char *)buffer->data + offset;

    if (buffer->kind == GPUPOOL_POOL_HOST) {
        memcpy(write ? memory : word, write ? (void *)word : memory, sizeof *word);
        return;
    }
    must(worker,
         gpupool_copy(worker->client, buffer->device, write ? memory : word, write ? (void *)word : memory,
                      sizeof *word, stream),
         "a copy");
    must(worker, gpupool_stream_synchronize(worker->client, buffer->device, stream), "waiting for a stream");
}

static void write_marks(struct worker *worker, const struct gpupool_buffer *buffer, uint64_t mark,
                        void *stream) {
    move_word(worker, buffer, 0, &mark, true, stream);
    move_word(worker, buffer, last_offset(buffer), &mark, true, stream);
}

static void check_mark(struct worker *worker, const struct gpupool_buffer *buffer, uint64_t offset,
                       uint64_t mark, void *stream) {
    uint64_t word = 0;
    move_word(worker, buffer, offset, &word, false, stream);
    if (word == mark)
        return;
    fprintf(stderr, "soak: at %#llx of %#llx is %#llx and not %#llx\n", (unsigned long long)offset,
            (unsigned long long)buffer->size_bytes, (unsigned long long)word, (unsigned long long)mark);
    fail_worker(worker, "somebody else wrote to a buffer", 0);
}

/* The old contents: zeros where they were asked for, and never another user's data. */
static void check_fresh(struct worker *worker, const struct gpupool_buffer *buffer, bool zero, void *stream) {
    uint64_t word = 0;
    const uint64_t offsets[] = {0, last_offset(buffer)};

    for (unsigned i = 0; i < 2; i++) {
        move_word(worker, buffer, offsets[i], &word, false, stream);
        if (zero && word != 0)
            fail_worker(worker, "a zeroed buffer is not zero", 0);
        if (is_foreign(worker, word))
            fail_worker(worker, "a new buffer has another user's words in it", 0);
    }
}

/* --- steps --- */

/* The processor is what uses host memory here, and no stream orders it. */
static void *some_stream(struct player *player, bool is_host) {
    return is_host ? GPUPOOL_NO_STREAM : player->streams[test_random(&player->random) % STREAMS];
}

static uint32_t some_pool(struct player *player, bool *ret_is_host) {
    unsigned which = (unsigned)(test_random(&player->random) % player->worker->n_pools);
    *ret_is_host = which == 0;
    return player->worker->pools[which];
}

/* Mostly small, some large. */
static uint64_t some_size(struct player *player) {
    uint64_t random = test_random(&player->random);
    uint64_t most = random % 12 == 0 ? 4 * MIB : random % 4 == 0 ? 256 * KIB : 8 * KIB;
    return sizeof(uint64_t) + test_random(&player->random) % most;
}

static void drop(struct player *player, unsigned which) {
    struct worker *worker = player->worker;
    struct held *held = &player->held[which];
    void *stream = some_stream(player, held->buffer.kind == GPUPOOL_POOL_HOST);

    check_mark(worker, &held->buffer, 0, held->mark, stream);
    check_mark(worker, &held->buffer, last_offset(&held->buffer), held->mark, stream);
    int r = held->is_pointer ? gpupool_free(held->buffer.data, stream)
                             : gpupool_release(worker->client, &held->buffer, stream);
    must(worker, r, "giving back");
    player->n_held--;
    player->held[which] = player->held[player->n_held];
}

static void keep(struct player *player, const struct gpupool_buffer *buffer, void *stream, bool is_pointer) {
    struct held *held = &player->held[player->n_held++];
    *held = (struct held){.buffer = *buffer, .mark = make_mark(player), .is_pointer = is_pointer};
    write_marks(player->worker, buffer, held->mark, stream);
}

/* Gives way to others, or they all wait for each other's memory. */
static void give_way(struct player *player) {
    if (player->n_held > 0)
        drop(player, (unsigned)(test_random(&player->random) % player->n_held));
}

static void take(struct player *player) {
    static const uint64_t timeouts_ns[] = {GPUPOOL_NOW, NS_PER_MS, 20 * NS_PER_MS, 200 * NS_PER_MS};
    struct worker *worker = player->worker;
    uint64_t random = test_random(&player->random);
    bool is_host, zero = random % 8 == 0;
    uint32_t pool = some_pool(player, &is_host);
    void *stream = some_stream(player, is_host);
    struct gpupool_buffer buffer;

    int r = gpupool_acquire(worker->client, pool, some_size(player), stream, timeouts_ns[random / 8 % 4],
                            zero ? GPUPOOL_ZERO : 0, &buffer);
    if (is_refused(r)) {
        give_way(player);
        return;
    }
    must(worker, r, "taking a buffer");
    check_fresh(worker, &buffer, zero, stream);
    keep(player, &buffer, stream, false);
}

static void take_by_pointer(struct player *player) {
    struct worker *worker = player->worker;
    bool is_host;
    uint32_t pool = some_pool(player, &is_host);
    void *stream = some_stream(player, is_host);
    struct gpupool_buffer buffer;

    if (is_style(worker, SOAK_NO_CACHE))
        return;
    void *memory = gpupool_alloc(worker->client, pool, some_size(player), stream);
    if (memory == NULL) { /* what else can be wrong the other steps see */
        give_way(player);
        return;
    }
    must(worker, gpupool_lookup(memory, NULL, &buffer), "looking a pointer up");
    check_fresh(worker, &buffer, false, stream);
    keep(player, &buffer, stream, true);
}

static void shrink(struct player *player) {
    struct worker *worker = player->worker;
    struct held *held = &player->held[test_random(&player->random) % player->n_held];
    void *stream = some_stream(player, held->buffer.kind == GPUPOOL_POOL_HOST);

    if (held->is_shared || held->is_pointer)
        return;
    uint64_t size = sizeof(uint64_t) + test_random(&player->random) % held->buffer.size_bytes;
    if (size > held->buffer.size_bytes)
        size = held->buffer.size_bytes;
    must(worker, gpupool_shrink(worker->client, &held->buffer, size, stream), "shrinking");
    check_mark(worker, &held->buffer, 0, held->mark, stream);
    write_marks(worker, &held->buffer, held->mark, stream);
}

/* Offers a buffer to others of the user. Whether anybody takes it, and this one still has it then, is chance.
 */
static void share(struct player *player) {
    struct worker *worker = player->worker;
    struct held *held = &player->held[test_random(&player->random) % player->n_held];
    struct soak_message message = {
        .verb = SOAK_TOKEN, .size_bytes = held->buffer.size_bytes, .mark = held->mark};

    if (held->is_pointer)
        return;
    int r = gpupool_share(worker->client, &held->buffer, GPUPOOL_NO_STREAM, &message.token);
    if (is_refused(r))
        return;
    must(worker, r, "sharing");
    held->is_shared = true;
    send(worker->fd, &message, sizeof message,
         MSG_DONTWAIT | MSG_NOSIGNAL); /* one that is lost is not missed */
}

static void attach(struct player *player, const struct soak_message *message) {
    struct worker *worker = player->worker;
    struct gpupool_buffer buffer;

    if (player->n_held == HELD_MAX)
        drop(player, 0);
    int r = gpupool_attach(worker->client, &message->token, GPUPOOL_NO_STREAM, 0, &buffer);
    /* Device memory can be offered to one that has no device. */
    if (r == GPUPOOL_E_NO_TOKEN || is_refused(r) ||
        (r == GPUPOOL_E_NO_GPU && is_style(worker, SOAK_HOST_ONLY)))
        return;
    must(worker, r, "attaching");
    struct held *held = &player->held[player->n_held++];
    *held = (struct held){.buffer = buffer, .mark = message->mark, .is_shared = true};
    if (buffer.size_bytes != message->size_bytes)
        fail_worker(worker, "an attached buffer has another size", 0);
}

/* A further connection of the process, which says farewell with its buffer held. */
static void connect_again(struct player *player) {
    struct worker *worker = player->worker;
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *second;
    struct gpupool_buffer buffer;

    options.flags = GPUPOOL_OPEN_NO_CUDA;
    int r = gpupool_open(&options, &second);
    if (r == GPUPOOL_E_NO_MEMORY) /* Linux starts no thread while another one is in execve(): EAGAIN */
        return;
    must(worker, r, "a second connection");
    r = gpupool_acquire(second, worker->pools[0], some_size(player), NULL, NS_PER_MS, 0, &buffer);
    if (!is_refused(r))
        must(worker, r, "the second connection's buffer");
    gpupool_close(second);
}

static void ask(struct player *player) {
    struct worker *worker = player->worker;
    struct gpupool_buffer_info info;
    struct gpupool_pool pools[8];
    size_t count;

    must(worker, gpupool_pools(worker->client, pools, 8, &count), "asking for the pools");
    if (player->n_held == 0)
        return;
    const struct held *held = &player->held[test_random(&player->random) % player->n_held];
    must(worker, gpupool_query(worker->client, &held->buffer, &info), "asking about a buffer");
}

static void step(struct player *player) {
    struct worker *worker = player->worker;

    switch (test_random(&player->random) % 32) {
    case 0:
        must(worker, gpupool_trim(worker->client, NULL), "trimming");
        break;
    case 1:
        ask(player);
        break;
    case 2:
        if (test_random(&player->random) % 16 == 0)
            connect_again(player);
        break;
    case 3:
        if (is_style(worker, SOAK_OWN_LOOP))
            must(worker, gpupool_dispatch(worker->client), "dispatching");
        break;
    case 4:
    case 5:
        if (player->n_held > 0)
            share(player);
        break;
    case 6:
    case 7:
        if (player->n_held > 0)
            shrink(player);
        break;
    default:
        if (player->n_held == HELD_MAX || (player->n_held > 0 && test_random(&player->random) % 5 < 2))
            drop(player, (unsigned)(test_random(&player->random) % player->n_held));
        else if (test_random(&player->random) % 4 == 0)
            take_by_pointer(player);
        else
            take(player);
    }
}

static void rest(struct player *player) {
    uint64_t random = test_random(&player->random);
    if (random % REST_EACH == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(random / REST_EACH % REST_NS)}, NULL);
}

/* --- life and end --- */

static void open_client(struct worker *worker) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    options.decay_ns = DECAY_NS;
    options.alloc_timeout_ns = ALLOC_NS;
    options.flags = (is_style(worker, SOAK_NO_CACHE) ? GPUPOOL_OPEN_NO_CACHE : 0) |
                    (is_style(worker, SOAK_HOST_ONLY) ? GPUPOOL_OPEN_NO_CUDA : 0) |
                    (is_style(worker, SOAK_OWN_LOOP) ? GPUPOOL_OPEN_NO_THREAD : 0);
    must(worker, gpupool_open(&options, &worker->client), "connecting");
    must(worker, gpupool_host_pool(worker->client, -1, &worker->pools[worker->n_pools++]), "the host pool");
    if (is_style(worker, SOAK_HOST_ONLY) || !test_has_device())
        return;
    must(worker, gpupool_device_pool(worker->client, 0, &worker->pools[worker->n_pools++]),
         "the device pool");
}

static void player_begin(struct worker *worker, unsigned index, uint64_t seed) {
    struct player *player = &worker->players[index];

    player->worker = worker;
    player->random = seed + index;
    for (unsigned i = 0; i < STREAMS && worker->n_pools > 1; i++)
        must(worker, gpupool_stream_create(worker->client, 0, &player->streams[i]), "making a stream");
}

static void player_end(struct player *player) {
    while (player->n_held > 0)
        drop(player, 0);
    for (unsigned i = 0; i < STREAMS && player->worker->n_pools > 1; i++)
        must(player->worker, gpupool_stream_destroy(player->worker->client, 0, player->streams[i]),
             "destroying a stream");
}

static void *second_thread(void *argument) {
    struct player *player = argument;
    while (!atomic_load(&player->worker->stopped)) {
        step(player);
        rest(player);
    }
    return NULL;
}

static _Noreturn void end(struct worker *worker, const struct soak_message *order) {
    struct player *player = &worker->players[0];

    switch ((enum soak_verb)order->verb) {
    case SOAK_FAREWELL:
    case SOAK_IN_FLIGHT:
        atomic_store(&worker->stopped, true);
        if (worker->n_players > 1)
            pthread_join(worker->players[1].thread, NULL);
        if (order->verb == SOAK_FAREWELL)
            for (unsigned i = 0; i < worker->n_players; i++)
                player_end(&worker->players[i]);
        for (unsigned i = 0; i < player->n_held; i++) /* no call waits for these here */
            if (player->held[i].buffer.kind == GPUPOOL_POOL_DEVICE && !player->held[i].is_shared)
                must(worker,
                     gpupool_set(worker->client, 0, player->held[i].buffer.data, 7,
                                 player->held[i].buffer.size_bytes, some_stream(player, false)),
                     "setting memory");
        gpupool_close(worker->client);
        _exit(0);
    case SOAK_EXIT:
        _exit(0);
    case SOAK_CHILD:
        if (fork() == 0) {
            close(worker->fd);
            nanosleep(&(struct timespec){.tv_nsec = (long)(order->milliseconds * NS_PER_MS)}, NULL);
            _exit(0);
        }
        raise(SIGKILL);
        break;
    case SOAK_EXEC: {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "0.%03u", order->milliseconds);
        execlp("sleep", "sleep", seconds, (char *)NULL);
        break;
    }
    case SOAK_FAULT:
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would report it */
        raise(SIGSEGV);
        break;
    case SOAK_TOKEN:
        break;
    }
    _exit(FAILED);
}

static void listen_to_orders(struct worker *worker) {
    struct soak_message message;
    ssize_t n;

    while ((n = recv(worker->fd, &message, sizeof message, MSG_DONTWAIT)) == (ssize_t)sizeof message)
        if (message.verb == SOAK_TOKEN)
            attach(&worker->players[0], &message);
        else
            end(worker, &message);
    if (n == 0) /* no peer is there any more */
        _exit(0);
}

int soak_worker(int fd, const char *argument) {
    static struct worker worker;
    unsigned long long seed;
    char style[16] = "";
    unsigned uid;

    if (sscanf(argument, "%u:%llu:%15s", &uid, &seed, style) < 2)
        return FAILED;
    if (uid != getuid() && (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0))
        return FAILED;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing the user undid it */
    worker.fd = fd;
    worker.uid = uid;
    worker.style = style;
    open_client(&worker);
    worker.n_players = is_style(&worker, SOAK_TWO_THREADS) ? 2 : 1;
    for (unsigned i = 0; i < worker.n_players; i++)
        player_begin(&worker, i, seed);
    if (worker.n_players > 1 &&
        pthread_create(&worker.players[1].thread, NULL, second_thread, &worker.players[1]) != 0)
        return FAILED;
    for (;;) {
        listen_to_orders(&worker);
        step(&worker.players[0]);
        rest(&worker.players[0]);
    }
}
