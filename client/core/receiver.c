/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/receiver.h"

#include <stdlib.h>

/* A claim fails only where the producer drops an element at the same moment. */
#define CLAIMS_MAX 16u

/* Counts a release in the page. Returns whether the producer sleeps. */
static bool count_release(struct receiver *receiver) {
    word_store(&receiver->page->releases, ++receiver->releases, WORD_TOTAL);
    return channel_sleeps(receiver->view, PROTO_CHANNEL_PRODUCER, &receiver->view->producer->sleeps);
}

/* --- the queue --- */

/* Looks whether the producer has admitted the place's queue. */
static enum receiver_result look_for_queue(struct receiver *receiver) {
    const struct proto_channel_producer *producer = receiver->view->producer;
    const struct proto_channel_queue *queue = &producer->queues[receiver->place - 1];

    if (word_load(&queue->number, WORD_ORDERED) != receiver->queue)
        return RECEIVER_EMPTY;
    uint64_t begins = word_load(&queue->begins, WORD_PLAIN);
    uint64_t head = word_load(&producer->head, WORD_ORDERED);
    if (begins > head + 1 || head == UINT64_MAX)
        return RECEIVER_PROTOCOL;
    receiver->begins = begins > 0 ? begins : 1;
    if (receiver->received < receiver->begins)
        receiver->received = receiver->begins;
    if (receiver->received > head + 1)
        return RECEIVER_PROTOCOL;
    receiver->head = head;
    receiver->is_admitted = true;
    return RECEIVER_OK;
}

/* --- what a process before has left --- */

static int compare_sequences(const void *one, const void *other) {
    const uint64_t *a = one, *b = other;
    return (*a > *b) - (*a < *b);
}

/* Finds the elements that the place holds, in order, and clears claims of what it has not received. */
static enum receiver_result find_held(struct receiver *receiver, bool *ret_wakes) {
    uint64_t held[PROTO_CHANNEL_SLOTS_MAX];
    uint32_t n_held = 0;
    bool is_cleared = false;

    for (uint32_t slot = 0; slot < receiver->view->capacities.n_slots; slot++) {
        struct proto_channel_mark *mark = &receiver->page->marks[slot];
        uint64_t taken = word_load(&mark->taken, WORD_PLAIN),
                 released = word_load(&mark->released, WORD_PLAIN);
        if (taken >= receiver->received) {
            word_store(&mark->taken, 0, WORD_ORDERED);
            is_cleared = true;
        } else if (taken >= receiver->begins && taken != released) {
            receiver->slots[slot] = taken;
            held[n_held++] = taken;
        }
    }
    qsort(held, n_held, sizeof *held, compare_sequences);
    for (uint32_t slot = 0; slot < receiver->view->capacities.n_slots; slot++) {
        const uint64_t *sequence = receiver->slots[slot] == 0 ? NULL
                                                              : bsearch(&receiver->slots[slot], held, n_held,
                                                                        sizeof *held, compare_sequences);
        if (sequence != NULL)
            receiver->again[sequence - held] = slot;
    }
    for (uint32_t i = 1; i < n_held; i++)
        if (held[i] == held[i - 1])
            return RECEIVER_PROTOCOL;
    receiver->n_again = n_held;
    if (is_cleared)
        *ret_wakes = count_release(receiver);
    return RECEIVER_OK;
}

enum receiver_result receiver_init(struct receiver *receiver, const struct channel_view *view, unsigned place,
                                   struct proto_channel_consumer *page, bool *ret_wakes) {
    *ret_wakes = false;
    if (place < 1 || place > view->capacities.n_consumers)
        return RECEIVER_REFUSED;
    *receiver = (struct receiver){.view = view, .page = page, .place = place};
    receiver->queue = proto_channel_queue_of(channel_state_word(view, place));
    receiver->received = word_load(&page->received, WORD_PLAIN);
    receiver->releases = word_load(&page->releases, WORD_PLAIN);
    receiver->sleeps = word_load(&page->sleeps, WORD_PLAIN);
    if ((receiver->sleeps & 1) != 0)
        receiver_sleep_end(receiver);
    enum receiver_result result = look_for_queue(receiver);
    if (result == RECEIVER_PROTOCOL)
        return result;
    return result == RECEIVER_OK ? find_held(receiver, ret_wakes) : RECEIVER_OK;
}

