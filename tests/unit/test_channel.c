/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the sender and the receiver of a channel, by the calls of one thread. tests/channel has random
 * histories of several processes. */
#include "client/core/receiver.h"
#include "client/core/sender.h"
#include "tests/unit/unit.h"

#define SLOTS 4u

static const struct proto_channel_capacities usual = {.slot_bytes = 100,
                                                      .n_slots = SLOTS,
                                                      .metadata_bytes = 40,
                                                      .n_consumers = 2,
                                                      .policy = PROTO_CHANNEL_WAIT};

/* A channel whose places are taken. */
static struct channel {
    struct proto_channel_roll *roll;
    struct proto_channel_producer *producer;
    struct proto_channel_consumer *consumers[2];
    struct channel_view view;
    struct sender sender;
    struct receiver receivers[2];
} channel;

static void *make_page(uint64_t size_bytes) {
    void *page = aligned_alloc(PROTO_CHANNEL_PAGE, size_bytes);

    assert_non_null(page);
    return memset(page, 0, size_bytes);
}

static void set_state(unsigned place, enum proto_channel_state state, uint64_t queue) {
    channel.roll->places[place].state = proto_channel_state_word(state, queue, 1);
    channel.roll->changes++;
}

static void receiver_begins(unsigned i) {
    bool wakes;
    assert_int_equal(receiver_init(&channel.receivers[i], &channel.view, i + 1, channel.consumers[i], &wakes),
                     RECEIVER_OK);
}

static void make(const struct proto_channel_capacities *capacities) {
    channel.roll = make_page(proto_channel_roll_bytes());
    channel.roll->magic = PROTO_CHANNEL_MAGIC;
    channel.roll->capacities = *capacities;
    channel.producer = make_page(proto_channel_producer_bytes(capacities));
    for (unsigned i = 0; i < 2; i++)
        channel.consumers[i] = make_page(proto_channel_consumer_bytes(capacities));
    const struct proto_channel_consumer *consumers[] = {channel.consumers[0], channel.consumers[1]};
    assert_true(channel_view_init(&channel.view, channel.roll, channel.producer, consumers, capacities));
    for (unsigned place = 0; place < 3; place++)
        set_state(place, PROTO_CHANNEL_TAKEN, 0);
    assert_int_equal(sender_init(&channel.sender, &channel.view, channel.producer), SENDER_OK);
    for (unsigned i = 0; i < 2; i++)
        receiver_begins(i);
}

static void drop(void) {
    free(channel.roll);
    free(channel.producer);
    free(channel.consumers[0]);
    free(channel.consumers[1]);
}

static uint32_t loan(void) {
    struct sender_loan found;
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_OK);
    return found.slot;
}

/* Sends an element, and returns its slot. */
static uint32_t send_one(void) {
    uint32_t slot = loan();
    const struct sender_element element = {.size_bytes = 1};
    bool wakes;
    assert_int_equal(sender_send(&channel.sender, slot, &element, &wakes), SENDER_OK);
    assert_false(wakes);
    return slot;
}

static struct receiver_element receive(unsigned i) {
    struct receiver_element element;
    bool wakes;
    assert_int_equal(receiver_next(&channel.receivers[i], &element, &wakes), RECEIVER_OK);
    return element;
}

static void release(unsigned i, uint32_t slot) {
    bool wakes;
    assert_int_equal(receiver_release(&channel.receivers[i], slot, (struct channel_fence){0}, &wakes),
                     RECEIVER_OK);
}

static void pages_have_the_sizes_of_the_layout(void **state) {
    const struct proto_channel_capacities largest = {.slot_bytes = 1,
                                                     .n_slots = PROTO_CHANNEL_SLOTS_MAX,
                                                     .metadata_bytes = PROTO_CHANNEL_METADATA_MAX,
                                                     .n_consumers = PROTO_CHANNEL_CONSUMERS_MAX,
                                                     .policy = PROTO_CHANNEL_FAIL};
    struct proto_channel_capacities odd = usual;
    (void)state;

    odd.n_slots = 5; /* a ring of 8 */
    assert_int_equal(offsetof(struct proto_channel_roll, changes), 64);
    assert_int_equal(offsetof(struct proto_channel_roll, places), 128);
    assert_int_equal(offsetof(struct proto_channel_producer, queues), 192);
    assert_int_equal(offsetof(struct proto_channel_producer, ring), 448);
    assert_int_equal(proto_channel_slot_stride(&odd), 128);
    assert_int_equal(proto_channel_slots_offset(&odd), 448 + 8 * 64);
    assert_int_equal(offsetof(struct proto_channel_consumer, marks), 128);
    assert_int_equal(proto_channel_producer_bytes(&largest), 1183744);
    assert_int_equal(proto_channel_consumer_bytes(&largest), 69632);
}

