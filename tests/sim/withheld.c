/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts that their sessions gave back, and that stay with their leases because a limit leaves no lease or no
 * ranges for them: what they wait for, and when their leases are over. And the ranges that blocks are in,
 * counted by walking the heaps, not by what the core charged for them.
 */
#include "tests/sim/world.h"

static unsigned pool_of(const struct world *world, unsigned l) {
    return world->segments[world->blocks[world->leases[l].block].segment].pool;
}

static bool is_after(uint64_t value, uint64_t other) {
    return (int64_t)(value - other) > 0;
}

static void note_fence(struct model_fences *fences, uint32_t word, uint64_t value) {
    if (!fences->any[word] || is_after(value, fences->values[word]))
        fences->values[word] = value;
    fences->any[word] = true;
}

/* The first word, from one on, that a lease with withheld parts still waits for; SIM_WORDS: none. */
static uint32_t next_word(const struct world *world, unsigned l, uint32_t word) {
    unsigned s = world->leases[l].session;
    const struct model_fences *fences = &world->sessions[s].withheld[pool_of(world, l)];

    while (word < SIM_WORDS && (!fences->any[word] || model_is_ready(world, s, word, fences->values[word])))
        word++;
    return word;
}

bool model_waits_on(const struct world *world, unsigned l) {
    return world->leases[l].by_fences && next_word(world, l, world->leases[l].word + 1) < SIM_WORDS;
}

void model_give_up(struct world *world, unsigned l, bool fenced, uint32_t word, uint64_t value) {
    struct model_lease *lease = &world->leases[l];
    struct model_fences *fences = &world->sessions[lease->session].withheld[pool_of(world, l)];

    if (lease->by_fences) {
        if (fenced)
            note_fence(fences, word, value);
        word = next_word(world, l, 0);
        fenced = word < SIM_WORDS;
        value = fenced ? fences->values[word] : 0;
    }
    if (fenced)
        model_fence_lease(world, l, word, value);
    else
        model_remove_lease(world, l);
}

void model_give_up_if_withheld(struct world *world, unsigned l) {
    struct model_lease *lease = &world->leases[l];
    uint64_t held = world->blocks[lease->block].held;

    if (lease->withheld > held)
        lease->withheld = held;
    if (lease->withheld == held)
        model_give_up(world, l, false, 0, 0);
}

unsigned model_find_joined(const struct world *world, unsigned l, const struct proto_release *part) {
    const struct model_block *from = &world->blocks[world->leases[l].block];
    unsigned last = SIM_LEASES, n = 0;

    for (unsigned k = 0; k < world->leases_end; k++) {
        const struct model_lease *lease = &world->leases[k];
        if (!lease->used || !lease->fenced || lease->session != world->leases[l].session ||
            lease->word != part->fence - 1 || pool_of(world, k) != pool_of(world, l))
            continue;
        n++;
        if (last == SIM_LEASES || lease->order > world->leases[last].order)
            last = k;
    }
    if (last == SIM_LEASES)
        return last;
    const struct model_block *block = &world->blocks[world->leases[last].block];
    bool is_alone = !block->shared && block->live + block->fenced + block->lost == 1;
    if (block->n_parts > 0 || !is_alone || block->segment != from->segment ||
        (n == 1 && is_after(part->fence_value, world->leases[last].value)))
        return SIM_LEASES;
    return last;
}

void model_join(struct world *world, unsigned joined, uint64_t offset, const struct proto_release *part) {
    struct model_lease *lease = &world->leases[joined];
    struct model_block *block = &world->blocks[lease->block];
    uint64_t end = block->offset + block->capacity, part_end = offset + part->size_bytes;

    block->offset = offset < block->offset ? offset : block->offset;
    block->size = block->capacity = (part_end > end ? part_end : end) - block->offset;
    block->held += part->size_bytes;
    if (is_after(part->fence_value, lease->value))
        lease->value = part->fence_value;
    world->tally->joined++;
}

void model_withhold(struct world *world, unsigned l, const struct proto_release *part, bool fenced) {
    struct model_lease *lease = &world->leases[l];

    lease->withheld += part->size_bytes;
    if (fenced) {
        lease->by_fences = true;
        note_fence(&lease->fences, part->fence - 1, part->fence_value);
        note_fence(&world->sessions[lease->session].withheld[pool_of(world, l)], part->fence - 1,
                   part->fence_value);
    }
    world->tally->withheld++;
    model_give_up_if_withheld(world, l);
}

