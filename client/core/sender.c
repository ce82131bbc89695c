/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/sender.h"

#include <stdlib.h>

/* --- the list of slots --- */

static void list_take(struct sender *sender, uint32_t slot) {
    uint32_t older = sender->slots[slot].older, newer = sender->slots[slot].newer;

    if (older != SENDER_NO_SLOT)
        sender->slots[older].newer = newer;
    else
        sender->oldest = newer;
    if (newer != SENDER_NO_SLOT)
        sender->slots[newer].older = older;
    else
        sender->newest = older;
}

/* Puts a slot behind another one of the list; SENDER_NO_SLOT: at its front. */
static void list_put_behind(struct sender *sender, uint32_t slot, uint32_t older) {
    uint32_t newer = older != SENDER_NO_SLOT ? sender->slots[older].newer : sender->oldest;

    sender->slots[slot].older = older;
    sender->slots[slot].newer = newer;
    if (older != SENDER_NO_SLOT)
        sender->slots[older].newer = slot;
    else
        sender->oldest = slot;
    if (newer != SENDER_NO_SLOT)
        sender->slots[newer].older = slot;
    else
        sender->newest = slot;
}

/* --- the place's page --- */

static struct proto_channel_entry *own_slot(const struct sender *sender, uint32_t slot) {
    const struct channel_view *view = sender->view;
    return (struct proto_channel_entry *)(void *)((char *)sender->page + view->slots_offset +
                                                  slot * view->slot_stride);
}

struct found_slot {
    uint64_t sequence;
    uint32_t slot;
};

static int compare_found(const void *one, const void *other) {
    const struct found_slot *a = one, *b = other;
    return (a->sequence > b->sequence) - (a->sequence < b->sequence);
}

/* Lists the slots by their sequences. A process that died while it sent may have left a sequence above head:
 * that is cleared before the same sequence is sent in another slot. Returns whether all sequences are
 * different. */
static bool list_all(struct sender *sender) {
    struct found_slot found[PROTO_CHANNEL_SLOTS_MAX];
    uint32_t n_slots = (uint32_t)sender->view->capacities.n_slots;

    for (uint32_t slot = 0; slot < n_slots; slot++) {
        uint64_t sequence = word_load(&own_slot(sender, slot)->sequence, WORD_PLAIN);
        if (sequence > sender->head) {
            word_store(&own_slot(sender, slot)->sequence, 0, WORD_PLAIN);
            sequence = 0;
        }
        found[slot] = (struct found_slot){sequence, slot};
    }
    qsort(found, n_slots, sizeof *found, compare_found);
    sender->oldest = sender->newest = SENDER_NO_SLOT;
    for (uint32_t i = 0; i < n_slots; i++) {
        if (i > 0 && found[i].sequence != 0 && found[i].sequence == found[i - 1].sequence)
            return false;
        sender->slots[found[i].slot].sequence = found[i].sequence;
        list_put_behind(sender, found[i].slot, sender->newest);
    }
    return true;
}

enum sender_result sender_init(struct sender *sender, const struct channel_view *view,
                               struct proto_channel_producer *page) {
    *sender = (struct sender){.view = view, .page = page, .is_new = true};
    sender->head = word_load(&page->head, WORD_ORDERED);
    sender->floor = word_load(&page->floor, WORD_ORDERED);
    sender->sleeps = word_load(&page->sleeps, WORD_PLAIN);
    if (sender->head == UINT64_MAX || sender->floor > sender->head + 1 || !list_all(sender))
        return SENDER_PROTOCOL;
    for (unsigned i = 0; i < view->capacities.n_consumers; i++) {
        sender->places[i].begins = word_load(&page->queues[i].begins, WORD_PLAIN);
        sender->places[i].queue = word_load(&page->queues[i].number, WORD_PLAIN);
        if (sender->places[i].begins > sender->head + 1)
            return SENDER_PROTOCOL;
    }
    if ((sender->sleeps & 1) != 0)
        sender_sleep_end(sender);
    return SENDER_OK;
}

/* --- the roll --- */