static void capacities_beyond_the_limits_are_refused(void **state) {
    struct proto_channel_capacities wrong[7];
    (void)state;

    for (unsigned i = 0; i < 7; i++)
        wrong[i] = usual;
    wrong[0].n_slots = PROTO_CHANNEL_SLOTS_MIN - 1;
    wrong[1].n_slots = PROTO_CHANNEL_SLOTS_MAX + 1;
    wrong[2].slot_bytes = 0;
    wrong[3].metadata_bytes = PROTO_CHANNEL_METADATA_MAX + 1;
    wrong[4].n_consumers = 0;
    wrong[5].n_consumers = PROTO_CHANNEL_CONSUMERS_MAX + 1;
    wrong[6].policy = 0;
    assert_true(proto_channel_are_valid(&usual));
    for (unsigned i = 0; i < 7; i++)
        assert_false(proto_channel_are_valid(&wrong[i]));
}

static void a_roll_with_other_capacities_is_refused(void **state) {
    struct proto_channel_capacities other = usual;
    struct channel_view view;
    (void)state;

    make(&usual);
    const struct proto_channel_consumer *consumers[] = {channel.consumers[0], channel.consumers[1]};
    other.n_slots++;
    assert_false(channel_view_init(&view, channel.roll, channel.producer, consumers, &other));
    channel.roll->magic++;
    assert_false(channel_view_init(&view, channel.roll, channel.producer, consumers, &usual));
    drop();
}

static void an_element_arrives_with_what_it_was_sent_with(void **state) {
    const char metadata[] = "21 bytes of metadata";
    const struct sender_element sent = {.size_bytes = 99,
                                        .metadata = metadata,
                                        .metadata_bytes = sizeof metadata,
                                        .fence = channel_fence_make(7, 63, 1000),
                                        .session = 12};
    bool wakes;
    (void)state;

    make(&usual);
    uint32_t slot = loan();
    assert_int_equal(sender_send(&channel.sender, slot, &sent, &wakes), SENDER_OK);
    for (unsigned i = 0; i < 2; i++) {
        struct receiver_element element = receive(i);
        assert_int_equal(element.sequence, 1);
        assert_int_equal(element.slot, slot);
        assert_int_equal(element.size_bytes, 99);
        assert_int_equal(element.metadata_bytes, sizeof metadata);
        assert_memory_equal(element.metadata, metadata, sizeof metadata);
        assert_int_equal(element.fence.word, sent.fence.word);
        assert_int_equal(element.fence.value, 1000);
        assert_int_equal(element.session, 12);
        assert_false(element.is_again);
        assert_int_equal(element.missed, 0);
    }
    drop();
}

static void mistakes_of_the_caller_are_refused(void **state) {
    struct sender_element element = {.size_bytes = 101};
    struct receiver other;
    bool wakes;
    (void)state;

    make(&usual);
    uint32_t slot = loan();
    assert_int_equal(sender_send(&channel.sender, slot, &element, &wakes), SENDER_REFUSED);
    element = (struct sender_element){.metadata_bytes = 41};
    assert_int_equal(sender_send(&channel.sender, slot, &element, &wakes), SENDER_REFUSED);
    element = (struct sender_element){0};
    assert_int_equal(sender_send(&channel.sender, slot + 1, &element, &wakes), SENDER_REFUSED);
    assert_int_equal(sender_send(&channel.sender, SLOTS, &element, &wakes), SENDER_REFUSED);
    assert_int_equal(sender_send(&channel.sender, slot, &element, &wakes), SENDER_OK);
    assert_int_equal(sender_send(&channel.sender, slot, &element, &wakes), SENDER_REFUSED);
    assert_int_equal(receiver_release(&channel.receivers[0], slot, (struct channel_fence){0}, &wakes),
                     RECEIVER_REFUSED);
    assert_int_equal(receiver_init(&other, &channel.view, 0, channel.consumers[0], &wakes), RECEIVER_REFUSED);
    assert_int_equal(receiver_init(&other, &channel.view, 3, channel.consumers[0], &wakes), RECEIVER_REFUSED);
    drop();
}