void model_merge_withheld(struct world *world, unsigned l, unsigned other) {
    struct model_lease *lease = &world->leases[l];
    const struct model_lease *from = &world->leases[other];

    lease->withheld += from->withheld;
    lease->by_fences = lease->by_fences || from->by_fences;
    for (uint32_t word = 0; word < SIM_WORDS; word++)
        if (from->fences.any[word])
            note_fence(&lease->fences, word, from->fences.values[word]);
}

void model_check_withheld(const struct world *world, unsigned l) {
    const struct model_lease *lease = &world->leases[l];

    for (uint32_t word = 0; word < SIM_WORDS; word++)
        must(!lease->fences.any[word] ||
                 model_is_ready(world, lease->session, word, lease->fences.values[word]),
             "a part that stayed with its lease is let go before its fence is ready");
}

/* The core may have had the lease wait for its next fence. */
static bool see_move(struct world *world, unsigned l) {
    struct model_lease *lease = &world->leases[l];

    if (!lease->used || !lease->fenced || !lease->by_fences)
        return false;
    const struct lease *there = world->core->leases.slots[lease->id - 1];
    if (there == NULL || there->generation != lease->generation || there->fence == NULL ||
        there->fence->word == lease->word)
        return false;
    must(there->fence->word > lease->word && model_is_ready(world, lease->session, lease->word, lease->value),
         "a lease waits for its next fence before it has come to that");
    lease->word = there->fence->word;
    lease->value = there->fence_value;
    return true;
}

void model_see_moves(struct world *world) {
    for (unsigned l = 0; l < world->leases_end; l++) {
        if (!see_move(world, l))
            continue;
        /* It stands behind those that were in the queue, and those that came since stand behind it. */
        const struct lease *there = world->core->leases.slots[world->leases[l].id - 1];
        uint64_t order = 0;
        list_for_each_entry(const struct lease, before, &there->fence->leases, fence_link) {
            for (unsigned k = 0; k < world->leases_end; k++)
                if (world->leases[k].used && world->leases[k].id == before->id)
                    world->leases[k].order = world->next_order + ++order;
        }
        world->next_order += order;
    }
}

static uint64_t ranges_of(const struct lease *there) {
    uint64_t ranges = 0;
    list_for_each_entry(const struct heap_range, range, &there->block->ranges, user_link) {
        ranges++;
    }
    return ranges;
}

uint64_t model_ranges(const struct world *world, unsigned tenant) {
    uint64_t ranges = 0;

    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *where = &world->segments[g];
        if (where->segment == NULL || where->tenant != tenant + 1 || where->segment->span == NULL)
            continue;
        for (const struct heap_range *range = where->segment->span->lowest; range != NULL;
             range = range->upper)
            ranges += !range->free;
    }
    return ranges;
}

/* Those of blocks that come back when the core looks at what lies behind the tenant's fences. */
static uint64_t arrived_ranges(const struct world *world, unsigned tenant) {
    uint64_t ranges = 0;

    for (unsigned b = 0; b < world->blocks_end; b++) {
        const struct model_block *block = &world->blocks[b];
        const struct lease *there = NULL;
        unsigned arrived = 0;
        if (block->fenced == 0 || block->live + block->lost + block->parcels > 0 ||
            world->segments[block->segment].tenant != tenant + 1)
            continue;
        for (unsigned l = 0; l < world->leases_end; l++)
            if (world->leases[l].used && world->leases[l].block == b && model_has_arrived(world, l)) {
                arrived++;
                there = world->core->leases.slots[world->leases[l].id - 1];
            }
        ranges += arrived == block->fenced ? ranges_of(there) : 0;
    }
    return ranges;
}

bool tenant_lacks_ranges(const struct world *world, unsigned tenant, uint64_t ranges) {
    return ranges > 0 && model_ranges(world, tenant) - arrived_ranges(world, tenant) + ranges >
                             model_limit(world, tenant, QUOTA_RANGES, SIM_GROUPS);
}

/* Whether an offset is inside of a range of the block. */
static bool is_border(const struct block *block, uint64_t offset) {
    list_for_each_entry(const struct heap_range, range, &block->ranges, user_link) {
        if (range->offset < offset && range->offset + range->size > offset)
            return true;
    }
    return false;
}

unsigned model_borders(const struct world *world, unsigned l, const struct proto_release *part) {
    const struct block *block = world->core->leases.slots[world->leases[l].id - 1]->block;
    uint64_t start = block->offset_bytes + part->offset_bytes;
    return is_border(block, start) + is_border(block, start + part->size_bytes);
}
