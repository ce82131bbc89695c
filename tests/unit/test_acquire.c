/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the table of an acquire's states: that it is total, and that the queue is entered once and left. */
#include "client/core/acquire.h"
#include "unit.h"

#define FIRST_OF_QUESTION ACQUIRE_GRANTED /* and all events after it */

static bool is_end(enum acquire_state state) {
    return state == ACQUIRE_DONE || state == ACQUIRE_FAILED;
}

static unsigned count_events(enum acquire_state state, enum acquire_event from, enum acquire_event to) {
    unsigned count = 0;

    for (enum acquire_event event = from; event < to; event++)
        count += acquire_may(state, event);
    return count;
}

static void ends_have_no_event_and_other_states_have(void **state) {
    (void)state;
    for (enum acquire_state at = 0; at < ACQUIRE_STATES; at++)
        assert_int_equal(is_end(at), count_events(at, 0, ACQUIRE_EVENTS) == 0);
}

/* The daemon may give any answer to any question. Only one for segments is asked in parts. A release serves
 * one that waits for segments, and perhaps just when the daemon has refused it. */
static void questions_know_every_answer(void **state) {
    (void)state;
    for (enum acquire_state at = 0; at < ACQUIRE_STATES; at++) {
        bool is_of_segments = at == ACQUIRE_ASK_SEGMENTS || at == ACQUIRE_WAIT_SEGMENTS;
        bool may_have_turn = at == ACQUIRE_WAIT_SEGMENTS;
        if (!acquire_asks(at)) {
            assert_int_equal(count_events(at, FIRST_OF_QUESTION, ACQUIRE_EVENTS), at == ACQUIRE_RETRY);
            assert_int_equal(acquire_may(at, ACQUIRE_TURN), at == ACQUIRE_RETRY);
            continue;
        }
        assert_int_equal(count_events(at, 0, FIRST_OF_QUESTION), 0);
        for (enum acquire_event event = FIRST_OF_QUESTION; event < ACQUIRE_EVENTS; event++)
            assert_int_equal(acquire_may(at, event), event == ACQUIRE_IS_PART ? is_of_segments
                                                     : event == ACQUIRE_TURN  ? may_have_turn
                                                                              : true);
    }
}

/* The states that an acquire can come to, outside the queue and in it. */
static bool seen[2][ACQUIRE_STATES];

static void visit(enum acquire_state at, bool is_queued) {
    bool enters = at == ACQUIRE_COLLECT || at == ACQUIRE_COLLECT_SEGMENTS;

    if (acquire_leaves_queue(at))
        is_queued = false;
    if (seen[is_queued][at])
        return;
    seen[is_queued][at] = true;
    /* It is in the queue already. Only a request for segments comes back, and keeps its place. */
    assert_false(at == ACQUIRE_COLLECT && is_queued);
    for (enum acquire_event event = 0; event < ACQUIRE_EVENTS; event++)
        if (acquire_may(at, event))
            visit(acquire_next(at, event), is_queued || enters);
}

static void each_state_is_reached_and_the_queue_is_entered_once(void **state) {
    (void)state;
    visit(ACQUIRE_TAKE, false);
    visit(ACQUIRE_ASK_LEASE, false);
    for (enum acquire_state at = 0; at < ACQUIRE_STATES; at++)
        assert_true(seen[false][at] || seen[true][at]);
    assert_false(seen[true][ACQUIRE_DONE] || seen[true][ACQUIRE_FAILED]);
    /* A request that waits is in the queue, and one that does not wait is not. */
    assert_false(seen[false][ACQUIRE_WAIT] || seen[false][ACQUIRE_WAIT_SEGMENTS]);
    assert_false(seen[true][ACQUIRE_ASK] || seen[true][ACQUIRE_PLACE] || seen[true][ACQUIRE_CHOOSE]);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_have_no_event_and_other_states_have),
        cmocka_unit_test(questions_know_every_answer),
        cmocka_unit_test(each_state_is_reached_and_the_queue_is_entered_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
