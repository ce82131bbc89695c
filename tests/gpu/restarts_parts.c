/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of the program restarts that take memory and look at it: workers and guests. */
#include "tests/gpu/restarts.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/gpu/kills.h"

#define HELD_MAX      12u
#define BYTES_MAX     (6 * KILLS_MIB) /* of a buffer: three segments of a device pool */
#define BYTES_SMALL   (64u << 10)
#define STREAMS       3u /* for each client: two of its own, and none */
#define PASSED_MAX    6u /* tokens of a worker of which it has not heard */
#define SUBMITTED_MAX 3u
#define GUEST_HELD    4u
#define IN_FLIGHT     4u /* fills that a buffer is given back behind */
#define LIFETIME_NS   (60 * KILLS_NS_PER_S)

enum passing {
    PASS_SHARE, /* the buffer stays until the other has it */
    PASS_PARCEL,
    PASS_REVOKE, /* a parcel that is revoked: the other has it, or does not */
    PASSINGS,
};

/* The bytes of a buffer, as far as a worker knows them. */
struct content {
    uint8_t byte; /* all of them */
    bool is_sure;
    /* A token lies on the table: other processes may come to have the buffer, and expect this byte. */
    bool lies_open;
};

/* From one worker to the next, and the answer. */
struct letter {
    uint64_t number;
    struct gpupool_token token;
    uint32_t passing;
    struct content content;
    bool had_guests;
};

struct answer {
    uint64_t number;
    int result; /* of gpupool_attach() */
};

struct held {
    struct gpupool_buffer buffer;
    unsigned client;
    void *stream; /* it was acquired or attached on */
    uint64_t name;
    struct content content;
    bool is_shared; /* or was once */
};

struct passed {
    uint64_t number;
    uint64_t held; /* its name */
    enum passing passing;
    int revoked; /* result of gpupool_revoke() */
};

struct worker {
    struct gpupool_client *clients[2];
    void *streams[2][STREAMS];
    uint32_t pools[2];
    struct held held[HELD_MAX];
    unsigned n_held;
    struct passed passed[PASSED_MAX];
    unsigned n_passed;
    uint64_t last_name;
    uint8_t *found;
    uint64_t random, begin_ns;
    struct restarts_figures figures;
    struct restarts_table *table;
    bool had_guests; /* one that ended may have left work undone */
    enum restarts_pools kinds;
};

static volatile sig_atomic_t told_to_stop;

static void on_stop(int number) {
    (void)number;
    told_to_stop = 1;
}

/* --- what all do --- */

static void fail(const char *what) {
    fprintf(stderr, "restarts: %s: %s\n", what, gpupool_error_text());
    _exit(1);
}

static bool is_device(const struct held *held) {
    return held->buffer.kind == GPUPOOL_POOL_DEVICE;
}

static void begin(struct worker *worker) {
    worker->begin_ns = kills_now_ns();
}

static void note(uint64_t ns, const char *what, uint64_t *longest_ns, char longest[32]) {
    if (ns <= *longest_ns)
        return;
    *longest_ns = ns;
    snprintf(longest, 32, "%s", what);
}

/* A call is over that waits for no room. Returns 0 or an error that is allowed: LOST, of a guest that was killed. */
static int over(struct worker *worker, int result, const char *what) {
    worker->figures.calls++;
    note(kills_now_ns() - worker->begin_ns, what, &worker->figures.longest_ns, worker->figures.longest);
    if (result != 0 && !(result == GPUPOOL_E_LOST && worker->had_guests))
        fail(what);
    return result;
}

/* A call is over that may wait for room. Returns 0 or an error that is allowed. The driver looks whether a daemon was
 * away for so long that no answer could come in time. */