/* Looks which places count. A new queue of a place begins here: with the next element. */
static void admit(struct sender *sender) {
    for (unsigned i = 0; i < sender->view->capacities.n_consumers; i++) {
        uint64_t word = channel_state_word(sender->view, i + 1);
        struct proto_channel_queue *queue = &sender->page->queues[i];

        sender->places[i].counts = proto_channel_state_of(word) != PROTO_CHANNEL_LEFT;
        if (!sender->places[i].counts || proto_channel_queue_of(word) == sender->places[i].queue)
            continue;
        sender->places[i].begins = sender->head + 1;
        sender->places[i].queue = proto_channel_queue_of(word);
        word_store(&queue->begins, sender->places[i].begins, WORD_PLAIN);
        word_store(&queue->number, sender->places[i].queue, WORD_ORDERED);
    }
    sender->is_new = false;
}

/* A load of a word that seldom changes. */
static void look_at_roll(struct sender *sender) {
    uint64_t changes = word_load(&sender->view->roll->changes, WORD_ORDERED);

    if (changes == sender->changes && !sender->is_new)
        return;
    sender->changes = changes;
    admit(sender);
}

/* --- the search --- */

static const struct proto_channel_mark *mark_of(const struct sender *sender, unsigned i, uint32_t slot) {
    return &sender->view->consumers[i]->marks[slot];
}

enum hold {
    HOLD_NONE,
    HOLD_HELD,
    HOLD_PROTOCOL,
};

/* Whether consumer place i + 1 has let go of the element that was sent in the slot last. */
static enum hold find_hold(const struct sender *sender, unsigned i, uint32_t slot) {
    uint64_t sequence = sender->slots[slot].sequence, taken;
    const struct proto_channel_mark *mark = mark_of(sender, i, slot);

    if (!sender->places[i].counts || sequence < sender->places[i].begins || sequence == 0)
        return HOLD_NONE;
    uint64_t released = word_load(&mark->released, WORD_ORDERED);
    if (released == sequence)
        return HOLD_NONE;
    if (released > sequence)
        return HOLD_PROTOCOL;
    if (sequence >= sender->floor)
        return HOLD_HELD; /* to be received, perhaps */
    taken = word_load(&mark->taken, WORD_TOTAL);
    if (taken == sequence)
        /* The claim came first, and the release since the load above. */
        return word_load(&mark->released, WORD_ORDERED) == sequence ? HOLD_NONE : HOLD_HELD;
    return taken > sequence ? HOLD_PROTOCOL : HOLD_NONE;
}

/* Whether all places have let go of a slot's element. sender->place: the one that has not. It is asked first.
 * */
static enum hold find_holder(struct sender *sender, uint32_t slot) {
    unsigned n = (unsigned)sender->view->capacities.n_consumers, first = sender->place;

    for (unsigned step = 0, i = first > 0 ? first - 1 : 0; step < n; step++, i = i + 1 < n ? i + 1 : 0) {
        enum hold hold = find_hold(sender, i, slot);
        if (hold == HOLD_NONE)
            continue;
        sender->place = i + 1;
        return hold;
    }
    return HOLD_NONE;
}

/* The lowest sequence that a place has not received yet, and that is not dropped: no slot from there on is
 * free. *ret_limit is untouched on HOLD_PROTOCOL. */
static enum hold find_limit(struct sender *sender, uint64_t *ret_limit) {
    uint64_t limit = sender->head + 1;

    for (unsigned i = 0; i < sender->view->capacities.n_consumers; i++) {
        if (!sender->places[i].counts)
            continue;
        uint64_t received = word_load(&sender->view->consumers[i]->received, WORD_ORDERED);
        if (received > sender->head + 1) {
            sender->place = i + 1;
            return HOLD_PROTOCOL;
        }
        received = received < sender->places[i].begins ? sender->places[i].begins : received;
        received = received < sender->floor ? sender->floor : received;
        limit = received < limit ? received : limit;
    }
    *ret_limit = limit;
    return HOLD_NONE;
}

