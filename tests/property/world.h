/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PROPERTY_WORLD_H
#define TESTS_PROPERTY_WORLD_H
/*
 * The world in which histories of pairs and synchronised arrays are played: a daemon with small pools, a
 * client whose driver calls are spied on (spy.h), streams of all kinds on up to two devices, a second thread,
 * and memory that is not the pools' own: to adopt, to write from, and to look for what a stream saw.
 *
 * The world compares later what a stream reads: world_expect_on_stream() lets the stream copy the bytes that
 * it sees aside, and world_settle() compares them when all streams are through. Until then other work goes
 * on, so that a stream which did not wait where it should have reads, or leaves, other bytes.
 *
 * A failure says which history and step, and ends the process. The parent (histories.c) reports it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/api/client.h"
#include "client/include/gpupool/gpupool.h"
#include "gpu/gpu.h"
#include "tests/property/spy.h"
#include "tests/random.h"

#define KIB                (UINT64_C(1) << 10)
#define MIB                (UINT64_C(1) << 20)
#define WORLD_DEVICES      2u
#define WORLD_THREADS      2u
#define WORLD_CREATED      2u /* streams of each device that were created */
#define WORLD_STREAMS      (1 + WORLD_THREADS + WORLD_CREATED)
#define WORLD_BYTES_MAX    (1 * MIB)  /* the largest object */
#define WORLD_BYTES_ROOMY  (64 * KIB) /* where there is always room for all of them */
#define WORLD_SLOTS        8u         /* copies aside, and sources of copies, that are under way at a time */
#define WORLD_ADOPTED      6u         /* memory to adopt, of each kind */
#define WORLD_HOGS         8u
#define WORLD_OBJECTS      3u /* of each kind, at most */
#define WORLD_PAIR_CHANCES 9u
#define WORLD_STEPS_MAX    64u
#define WORLD_STATUS_FOUND 3 /* exit status: something is not as the model has it */

struct world_stream {
    void *handle;
    unsigned number; /* 0…WORLD_STREAMS - 1 on its device */
    unsigned thread; /* from which it is to be used */
};

/* Memory that the library was given and must neither free nor lend. */
struct adoptable {
    unsigned char *memory; /* WORLD_BYTES_MAX of it */
    bool in_use;           /* since the history began */
};

/* The bytes that a stream was seen to read, and those that it should have read. */
struct world_check {
    char what[96];
    uint64_t size_bytes;
    unsigned step;
    unsigned char *found, *expected;
};

/* How often what happened. */
struct world_tally {
    uint64_t histories, steps, copies, zeroed, checks, planned_failures, exhausted, across_streams,
        across_devices, adopted, held, captures, captures_met;
};

/* Between parent and child. */
struct world_progress {
    uint64_t history;
    unsigned step;
    struct world_tally tally;
    char failure[1024];
};

struct world {
    struct gpupool_client *root; /* keeps the daemon */
    struct gpupool_client *client;
    const struct gpu *driver; /* past the spy */
    bool is_cuda, is_verbose;
    unsigned n_devices;
    struct world_stream streams[WORLD_DEVICES][WORLD_STREAMS];
    unsigned char
        *scratch[WORLD_DEVICES]; /* device memory: two pieces for each stream, copied to pass time */
    struct adoptable on_device[WORLD_DEVICES][WORLD_ADOPTED];
    struct adoptable pinned[WORLD_ADOPTED], pageable[WORLD_ADOPTED];
    unsigned char *sources[WORLD_SLOTS]; /* pinned */
    unsigned n_sources;
    struct world_check checks[WORLD_SLOTS];
    unsigned n_checks;
    struct gpupool_buffer hogs[WORLD_HOGS];
    unsigned n_hogs;
    struct world_progress *progress;

    /* of the history */
    bool is_tight; /* pools can be full */
    bool has_failures;
    bool has_captures; /* on the simulation only: the world cannot begin a capture on CUDA */
    uint64_t bytes_max;
    unsigned n_objects;    /* of each kind */
    unsigned pair_chances; /* of WORLD_PAIR_CHANCES: that a step is one of a pair */
    uint64_t delays;       /* random state of its own: delays change nothing else */

    /* of the step */
    uint64_t random;
    unsigned thread;
    struct spy_sight sight;
};

extern struct world world;

/* Opens daemon, client and all the rest. gpu: "sim" or "cuda". */
void world_open(const char *gpu, struct world_progress *progress);
/* A new client, with nothing left of the old one. */
void world_reopen_client(void);
/* Nothing may be left in the pools. */
void world_close(void);

_Noreturn void world_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* For what is no finding: the test itself cannot go on. Exit status 1. */
_Noreturn void world_break(const char *what);
/* Prints the action of a step when the user asked for that. */
void world_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A number below limit, of the step. */
uint64_t world_random(uint64_t limit);
static inline bool world_one_in(uint64_t n) {
    return world_random(n) == 0;
}
/* 1…the history's largest, each power of two as likely as another. */
uint64_t world_random_size(void);
struct world_stream *world_random_stream(unsigned device);
const char *world_stream_name(const struct world_stream *stream);

/* The library's part of a step: between them the spy watches, a driver call may fail, and a stream of the
 * device may be captured, the call's own or another (stream NULL: none is). */
void world_library_begin(unsigned device, const struct world_stream *stream);
/* Whether what the library returned stands: true for 0. A failure that nothing explains is a finding; so is
 * what lands in a capture, and a capture that comes to nothing, unless the library says that it met one. */
bool world_library_end(int result, const char *what);

/* Random bytes. */
void world_make_bytes(unsigned char *bytes, uint64_t size_bytes);
/* Enqueues a write of bytes to device memory, now and then behind a delay. */
void world_write_on_stream(unsigned device, unsigned char *to, const unsigned char *bytes,
                           uint64_t size_bytes, const struct world_stream *stream);
/* Lets a stream look at device memory: it has to see these bytes. */
void world_expect_on_stream(unsigned device, const unsigned char *from, const unsigned char *expected,
                            uint64_t size_bytes, const struct world_stream *stream, const char *what);
void world_expect(const unsigned char *found, const unsigned char *expected, uint64_t size_bytes,
                  const char *what);
/* Waits for all streams and looks at what they found. */
void world_settle(void);

/* Lets a stream stand still, behind what it was given so far, until world_let_go(). That returns whether it
 * still stood: after a bounded time it goes on by itself, because a call waits for it that should not. */
void world_hold(unsigned device, const struct world_stream *stream);
bool world_let_go(void);
/* Waits, with a bound, until a stream has done what it was given so far. */
bool world_comes_through(unsigned device, const struct world_stream *stream);

/* Memory to adopt, with these bytes in it. NULL: there is none left in this history. */
unsigned char *world_adoptable(struct adoptable *list, unsigned device, const unsigned char *bytes,
                               uint64_t size_bytes);

/* Another user of the pools takes a block of that size, overwrites it and gives it back: memory that an
 * object gave up is soon another's, and work that still uses it sees that. on_device: else host memory. */
void world_pass_stranger(bool on_device, unsigned device, uint64_t size_bytes);

/* Takes all that is left of a pool, or gives it back. */
void world_hog(void);
void world_unhog(void);

/* Runs a step's function on one of the threads. */
void world_run_on(unsigned thread, void (*function)(void *), void *argument);

/* The end of a history: whatever objects there were are gone. */
void world_history_ends(void);

#endif
