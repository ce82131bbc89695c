/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JOINT_WORLD_H
#define TESTS_JOINT_WORLD_H
/*
 * The joint simulator: the real client library against the real core of the daemon, in one process, with
 * everything around both drawn from one seed.
 *
 *   baton.c     the scheduler: of all threads exactly one runs at a time. It owns the simulated time
 *   wrapped.c   the calls of the C library that the client makes, by the linker's --wrap
 *   memory.c    the library's allocations, some of which fail, and what is left of them
 *   wires.c     the sockets between clients and daemon: late, full and broken
 *   daemon.c    the daemon: reads packets, carries out what the core decides, ends sessions
 *   restarts.c  its deaths, its estate, and the daemons that go on. store.c: the descriptors that outlive it
 *   peer.c      what daemon/data/requests.c needs of a client's record. The request handlers are the daemon's own
 *   gpu.c       the GPU: a table of gpu/gpu.h. streams.c: streams, words, captures; mappings.c: address ranges
 *               and what they map
 *   program.c   the clients' programs: open and close, the library's loop. steps.c: what their threads do:
 *               acquires.c, buffers.c, sharing.c
 *   model.c     which buffer has which bytes, and what the daemon has lent
 *   validate.c  the validators of clients and daemon
 *   liveness.c  what must hold when all comes to rest
 *   history.c   one seed's world from its first step to its last
 *   main.c      many seeds, each in a child process
 *
 * The objects of client/ and daemon/core/ are those that the library and the daemon are linked from. The
 * simulator depends on the public functions of the client, on its validators, and on the calls that leave it.
 *
 * A step is one decision of the scheduler: a thread gets the baton, or something outside of the clients
 * happens. Both draw from world.random_state, so a seed replays exactly.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/units.h"
#include "client/core/acquire.h"
#include "client/include/gpupool/gpupool.h"
#include "tests/random.h"

struct core;
struct client;
struct gpu;
struct segment;
struct session;

#define JOINT_CLIENTS  4u
#define JOINT_THREADS  3u  /* of a client's program */
#define JOINT_POOLS    3u  /* device memory by descriptors, by legacy handles; host memory */
#define JOINT_BUFFERS  40u /* of a client at a time */
#define JOINT_STREAMS  6u  /* of a client's program at a time: of the devices in turns */
#define JOINT_DEVICES  2u
#define JOINT_PARTS    64u /* of a buffer: segments that it lies in */
#define JOINT_SEGMENTS 1024u /* over the length of a history */
#define JOINT_SLOT     (2 * MIB)

enum joint_pool {
    JOINT_VMM,
    JOINT_LEGACY,
    JOINT_HOST,
};

/* Which sizes programs ask for. */
enum joint_sizes {
    JOINT_SIZES_MIXED,
    JOINT_SIZES_SHARES, /* some of them fill a pool */
    JOINT_SIZES_SMALL,  /* and a large one now and then */
    JOINT_SIZES_CROWD,  /* one thread asks for a large one, the others for many small ones */
};

/* A range of a segment. */
struct part {
    unsigned segment;
    uint64_t offset_bytes, size_bytes;
};

struct parts {
    unsigned count;
    struct part list[JOINT_PARTS];
};

/* A buffer that a program has. */
struct held {
    bool is_used;
    bool is_busy; /* a thread of the program works on it */
    bool is_of_capture; /* captured work uses it */
    bool was_elsewhere; /* work on other streams uses it, too */
    uint64_t instance;  /* of the memory's use: those who share a buffer have the same */
    uint64_t loan;      /* of this buffer's work: no other one has it */
    bool is_shared;     /* others may have it, too */
    bool is_rewritten;  /* a call of gpupool_reuse() is under way */
    uint64_t behind_loan, behind_order; /* attached: its work runs behind that of its writer, up to that */
    void *origin; /* the stream that it was acquired on */
    void *stream; /* that its next work goes to */
    struct gpupool_buffer buffer;
    struct parts parts;
};

/* A token that a program has made, and what it stands for. */
struct joint_token {
    bool is_used;
    bool is_sent; /* it holds the buffer by itself */
    bool is_revoked;
    struct gpupool_token token;
    unsigned uid;
    unsigned n_attaching; /* calls that are under way */
    uint64_t instance, size_bytes, capacity_bytes;
    uint64_t loan, order; /* the writer's work that a reader's runs behind */
    uint32_t pool;
    struct parts parts;
};