/* Whether a place has claimed the slot's element: then it is not the one to drop. */
static bool is_claimed(const struct sender *sender, uint32_t slot) {
    uint64_t sequence = sender->slots[slot].sequence;

    for (unsigned i = 0; i < sender->view->capacities.n_consumers; i++)
        if (sender->places[i].counts && sequence >= sender->places[i].begins &&
            word_load(&mark_of(sender, i, slot)->taken, WORD_ORDERED) == sequence &&
            word_load(&mark_of(sender, i, slot)->released, WORD_ORDERED) != sequence)
            return true;
    return false;
}

/* Drops elements, from the oldest that may be received, until one's slot is free. */
static enum hold drop(struct sender *sender, uint32_t *ret_slot) {
    for (uint32_t slot = sender->oldest; slot != SENDER_NO_SLOT; slot = sender->slots[slot].newer) {
        uint64_t sequence = sender->slots[slot].sequence;
        if (sequence < sender->floor || is_claimed(sender, slot))
            continue;
        sender->floor = sequence + 1;
        word_store(&sender->page->floor, sender->floor, WORD_TOTAL);
        /* A claim that came before the raise is seen now; one that comes later is given up. */
        enum hold hold = find_holder(sender, slot);
        if (hold == HOLD_PROTOCOL)
            return hold;
        if (hold == HOLD_NONE) {
            *ret_slot = slot;
            return HOLD_NONE;
        }
    }
    return HOLD_HELD;
}

/* The oldest slot that all places have let go of. *ret_slot is untouched otherwise. */
static enum hold find_free(struct sender *sender, uint32_t *ret_slot) {
    uint64_t limit = 0;

    for (uint32_t slot = sender->oldest; slot != SENDER_NO_SLOT; slot = sender->slots[slot].newer) {
        if (slot != sender->oldest) {
            if (limit == 0 && find_limit(sender, &limit) == HOLD_PROTOCOL)
                return HOLD_PROTOCOL;
            if (sender->slots[slot].sequence >= limit)
                break;
        }
        enum hold hold = find_holder(sender, slot);
        if (hold != HOLD_HELD) {
            *ret_slot = slot;
            return hold;
        }
    }
    return HOLD_HELD;
}

/* The fences of all places that released the slot's element, also of those that left since. */
static enum sender_result collect_fences(struct sender *sender, struct sender_loan *loan) {
    uint64_t sequence = sender->slots[loan->slot].sequence;
    struct channel_fence fence = sender->slots[loan->slot].fence;

    loan->n_fences = 0;
    if (fence.word != 0)
        loan->fences[loan->n_fences++] = fence;
    for (unsigned i = 0; sequence != 0 && i < sender->view->capacities.n_consumers; i++) {
        const struct proto_channel_mark *mark = mark_of(sender, i, loan->slot);
        if (word_load(&mark->released, WORD_ORDERED) != sequence)
            continue;
        if (!channel_fence_read(&mark->fence, &fence)) {
            sender->place = i + 1;
            return SENDER_PROTOCOL;
        }
        if (fence.word != 0)
            loan->fences[loan->n_fences++] = fence;
    }
    return SENDER_OK;
}

enum sender_result sender_find_slot(struct sender *sender, struct sender_loan *ret_loan) {
    struct sender_loan loan;
    uint32_t slot = SENDER_NO_SLOT;

    look_at_roll(sender);
    if (sender->oldest == SENDER_NO_SLOT)
        sender->place = 0;
    enum hold hold = find_free(sender, &slot);
    if (hold == HOLD_HELD && sender->view->capacities.policy == PROTO_CHANNEL_DROP_OLDEST)
        hold = drop(sender, &slot);
    if (hold == HOLD_PROTOCOL)
        return SENDER_PROTOCOL;
    if (hold == HOLD_HELD)
        return SENDER_FULL;
    loan.slot = slot;
    if (collect_fences(sender, &loan) != SENDER_OK)
        return SENDER_PROTOCOL;
    list_take(sender, slot);
    sender->slots[slot].is_loaned = true;
    *ret_loan = loan;
    return SENDER_OK;
}

/* --- sending --- */