static int over_wait(struct worker *worker, int result, const char *what) {
    worker->figures.calls++;
    note(kills_now_ns() - worker->begin_ns, what, &worker->figures.longest_wait_ns,
         worker->figures.longest_wait);
    if (result != 0 && result != GPUPOOL_E_EXHAUSTED && result != GPUPOOL_E_CANCELLED &&
        result != GPUPOOL_E_TIMED_OUT)
        fail(what);
    worker->figures.refused += result == GPUPOOL_E_EXHAUSTED;
    worker->figures.late += result == GPUPOOL_E_TIMED_OUT;
    return result;
}

static void synchronize(struct worker *worker, const struct held *held) {
    int r;

    do { /* once for each process that was lost */
        begin(worker);
        r = over(worker,
                 gpupool_stream_synchronize(worker->clients[held->client], held->buffer.device, held->stream),
                 "a wait for a stream");
    } while (r != 0);
}

static void check(struct worker *worker, const struct held *held) {
    const uint8_t *bytes = held->buffer.data;
    uint64_t size = held->buffer.size_bytes;

    if (is_device(held)) {
        begin(worker);
        over(worker,
             gpupool_copy(worker->clients[held->client], held->buffer.device, worker->found,
                          held->buffer.data, size, held->stream),
             "a copy");
        synchronize(worker, held);
        bytes = worker->found;
    }
    for (uint64_t i = 0; held->content.is_sure && i < size; i++)
        if (bytes[i] != held->content.byte) {
            fprintf(stderr, "restarts: foreign write: byte %llu of %llu of a %s buffer%s is %u and not %u\n",
                    (unsigned long long)i, (unsigned long long)size, is_device(held) ? "device" : "host",
                    held->is_shared ? " that was shared" : "", bytes[i], held->content.byte);
            _exit(RESTARTS_FOREIGN);
        }
    worker->figures.checked++;
}

/* Enqueues it, where there is a stream. */
static void set(struct worker *worker, struct held *held, uint8_t byte, void *stream) {
    if (!is_device(held)) {
        memset(held->buffer.data, byte, held->buffer.size_bytes);
        return;
    }
    begin(worker);
    over(worker,
         gpupool_set(worker->clients[held->client], held->buffer.device, held->buffer.data, byte,
                     held->buffer.size_bytes, stream),
         "a fill");
}

static void fill(struct worker *worker, struct held *held) {
    held->content.byte = (uint8_t)(kills_next_random(&worker->random) | 1);
    held->content.is_sure = true;
    set(worker, held, held->content.byte, held->stream);
}

/* The next worker may not have it yet: it has to stay. */
static bool must_stay(const struct worker *worker, const struct held *held) {
    for (unsigned i = 0; i < worker->n_passed; i++)
        if (worker->passed[i].held == held->name && worker->passed[i].passing == PASS_SHARE)
            return true;
    return false;
}

/* A device buffer goes back behind its stream, with work on it under way. If it is this process's alone, that work
 * writes, on a second stream too: other users of the memory would see it, if they had it too soon. */
static void give_back(struct worker *worker, unsigned i) {
    struct held *held = &worker->held[i];
    struct gpupool_client *client = worker->clients[held->client];
    uint64_t random = kills_next_random(&worker->random);

    if (must_stay(worker, held))
        return;
    check(worker, held);
    for (unsigned k = 0; is_device(held) && !held->is_shared && k < random % IN_FLIGHT; k++)
        set(worker, held, 0, held->stream);
    if (is_device(held) && !held->is_shared && random / 16 % 4 == 0) {
        void *other = worker->streams[held->client][0];
        begin(worker);
        over(worker, gpupool_record_stream(client, &held->buffer, other), "the note of a stream");
        set(worker, held, 0, other);
    }
    begin(worker);
    over(worker, gpupool_release(client, &held->buffer, is_device(held) ? held->stream : GPUPOOL_NO_STREAM),
         "a release");
    *held = worker->held[--worker->n_held];
}

static void give_one_back(struct worker *worker) {
    if (worker->n_held > 0)
        give_back(worker, (unsigned)(kills_next_random(&worker->random) % worker->n_held));
}

