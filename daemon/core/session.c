/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/session.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/kept.h"
#include "daemon/core/question.h"
#include "daemon/core/segment.h"

struct lease *session_next_lease(const struct lease *lease) {
    const struct list *next = lease->session_link.next;
    return next == &lease->session->leases ? NULL : container_of(next, struct lease, session_link);
}

void session_enter(struct session *session, struct tenant *tenant) {
    struct core *core = session->core;

    tenant->sessions++;
    session->tenant = tenant;
    list_init(&session->leases);
    list_init(&session->requests);
    list_init(&session->held);
    list_init(&session->editions);
    list_init(&session->builds);
    list_init(&session->made);
    list_init(&session->places);
    list_init(&session->name_waits);
    list_init(&session->fenced);
    list_init(&session->reclaim_link);
    list_append(&tenant->members, &session->tenant_link);
    list_append(&core->sessions, &session->link);
    core->n_sessions++;
}

int session_reserve_segment(struct session *session, const struct segment *segment) {
    return session_reserve_word(session, segment->slot / 64);
}

int session_reserve_word(struct session *session, uint32_t word_needed) {
    size_t words = (size_t)word_needed + 1;
    if (words <= session->n_segment_words)
        return 0;
    struct segment_bits *segments = realloc(session->segments, words * sizeof *segments);
    if (segments == NULL)
        return -ENOMEM;
    session->segments = segments;
    for (size_t word = 0; word < session->n_segment_words; word++) /* they have moved */
        kept_give(session->core, segments[word].record, &segments[word], &segments[word].record);
    for (; session->n_segment_words < words; session->n_segment_words++) {
        struct segment_bits *bits = &segments[session->n_segment_words];
        *bits = (struct segment_bits){.session = session, .word = (uint32_t)session->n_segment_words};
        if (kept_add(session->core, KEPT_MAPPED, bits, &bits->record) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* The record of the segment's word has to be written. */
static void change_word(const struct session *session, const struct segment *segment) {
    kept_change(session->core, session->segments[segment->slot / 64].record);
}

static uint64_t bit_of(const struct segment *segment) {
    return UINT64_C(1) << segment->slot % 64;
}

/* Whether the session cannot be told to close something. */
static bool is_deaf(const struct session *session) {
    return !session->wants_reclaim || session->state != SESSION_ACTIVE;
}

bool session_map_segment(struct session *session, struct segment *segment) {
    uint64_t bit = bit_of(segment);
    assert(segment->slot / 64 < session->n_segment_words);
    if (session->segments[segment->slot / 64].mapped & bit)
        return false;
    bool was_askable = session_can_be_asked(session, segment->pool);
    session->segments[segment->slot / 64].mapped |= bit;
    change_word(session, segment);
    session->n_segments++;
    session->pools[segment->pool->id - 1].n_mapped++;
    segment->mappers++;
    segment->mappers_sum ^= (uintptr_t)session;
    segment->deaf_mappers += is_deaf(session);
    segment_settle(segment);
    session_count_askable(session, segment->pool, was_askable);
    return true;
}

bool session_may_use(const struct session *session, const struct pool *pool) {
    return (session->pools_allowed >> (pool->id - 1) & 1) != 0;
}

bool session_has_mapped(const struct session *session, const struct segment *segment) {
    return segment->slot / 64 < session->n_segment_words &&
           (session->segments[segment->slot / 64].mapped >> segment->slot % 64 & 1) != 0;
}

/* Counts what the session was told to close; bytes may be "negative". */
static void session_count_closing(struct session *session, struct pool *pool, uint64_t bytes) {
    session->pools[pool->id - 1].closing_bytes += bytes;
    session->tenant->sessions_bytes[pool->id - 1] += bytes;
    pool->sessions_bytes += bytes;
}

void session_unmap_segment(struct session *session, struct segment *segment) {
    assert(session_has_mapped(session, segment) && segment->mappers > 0);
    bool was_askable = session_can_be_asked(session, segment->pool);
    if (session_was_told(session, segment))
        session_count_closing(session, segment->pool, -segment->size_bytes);
    else if (segment->state == SEGMENT_CLOSING)
        session->pools[segment->pool->id - 1].n_untold--;
    session->segments[segment->slot / 64].mapped &= ~bit_of(segment);
    session->segments[segment->slot / 64].told &= ~bit_of(segment);
    change_word(session, segment);
    session->n_segments--;
    session->pools[segment->pool->id - 1].n_mapped--;
    segment->mappers--;
    segment->mappers_sum ^= (uintptr_t)session;
    segment->deaf_mappers -= is_deaf(session);
    segment->lost_mappers -= session->state == SESSION_QUARANTINED;
    segment_settle(segment);
    session_count_askable(session, segment->pool, was_askable);
}

bool session_was_told(const struct session *session, const struct segment *segment) {
    return (session->segments[segment->slot / 64].told & bit_of(segment)) != 0;
}

void session_note_told(struct session *session, struct segment *segment) {
    assert(session_has_mapped(session, segment) && !session_was_told(session, segment));
    session->segments[segment->slot / 64].told |= bit_of(segment);
    change_word(session, segment);
    session_count_closing(session, segment->pool, segment->size_bytes);
}

static uint64_t pool_bit(const struct pool *pool) {
    return UINT64_C(1) << (pool->id - 1);
}

/* The pool asks anew. */
static void session_forget_answer(struct session *session, struct pool *pool) {
    pool->reclaim.n_silent += session_has_answered(session, pool) && session_can_be_asked(session, pool);
    session->answered &= ~pool_bit(pool);
}

void session_ask(struct session *session, struct pool *pool, uint64_t now_ns) {
    if (!session_can_be_asked(session, pool))
        return;
    if (session->page != NULL)
        atomic_fetch_or_explicit(&session->page->shortage.pools, pool_bit(pool), memory_order_release);
    session_forget_answer(session, pool);
    question_ask(session, pool, now_ns);
    if (list_is_empty(&session->reclaim_link))
        list_append(&session->core->reclaiming, &session->reclaim_link);
}

bool session_has_answered(const struct session *session, const struct pool *pool) {
    return (session->answered & pool_bit(pool)) != 0;
}

void session_note_answer(struct session *session, struct pool *pool) {
    pool->reclaim.n_silent -= !session_has_answered(session, pool) && session_can_be_asked(session, pool);
    session->answered |= pool_bit(pool);
}

int session_hear_reclaimed(struct session *session, struct pool *pool,
                           const struct proto_reclaimed *reclaimed, uint64_t now_ns) {
    if (reclaimed->asked > session->n_questions)
        return PROTO_E_INVALID;
    if (session_can_be_asked(session, pool) && question_answer(session, pool, reclaimed))
        session_ask(session, pool, now_ns);
    return 0;
}

void session_note_question(struct session *session, uint64_t now_ns) {
    if (session->asked_ns == 0)
        session->asked_ns = now_ns;
    bool is_mute = now_ns - session->asked_ns >= NO_ANSWER_NS;
    session->core->n_mute += (unsigned)is_mute - session->is_mute;
    session->is_mute = is_mute;
}

void session_end_shortage(struct session *session, struct pool *pool) {
    session_forget_answer(session, pool);
    question_end_shortage(session, pool);
    if (session->page != NULL)
        atomic_fetch_and_explicit(&session->page->shortage.pools, ~pool_bit(pool), memory_order_release);
}

/* A session that could be asked for memory of the pool cannot any more. After the last, no question is due
 * for requests that did not wait. */
static void pool_lose_reclaimer(struct pool *pool, struct session *session) {
    assert(pool->reclaim.n_sessions > 0);
    pool->reclaim.n_sessions--;
    question_drop(session, pool);
    pool->reclaim.n_silent -= !session_has_answered(session, pool);
    if (pool->reclaim.n_sessions == 0)
        pool->reclaim.is_owed = false;
}

void session_fall_silent(struct session *session) {
    struct core *core = session->core;

    session->asked_ns = 0;
    core->n_mute -= session->is_mute;
    session->is_mute = false;
    for (unsigned i = 0; i < core->n_pools; i++)
        if (session_can_be_asked(session, core->pools[i]))
            pool_lose_reclaimer(core->pools[i], session);
    for (size_t word = 0; word < session->n_segment_words; word++)
        for (uint64_t bits = session->segments[word].mapped; bits != 0; bits &= bits - 1) {
            struct segment *segment = core->segments[word * 64 + (unsigned)__builtin_ctzll(bits)];
            segment->deaf_mappers += session->wants_reclaim;
            segment->lost_mappers++;
            segment_settle(segment);
        }
}

bool session_can_be_asked(const struct session *session, const struct pool *pool) {
    return session->wants_reclaim && session->state == SESSION_ACTIVE &&
           (session->pools[pool->id - 1].leased_bytes > 0 || session->pools[pool->id - 1].n_mapped > 0);
}

bool session_can_be_asked_at_all(const struct session *session) {
    for (unsigned i = 0; i < session->core->n_pools; i++)
        if (session_can_be_asked(session, session->core->pools[i]))
            return true;
    return false;
}

void session_count_askable(struct session *session, struct pool *pool, bool was_askable) {
    bool is_askable = session_can_be_asked(session, pool);
    if (is_askable && !was_askable) {
        pool->reclaim.n_sessions++; /* it owes nothing: question_drop() */
        pool->reclaim.n_silent += !session_has_answered(session, pool);
        if (pool->reclaim.short_until_ns != 0 &&
            session != pool->reclaim.spared) /* requests wait for its memory, too */
            session_ask(session, pool, pool->reclaim.asked_ns);
    }
    if (was_askable && !is_askable) {
        pool_lose_reclaimer(pool, session);
        /* The shell may not have taken the question yet: within one call of the core, leases on whole
         * segments are opened, and are closed again where there is no memory for the next. */
        if (!list_is_empty(&session->reclaim_link) && !session_can_be_asked_at_all(session)) {
            list_remove(&session->reclaim_link);
            session->asked_ns = 0;
        }
    }
}
