/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CORE_MODEL_H
#define TESTS_UNIT_CORE_MODEL_H
/*
 * A reference model of the core that knows nothing of heaps, lists or plans: who owns each granule of each
 * segment, which session was told of which segment, which requests have no answer yet. It also plays the
 * shell: growths and retirements are done at once, late, or (growths) not at all. A disagreement fails the
 * test with seed and step.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "core_fixture.h"

#define GRANULE         512u
#define MODEL_POOLS     3u
#define MODEL_TENANTS   4u
#define MODEL_SESSIONS  30u
#define MODEL_SEGMENTS  128u /* alive at a time; the pools' limits allow 3 * 32 */
#define MODEL_LEASES    4096u
#define MODEL_BLOCKS    4096u
#define MODEL_REQUESTS  1024u
#define MODEL_TOKENS    64u
#define MODEL_OLD_NAMES 16u
#define MODEL_WORDS     4u /* of each page; the last is never written */
#define POOL_LIMIT_MAX  (64 * MIB)

/* A segment, and for each of its granules the block that has it, plus one; 0: nobody. */
struct model_segment {
    struct segment *segment; /* NULL: unused */
    uint64_t id, size;
    unsigned pool;
    unsigned tenant; /* plus one; 0: none yet */
    uint64_t taken;  /* bytes */
    unsigned mappers;
    bool retiring;
    uint16_t *owners;
};

struct model_block {
    unsigned segment;
    uint64_t offset, size, capacity, held;
    unsigned live, fenced, lost; /* leases; all 0: unused */
    bool shared;
    uint64_t token; /* its first bytes */
};

struct model_lease {
    uint64_t id, generation;
    unsigned session, block;
    bool used, fenced;
    uint32_t word; /* fenced: what it waits for, */
    uint64_t value;
    uint64_t order; /* and since when */
};

struct model_session {
    struct session *session; /* NULL: unused */
    unsigned tenant;
    bool lost, wants;
    bool seen[MODEL_SEGMENTS];
    unsigned leases, fenced;       /* the latter among the former */
    struct proto_page *page;       /* NULL: none */
    uint64_t written[MODEL_WORDS]; /* the highest value that its streams are to write */
};

struct model_request {
    uint64_t id;
    unsigned session, pool;
    uint64_t size, deadline_ns;
    bool used;
};

struct model {
    struct core *core;
    uint64_t seed, now_ns, next_request, next_token, last_generation, next_order;
    unsigned step;
    struct model_segment segments[MODEL_SEGMENTS];
    struct model_block blocks[MODEL_BLOCKS];
    struct model_lease leases[MODEL_LEASES];
    struct model_session sessions[MODEL_SESSIONS];
    struct model_request requests[MODEL_REQUESTS];
    struct {
        struct pool *pool;
        uint64_t growing;           /* taken by the shell and not made yet */
        bool asked_while_no_driver; /* a growth has failed at some time */
    } pools[MODEL_POOLS];
    uint64_t tokens[MODEL_TOKENS]; /* of blocks alive or gone */
    struct proto_lease_name old_names[MODEL_OLD_NAMES];
    unsigned grants, refusals, retirements, attaches, parts, splits, merges, reclaims, aheads, fences, arrivals;
};

/* xorshift64*: the same numbers on every machine. */
extern uint64_t random_state; /* core_model.c; the history sets it */

static inline uint64_t random64(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

static inline uint64_t random_below(uint64_t bound) {
    return random64() % bound;
}

static inline bool one_in(unsigned n) {
    return random_below(n) == 0;
}

#define must(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("seed %llu, step %u: %s does not hold", (unsigned long long)model->seed, model->step,   \
                     #condition);                                                                            \
    } while (0)

static inline uint64_t round_up(uint64_t bytes, uint64_t granule) {
    return (bytes + granule - 1) / granule * granule;
}

static inline struct proto_token token_make(uint64_t number) {
    struct proto_token token = {{0}};
    uint64_t mixed = number * UINT64_C(0x9e3779b97f4a7c15); /* neighbours are to lie apart in the tree */
    memcpy(token.bytes, &mixed, sizeof mixed);
    memcpy(token.bytes + 8, &number, sizeof number);
    return token;
}

unsigned pick_session(struct model *model, bool lost);
unsigned pick_lease(struct model *model);
void model_set_owner(struct model *model, unsigned segment, uint64_t offset, uint64_t size, unsigned from,
                     unsigned to);
unsigned model_new_block(struct model *model, const struct model_block *block);
void model_add_lease(struct model *model, unsigned session, unsigned block, const struct lease *lease);
struct proto_lease model_describe(struct model *model, unsigned session, struct lease *lease);
void model_remove_lease(struct model *model, unsigned l);
void model_remove_session(struct model *model, unsigned s);

/* Fences (core_model_fences.c). The core decides when it looks at them; the model only sees that a lease is
 * gone, and that it could go. */
bool model_is_ready(const struct model *model, unsigned s, uint32_t word, uint64_t value);
void model_fence_lease(struct model *model, unsigned l, uint32_t word, uint64_t value);
void model_lose_fences(struct model *model, unsigned s);
void model_see_arrivals(struct model *model);
/* How many leases of a session lie behind ready fences. / Whether memory that the session's tenant could have
 * does. */
unsigned model_arrived(const struct model *model, unsigned s);
bool model_overlooked(const struct model *model, unsigned s, unsigned p);

void drain_answers(struct model *model);
void drain_decisions(struct model *model);
void finish_growth(struct model *model, unsigned p);
void finish_retirement(struct model *model, unsigned g);
void check_sums(struct model *model);
void check_progress(struct model *model);
void check_line(struct model *model);

#endif