static void give_some_back(struct worker *worker) {
    for (unsigned n = worker->n_held / 2 + 1; n > 0; n--)
        give_one_back(worker);
}

/* --- what a worker does --- */

static uint64_t some_bytes(uint64_t random) {
    return random % 5 == 0 ? random / 8 % BYTES_MAX + 1 : random / 8 % BYTES_SMALL + 1;
}

static uint64_t some_wait_ns(struct worker *worker) {
    return kills_next_random(&worker->random) % RESTARTS_WAIT_NS;
}

/* Chooses client, pool and stream of a buffer that is to be acquired. */
static struct held choose(struct worker *worker, uint32_t *ret_pool) {
    uint64_t random = kills_next_random(&worker->random);
    bool device = worker->kinds == RESTARTS_BOTH ? random % 2 == 0 : worker->kinds == RESTARTS_DEVICE;
    struct held held = {.client = (unsigned)(random / 2 % 2), .name = ++worker->last_name};

    held.stream = device ? worker->streams[held.client][random / 4 % STREAMS] : GPUPOOL_NO_STREAM;
    *ret_pool = worker->pools[!device];
    return held;
}

static void enter(struct worker *worker, const struct held *held) {
    worker->held[worker->n_held] = *held;
    fill(worker, &worker->held[worker->n_held++]);
}

static void take(struct worker *worker) {
    uint32_t pool;
    struct held held = choose(worker, &pool);
    uint64_t size = some_bytes(kills_next_random(&worker->random));

    begin(worker);
    int r = over_wait(worker,
                      gpupool_acquire(worker->clients[held.client], pool, size, held.stream,
                                      some_wait_ns(worker), 0, &held.buffer),
                      "an acquire");
    if (r == 0)
        enter(worker, &held);
    else
        give_some_back(worker);
}

/* Submits some requests, cancels some of them, and ends all. */
static void submit(struct worker *worker) {
    uint64_t random = kills_next_random(&worker->random);
    struct held held[SUBMITTED_MAX];
    uint64_t requests[SUBMITTED_MAX];
    unsigned n = 0;

    for (; n < SUBMITTED_MAX && worker->n_held + n < HELD_MAX; n++) {
        uint32_t pool;
        held[n] = choose(worker, &pool);
        begin(worker);
        over(worker,
             gpupool_acquire_begin(worker->clients[held[n].client], pool,
                                   some_bytes(kills_next_random(&worker->random)), held[n].stream,
                                   some_wait_ns(worker), 0, &requests[n]),
             "a submission");
    }
    for (unsigned i = 0; i < n; i++)
        if (random >> i & 1 && random >> (8 + i) & 1) {
            begin(worker);
            over(worker, gpupool_request_cancel(worker->clients[held[i].client], requests[i]),
                 "a cancellation");
        }
    bool is_short = false;
    for (unsigned i = 0; i < n; i++) {
        begin(worker);
        int r = over_wait(worker,
                          gpupool_acquire_end(worker->clients[held[i].client], requests[i], &held[i].buffer),
                          "the end of a request");
        if (r == 0)
            enter(worker, &held[i]);
        is_short |= r != 0 && r != GPUPOOL_E_CANCELLED;
    }
    if (is_short)
        give_some_back(worker);
}

static void shrink(struct worker *worker, struct held *held) {
    uint64_t size = held->buffer.size_bytes;

    if (held->is_shared || size < 2)
        return;
    begin(worker);
    over(worker,
         gpupool_shrink(worker->clients[held->client], &held->buffer,
                        kills_next_random(&worker->random) % (size - 1) + 1,
                        is_device(held) ? held->stream : GPUPOOL_NO_STREAM),
         "a shrink");
}

/* Writes to a buffer again that was shared, if no other has it any more, and none can come to have it by a token that
 * tells of the bytes before. */
