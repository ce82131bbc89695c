/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a channel's processes, as the daemon reads them for people: pages that are as they should be, that hold
 * nonsense, and that cannot be read. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/core/types.h"
#include "daemon/data/channels.h"

#define N_SLOTS     100u /* more marks than are read at once */
#define N_CONSUMERS 2u

static struct channels channels;
static struct channel_pages pages;
static struct channel channel;
static struct proto_channel_producer *producer;
static struct proto_channel_consumer *consumers[N_CONSUMERS];

static void *make_page(struct channel_page *page, uint64_t size_bytes) {
    page->fd = memfd_create("page", MFD_CLOEXEC);
    assert_true(page->fd >= 0);
    assert_int_equal(ftruncate(page->fd, (off_t)size_bytes), 0);
    page->size_bytes = size_bytes;
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static int make_channel(void **state) {
    (void)state;
    channels_init(&channels, NULL, NULL, NULL);
    channel = (struct channel){.id = 7};
    channel.capacities = (struct proto_channel_capacities){
        .slot_bytes = 1, .n_slots = N_SLOTS, .n_consumers = N_CONSUMERS, .policy = PROTO_CHANNEL_DROP_OLDEST};
    pages = (struct channel_pages){.channel = channel.id, .n_pages = 2 + N_CONSUMERS};
    producer = make_page(&pages.pages[1], proto_channel_producer_bytes(&channel.capacities));
    for (unsigned i = 0; i < N_CONSUMERS; i++)
        consumers[i] = make_page(&pages.pages[2 + i], proto_channel_consumer_bytes(&channel.capacities));
    list_append(&channels.all, &pages.link);
    return 0;
}

static int drop_channel(void **state) {
    (void)state;
    munmap(producer, pages.pages[1].size_bytes);
    for (unsigned i = 0; i < N_CONSUMERS; i++)
        munmap(consumers[i], pages.pages[2 + i].size_bytes);
    for (unsigned i = 1; i < 2 + N_CONSUMERS; i++)
        close(pages.pages[i].fd);
    return 0;
}

static struct channel_account read_account(void) {
    struct channel_account account;

    assert_true(channels_read_account(&channels, &channel, &account));
    return account;
}

static void expect_consumer(unsigned i, uint64_t received, uint64_t behind, uint64_t held) {
    struct channel_account account = read_account();

    assert_int_equal(account.consumers[i].received, received);
    assert_int_equal(account.consumers[i].behind, behind);
    assert_int_equal(account.consumers[i].held, held);
}

/* The consumer has received the element of a slot. */
static void take(unsigned i, unsigned slot, uint64_t sequence) {
    consumers[i]->marks[slot].taken = sequence;
    consumers[i]->received = sequence + 1;
}

static void a_new_channel_has_sent_nothing(void **state) {
    (void)state;
    assert_int_equal(read_account().sent, 0);
    for (unsigned i = 0; i < N_CONSUMERS; i++)
        expect_consumer(i, 0, 0, 0);
}

static void a_consumer_is_behind_by_what_it_can_receive(void **state) {
    (void)state;
    producer->head = 90;
    assert_int_equal(read_account().sent, 90);
    expect_consumer(0, 0, 90, 0);
    take(0, 99, 1); /* among the marks that are read last */
    take(0, 5, 2);
    expect_consumer(0, 2, 88, 2);
    consumers[0]->marks[99].released = 1;
    expect_consumer(0, 2, 88, 1);
    consumers[0]->marks[6].taken = 3; /* it was claimed, and not received */
    expect_consumer(0, 2, 88, 1);
    producer->floor = 51; /* 50 were dropped */
    expect_consumer(0, 2, 40, 1);
    expect_consumer(1, 0, 40, 0);
    consumers[0]->marks[6].taken = 0;
    take(0, 7, 90);
    expect_consumer(0, 90, 0, 2);
}

static void elements_before_a_queue_do_not_count(void **state) {
    (void)state;
    producer->head = 20;
    take(0, 3, 10);
    producer->queues[0].begins = 16; /* the place was left and taken again */
    expect_consumer(0, 10, 5, 0);
    producer->queues[0].begins = 21;
    expect_consumer(0, 10, 0, 0);
}

/* Nothing is decided by these numbers: they are told as they are, and nothing else happens. */
static void nonsense_is_told(void **state) {
    (void)state;
    memset(producer, 0xff, pages.pages[1].size_bytes);
    memset(consumers[0], 0xff, pages.pages[2].size_bytes);
    assert_int_equal(read_account().sent, UINT64_MAX);
    expect_consumer(0, UINT64_MAX - 1, 1, 0);
    producer->floor = producer->queues[0].begins = consumers[0]->received = 0;
    expect_consumer(0, 0, UINT64_MAX, 0);
    for (unsigned slot = 0; slot < N_SLOTS; slot++)
        take(0, slot, 1);
    expect_consumer(0, 1, UINT64_MAX - 1, N_SLOTS);
}

static void a_hole_in_a_page_reads_as_zeros(void **state) {
    (void)state;
    producer->head = 9;
    take(0, 1, 5);
    for (unsigned i = 1; i <= 2; i++)
        assert_int_equal(fallocate(pages.pages[i].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                   (off_t)pages.pages[i].size_bytes),
                         0);
    assert_int_equal(read_account().sent, 0);
    expect_consumer(0, 0, 0, 0);
}

static void a_page_that_cannot_be_read_is_said(void **state) {
    struct channel_account account = {.sent = 77};
    struct channel other = channel;
    (void)state;

    other.id = 8; /* it has no pages */
    assert_false(channels_read_account(&channels, &other, &account));
    assert_int_equal(ftruncate(pages.pages[3].fd, 256), 0); /* the second consumer's */
    assert_false(channels_read_account(&channels, &channel, &account));
    assert_int_equal(ftruncate(pages.pages[1].fd, 8), 0);
    assert_false(channels_read_account(&channels, &channel, &account));
    assert_int_equal(account.sent, 77);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_channel_has_sent_nothing, make_channel, drop_channel),
        cmocka_unit_test_setup_teardown(a_consumer_is_behind_by_what_it_can_receive, make_channel,
                                        drop_channel),
        cmocka_unit_test_setup_teardown(elements_before_a_queue_do_not_count, make_channel, drop_channel),
        cmocka_unit_test_setup_teardown(nonsense_is_told, make_channel, drop_channel),
        cmocka_unit_test_setup_teardown(a_hole_in_a_page_reads_as_zeros, make_channel, drop_channel),
        cmocka_unit_test_setup_teardown(a_page_that_cannot_be_read_is_said, make_channel, drop_channel),
    };
    return cmocka_run_group_tests_name("what a channel's processes say", tests, NULL, NULL);
}
