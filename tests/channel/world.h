/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHANNEL_WORLD_H
#define TESTS_CHANNEL_WORLD_H
/*
 * The simulator of channels: the real sender and the real receivers in one process, with all else drawn from
 * one seed.
 *
 *   actors.c    the coroutines, of which one runs at a time, their sleep and their deaths
 *   memory.c    the accesses to the pages (channel_hook_load(), channel_hook_store()): store buffers, and which
 *               actor may access which words
 *   daemon.c    the roll: processes come, leave and die
 *   producer.c  the program in the producer place
 *   consumer.c  the program in a consumer place
 *   liar.c      a broken program, that writes nonsense into its page
 *   model.c     the elements, and the places that still need them
 *   slots.c     the model's judgement of slots: loans, and searches that find none
 *   history.c   one seed's world from its first step to its last
 *   main.c      many seeds, each in a child process
 *
 * An actor may lose its turn at each access to a word. Its stores wait in a buffer, from which they reach
 * memory in any order that the orders of proto/channel.h allow; those of a dead process reach it before the
 * daemon sees the death. Loads are made in the order of the program.
 *
 * A step is one decision of the scheduler. All decisions draw from world.random_state, so a seed replays
 * exactly.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/core/receiver.h"
#include "client/core/sender.h"
#include "tests/random.h"

#define SIM_PLACES       PROTO_CHANNEL_PLACES
#define SIM_ACTORS       (SIM_PLACES + 1) /* a place's process has the place's number */
#define SIM_DAEMON       SIM_PLACES
#define SIM_ELEMENTS     600u /* of a history */
#define SIM_FRAME_WORDS  3u
#define SIM_METADATA_MAX 40u
#define SIM_SLOTS        16u

struct tally {
    uint64_t steps, accesses, switches, stalls, flushes;
    uint64_t loans, given_back, sends, full, failed, drops;
    uint64_t receives, again, missed, releases, out_of_order, overruns, ended, given_up;
    uint64_t producer_sleeps, consumer_sleeps, wakes, wakes_in_time;
    uint64_t joins, admissions, leaves, operator_leaves, producer_deaths, consumer_deaths,
        producer_successors, consumer_successors, deaths_before_admission, unsent;
    uint64_t ends, liars, lies_found;
};

/* The state of an element in one place's queue. */
enum need {
    NEED_OWED, /* to be received, dropped, or not of the place */
    NEED_HELD,
    NEED_RELEASING, /* the call is under way */
    NEED_RELEASED,
};

struct element {
    uint32_t slot;
    uint64_t stamp; /* the frame's words, and the beginning of the metadata */
    uint64_t size_bytes, metadata_bytes, session;
    struct channel_fence fence;
    unsigned char need[SIM_PLACES];
    struct channel_fence released[SIM_PLACES];
};

/* A place, as the model knows it. */
struct place {
    enum proto_channel_state state; /* a leave counts from the process's last call on */
    uint64_t queue, processes;
    bool is_admitted;
    uint64_t begins, next;     /* the next sequence to receive */
    uint64_t least, most;      /* where the queue may begin */
    bool is_inside;            /* of a call that claims, or that clears claims */
    bool is_joining;           /* the roll may say so already */
    bool has_left;             /* the process's last call has returned; the roll does not say so yet */
    uint64_t again[SIM_SLOTS]; /* sequences that the process receives once more */
    unsigned n_again, next_again;
};

struct world {
    uint64_t random_state, step, limit;
    const char *what;
    bool is_ending, has_liar;
    bool producer_rests; /* it has sent all that it will send */
    unsigned liar;
    unsigned switch_chance, flush_chance, death_chance, stall_chance; /* out of 256, 256, 4096, 4096 */
    struct channel_view view;
    struct proto_channel_roll *roll;
    struct proto_channel_producer *producer;
    struct proto_channel_consumer *consumers[PROTO_CHANNEL_CONSUMERS_MAX];
    _Atomic uint64_t *frames; /* SIM_FRAME_WORDS for each slot */
    uint64_t last_stamp;
    uint32_t changing; /* a bit for each actor that writes words and has not woken all sleepers yet */