static void reuse(struct worker *worker, struct held *held) {
    if (!held->is_shared || held->content.lies_open)
        return;
    for (unsigned i = 0; i < worker->n_passed; i++)
        if (worker->passed[i].held == held->name)
            return;
    begin(worker);
    int r = gpupool_reuse(worker->clients[held->client], &held->buffer,
                          is_device(held) ? held->stream : GPUPOOL_NO_STREAM);
    if (over(worker, r == GPUPOOL_E_SHARED ? 0 : r, "a reuse") == 0 && r == 0)
        fill(worker, held);
}

static void trim(struct worker *worker) {
    begin(worker);
    over(worker, gpupool_trim(worker->clients[kills_next_random(&worker->random) % 2], NULL), "a trim");
}

/* Makes a token, behind the stream that writes. */
static int make_token(struct worker *worker, struct held *held, bool sends, struct gpupool_token *ret_token) {
    struct gpupool_client *client = worker->clients[held->client];
    void *stream = is_device(held) ? held->stream : GPUPOOL_NO_STREAM;

    begin(worker);
    int r = over(worker,
                 sends ? gpupool_send(client, &held->buffer, stream, 1, LIFETIME_NS, ret_token)
                       : gpupool_share(client, &held->buffer, stream, ret_token),
                 sends ? "a send" : "a share");
    held->is_shared |= r == 0;
    return r;
}

/* Attaches, and looks at the buffer. may_be_gone: NO_TOKEN is no failure. Returns gpupool_attach()'s result. */
static int attach(struct worker *worker, unsigned client, const struct gpupool_token *token,
                  struct content content, bool may_be_gone) {
    struct held held = {.client = client,
                        .stream = worker->streams[client][kills_next_random(&worker->random) % STREAMS],
                        .name = ++worker->last_name,
                        .content = content,
                        .is_shared = true};

    begin(worker);
    int r = gpupool_attach(worker->clients[client], token, held.stream, 0, &held.buffer);
    over(worker, r == GPUPOOL_E_NO_TOKEN && may_be_gone ? 0 : r, "an attach");
    if (r != 0)
        return r;
    worker->held[worker->n_held++] = held;
    check(worker, &worker->held[worker->n_held - 1]);
    return 0;
}

/* The other client of the process takes what one shares or sends. */
static void pass_over(struct worker *worker, struct held *held) {
    struct gpupool_token token;
    unsigned other = held->client ^ 1;
    struct content content = held->content;

    if (make_token(worker, held, kills_next_random(&worker->random) % 2 == 0, &token) == 0)
        attach(worker, other, &token, content, false);
}

/* --- between workers --- */

/* Sends a token to the next worker. */
static void pass_on(struct worker *worker, struct held *held) {
    struct passed *passed = &worker->passed[worker->n_passed];
    enum passing passing = (enum passing)(kills_next_random(&worker->random) % PASSINGS);
    struct letter letter = {.number = ++worker->last_name,
                            .passing = passing,
                            .content = held->content,
                            .had_guests = worker->had_guests};

    if (worker->n_passed == PASSED_MAX || make_token(worker, held, passing != PASS_SHARE, &letter.token) != 0)
        return;
    *passed = (struct passed){.number = letter.number, .held = held->name, .passing = passing};
    if (send(RESTARTS_TO_FD, &letter, sizeof letter, MSG_NOSIGNAL) != sizeof letter) {
        fprintf(stderr, "restarts: a worker cannot write to the next: %s\n", strerror(errno));
        _exit(1);
    }
    worker->n_passed++;
    if (passing != PASS_REVOKE)
        return;
    kills_rest_ns(kills_next_random(&worker->random) % KILLS_NS_PER_MS);
    begin(worker);
    passed->revoked = gpupool_revoke(worker->clients[held->client], &letter.token);
    over(worker, passed->revoked == GPUPOOL_E_NO_TOKEN ? 0 : passed->revoked, "a revocation");
}