/* An acquire that has not returned yet. */
struct wanting {
    bool is_on;
    uint32_t pool;
    uint64_t size_bytes, timeout_ns, order;
    unsigned passes; /* later ones of the client that got as much */
    void *stream;
};

struct joint_client {
    bool is_open;   /* the program has it */
    bool is_closing;
    bool is_killed; /* its threads never run again */
    bool is_broken; /* its connection was ended by the simulator */
    unsigned number, n_opened;
    struct gpupool_client *client;
    uint32_t flags;
    uint64_t decay_ns;
    bool has_callback;
    void *streams[JOINT_STREAMS];
    bool is_capturing[JOINT_STREAMS];
    uint64_t captured;                      /* when a capture ended last, in the order of requests */
    unsigned n_streams, n_threads, n_ended; /* threads that have made all their steps */
    unsigned n_steps;
    struct held buffers[JOINT_BUFFERS];
    struct wanting wanting[JOINT_THREADS];
    unsigned n_inside; /* threads within a call of the library */
};

/* A segment of the daemon's. */
struct joint_segment {
    bool is_used;
    bool is_retired;
    uint64_t id; /* the core's */
    uint64_t inode, size_bytes;
    unsigned pool;
    int fd;
    void *backing;
};

/* How often things happened, over all histories. */
struct tally {
    uint64_t steps, calls, switches, clock_jumps;
    uint64_t opens, raw_opens, closes, kills, breaks;
    uint64_t acquires, waited, refused, timed_out, cancelled, begun, no_stream, unlike_stream, recorded,
        shrinks, trims, callbacks, dispatches, captures, streams_destroyed, driver_errors, works, waits,
        writes, full, late, growths, failed_growths, retirements, questions, segments_mapped,
        segments_unmapped, moves, rests, waiters_at_rest, clock_needed, conserved, reaped, largest_passes,
        zero_timeouts, released_elsewhere, sleeps, shares, sends, revokes, attaches, no_token, foreign_tokens,
        reuses, held_by_others, lost, queries, drops, failed_allocations, deaths, deaths_in_a_row,
        packets_again, messages_again;
    uint64_t events[ACQUIRE_STATES][ACQUIRE_EVENTS]; /* of acquires, by the state that each met */
};

struct world {
    uint64_t seed, random_state;
    uint64_t step, n_steps;
    uint64_t now_ns;
    const char *what; /* the step's name */
    struct tally *tally;
    struct core *core;
    unsigned n_clients, n_pools;
    unsigned n_over; /* programs that have ended, or were killed */
    unsigned n_uids;
    uint64_t limits[JOINT_POOLS];
    unsigned main_pool; /* that most acquires are of; JOINT_POOLS: all are alike */
    enum joint_sizes sizes;
    unsigned raw_clients;  /* one client in so many has no cache; 0: none */
    unsigned rests;        /* one in so many looks of the main thread lets all come to rest */
    uint32_t leases_limit; /* of a session */
    struct joint_client clients[JOINT_CLIENTS];
    struct joint_segment segments[JOINT_SEGMENTS];
    unsigned n_segments;
    uint64_t next_instance, next_order;
    /* one in so many; 0: never */
    unsigned yields, stalls, acts, full_sockets, late_sockets, growth_fails, gpu_fails, growth_waits,
        gpu_sleeps, memory_fails;
    bool is_frozen;   /* programs begin no calls */
    bool is_ending;   /* programs release what they have, and end */
    bool daemon_sleeps; /* now and then, longer than clients wait for it */
    uint64_t daemon_wakes_ns;
    unsigned daemon_dies; /* in one of so many of its acts; 0: never */
    bool has_died;
    bool has_captures;
    bool has_sharing;
    bool has_dropped;     /* work of a killed client was never done */
    bool joins_by_clock;  /* memory beside a shared buffer joins it with the daemon's next question alone */
    bool has_raced;   /* a capture began while the client was about to leave a fence */
    bool is_calm; /* no call of the driver fails, no growth, and no socket is full */
    uint64_t *progress_step;
};

