/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/channel.h"

bool channel_view_init(struct channel_view *view, const struct proto_channel_roll *roll,
                       const struct proto_channel_producer *producer,
                       const struct proto_channel_consumer *const *consumers,
                       const struct proto_channel_capacities *expected) {
    const struct proto_channel_capacities found = roll->capacities;

    if (roll->magic != PROTO_CHANNEL_MAGIC || !proto_channel_are_valid(expected) ||
        memcmp(&found, expected, sizeof found) != 0)
        return false;
    *view = (struct channel_view){
        .capacities = found,
        .ring_mask = proto_channel_ring_entries(&found) - 1,
        .slots_offset = proto_channel_slots_offset(&found),
        .slot_stride = proto_channel_slot_stride(&found),
        .roll = roll,
        .producer = producer,
    };
    for (uint64_t i = 0; i < found.n_consumers; i++)
        view->consumers[i] = consumers[i];
    return true;
}

bool channel_fence_read(const struct proto_channel_fence *fence, struct channel_fence *ret_fence) {
    uint64_t word = word_load(&fence->word, WORD_PLAIN);

    if (word != 0 && (word >> 32 >= PROTO_BOARD_SLOTS || (uint32_t)word - 1u >= PROTO_BOARD_WORDS))
        return false;
    *ret_fence = (struct channel_fence){word, word == 0 ? 0 : word_load(&fence->value, WORD_PLAIN)};
    return true;
}

uint64_t channel_sleep_add(struct channel_sleep *sleep, const _Atomic uint64_t *word) {
    uint64_t value = word_load(word, WORD_TOTAL);

    sleep->words[sleep->count].word = word;
    sleep->words[sleep->count].expected = (uint32_t)value;
    sleep->count++;
    return value;
}