/* Reads what became of a token. */
static bool hear(struct worker *worker) {
    struct answer answer;

    if (recv(RESTARTS_TO_FD, &answer, sizeof answer, MSG_DONTWAIT) != sizeof answer)
        return false;
    for (unsigned i = 0; i < worker->n_passed; i++) {
        struct passed *passed = &worker->passed[i];
        if (passed->number != answer.number)
            continue;
        if (passed->passing == PASS_REVOKE && answer.result != GPUPOOL_E_LOST &&
            (passed->revoked == 0) == (answer.result == 0)) {
            fprintf(stderr, "restarts: a parcel was %s\n",
                    answer.result == 0 ? "revoked and taken" : "neither revoked nor taken");
            _exit(1);
        }
        *passed = worker->passed[--worker->n_passed];
        worker->figures.passed_on++;
        return true;
    }
    fprintf(stderr, "restarts: an answer to a letter that was never written\n");
    _exit(1);
}

/* Takes what the worker before sends. Returns whether there was a letter; *ret_end: there comes none any more. */
static bool receive(struct worker *worker, bool *ret_end) {
    struct letter letter;

    *ret_end = false;
    if (worker->n_held == HELD_MAX)
        return false;
    ssize_t n = recv(RESTARTS_FROM_FD, &letter, sizeof letter, MSG_DONTWAIT);
    *ret_end = n == 0;
    if (n != sizeof letter)
        return false;
    worker->had_guests |= letter.had_guests;
    struct answer answer = {.number = letter.number};
    do { /* of a guest that was killed: it is said once */
        answer.result = attach(worker, (unsigned)(kills_next_random(&worker->random) % 2), &letter.token,
                               letter.content, letter.passing == PASS_REVOKE);
    } while (answer.result == GPUPOOL_E_LOST && letter.passing == PASS_SHARE);
    if (answer.result == GPUPOOL_E_LOST) { /* the parcel was taken by that, or was not */
        begin(worker);
        int r = gpupool_revoke(worker->clients[0], &letter.token);
        over(worker, r == GPUPOOL_E_NO_TOKEN ? 0 : r, "a revocation");
    }
    if (send(RESTARTS_FROM_FD, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
        _exit(1);
    return true;
}

/* --- with guests --- */

static void publish(struct restarts_entry *entries, uint64_t random, const struct restarts_entry *new_entry) {
    struct restarts_entry *entry = &entries[random % RESTARTS_ENTRIES];
    uint32_t version = atomic_load(&entry->version);

    if (version % 2 != 0 || !atomic_compare_exchange_strong(&entry->version, &version, version + 1))
        return;
    entry->byte = new_entry->byte;
    entry->is_sure = new_entry->is_sure;
    entry->token = new_entry->token;
    atomic_store(&entry->version, version + 2);
}

static bool look_up(struct restarts_entry *entries, uint64_t random, struct restarts_entry *ret_entry) {
    struct restarts_entry *entry = &entries[random % RESTARTS_ENTRIES];
    uint32_t version = atomic_load(&entry->version);

    if (version == 0 || version % 2 != 0)
        return false;
    ret_entry->byte = entry->byte;
    ret_entry->is_sure = entry->is_sure;
    ret_entry->token = entry->token;
    return atomic_load(&entry->version) == version;
}

static void lay_open(struct worker *worker, struct held *held) {
    struct restarts_entry entry = {.byte = held->content.byte, .is_sure = held->content.is_sure};

    if (make_token(worker, held, false, &entry.token) != 0)
        return;
    held->content.lies_open = true;
    publish(worker->table->of_workers, kills_next_random(&worker->random), &entry);
}

static void take_from_guest(struct worker *worker) {
    struct restarts_entry entry;

    if (!look_up(worker->table->of_guests, kills_next_random(&worker->random), &entry))
        return;
    worker->had_guests = true;
    struct content content = {.byte = entry.byte, .is_sure = entry.is_sure, .lies_open = true};
    attach(worker, (unsigned)(kills_next_random(&worker->random) % 2), &entry.token, content, true);
}

/* --- a worker --- */

/* One deed in so many of 32. */
enum deed {
    TAKE = 10,
    SUBMIT = TAKE + 2,
    PASS_OVER = SUBMIT + 1,
    PASS_ON = PASS_OVER + 3,
    LAY_OPEN = PASS_ON + 1,
    TAKE_FROM_GUEST = LAY_OPEN + 1,
    REUSE = TAKE_FROM_GUEST + 1,
    SHRINK = REUSE + 1,
    TRIM = SHRINK + 1,
    CHECK = TRIM + 1,
    GIVE_BACK = 32,
};

static void do_one_thing(struct worker *worker) {
    uint64_t random = kills_next_random(&worker->random);
    unsigned i = worker->n_held > 0 ? (unsigned)(random / 64 % worker->n_held) : 0, deed = random % GIVE_BACK;
    struct held *held = &worker->held[i];
    unsigned room =
        worker->n_held < HELD_MAX ? HELD_MAX - 1 - worker->n_held : 0; /* beside one for a letter */

    if (worker->n_held == 0)
        take(worker);
    else if (deed < TAKE ? room < 1 : deed < SUBMIT ? room < SUBMITTED_MAX : deed < PASS_OVER && room < 1)
        give_back(worker, i);
    else if (deed < TAKE)
        take(worker);
    else if (deed < SUBMIT)
        submit(worker);
    else if (deed < PASS_OVER)
        pass_over(worker, held);
    else if (deed < PASS_ON)
        pass_on(worker, held);
    else if (deed < LAY_OPEN)
        lay_open(worker, held);
    else if (deed < TAKE_FROM_GUEST && room > 0)
        take_from_guest(worker);
    else if (deed < REUSE)
        reuse(worker, held);
    else if (deed < SHRINK)
        shrink(worker, held);
    else if (deed < TRIM)
        trim(worker);
    else if (deed < CHECK)
        check(worker, held);
    else
        give_back(worker, i);
}

/* No more letters from here, and then none to here. */
static void end_letters(struct worker *worker) {
    bool is_end = false, has_ended = false;

    while (!is_end || worker->n_passed > 0) {
        if (worker->n_held == HELD_MAX)
            give_one_back(worker);
        bool did = hear(worker);
        did |= !is_end && receive(worker, &is_end);
        if (worker->n_passed == 0 && !has_ended) {
            shutdown(RESTARTS_TO_FD, SHUT_WR);
            has_ended = true;
        }
        if (!did)
            kills_rest_ns(KILLS_NS_PER_MS);
    }
}

static struct restarts_table *map_table(void) {
    void *memory =
        mmap(NULL, sizeof(struct restarts_table), PROT_READ | PROT_WRITE, MAP_SHARED, RESTARTS_TABLE_FD, 0);
    if (memory == MAP_FAILED)
        _exit(1);
    return memory;
}

static void open_clients(struct worker *worker, uint64_t seed, unsigned n) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    for (unsigned i = 0; i < n; i++) {
        options.flags = i == seed % 2 ? GPUPOOL_OPEN_NO_CACHE : 0;
        if (gpupool_open(&options, &worker->clients[i]) != 0)
            fail("gpupool_open");
        for (unsigned k = 0; k + 1 < STREAMS; k++)
            if (gpupool_stream_create(worker->clients[i], 0, &worker->streams[i][k]) != 0)
                fail("a stream");
    }
    if (gpupool_device_pool(worker->clients[0], 0, &worker->pools[0]) != 0 ||
        gpupool_host_pool(worker->clients[0], -1, &worker->pools[1]) != 0)
        fail("a pool");
}

static void set_up(struct worker *worker, uint64_t seed, enum restarts_pools pools) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    *worker =
        (struct worker){.random = seed, .found = malloc(BYTES_MAX + 1), .table = map_table(), .kinds = pools};
    if (worker->found == NULL)
        _exit(1);
}