/* --- receiving --- */

/* Reads the entry of an element. Returns whether it is that of the sequence. */
static bool read_entry(const struct receiver *receiver, const struct proto_channel_entry *entry,
                       uint64_t sequence, struct receiver_element *ret_element) {
    const struct proto_channel_capacities *capacities = &receiver->view->capacities;
    uint64_t found = word_load(&entry->sequence, WORD_ORDERED), slot = word_load(&entry->slot, WORD_PLAIN);

    *ret_element = (struct receiver_element){
        .sequence = sequence,
        .size_bytes = word_load(&entry->size_bytes, WORD_PLAIN),
        .metadata_bytes = word_load(&entry->metadata_bytes, WORD_PLAIN),
        .session = word_load(&entry->session, WORD_PLAIN),
        .slot = (uint32_t)slot,
    };
    if (found != sequence || slot >= capacities->n_slots ||
        ret_element->size_bytes > capacities->slot_bytes ||
        ret_element->metadata_bytes > capacities->metadata_bytes ||
        !channel_fence_read(&entry->fence, &ret_element->fence))
        return false;
    ret_element->metadata = channel_slot(receiver->view, slot) + 1;
    return true;
}

static enum receiver_result next_again(struct receiver *receiver, struct receiver_element *ret_element) {
    uint32_t slot = receiver->again[receiver->next_again];
    struct receiver_element element;

    if (!read_entry(receiver, channel_slot(receiver->view, slot), receiver->slots[slot], &element) ||
        element.slot != slot)
        return RECEIVER_PROTOCOL;
    element.is_again = true;
    receiver->next_again++;
    *ret_element = element;
    return RECEIVER_OK;
}

/* Nothing was there to receive. A producer that left wrote its page before: the page is looked at once more.
 * */
static enum receiver_result nothing(struct receiver *receiver) {
    uint64_t state = channel_state_word(receiver->view, PROTO_CHANNEL_PRODUCER);

    if (proto_channel_state_of(state) != PROTO_CHANNEL_LEFT)
        return RECEIVER_EMPTY;
    if (!receiver->is_admitted) {
        enum receiver_result admission = look_for_queue(receiver);
        if (admission != RECEIVER_EMPTY)
            return admission == RECEIVER_OK ? RECEIVER_EMPTY : admission;
        return RECEIVER_ENDED;
    }
    return word_load(&receiver->view->producer->head, WORD_ORDERED) == receiver->head ? RECEIVER_ENDED
                                                                                      : RECEIVER_EMPTY;
}

/* Reads head, if what was seen of it is not enough. */
static enum receiver_result look_at_head(struct receiver *receiver, uint64_t sequence) {
    if (receiver->head >= sequence)
        return RECEIVER_OK;
    uint64_t head = word_load(&receiver->view->producer->head, WORD_TOTAL);
    if (head < receiver->head || head == UINT64_MAX)
        return RECEIVER_PROTOCOL;
    receiver->head = head;
    return head >= sequence ? RECEIVER_OK : RECEIVER_EMPTY;
}

/* Reads the floor. */
static enum receiver_result look_at_floor(struct receiver *receiver) {
    uint64_t floor = word_load(&receiver->view->producer->floor, WORD_TOTAL);

    if (floor < receiver->floor)
        return RECEIVER_PROTOCOL;
    receiver->floor = floor;
    return RECEIVER_OK;
}

enum claim {
    CLAIM_OK,
    CLAIM_DROPPED, /* the producer drops the element */
    CLAIM_PROTOCOL,
};

/* Claims an element, under a policy that drops. */
static enum claim claim(struct receiver *receiver, uint64_t sequence, struct receiver_element *ret_element,
                        bool *ret_wakes) {
    bool is_entry =
        read_entry(receiver, &receiver->view->producer->ring[sequence & receiver->view->ring_mask], sequence,
                   ret_element) &&
        receiver->slots[ret_element->slot] == 0; /* the claim of what is held stays */

    if (is_entry)
        word_store(&receiver->page->marks[ret_element->slot].taken, sequence, WORD_TOTAL);
    if (look_at_floor(receiver) != RECEIVER_OK)
        return CLAIM_PROTOCOL;
    if (receiver->floor <= sequence)
        return is_entry ? CLAIM_OK : CLAIM_PROTOCOL;
    if (is_entry) {
        word_store(&receiver->page->marks[ret_element->slot].taken, 0, WORD_ORDERED);
        *ret_wakes |= count_release(receiver);
    }
    return CLAIM_DROPPED;
}