static void write_entry(struct proto_channel_entry *entry, uint64_t sequence, uint32_t slot,
                        const struct sender_element *element) {
    word_store(&entry->sequence, sequence, WORD_PLAIN);
    word_store(&entry->slot, slot, WORD_PLAIN);
    word_store(&entry->size_bytes, element->size_bytes, WORD_PLAIN);
    word_store(&entry->metadata_bytes, element->metadata_bytes, WORD_PLAIN);
    channel_fence_write(&entry->fence, element->fence);
    word_store(&entry->session, element->session, WORD_PLAIN);
}

/* Whether a process sleeps in a consumer place. */
static bool any_sleeps(const struct sender *sender) {
    for (unsigned i = 0; i < sender->view->capacities.n_consumers; i++)
        if (channel_sleeps(sender->view, i + 1, &sender->view->consumers[i]->sleeps))
            return true;
    return false;
}

enum sender_result sender_send(struct sender *sender, uint32_t slot, const struct sender_element *element,
                               bool *ret_wakes) {
    const struct proto_channel_capacities *capacities = &sender->view->capacities;

    if (slot >= capacities->n_slots || !sender->slots[slot].is_loaned ||
        element->size_bytes > capacities->slot_bytes || element->metadata_bytes > capacities->metadata_bytes)
        return SENDER_REFUSED;
    look_at_roll(sender);
    uint64_t sequence = sender->head + 1;
    struct proto_channel_entry *entry = own_slot(sender, slot);
    words_write(entry + 1, element->metadata, element->metadata_bytes);
    write_entry(entry, sequence, slot, element);
    write_entry(&sender->page->ring[sequence & sender->view->ring_mask], sequence, slot, element);
    word_store(&sender->page->head, sequence, WORD_TOTAL);
    sender->head = sequence;
    sender->slots[slot].sequence = sequence;
    sender->slots[slot].is_loaned = false;
    sender->slots[slot].fence = (struct channel_fence){0};
    list_put_behind(sender, slot, sender->newest);
    *ret_wakes = any_sleeps(sender);
    return SENDER_OK;
}

void sender_give_back(struct sender *sender, uint32_t slot, struct channel_fence fence) {
    if (slot >= sender->view->capacities.n_slots || !sender->slots[slot].is_loaned)
        return;
    sender->slots[slot].is_loaned = false;
    if (fence.word != 0)
        sender->slots[slot].fence = fence;
    list_put_behind(sender, slot, SENDER_NO_SLOT);
}

/* --- sleep --- */

void sender_sleep_begin(struct sender *sender, struct channel_sleep *ret_sleep) {
    const struct channel_view *view = sender->view;

    word_store(&sender->page->sleeps, ++sender->sleeps, WORD_TOTAL);
    ret_sleep->count = 0;
    if (sender->place > 0)
        channel_sleep_add(ret_sleep, &view->consumers[sender->place - 1]->releases);
    channel_sleep_add(ret_sleep, &view->roll->changes);
    for (unsigned i = 0; i < view->capacities.n_consumers; i++)
        if (i + 1 != sender->place && sender->places[i].counts)
            channel_sleep_add(ret_sleep, &view->consumers[i]->releases);
}

void sender_sleep_end(struct sender *sender) {
    word_store(&sender->page->sleeps, ++sender->sleeps, WORD_TOTAL);
}

bool sender_is_valid(const struct sender *sender) {
    uint64_t n_slots = sender->view->capacities.n_slots, n_listed = 0, n_loaned = 0, last = 0;
    uint32_t older = SENDER_NO_SLOT;

    if (sender->floor > sender->head + 1)
        return false;
    for (uint32_t slot = 0; slot < n_slots; slot++)
        n_loaned += sender->slots[slot].is_loaned;
    for (uint32_t slot = sender->oldest; slot != SENDER_NO_SLOT; slot = sender->slots[slot].newer) {
        if (slot >= n_slots || ++n_listed > n_slots || sender->slots[slot].is_loaned ||
            sender->slots[slot].older != older || sender->slots[slot].sequence > sender->head)
            return false;
        older = slot;
        last = sender->slots[slot].sequence;
    }
    return n_listed + n_loaned == n_slots && sender->newest == older && last <= sender->head;
}
