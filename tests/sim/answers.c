/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers to questions for idle memory: at once, late, to an earlier question, with numbers that were never
 * asked, or never.
 */
#include "tests/sim/world.h"

#include "daemon/core/session.h"

void step_answer(struct world *world) {
    unsigned s = pick_session(world, false), p = (unsigned)random_below(world, world->n_pools);
    if (s == SIM_SESSIONS)
        return;
    struct session *session = world->sessions[s].session;
    const struct session_answers answers = session->answers[p];
    uint64_t newest = session->n_questions;
    const struct proto_reclaimed reclaimed = {
        .pool = p + 1,
        .outcome = (uint32_t)(1 + random_below(world, PROTO_RECLAIM_PENDING)),
        .asked = one_in(world, 8)   ? newest + 1
                 : one_in(world, 2) ? random_below(world, newest + 1)
                                    : newest,
        .kept_bytes = random_below(world, 16 * MIB),
    };
    bool is_final = reclaimed.outcome == PROTO_RECLAIM_DONE || reclaimed.outcome == PROTO_RECLAIM_NOTHING ||
                    reclaimed.outcome == PROTO_RECLAIM_WAITS;
    bool is_newest = reclaimed.asked == 0 || reclaimed.asked >= answers.question;

    if (reclaimed.asked <= newest && is_newest)
        world->sessions[s].settled_ns[p] = is_final && answers.question != 0 ? answers.asked_ns + 1 : 0;
    int r = core_reclaimed(session, &reclaimed, world->now_ns);
    must(r == (reclaimed.asked > newest ? PROTO_E_INVALID : 0), "an answer to no question is taken");
}

/* Whether all that the session has of the pool are leases that it has not been told of: it may have got them
 * behind the request that ended, in the same step. */
static bool has_only_new(const struct session *session, const struct pool *pool) {
    list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
        if (lease->block->segment->pool == pool && !lease->unanswered)
            return false;
    }
    return session->pools[pool->id - 1].n_mapped == 0;
}

bool model_was_answered(const struct world *world, const struct model_request *request) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        const struct session *session = world->sessions[s].session;
        if (session == NULL || (request->gave_back && s == request->session) ||
            !session_can_be_asked(session, world->pools[request->pool].pool) ||
            has_only_new(session, world->pools[request->pool].pool))
            continue;
        if (world->sessions[s].settled_ns[request->pool] <= request->asked_ns &&
            world->now_ns < clock_deadline_ns(request->asked_ns, NO_ANSWER_NS))
            return false;
    }
    return true;
}