/* Finds the next element that is not dropped, and claims it. */
static enum receiver_result claim_next(struct receiver *receiver, struct receiver_element *ret_element,
                                       bool *ret_wakes) {
    for (unsigned n = 0; n < CLAIMS_MAX; n++) {
        if (look_at_floor(receiver) != RECEIVER_OK)
            return RECEIVER_PROTOCOL;
        uint64_t sequence = receiver->received > receiver->floor ? receiver->received : receiver->floor;
        enum receiver_result result = look_at_head(receiver, sequence);
        if (result != RECEIVER_OK)
            return sequence > receiver->head + 1 ? RECEIVER_PROTOCOL : result;
        enum claim claimed = claim(receiver, sequence, ret_element, ret_wakes);
        if (claimed != CLAIM_DROPPED)
            return claimed == CLAIM_OK ? RECEIVER_OK : RECEIVER_PROTOCOL;
    }
    return RECEIVER_OVERRUN;
}

/* Finds the next element, under a policy that does not drop: the producer keeps it. */
static enum receiver_result find_next(struct receiver *receiver, struct receiver_element *ret_element) {
    uint64_t sequence = receiver->received;
    enum receiver_result result = look_at_head(receiver, sequence);

    if (result != RECEIVER_OK)
        return result;
    if (receiver->head - sequence >= receiver->view->capacities.n_slots ||
        !read_entry(receiver, &receiver->view->producer->ring[sequence & receiver->view->ring_mask], sequence,
                    ret_element) ||
        receiver->slots[ret_element->slot] != 0)
        return RECEIVER_PROTOCOL;
    word_store(&receiver->page->marks[ret_element->slot].taken, sequence, WORD_PLAIN);
    return RECEIVER_OK;
}

enum receiver_result receiver_next(struct receiver *receiver, struct receiver_element *ret_element,
                                   bool *ret_wakes) {
    struct receiver_element element;

    *ret_wakes = false;
    if (receiver->next_again < receiver->n_again)
        return next_again(receiver, ret_element);
    if (!receiver->is_admitted) {
        enum receiver_result admission = look_for_queue(receiver);
        if (admission != RECEIVER_OK)
            return admission == RECEIVER_EMPTY ? nothing(receiver) : admission;
    }
    enum receiver_result result = receiver->view->capacities.policy == PROTO_CHANNEL_DROP_OLDEST
                                      ? claim_next(receiver, &element, ret_wakes)
                                      : find_next(receiver, &element);
    if (result == RECEIVER_EMPTY)
        return nothing(receiver);
    if (result != RECEIVER_OK)
        return result;
    element.missed = element.sequence - receiver->received;
    receiver->received = element.sequence + 1;
    word_store(&receiver->page->received, receiver->received, WORD_ORDERED);
    receiver->slots[element.slot] = element.sequence;
    *ret_element = element;
    return RECEIVER_OK;
}

enum receiver_result receiver_release(struct receiver *receiver, uint32_t slot, struct channel_fence fence,
                                      bool *ret_wakes) {
    *ret_wakes = false;
    if (slot >= receiver->view->capacities.n_slots || receiver->slots[slot] == 0)
        return RECEIVER_REFUSED;
    struct proto_channel_mark *mark = &receiver->page->marks[slot];
    channel_fence_write(&mark->fence, fence);
    word_store(&mark->released, receiver->slots[slot], WORD_ORDERED);
    receiver->slots[slot] = 0;
    *ret_wakes = count_release(receiver);
    return RECEIVER_OK;
}

/* --- sleep --- */

void receiver_sleep_begin(struct receiver *receiver, struct channel_sleep *ret_sleep) {
    word_store(&receiver->page->sleeps, ++receiver->sleeps, WORD_TOTAL);
    ret_sleep->count = 0;
    channel_sleep_add(ret_sleep, &receiver->view->producer->head);
    channel_sleep_add(ret_sleep, &receiver->view->roll->changes);
}

void receiver_sleep_end(struct receiver *receiver) {
    word_store(&receiver->page->sleeps, ++receiver->sleeps, WORD_TOTAL);
}