static void a_full_channel_names_the_place_that_holds_the_oldest_slot(void **state) {
    struct sender_loan found;
    (void)state;

    make(&usual);
    for (unsigned n = 0; n < SLOTS; n++)
        send_one();
    release(0, receive(0).slot);
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_FULL);
    assert_int_equal(channel.sender.place, 2);
    release(1, receive(1).slot);
    loan();
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_FULL);
    drop();
    make(&usual);
    for (unsigned n = 0; n < SLOTS; n++)
        loan();
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_FULL);
    assert_int_equal(channel.sender.place, 0); /* the caller has all slots */
    drop();
}

static void a_slot_that_is_held_is_passed_over(void **state) {
    struct receiver_element first[2], second[2];
    (void)state;

    make(&usual);
    for (unsigned n = 0; n < SLOTS; n++)
        send_one();
    for (unsigned i = 0; i < 2; i++) {
        first[i] = receive(i);
        second[i] = receive(i);
        release(i, second[i].slot);
    }
    assert_int_equal(loan(), second[0].slot);
    release(0, first[0].slot);
    release(1, first[1].slot);
    assert_int_equal(loan(), first[0].slot);
    drop();
}

static void a_loan_leaves_no_trace(void **state) {
    struct sender_loan found;
    (void)state;

    make(&usual);
    uint64_t size_bytes = proto_channel_producer_bytes(&usual);
    char *before = malloc(size_bytes);
    assert_non_null(before);
    send_one();
    memcpy(before, channel.producer, size_bytes);
    uint32_t slot = loan();
    assert_memory_equal(before, channel.producer, size_bytes);
    sender_give_back(&channel.sender, slot, channel_fence_make(1, 2, 3));
    assert_memory_equal(before, channel.producer, size_bytes);
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_OK);
    assert_int_equal(found.slot, slot);
    assert_int_equal(found.n_fences, 1);
    assert_int_equal(found.fences[0].value, 3);
    free(before);
    drop();
}

static void a_consumer_learns_how_many_it_missed(void **state) {
    struct proto_channel_capacities dropping = usual;
    (void)state;

    dropping.policy = PROTO_CHANNEL_DROP_OLDEST;
    make(&dropping);
    struct receiver_element held = {0};
    send_one();
    held = receive(0);
    for (unsigned n = 0; n < 10; n++)
        send_one(); /* 2 to 11: three slots */
    struct receiver_element element = receive(0);
    assert_int_equal(held.sequence, 1);
    assert_int_equal(element.sequence, 9);
    assert_int_equal(element.missed, 7);
    assert_int_equal(receive(1).missed, 8);
    drop();
}

static void sleepers_alone_are_woken(void **state) {
    struct channel_sleep sleep;
    const struct sender_element element = {0};
    bool wakes;
    (void)state;

    make(&usual);
    receiver_sleep_begin(&channel.receivers[1], &sleep);
    assert_int_equal(sleep.count, 2);
    assert_ptr_equal(sleep.words[0].word, &channel.producer->head);
    assert_ptr_equal(sleep.words[1].word, &channel.roll->changes);
    assert_int_equal(sender_send(&channel.sender, loan(), &element, &wakes), SENDER_OK);
    assert_true(wakes);
    set_state(2, PROTO_CHANNEL_VACANT, 0); /* it died in its sleep */
    assert_int_equal(sender_send(&channel.sender, loan(), &element, &wakes), SENDER_OK);
    assert_false(wakes);
    set_state(2, PROTO_CHANNEL_TAKEN, 0);
    receiver_sleep_end(&channel.receivers[1]);
    assert_int_equal(sender_send(&channel.sender, loan(), &element, &wakes), SENDER_OK);
    assert_false(wakes);
    drop();
}