int restarts_worker(uint64_t seed, enum restarts_pools pools) {
    static struct worker worker;
    bool is_end;

    signal(SIGTERM, on_stop);
    set_up(&worker, seed, pools);
    open_clients(&worker, seed, 2);
    while (!told_to_stop) {
        do_one_thing(&worker);
        hear(&worker);
        receive(&worker, &is_end);
    }
    end_letters(&worker);
    while (worker.n_held > 0)
        give_back(&worker, 0);
    for (unsigned i = 0; i < 2; i++)
        gpupool_close(worker.clients[i]);
    return write(STDOUT_FILENO, &worker.figures, sizeof worker.figures) == sizeof worker.figures ? 0 : 1;
}

/* --- a guest --- */

static void guest_gives(struct worker *guest) {
    uint64_t random = kills_next_random(&guest->random);
    uint32_t pool;
    struct held held = choose(guest, &pool);
    struct restarts_entry entry;

    held.client = 0;
    if (held.stream != GPUPOOL_NO_STREAM)
        held.stream = guest->streams[0][random / 2 % STREAMS];
    int r = gpupool_acquire(guest->clients[0], pool, random / 8 % BYTES_SMALL + 1, held.stream,
                            10 * KILLS_NS_PER_MS, 0, &held.buffer);
    if (r == GPUPOOL_E_EXHAUSTED || r == GPUPOOL_E_TIMED_OUT) /* of workers it is counted */
        return;
    if (r != 0)
        fail("a guest's acquire");
    fill(guest, &held);
    entry = (struct restarts_entry){.byte = held.content.byte, .is_sure = true};
    if (is_device(&held) && random % 2 == 0)
        entry.is_sure = false;
    else if (is_device(&held))
        synchronize(guest, &held);
    if (make_token(guest, &held, false, &entry.token) == 0)
        publish(guest->table->of_guests, kills_next_random(&guest->random), &entry);
    guest->held[guest->n_held++] = held;
}