extern struct world world;

/* Tells of a failure, with seed and step, and does not return. */
_Noreturn void world_fail(const char *what, const char *condition, const char *file, int line);

#define must(condition, what)                                                                                \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            world_fail((what), #condition, __FILE__, __LINE__);                                              \
    } while (0)

/* The user whose processes a client's are. */
static inline unsigned world_uid(unsigned client) {
    return 1000 + client % world.n_uids;
}

static inline uint64_t random_below(uint64_t bound) {
    return random_next(&world.random_state) % bound;
}

static inline bool one_in(unsigned n) {
    return n > 0 && random_below(n) == 0;
}

/* --- baton.c */

/* The main thread takes the baton. */
void baton_begin(void);
/* Starts a thread, which gets the baton when the scheduler says so. Returns as pthread_create(). */
int baton_create(pthread_t *ret_thread, void *(*main)(void *), void *argument);
void baton_join(pthread_t thread);
/* Hands the baton on, perhaps; surely. */
void baton_may_pass(void);
void baton_pass(void);
/* The calling thread waits until is_ready(argument), or until the deadline: false. */
bool baton_wait(bool (*is_ready)(void *argument), void *argument, uint64_t deadline_ns);
/* The calling thread sleeps, to look at something again. Whether no thread does. */
void baton_nap(uint64_t deadline_ns);
bool baton_nobody_naps(void *argument);
/* Everything else goes on until nothing can without the clock. The main thread alone. */
void baton_rest(void);
/* As baton_rest(), and the clock may go on until a time, and so many times. Returns how many times it did. */
unsigned baton_rest_until(uint64_t end_ns, unsigned most_jumps, bool (*is_over)(void *), void *argument);
/* Whether the caller is a thread of the scheduler, outside of the simulator's own work. */
bool baton_is_on(void);
/* The simulator's own work: the calls of the C library are real meanwhile. */
void baton_enter_world(void);
void baton_leave_world(void);
/* The client that the running thread belongs to. */
unsigned baton_client(void);
void baton_set_client(unsigned client);
/* Identifies the running thread. */
unsigned baton_number(void);
/* The client's threads never run again. False: one of them holds a lock that all clients share. */
bool baton_abandon(unsigned client);
/* Of the running thread: it took or gave a lock. */
void baton_count_locks(int change);
/* Whether no thread of the client holds a lock. */
bool baton_has_no_locks(unsigned client);
/* As baton_count_locks(), of a lock that all clients share. */
void baton_count_static_locks(int change);
/* A timer that writes an eventfd. */
void baton_set_timer(int fd, uint64_t at_ns, uint64_t interval_ns);
void baton_drop_timer(int fd);

/* --- memory.c */

/* Draws whether an allocation of the library fails. */
bool memory_fails(void);
/* How many allocations of a client were not freed. */
unsigned memory_left(unsigned client);

/* --- wires.c */

/* The client's and the daemon's end of a connection. */
void wires_connect(int fd);
/* Whether a send or a receive has to wait. fd: a client's end, or any other descriptor: false. */
bool wires_is_full(int fd);
bool wires_is_late(int fd);
/* Draws whether it becomes full or late. */
void wires_note_use(int fd);
void wires_forget(int fd);
/* One of them becomes ready. False: none has to. */
bool wires_act(void);
/* Closes the client's end of a client that was killed. */
void wires_kill(unsigned client);

/* --- daemon.c */

void daemon_begin(void);
void daemon_accept(int fd, unsigned client);
/* The daemon does one thing. False: there is nothing to do. */
bool daemon_act(void);
/* When the daemon does something because time has passed. */
uint64_t daemon_next_ns(void);
/* Ends all connections, as a daemon does that ends. False: there is none now. */
bool daemon_break(void);
/* The session of a client's present connection; NULL: there is none. */
struct session *daemon_session(unsigned client);
/* Whether a connection of the client is left, in any state. */
bool daemon_has(unsigned client);
/* Prints the connections. */
void daemon_tell(void);
/* Whether a session is in quarantine. */
bool daemon_has_lost(void);
/* Whether the daemon holds memory for tokens that were sent. */
bool daemon_has_parcels(void);
void daemon_check(void);
void daemon_check_end(void);
/* The operator trims a pool. */
void daemon_trim(unsigned pool);
void daemon_count_error(unsigned client, unsigned error, const char *text);
int daemon_find_inode(uint64_t inode);