static void a_sleeping_producer_waits_for_all_places_that_count(void **state) {
    struct channel_sleep sleep;
    struct sender_loan found;
    bool wakes;
    (void)state;

    make(&usual);
    for (unsigned n = 0; n < SLOTS; n++)
        send_one();
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_FULL);
    sender_sleep_begin(&channel.sender, &sleep);
    assert_int_equal(sleep.count, 3);
    struct receiver_element element = receive(0);
    assert_int_equal(receiver_release(&channel.receivers[0], element.slot, (struct channel_fence){0}, &wakes),
                     RECEIVER_OK);
    assert_true(wakes);
    assert_int_not_equal((uint32_t)channel.consumers[0]->releases, sleep.words[0].expected);
    sender_sleep_end(&channel.sender);
    set_state(2, PROTO_CHANNEL_LEFT, 0);
    assert_int_equal(loan(), element.slot);
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_FULL);
    sender_sleep_begin(&channel.sender, &sleep);
    assert_int_equal(sleep.count, 2);
    drop();
}

static void a_place_that_is_taken_again_begins_at_the_head(void **state) {
    struct receiver_element element;
    bool wakes;
    (void)state;

    make(&usual);
    send_one();
    set_state(2, PROTO_CHANNEL_LEFT, 0);
    send_one();
    set_state(2, PROTO_CHANNEL_TAKEN, 1);
    receiver_begins(1);
    assert_int_equal(receiver_next(&channel.receivers[1], &element, &wakes), RECEIVER_EMPTY);
    send_one();
    element = receive(1);
    assert_int_equal(element.sequence, 3);
    assert_int_equal(element.missed, 0);
    drop();
}

static void a_producer_that_left_ends_the_queue(void **state) {
    struct receiver_element element;
    bool wakes;
    (void)state;

    make(&usual);
    send_one();
    set_state(0, PROTO_CHANNEL_LEFT, 0);
    receive(0);
    assert_int_equal(receiver_next(&channel.receivers[0], &element, &wakes), RECEIVER_ENDED);
    set_state(0, PROTO_CHANNEL_TAKEN, 0);
    assert_int_equal(receiver_next(&channel.receivers[0], &element, &wakes), RECEIVER_EMPTY);
    drop();
}

static void nonsense_of_another_process_is_an_error(void **state) {
    struct receiver_element element;
    struct sender_loan found;
    bool wakes;
    (void)state;

    make(&usual);
    send_one();
    channel.producer->ring[1].size_bytes = 101;
    assert_int_equal(receiver_next(&channel.receivers[0], &element, &wakes), RECEIVER_PROTOCOL);
    channel.producer->ring[1].size_bytes = 1;
    channel.producer->ring[1].fence.word = UINT64_C(1024) << 32 | 1;
    assert_int_equal(receiver_next(&channel.receivers[0], &element, &wakes), RECEIVER_PROTOCOL);
    channel.producer->ring[1].fence.word = 0;
    channel.producer->head = 1 + SLOTS;
    assert_int_equal(receiver_next(&channel.receivers[1], &element, &wakes), RECEIVER_PROTOCOL);
    channel.producer->head = 1;
    for (unsigned n = 1; n < SLOTS; n++)
        send_one();
    channel.consumers[1]->marks[0].released = 77;
    channel.consumers[0]->marks[0].released = 1;
    assert_int_equal(sender_find_slot(&channel.sender, &found), SENDER_PROTOCOL);
    assert_int_equal(channel.sender.place, 2);
    drop();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_have_the_sizes_of_the_layout),
        cmocka_unit_test(capacities_beyond_the_limits_are_refused),
        cmocka_unit_test(a_roll_with_other_capacities_is_refused),
        cmocka_unit_test(an_element_arrives_with_what_it_was_sent_with),
        cmocka_unit_test(mistakes_of_the_caller_are_refused),
        cmocka_unit_test(a_full_channel_names_the_place_that_holds_the_oldest_slot),
        cmocka_unit_test(a_slot_that_is_held_is_passed_over),
        cmocka_unit_test(a_loan_leaves_no_trace),
        cmocka_unit_test(a_consumer_learns_how_many_it_missed),
        cmocka_unit_test(sleepers_alone_are_woken),
        cmocka_unit_test(a_sleeping_producer_waits_for_all_places_that_count),
        cmocka_unit_test(a_place_that_is_taken_again_begins_at_the_head),
        cmocka_unit_test(a_producer_that_left_ends_the_queue),
        cmocka_unit_test(nonsense_of_another_process_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