/* Takes what workers share and guests share, and gives it back behind reading work. */
static void guest_takes(struct worker *guest) {
    uint64_t random = kills_next_random(&guest->random);
    struct held held = {.stream = guest->streams[0][random % STREAMS]};
    struct restarts_entry entry;

    if (!look_up(guest->table->of_workers, random / 8, &entry))
        return;
    int r = gpupool_attach(guest->clients[0], &entry.token, held.stream, 0, &held.buffer);
    if (r == GPUPOOL_E_NO_TOKEN || r == GPUPOOL_E_LOST)
        return;
    if (r != 0)
        fail("a guest's attach");
    if (is_device(&held) && gpupool_copy(guest->clients[0], held.buffer.device, guest->found,
                                         held.buffer.data, held.buffer.size_bytes, held.stream) != 0)
        fail("a guest's copy");
    guest->held[guest->n_held++] = held;
}

int restarts_guest(uint64_t seed, enum restarts_pools pools) {
    static struct worker guest;

    set_up(&guest, seed, pools);
    open_clients(&guest, seed, 1);
    guest.had_guests = true;
    for (;;) {
        uint64_t random = kills_next_random(&guest.random);
        if (guest.n_held < GUEST_HELD && random % 4 == 0) {
            guest_gives(&guest);
        } else if (guest.n_held < GUEST_HELD && random % 4 == 1) {
            guest_takes(&guest);
        } else if (guest.n_held > 0) {
            struct held *held = &guest.held[random / 4 % guest.n_held];
            if (gpupool_release(guest.clients[0], &held->buffer,
                                is_device(held) ? held->stream : GPUPOOL_NO_STREAM) != 0)
                fail("a guest's release");
            *held = guest.held[--guest.n_held];
        }
        kills_rest_ns(random / 64 % KILLS_NS_PER_MS);
    }
}