    uint64_t begun, sent; /* sequences of sends that have begun, and that are over */
    struct element elements[SIM_ELEMENTS + 2];
    struct place places[SIM_PLACES];
    uint64_t slot_sequence[SIM_SLOTS]; /* sent there last */
    bool is_loaned[SIM_SLOTS];
    struct channel_fence given_back[SIM_SLOTS];
    struct tally *tally;
};
extern struct world world;

_Noreturn void world_fail(const char *what, const char *condition, const char *file, int line);
#define MUST(condition, what) ((condition) ? (void)0 : world_fail((what), #condition, __FILE__, __LINE__))

/* A number below n. */
static inline unsigned draw(unsigned n) {
    return n == 0 ? 0 : (unsigned)(random_next(&world.random_state) >> 33) % n;
}

/* --- actors.c */

/* Makes an actor that runs program(number). Its memory is that of an earlier actor of the number. */
void actor_start(unsigned number, void (*program)(unsigned number));
/* The program has ended; of the running actor. */
_Noreturn void actor_end(void);
/* The actor never runs again. Its stores reach memory. */
void actor_kill(unsigned number);
bool actor_is_alive(unsigned number);
bool actor_is_asleep(unsigned number);
/* Lets another actor run. */
void actor_yield(void);
/* Lets others run for many steps. */
void actor_stall(void);
/* Sleeps until one of the words is woken, unless one has another value than the expected. */
void actor_sleep(const struct channel_sleep *sleep);
/* Wakes the sleepers on a word. */
void actor_wake(const _Atomic uint64_t *word);
/* Whether an actor sleeps on the word, although the word has another value by now. */
bool actor_missed_wake(const _Atomic uint64_t *word);
/* The actor that runs; SIM_ACTORS: none does. */
unsigned actor_running(void);
/* A call of the core begins: its accesses are counted. */
void actor_call(void);
void actor_count_access(void);
/* One decision. Returns false when no actor can run. */
bool actors_step(void);
void actors_reset(void);

/* --- memory.c */

void memory_make(const struct proto_channel_capacities *capacities);
void memory_drain(unsigned number);
/* Moves one waiting store into memory. */
void memory_flush_any(void);
/* The value in memory, where no buffer is looked at. */
static inline uint64_t memory_value(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* --- programs */

void daemon_program(unsigned number);
void producer_program(unsigned number);
void consumer_program(unsigned number);
void liar_program(unsigned number);

/* --- model.c */

void model_joins(unsigned place);
/* The process is dead, and all of its stores are in memory. */
void model_died(unsigned place);
void model_left(unsigned place);
/* Takes the numbers of the element that is sent next. */
void model_send_begins(uint32_t slot, const struct sender_element *element, uint64_t stamp);
void model_sent(uint32_t slot);
void model_received(unsigned place, const struct receiver_element *element);
/* The frame is as it was sent. Accesses words. */
void model_check_frame(uint64_t sequence);
void model_release_begins(unsigned place, uint64_t sequence, struct channel_fence fence);
void model_released(unsigned place, uint64_t sequence);
/* Looks whether the producer has admitted the place's queue. */
void model_look_for_queue(unsigned place);
/* An actor writes words on which others may sleep, from the one call to the other. */
void model_changes_begin(unsigned actor);
void model_changes_end(unsigned actor);
/* No actor can run any more, and no process is to come. */
void model_check_rest(void);

/* --- slots.c */

/* A search begins. floor: the producer's, which may not have reached memory yet. */
void slots_search_begins(uint64_t floor);
void slots_loaned(const struct sender_loan *loan, uint64_t floor);
void slots_none_found(void);
/* Whether all places have let go of a slot's element, and have told of it. */
bool slots_is_free(uint32_t slot);

/* --- history.c */

void history(uint64_t seed, uint64_t steps, struct tally *tally, uint64_t *ret_step);

#endif