/* --- gpu.c, streams.c, mappings.c */

const struct gpu *gpu_table(void);
/* Runs an operation of a stream. False: none can run; or, unless it is to hurry, the GPU sleeps. */
bool gpu_act(bool hurries);
/* Whether no operation of a client is left. */
bool gpu_is_idle(unsigned client);
/* A stream that waits for a word which nothing will write. */
bool gpu_is_empty(void);
/* Work of the program on a buffer. */
void gpu_enqueue(unsigned client, void *stream, const struct held *held);
/* The second stream waits for all that was enqueued on the first. */
void gpu_order(unsigned client, void *first, void *second);
void gpu_begin_capture(void *stream);
/* Ends the capture, and launches what was captured. */
void gpu_end_capture(void *stream);
bool gpu_is_captured(void *stream);
/* The bytes of segments that addresses map. False: not all of them map anything. */
bool gpu_resolve(const void *memory, uint64_t size_bytes, struct parts *ret_parts);
/* A moment in the order in which work is enqueued. */
uint64_t gpu_now(void);
/* No work of a buffer's loan is left that was enqueued until then. */
bool gpu_is_past(uint64_t loan, uint64_t order);
/* A killed client's work is not done any more. */
void gpu_drop(unsigned client);
/* No work that was enqueued uses any of it any more. */
bool gpu_is_done_with(const struct parts *parts);
void gpu_map(void *address, uint64_t size_bytes, unsigned segment);
void gpu_unmap(void *address, uint64_t size_bytes, bool is_whole);
bool gpu_has_mapped(unsigned client, unsigned segment);
/* A killed client's work is done, its mappings go. */
void gpu_forget(unsigned client);
/* The memory from address on is unmapped in which streams write words. */
void gpu_check_words(const void *address, uint64_t size_bytes);
/* Whether two buffers have a byte in common; whether they have the same ones. */
bool parts_meet(const struct parts *a, const struct parts *b);
bool parts_are_same(const struct parts *a, const struct parts *b);

/* --- model.c */

/* A buffer was handed out. */
void model_hand_out(struct joint_client *client, struct held *held, const struct gpupool_buffer *buffer,
                    void *stream);
/* A buffer was attached by a token. */
void model_attach(struct joint_client *client, struct held *held, const struct gpupool_buffer *buffer,
                  const struct joint_token *token, void *stream);
/* The memory of a buffer that others have had is its holder's alone again. */
void model_reuse(struct held *held);
/* A buffer's parts have changed: its tail was given back, or was not. */
void model_resize(struct joint_client *client, struct held *held);
/* The bytes of the pool that the daemon's core has leased to the client. */
uint64_t model_leased(unsigned client, unsigned pool);
uint64_t model_live(unsigned client, unsigned pool);
/* The largest piece that no buffer is in, and that a request could get: of a segment, or, of arenas, of all
 * segments. alone: of what the client and the daemon have, and no other client. */
uint64_t model_room(const struct joint_client *client, const struct wanting *wanting, bool alone);
/* Whether the client leases all of a segment that is long enough for a request, and more. */
bool model_has_segment(const struct joint_client *client, const struct wanting *wanting);
/* Prints the segments of a pool, if the environment has JOINT_ABORT. */
void model_tell(unsigned pool);

/* --- validate.c */

/* The validators of all clients and of the daemon. */
void validate_all(void);
/* At rest: the requests for segments of a client's pool. */
void validate_turns(unsigned client, unsigned pool);
/* Whether arenas of the client have memory behind fences, which a request for slots does not get. */
bool validate_has_deferred_slots(unsigned client, unsigned pool);
/* Prints what a client has of a pool, if the environment has JOINT_ABORT. */
void validate_tell(unsigned client, unsigned pool);

/* --- program.c */

void program_end_captures(struct joint_client *client); /* buffers.c */
void *program_main(void *argument);

/* --- liveness.c */

void liveness_check(void);

/* --- history.c */

void history(uint64_t seed, uint64_t n_steps, struct tally *tally, uint64_t *progress_step);

#endif
