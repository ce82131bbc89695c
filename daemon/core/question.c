/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/question.h"

#include <stdatomic.h>

#include "daemon/core/kept.h"

static struct session_answers *answers_of(struct session *session, const struct pool *pool) {
    return &session->answers[pool->id - 1];
}

static bool is_open(const struct session_answers *answers) {
    return answers->owes || answers->outcome == PROTO_RECLAIM_CAPTURING ||
           answers->outcome == PROTO_RECLAIM_BUSY || answers->outcome == PROTO_RECLAIM_PENDING;
}

bool question_is_open(const struct session *session, const struct pool *pool) {
    return is_open(&session->answers[pool->id - 1]);
}

static void begin(struct session *session, struct session_answers *answers, uint64_t now_ns) {
    answers->question = ++session->n_questions;
    kept_change(session->core, session->record);
    if (session->page != NULL)
        atomic_store_explicit(&session->page->shortage.asked, session->n_questions, memory_order_release);
    answers->n_asked++;
    answers->asked_ns = now_ns;
    if (!answers->owes)
        answers->owed_ns = now_ns;
    answers->owes = true;
    answers->is_due = false;
}

void question_ask(struct session *session, struct pool *pool, uint64_t now_ns) {
    struct session_answers *answers = answers_of(session, pool);

    if (answers->owes) {
        answers->is_due = true;
        return;
    }
    pool->reclaim.n_open += !is_open(answers);
    begin(session, answers, now_ns);
}

bool question_answer(struct session *session, struct pool *pool, const struct proto_reclaimed *reclaimed) {
    struct session_answers *answers = answers_of(session, pool);
    bool was_open = is_open(answers);

    answers->kept_bytes = reclaimed->kept_bytes;
    if (reclaimed->asked != 0 &&
        reclaimed->asked < answers->question) /* the newest is still to be answered */
        return false;
    answers->outcome = (enum proto_reclaim)reclaimed->outcome;
    if (answers->outcome != PROTO_RECLAIM_PENDING) {
        answers->n_answered += answers->owes;
        answers->owes = false;
    }
    pool->reclaim.n_open += (unsigned)is_open(answers) - was_open;
    return !answers->owes && answers->is_due;
}

void question_note_came(struct session *session, struct pool *pool, uint64_t bytes, uint64_t now_ns) {
    pool->reclaim.n_came++;
    pool->reclaim.came_ns = now_ns;
    if (pool->reclaim.short_until_ns != 0)
        answers_of(session, pool)->came_bytes += bytes;
}

void question_drop(struct session *session, struct pool *pool) {
    struct session_answers *answers = answers_of(session, pool);

    pool->reclaim.n_open -= is_open(answers);
    answers->owes = answers->is_due = false;
    answers->outcome = 0;
    answers->kept_bytes = 0;
}

uint64_t question_kept_bytes(const struct session *session, const struct pool *pool) {
    uint64_t kept_bytes = session->answers[pool->id - 1].kept_bytes;
    uint64_t leased_bytes = session->pools[pool->id - 1].leased_bytes;
    return kept_bytes < leased_bytes ? kept_bytes : leased_bytes;
}

void question_end_shortage(struct session *session, struct pool *pool) {
    answers_of(session, pool)->is_due = false;
}

const char *question_outcome_name(enum proto_reclaim outcome) {
    static const char *const names[] = {
        "none",
        [PROTO_RECLAIM_DONE] = "done",
        [PROTO_RECLAIM_NOTHING] = "nothing",
        [PROTO_RECLAIM_CAPTURING] = "capturing",
        [PROTO_RECLAIM_BUSY] = "busy",
        [PROTO_RECLAIM_WAITS] = "waits",
        [PROTO_RECLAIM_PENDING] = "pending",
    };
    return names[outcome];
}
