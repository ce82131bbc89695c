/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/acquire.h"

#include <assert.h>

/* A member of a row is the next state plus 1. 0: the state does not have the event. */
#define TO(state)        (ACQUIRE_##state + 1)
#define ON(event, state) [ACQUIRE_##event] = TO(state)
/* Answers that end every question. */
#define QUESTION_ENDS ON(REFUSED, FAILED), ON(CANCELLED, FAILED)

static const unsigned char rows[ACQUIRE_STATES][ACQUIRE_EVENTS] = {
    [ACQUIRE_TAKE] = {ON(HAS, DONE), ON(SPREAD, FLUSH), ON(LACKS, LOOK), ON(FAILS, FAILED)},
    [ACQUIRE_FLUSH] = {ON(HAS, DONE), ON(LACKS, LOOK), ON(FAILS, FAILED)},
    [ACQUIRE_LOOK] = {ON(HAS, RETAKE), ON(LACKS, CHOOSE)},
    [ACQUIRE_RETAKE] = {ON(HAS, DONE), ON(LACKS, LOOK), ON(FAILS, FAILED)}, /* another thread was quicker */

    [ACQUIRE_CHOOSE] = {ON(IS_RANGE, ASK), ON(IS_SHORT, COLLECT), ON(IS_PLACED, PLACE),
                        ON(IS_TIGHT_PLACED, MOVE), ON(IS_SHORT_PLACED, COLLECT_SEGMENTS)},
    [ACQUIRE_ASK] = {ON(GRANTED, ADD), ON(EXHAUSTED, RECHOOSE), ON(LIMITED, RECHOOSE), QUESTION_ENDS},
    /* The free memory of the pool may lie in pieces: an arena maps them side by side. */
    [ACQUIRE_RECHOOSE] = {ON(IS_SHORT, COLLECT), ON(IS_PLACED, PLACE), ON(IS_TIGHT_PLACED, MOVE),
                          ON(IS_SHORT_PLACED, COLLECT_SEGMENTS)},
    [ACQUIRE_ADD] = {ON(HAS, COUNT), ON(LACKS, RETAKE), ON(FAILS, FAILED)},
    [ACQUIRE_COUNT] = {ON(HAS, DONE)},

    [ACQUIRE_PLACE] = {ON(HAS, LACK), ON(LACKS, ASK_RANGE), ON(FAILS, FAILED)},
    [ACQUIRE_MOVE] = {ON(HAS, LACK), ON(LACKS, ASK_RANGE), ON(FAILS, FAILED)},
    [ACQUIRE_LACK] = {ON(HAS, MAP), ON(LACKS, ASK_SEGMENTS), ON(FAILS, UNPLACE)},
    [ACQUIRE_ASK_SEGMENTS] = {ON(IS_PART, ASK_SEGMENTS), ON(GRANTED, LACK), ON(EXHAUSTED, NARROW),
                              ON(LIMITED, NARROW), ON(REFUSED, UNPLACE), ON(CANCELLED, UNPLACE)},
    [ACQUIRE_NARROW] = {ON(HAS, LACK), ON(LACKS, UNPLACE)},
    /* HAS: idle segments can be moved in place of new ones. LACKS: the pool would not grow for a range either,
     * but one may be free that no segment of an arena has. */
    [ACQUIRE_UNPLACE] = {ON(HAS, MOVE), ON(LACKS, ASK_RANGE), ON(FAILS, FAILED)},
    [ACQUIRE_MAP] = {ON(HAS, COUNT), ON(FAILS, FAILED)},
    [ACQUIRE_ASK_RANGE] = {ON(GRANTED, ADD), ON(EXHAUSTED, COLLECT_SEGMENTS), ON(LIMITED, COLLECT_SEGMENTS),
                           QUESTION_ENDS},

    [ACQUIRE_COLLECT] = {ON(HAS, RETAKE), ON(LACKS, CLOSE)},
    [ACQUIRE_CLOSE] = {ON(HAS, WAIT), ON(FAILS, FAILED)},
    [ACQUIRE_WAIT] = {ON(GRANTED, ADD), ON(EXHAUSTED, FAILED), ON(LIMITED, FAILED), QUESTION_ENDS},
    [ACQUIRE_COLLECT_SEGMENTS] = {ON(HAS, RETAKE), ON(LACKS, CLOSE_SEGMENTS)},
    [ACQUIRE_CLOSE_SEGMENTS] = {ON(HAS, WAIT_SEGMENTS), ON(FAILS, FAILED)},
    [ACQUIRE_WAIT_SEGMENTS] = {ON(IS_PART, WAIT_SEGMENTS), ON(GRANTED, SETTLE), ON(EXHAUSTED, RETRY),
                               ON(LIMITED, RETRY), ON(TURN, COUNT), QUESTION_ENDS},
    [ACQUIRE_SETTLE] = {ON(HAS, MAP), ON(FAILS, FAILED)},
    [ACQUIRE_RETRY] = {ON(HAS, MOVE), ON(LACKS, FAILED), ON(TURN, COUNT)},

    [ACQUIRE_ASK_LEASE] = {ON(GRANTED, DONE), ON(EXHAUSTED, CLOSE_LEASE), ON(LIMITED, FAILED), QUESTION_ENDS},
    [ACQUIRE_CLOSE_LEASE] = {ON(HAS, WAIT_LEASE), ON(FAILS, FAILED)},
    [ACQUIRE_WAIT_LEASE] = {ON(GRANTED, DONE), ON(EXHAUSTED, FAILED), ON(LIMITED, FAILED), QUESTION_ENDS},
};

bool acquire_may(enum acquire_state state, enum acquire_event event) {
    return rows[state][event] != 0;
}

enum acquire_state acquire_next(enum acquire_state state, enum acquire_event event) {
    assert(acquire_may(state, event));
    return rows[state][event] - 1;
}

bool acquire_asks(enum acquire_state state) {
    return acquire_may(state, ACQUIRE_GRANTED);
}

bool acquire_leaves_queue(enum acquire_state state) {
    return state == ACQUIRE_RETAKE || state == ACQUIRE_COUNT || state == ACQUIRE_DONE ||
           state == ACQUIRE_FAILED;
}
