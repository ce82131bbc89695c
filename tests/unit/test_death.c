/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the rule by which a dead client's memory is lent again: scenarios, and all facts that are
 * possible. */
#include "daemon/core/death.h"
#include "unit.h"

static void a_killed_worker_is_waited_for_until_the_list_drops_it(void **state) {
    struct death_facts facts = {.seen = true};
    (void)state;

    facts.socket_over = true; /* after 0.25 ms; the kernel writes on for 9 */
    assert_int_equal(death_judge(&facts), DEATH_AWAITS_PROCESS);
    facts.process_over = true;
    assert_int_equal(death_judge(&facts), DEATH_AWAITS_LISTING);
    facts.listing = LISTING_PRESENT; /* a forked child keeps the work alive */
    assert_int_equal(death_judge(&facts), DEATH_LISTED);
    facts.listing = LISTING_ABSENT;
    assert_int_equal(death_judge(&facts), DEATH_SAFE);
    assert_int_equal(death_rule(&facts), DEATH_BY_LISTING);
}

static void a_child_with_the_socket_does_not_hold_what_the_list_has_dropped(void **state) {
    const struct death_facts facts = {.seen = true, .process_over = true, .listing = LISTING_ABSENT};
    (void)state;
    assert_int_equal(death_judge(&facts), DEATH_SAFE);
}

static void absence_proves_nothing_where_presence_was_not_seen(void **state) {
    struct death_facts facts = {.process_over = true, .socket_over = true, .listing = LISTING_ABSENT};
    (void)state;

    assert_int_equal(death_rule(&facts), DEATH_BY_HOLDERS);
    assert_int_equal(death_judge(&facts), DEATH_AWAITS_HOLDERS);
    facts.holders = HOLDERS_SOME;
    assert_int_equal(death_judge(&facts), DEATH_HELD);
    facts.holders = HOLDERS_HIDDEN;
    assert_int_equal(death_judge(&facts), DEATH_HIDDEN);
    facts.holders = HOLDERS_NONE;
    assert_int_equal(death_judge(&facts), DEATH_SAFE);
    facts.socket_over = false; /* a child there must be, even if it is not found */
    assert_int_equal(death_judge(&facts), DEATH_AWAITS_SOCKET);
}

static void a_client_of_mps_is_over_when_nobody_holds_its_descriptors(void **state) {
    struct death_facts facts = {.seen = true,
                                .under_mps = true,
                                .process_over = true,
                                .socket_over = true,
                                .listing = LISTING_ABSENT};
    (void)state;
    assert_int_equal(death_judge(&facts), DEATH_AWAITS_HOLDERS);
    facts.holders = HOLDERS_NONE;
    assert_int_equal(death_judge(&facts), DEATH_SAFE);
    facts.listing = LISTING_PRESENT;
    assert_int_equal(death_judge(&facts), DEATH_LISTED);
}

static void what_nobody_can_tell_stays_until_an_operator_releases_it(void **state) {
    const struct death_facts facts = {
        .process_over = true, .socket_over = true, .listing = LISTING_UNKNOWN, .holders = HOLDERS_UNKNOWN};
    (void)state;
    assert_int_equal(death_judge(&facts), DEATH_UNKNOWABLE);
}

static void without_any_work_on_a_gpu_the_process_end_is_enough(void **state) {
    struct death_facts facts = {.no_gpu_work = true, .socket_over = true};
    (void)state;
    assert_int_equal(death_judge(&facts), DEATH_AWAITS_PROCESS);
    facts.process_over = true;
    assert_int_equal(death_judge(&facts), DEATH_SAFE);
}

/* Of all facts there can be. */
static void nothing_is_safe_without_its_proof(void **state) {
    unsigned safe = 0;
    (void)state;

    for (unsigned bits = 0; bits < 32; bits++)
        for (int listing = LISTING_NOT_ASKED; listing <= LISTING_UNKNOWN; listing++)
            for (int holders = HOLDERS_NOT_LOOKED; holders <= HOLDERS_UNKNOWN; holders++) {
                const struct death_facts facts = {.no_gpu_work = bits & 1,
                                                  .seen = bits & 2,
                                                  .under_mps = bits & 4,
                                                  .socket_over = bits & 8,
                                                  .process_over = bits & 16,
                                                  .listing = (enum death_listing)listing,
                                                  .holders = (enum death_holders)holders};
                char text[DEATH_TEXT_SIZE];
                int length = death_explain(&facts, 123, "NVML", text);
                assert_in_range(length, 1, DEATH_TEXT_SIZE - 1);
                if (death_judge(&facts) != DEATH_SAFE)
                    continue;
                safe++;
                assert_true(facts.process_over);
                if (facts.no_gpu_work)
                    continue;
                assert_int_not_equal(listing, LISTING_PRESENT);
                bool by_list = facts.seen && !facts.under_mps && listing == LISTING_ABSENT;
                bool by_holders =
                    facts.socket_over && holders == HOLDERS_NONE && listing != LISTING_NOT_ASKED;
                assert_true(by_list || by_holders);
            }
    assert_true(safe > 0);
}

static void the_explanation_names_who_holds_what(void **state) {
    struct death_facts facts = {.process_over = true, .seen = true, .listing = LISTING_PRESENT};
    char text[DEATH_TEXT_SIZE];
    (void)state;

    death_explain(&facts, 123, "NVML", text);
    assert_string_equal(text, "pid 123 is still listed by NVML");
    facts.holder = 124;
    snprintf(facts.holder_name, sizeof facts.holder_name, "python3");
    death_explain(&facts, 123, "NVML", text); /* one that may not be looked into is no reason */
    assert_string_equal(text, "pid 123 is still listed by NVML");
    snprintf(facts.holder_path, sizeof facts.holder_path, "/dev/nvidia0");
    death_explain(&facts, 123, "NVML", text);
    assert_string_equal(text,
                        "pid 123 is still listed by NVML; pid 124 (python3), which may be a child of pid "
                        "123, holds /dev/nvidia0");
    facts.seen = false;
    facts.listing = LISTING_ABSENT;
    death_explain(&facts, 123, "NVML", text);
    assert_string_equal(text, "a child of pid 123 keeps its socket open; pid 124 (python3), which may be a "
                              "child of pid 123, holds /dev/nvidia0");
    facts.socket_over = true;
    facts.listing = LISTING_UNKNOWN;
    facts.holders = HOLDERS_SOME;
    death_explain(&facts, 123, "NVML", text);
    assert_string_equal(text, "pid 124 (python3), which may be a child of pid 123, holds /dev/nvidia0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_is_waited_for_until_the_list_drops_it),
        cmocka_unit_test(a_child_with_the_socket_does_not_hold_what_the_list_has_dropped),
        cmocka_unit_test(absence_proves_nothing_where_presence_was_not_seen),
        cmocka_unit_test(a_client_of_mps_is_over_when_nobody_holds_its_descriptors),
        cmocka_unit_test(what_nobody_can_tell_stays_until_an_operator_releases_it),
        cmocka_unit_test(without_any_work_on_a_gpu_the_process_end_is_enough),
        cmocka_unit_test(nothing_is_safe_without_its_proof),
        cmocka_unit_test(the_explanation_names_who_holds_what),
    };
    return cmocka_run_group_tests_name("death", tests, NULL, NULL);
}
