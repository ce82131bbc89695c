/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of an arena beside a model that knows of each granule whether it is free, absent, claimed
 * or whose it is, and of each slot which segment it has and behind which fences the last one left it. Several
 * claims are under way at once, and fences become ready at random. The daemon is the model's too: it lends
 * segments, takes them back, and has those closed that it got back.
 */
#include <errno.h>

#include "arena_fixture.h"

#define CAPACITY    12u
#define SLOT_GRAINS ((unsigned)(SLOT_BYTES / HEAP_GRANULE))
#define GRANULES    (CAPACITY * SLOT_GRAINS)
#define SEGMENTS    8u /* of the pool; their numbers begin with 1 */
#define ROWS        3u /* claims that are under way at once */
#define PIECES_MAX  24u
#define OUT_MAX     64u
#define FENCES_MAX  64u
#define WORDS       3u
#define SIZE_MAX_OF (4 * SLOT_GRAINS) /* of a piece, in granules */
#define SEEDS       30u
#define STEPS       2500u

/* The states of a granule; from FIRST_ROW on the claims, from FIRST_PIECE on the pieces. */
enum {
    ABSENT,
    FREE,
    FIRST_ROW,
    FIRST_PIECE = FIRST_ROW + ROWS,
};

struct fence_list {
    struct fence fences[FENCES_MAX];
    unsigned count;
};

struct model_slot {
    enum arena_slot_state state;
    unsigned segment, row;     /* while HELD or LEAVING; while BUSY: the number of the claim */
    unsigned absent, n_out;    /* granules that left it; parts that were not released yet */
    bool is_new, is_abandoned; /* BUSY: it was VACANT; it is never filled again */
    struct fence_list left;    /* behind which what was here left */
};

enum segment_place {
    AT_DAEMON,
    LENT,
    ON_ITS_WAY, /* the daemon waits for the fences */
};

struct model_segment {
    enum segment_place place;
    struct fence_list fences;
    uint64_t lease;
};

/* A claim under way, as miss_arena.c has it. */
struct model_row {
    enum {
        ENDED,
        CLAIMED,
        TAKEN,
        ASKED,
    } stage;
    struct arena_place place;
    uint32_t idle[CAPACITY], n_idle;
    unsigned fillings[CAPACITY], n_fillings, n_filled; /* segments */
};

struct model_piece {
    struct piece *piece; /* NULL: none under this number */
    bool split_off;
};

struct model {
    struct arena *arena;
    struct stream_heap *stream_heap;
    uint16_t is[GRANULES];
    struct model_slot slots[CAPACITY];
    struct model_segment segments[SEGMENTS + 1];
    struct model_row rows[ROWS];
    struct model_piece pieces[PIECES_MAX];
    struct stream_heap_part out[OUT_MAX]; /* parts that left, and have no fence yet */
    unsigned returns;                     /* of such parts */
    unsigned n_out;
    uint64_t last_lease, last_value[WORDS + 1]; /* of the fences, by word */
    unsigned moves, refills, grown;
};

/* --- fences --- */

static bool has_arrived(struct fence fence) {
    return fence.word == 0 || page.fences[fence.word - 1] >= fence.value;
}

static bool all_arrived(const struct fence_list *list) {
    for (unsigned i = 0; i < list->count; i++)
        if (!has_arrived(list->fences[i]))
            return false;
    return true;
}

static void add_fence(struct fence_list *list, struct fence fence) {
    assert_true(list->count < FENCES_MAX);
    list->fences[list->count++] = fence;
}

static bool of_several_words(const struct fence_list *list) {
    for (unsigned i = 1; i < list->count; i++)
        for (unsigned j = 0; j < i; j++)
            if (list->fences[i].word != 0 && list->fences[j].word != 0 &&
                list->fences[i].word != list->fences[j].word)
                return true;
    return false;
}

/* Mostly of the first word, which is that of the stream heap's own stream. Fences of one word are not always
 * noted in their order. */
static struct fence new_fence(struct model *model) {
    uint32_t word = random_below(4) == 0 ? (uint32_t)random_below(WORDS + 1) : 1;

    if (word == 0)
        return FENCE_NONE;
    uint64_t value = ++model->last_value[word];
    return (struct fence){word, value > 8 && random_below(3) == 0 ? value - 8 : value};
}

static void step_arrive(struct model *model) {
    uint32_t word = (uint32_t)random_below(WORDS) + 1;
    uint64_t now = page.fences[word - 1];
    arrive(word, now + random_below(model->last_value[word] - now + 1));
}

static void arrive_all(struct model *model) {
    for (uint32_t word = 1; word <= WORDS; word++)
        arrive(word, model->last_value[word]);
}

/* --- granules --- */

static unsigned first_of(uint64_t offset_bytes) {
    return (unsigned)(offset_bytes / HEAP_GRANULE);
}

static void turn(struct model *model, uint64_t offset_bytes, uint64_t size_bytes, unsigned from,
                 unsigned to) {
    for (unsigned i = first_of(offset_bytes); i < first_of(offset_bytes + size_bytes); i++) {
        assert_int_equal(model->is[i], from);
        model->is[i] = (uint16_t)to;
    }
}

/* Turns those that are so, and returns how many. */
static unsigned turn_any(struct model *model, uint64_t offset_bytes, uint64_t size_bytes, unsigned from,
                         unsigned to) {
    unsigned count = 0;

    for (unsigned i = first_of(offset_bytes); i < first_of(offset_bytes + size_bytes); i++)
        if (model->is[i] == from) {
            model->is[i] = (uint16_t)to;
            count++;
        }
    return count;
}

static bool slot_is_all(const struct model *model, uint32_t slot, unsigned what) {
    for (unsigned i = 0; i < SLOT_GRAINS; i++)
        if (model->is[slot * SLOT_GRAINS + i] != what)
            return false;
    return true;
}

static unsigned count_in_slot(const struct model *model, uint32_t slot, unsigned what) {
    unsigned count = 0;
    for (unsigned i = 0; i < SLOT_GRAINS; i++)
        count += model->is[slot * SLOT_GRAINS + i] == what;
    return count;
}

/* Whether all that is there of a slot is free. */
static bool slot_is_idle(const struct model *model, uint32_t slot) {
    return model->slots[slot].state == ARENA_SLOT_HELD && count_in_slot(model, slot, FREE) > 0 &&
           count_in_slot(model, slot, FREE) + model->slots[slot].absent == SLOT_GRAINS;
}

/* --- slots --- */

static uint64_t mapped(const struct model *model, uint32_t slot) {
    return model->arena->slots[slot].maps;
}

/* Whether nothing uses what a vacant slot mapped. */
static bool may_be_mapped_anew(const struct model *model, uint32_t slot) {
    return mapped(model, slot) == 0 || all_arrived(&model->slots[slot].left);
}

static void slot_leave(struct model *model, uint32_t number) {
    struct model_slot *slot = &model->slots[number];

    slot->state = ARENA_SLOT_VACANT;
    model->segments[slot->segment].place = ON_ITS_WAY;
    model->segments[slot->segment].fences = slot->left;
    slot->segment = 0;
}

/* A range in one slot leaves it. Returns whether it was the last. */
static bool lose(struct model *model, uint64_t offset_bytes, uint64_t size_bytes, unsigned from) {
    uint32_t number = arena_slot_at(model->arena, offset_bytes);
    struct model_slot *slot = &model->slots[number];

    assert_int_equal(arena_slot_at(model->arena, offset_bytes + size_bytes - 1), number);
    assert_int_equal(slot->state, ARENA_SLOT_HELD);
    turn(model, offset_bytes, size_bytes, from, ABSENT);
    slot->absent += first_of(size_bytes);
    slot->n_out++;
    if (slot->absent < SLOT_GRAINS)
        return false;
    slot->state = ARENA_SLOT_LEAVING;
    return true;
}

/* A part that left its slot comes back. */
static void regain(struct model *model, uint64_t offset_bytes, uint64_t size_bytes) {
    struct model_slot *slot = &model->slots[arena_slot_at(model->arena, offset_bytes)];

    turn(model, offset_bytes, size_bytes, ABSENT, FREE);
    slot->absent -= first_of(size_bytes);
    slot->n_out--;
    slot->state = ARENA_SLOT_HELD;
}

static void note_fence(struct model *model, uint32_t number, struct fence fence) {
    struct model_slot *slot = &model->slots[number];

    add_fence(&slot->left, fence);
    slot->n_out--;
    if (slot->state == ARENA_SLOT_LEAVING && slot->n_out == 0 && !slot->is_abandoned)
        slot_leave(model, number);
}

/* --- pieces --- */

/* How large a piece is to be: often whole slots. */
static unsigned random_grains(void) {
    unsigned count = (unsigned)random_below(SIZE_MAX_OF) + 1;
    return random_below(2) == 0 ? count : (count + SLOT_GRAINS - 1) / SLOT_GRAINS * SLOT_GRAINS;
}

static unsigned free_number(const struct model *model) {
    unsigned number = 0;
    while (number < PIECES_MAX && model->pieces[number].piece != NULL)
        number++;
    return number;
}

/* Enters a piece whose granules were something else. */
static void add_piece(struct model *model, unsigned number, struct piece *piece) {
    uint64_t offset = (uint64_t)(piece->memory - model->arena->extent.memory);
    const struct model_slot *slot = &model->slots[arena_slot_at(model->arena, offset)];

    assert_int_equal(piece->lease, model->segments[slot->segment].lease);
    assert_int_equal(piece->lease_generation, generation_of(piece->lease));
    turn(model, offset, piece->capacity_bytes, FREE, FIRST_PIECE + number);
    model->pieces[number] = (struct model_piece){.piece = piece};
}

static void step_take(struct model *model) {
    uint64_t size_bytes = random_grains() * HEAP_GRANULE;
    unsigned number = free_number(model);
    struct piece *piece;

    if (number == PIECES_MAX)
        return;
    int r = stream_heap_take(model->stream_heap, size_bytes, &piece);
    assert_true(r == 0 || r == -ENOSPC);
    if (r == 0)
        add_piece(model, number, piece);
}

static void release_split_off(struct model *model, struct piece *piece) {
    uint64_t offset = (uint64_t)(piece->memory - model->arena->extent.memory);
    uint32_t last = arena_slot_at(model->arena, offset + piece->capacity_bytes - 1);
    struct fence fence = new_fence(model);

    for (uint32_t i = arena_slot_at(model->arena, offset); i <= last; i++)
        note_fence(model, i, fence);
    stream_heap_forget_piece_locked(model->stream_heap, piece, fence);
}

static void give(struct model *model, unsigned number) {
    struct model_piece *given = &model->pieces[number];
    struct piece *piece = given->piece;

    given->piece = NULL;
    if (given->split_off) {
        release_split_off(model, piece);
        return;
    }
    turn(model, (uint64_t)(piece->memory - model->arena->extent.memory), piece->capacity_bytes,
         FIRST_PIECE + number, FREE);
    stream_heap_give(piece);
}

/* The daemon makes a lease of a piece; or refuses; or does not answer, rarely. */
static void step_split(struct model *model, unsigned number) {
    struct piece *piece = model->pieces[number].piece;
    uint64_t outcome = random_below(16);

    stream_heap_begin_split_locked(piece);
    if (outcome == 0)
        return;
    if (outcome < 8) {
        stream_heap_cancel_split_locked(piece);
        return;
    }
    uint64_t offset = (uint64_t)(piece->memory - model->arena->extent.memory),
             end = offset + piece->capacity_bytes;
    for (uint64_t from = offset, to; from < end; from = to) {
        to = slot_start(arena_slot_at(model->arena, from) + 1);
        to = to < end ? to : end;
        (void)lose(model, from, to - from, FIRST_PIECE + number);
    }
    stream_heap_split_off_locked(piece, ++model->last_lease, 99);
    model->pieces[number].split_off = true;
}

/* --- claims --- */

/* Whether a claim may have a granule. */
static bool is_usable(const struct model *model, unsigned granule) {
    uint32_t number = granule / SLOT_GRAINS;

    if (number >= model->arena->n_slots || model->is[granule] == FREE)
        return true;
    return model->slots[number].state == ARENA_SLOT_VACANT && may_be_mapped_anew(model, number) &&
           !(model->arena->slots[number].has_fences && mapped(model, number) != 0);
}

static bool may_be_taken(const struct model *model, const struct arena_place *place, uint32_t slot) {
    return slot_is_all(model, slot, FREE) && (slot < place->first || slot > place->last) &&
           model->arena->slots[slot].lending.splitting == 0;
}

/* Slots outside a place that are wholly free. */
static uint32_t count_idle(const struct model *model, const struct arena_place *place) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < model->arena->n_slots; i++)
        count += may_be_taken(model, place, i);
    return count;
}

/* Counts the new segments and the slots to fill that a place needs. False: it is none. */
static bool needs(const struct model *model, unsigned first, unsigned count, uint32_t *ret_asked,
                  uint32_t *ret_vacant) {
    const struct arena_place place = {.first = first / SLOT_GRAINS,
                                      .last = (first + count - 1) / SLOT_GRAINS};
    uint32_t idle = count_idle(model, &place), vacant = 0;

    for (unsigned i = first; i < first + count; i++) {
        uint32_t number = i / SLOT_GRAINS;
        if (!is_usable(model, i))
            return false;
        if (i == first || i % SLOT_GRAINS == 0)
            vacant += number >= model->arena->n_slots || model->slots[number].state == ARENA_SLOT_VACANT;
    }
    *ret_vacant = vacant;
    *ret_asked = vacant > idle ? vacant - idle : 0;
    return true;
}

/* As needs(), of the best place; of the one with the fewest slots to fill, if all of them get new segments.
 * False: there is none. */
static bool fewest(const struct model *model, unsigned count, bool is_grown, uint32_t *ret_asked,
                   uint32_t *ret_vacant) {
    bool any = false;

    for (unsigned i = 0; i + count <= GRANULES; i++) {
        uint32_t asked, vacant;
        if (!needs(model, i, count, &asked, &vacant))
            continue;
        asked = is_grown ? vacant : asked;
        if (any && (asked > *ret_asked || (asked == *ret_asked && vacant >= *ret_vacant)))
            continue;
        *ret_asked = asked;
        *ret_vacant = vacant;
        any = true;
    }
    return any;
}

/* Whether the arena may have so many more segments for a claim. */
static bool grows(const struct model *model, unsigned count, uint32_t more) {
    const struct stream_heap *stream_heap = model->arena->extent.stream_heap;
    uint64_t held_bytes = stream_heap_held_bytes_locked(stream_heap),
             needed_bytes = held_bytes - stream_heap_free_bytes_locked(stream_heap) + count * HEAP_GRANULE,
             most_bytes = model->arena->most_bytes;

    most_bytes = needed_bytes > most_bytes ? needed_bytes : most_bytes;
    return (held_bytes + more * SLOT_BYTES) <= most_bytes / 100 * ARENA_CEILING_PERCENT;
}

static void step_claim(struct model *model, unsigned number) {
    struct model_row *row = &model->rows[number];
    unsigned count = random_grains();
    uint32_t asked, least, all, fewest_slots;
    uint64_t most_moves = random_below(4) > 0 ? random_below(3) : ANY_MOVES;
    bool any = fewest(model, count, false, &asked, &least);

    model->arena->most_bytes = random_below(2 * CAPACITY) * SLOT_BYTES;
    bool is_grown = any && least - asked > most_moves && fewest(model, count, true, &all, &fewest_slots) &&
                    grows(model, count, all);
    if (is_grown) {
        asked = all;
        least = fewest_slots;
        model->grown++;
    }
    struct arena_place place;
    int r = arena_claim_locked(model->arena, count * HEAP_GRANULE, most_moves, &place);

    assert_int_equal(r, any ? 0 : -ENOSPC);
    if (r < 0)
        return;
    assert_int_equal(place.is_grown, is_grown);
    assert_int_equal(place.n_asked, asked);
    assert_int_equal(place.n_vacant, least);
    assert_int_equal(place.size_bytes, count * HEAP_GRANULE);
    assert_int_equal(place.first, arena_slot_at(model->arena, place.offset_bytes));
    assert_int_equal(place.last, arena_slot_at(model->arena, place.offset_bytes + place.size_bytes - 1));
    unsigned vacant = 0;
    for (unsigned i = first_of(place.offset_bytes); i < first_of(place.offset_bytes) + count; i++)
        assert_true(is_usable(model, i));
    for (uint32_t i = place.first; i <= place.last; i++) {
        struct model_slot *slot = &model->slots[i];
        if (slot->state != ARENA_SLOT_VACANT)
            continue;
        assert_true(may_be_mapped_anew(model, i));
        slot->state = ARENA_SLOT_BUSY;
        slot->is_new = true;
        slot->row = number;
        vacant++;
    }
    assert_int_equal(place.n_vacant, vacant);
    turn_any(model, place.offset_bytes, place.size_bytes, FREE, FIRST_ROW + number);
    *row = (struct model_row){.stage = CLAIMED, .place = place};
}

static void row_take(struct model *model, unsigned number) {
    struct model_row *row = &model->rows[number];
    uint32_t most = count_idle(model, &row->place);

    uint32_t wanted = row->place.is_grown ? 0 : row->place.n_vacant;
    most = most < wanted ? most : wanted;
    row->n_idle = arena_take_idle_locked(model->arena, &row->place, ARENA_WIDTH_ONE, row->idle, wanted);
    assert_int_equal(row->n_idle, most);
    for (uint32_t i = 0; i < row->n_idle; i++) {
        uint32_t slot = row->idle[i];
        assert_true(may_be_taken(model, &row->place, slot));
        turn(model, slot_start(slot), SLOT_BYTES, FREE, ABSENT);
        model->slots[slot].state = ARENA_SLOT_BUSY;
        model->slots[slot].is_new = false;
        model->slots[slot].row = number;
    }
    row->stage = TAKEN;
}

static unsigned segment_at_daemon(const struct model *model) {
    for (unsigned i = 1; i <= SEGMENTS; i++)
        if (model->segments[i].place == AT_DAEMON)
            return i;
    return 0;
}

/* Empties the slots that were taken, or returns them; and asks the daemon for the rest. */
static void row_ask(struct model *model, unsigned number) {
    struct model_row *row = &model->rows[number];
    bool moves = random_below(8) != 0;
    struct fence fence = random_below(8) == 0 ? FENCE_NONE : (struct fence){1, ++model->last_value[1]};
    unsigned segment;

    for (uint32_t i = 0; i < row->n_idle; i++) {
        struct model_slot *slot = &model->slots[row->idle[i]];
        if (!moves) {
            arena_return_locked(model->arena, row->idle[i]);
            slot->state = ARENA_SLOT_HELD;
            turn(model, slot_start(row->idle[i]), SLOT_BYTES, ABSENT, FREE);
            continue;
        }
        row->fillings[row->n_fillings++] = slot->segment;
        arena_empty_locked(model->arena, row->idle[i], fence);
        slot->state = ARENA_SLOT_VACANT;
        slot->segment = 0;
        slot->left.count = 0;
        add_fence(&slot->left, fence);
        model->moves++;
    }
    while (row->n_fillings < row->place.n_vacant && (segment = segment_at_daemon(model)) != 0) {
        model->segments[segment].place = LENT;
        model->segments[segment].lease = ++model->last_lease;
        row->fillings[row->n_fillings++] = segment;
    }
    row->stage = ASKED;
}

/* A segment is mapped at a slot, unless it is still mapped there. */
static void map(struct model *model, uint32_t slot, unsigned segment) {
    struct arena_stale stale;

    if (mapped(model, slot) == segment)
        return;
    assert_true(may_be_mapped_anew(model, slot));
    model->refills += mapped(model, slot) != 0;
    assert_int_equal(arena_list_stale_locked(model->arena, slot, slot + 1, &stale), mapped(model, slot) != 0);
    if (mapped(model, slot) != 0)
        arena_forget_stale_locked(model->arena, &stale);
    assert_int_equal(mapped(model, slot), 0);
}

/* Fills the next slot of a claim. */
static void row_fill(struct model *model, struct model_row *row, uint32_t number) {
    struct model_slot *slot = &model->slots[number];
    unsigned segment = row->fillings[row->n_filled++];
    uint64_t lease = model->segments[segment].lease;

    map(model, number, segment);
    arena_fill_locked(model->arena, number,
                      &(struct lending){.lease = lease, .generation = generation_of(lease)},
                      SEGMENT(segment));
    slot->is_new = false;
    slot->segment = segment;
    slot->absent = 0;
    slot->left.count = 0;
}

/* The memory that is there of a claim's place becomes free. */
static void row_free(struct model *model, unsigned number) {
    const struct arena_place *place = &model->rows[number].place;

    turn_any(model, place->offset_bytes, place->size_bytes, FIRST_ROW + number, FREE);
    for (uint32_t i = place->first; i <= place->last; i++) {
        struct model_slot *slot = &model->slots[i];
        if (slot->state != ARENA_SLOT_BUSY || slot->row != number)
            continue;
        slot->state = slot->is_new ? ARENA_SLOT_VACANT : ARENA_SLOT_HELD;
        if (!slot->is_new)
            turn(model, slot_start(i), SLOT_BYTES, ABSENT, FREE);
    }
}

static void row_settle(struct model *model, unsigned number) {
    struct model_row *row = &model->rows[number];
    unsigned piece_number = free_number(model);
    bool is_full = row->n_filled == row->place.n_vacant && piece_number < PIECES_MAX;
    struct piece *piece = NULL;

    for (unsigned i = row->n_filled; i < row->n_fillings; i++) { /* the driver did not map them */
        struct model_segment *segment = &model->segments[row->fillings[i]];
        segment->place = ON_ITS_WAY;
        segment->fences.count = 0;
        add_fence(&segment->fences, new_fence(model));
    }
    row_free(model, number);
    row->stage = ENDED;
    assert_int_equal(arena_settle_locked(model->arena, &row->place, is_full ? &piece : NULL), 0);
    if (!is_full)
        return;
    assert_ptr_equal(piece->memory, model->arena->extent.memory + row->place.offset_bytes);
    assert_int_equal(piece->capacity_bytes, row->place.size_bytes);
    add_piece(model, piece_number, piece);
}

static void row_go_on(struct model *model, unsigned number) {
    struct model_row *row = &model->rows[number];

    if (row->stage == CLAIMED) {
        row_take(model, number);
    } else if (row->stage == TAKEN) {
        row_ask(model, number);
    } else {
        for (uint32_t i = row->place.first; i <= row->place.last && row->n_filled < row->n_fillings; i++)
            if (model->slots[i].state == ARENA_SLOT_BUSY && model->slots[i].is_new &&
                model->slots[i].row == number && random_below(16) != 0) {
                row_fill(model, row, i);
                if (random_below(2) == 0)
                    return; /* the rest is the next step's */
            }
        row_settle(model, number);
    }
}

static void step_row(struct model *model) {
    unsigned number = (unsigned)random_below(ROWS);

    if (model->rows[number].stage == ENDED)
        step_claim(model, number);
    else
        row_go_on(model, number);
}

/* --- to the daemon and back --- */

/* Returns whether there was something. */
static bool reclaim(struct model *model, bool any_size) {
    struct stream_heap_part part;

    if (model->n_out == OUT_MAX)
        return false;
    if (!stream_heap_reclaim(model->stream_heap, any_size ? 1 : PROTO_SLOT_BYTES_MIN, &part)) {
        for (uint32_t i = 0; i < model->arena->n_slots; i++)
            assert_false(any_size ? count_in_slot(model, i, FREE) > 0 : slot_is_idle(model, i));
        return false;
    }
    assert_int_equal(part.lease, model->segments[model->slots[part.slot].segment].lease);
    assert_true(any_size || slot_is_idle(model, part.slot));
    assert_int_equal(lose(model, slot_start(part.slot) + part.offset_bytes, part.size_bytes, FREE),
                     part.whole);
    assert_false(part.has_fence);
    model->out[model->n_out++] = part;
    return true;
}

static void step_release(struct model *model, bool may_return) {
    if (model->n_out == 0)
        return;
    unsigned which = (unsigned)random_below(model->n_out);
    struct stream_heap_part part = model->out[which];
    struct fence fence = new_fence(model);

    model->out[which] = model->out[--model->n_out];
    if (may_return && random_below(4) == 0) {
        regain(model, slot_start(part.slot) + part.offset_bytes, part.size_bytes);
        stream_heap_no_fence_locked(&part);
        model->returns++;
        return;
    }
    note_fence(model, part.slot, fence);
    stream_heap_fence_left_locked(&part, fence);
}

/* The daemon has a segment that came back, and may have it closed: then all its mappings go. */
static void step_daemon(struct model *model) {
    unsigned number = (unsigned)random_below(SEGMENTS) + 1;
    struct model_segment *segment = &model->segments[number];

    if (segment->place == ON_ITS_WAY && all_arrived(&segment->fences))
        segment->place = AT_DAEMON;
    if (segment->place != AT_DAEMON || random_below(2) == 0)
        return;
    arena_unmapped_locked(model->arena, number);
}

/* Free memory in several slots is lost for good, as where there was no memory to divide it. */
static void abandon(struct model *model) {
    struct heap_range *range = model->arena->extent.span->lowest;

    while (range != NULL && (!range->free || range->size <= SLOT_BYTES))
        range = range->upper;
    if (range == NULL)
        return;
    uint64_t offset = range->offset, end = offset + range->size;
    heap_claim(range);
    arena_abandon_locked(model->arena, range);
    for (uint64_t from = offset, to; from < end; from = to) {
        uint32_t slot = arena_slot_at(model->arena, from);
        to = slot_start(slot + 1) < end ? slot_start(slot + 1) : end;
        (void)lose(model, from, to - from, FREE);
        model->slots[slot].is_abandoned = true;
    }
}

/* --- the arena as the model has it --- */

static void check_range(const struct model *model, const struct heap_range *range) {
    for (unsigned i = first_of(range->offset); i < first_of(range->offset + range->size); i++) {
        const struct model_slot *slot = &model->slots[i / SLOT_GRAINS];
        unsigned is = model->is[i];
        if (range->free)
            assert_int_equal(is, FREE);
        else if (range->user == NULL)
            assert_true(is == ABSENT || (is >= FIRST_ROW && is < FIRST_PIECE));
        else
            assert_ptr_equal(range->user, model->pieces[is - FIRST_PIECE].piece);
        if (is != ABSENT)
            assert_int_equal(slot->state, ARENA_SLOT_HELD);
    }
}

static void check_slot(const struct model *model, uint32_t number) {
    const struct arena_slot *slot = &model->arena->slots[number];
    const struct model_slot *wanted = &model->slots[number];

    assert_int_equal(slot->state, wanted->state);
    assert_true(slot->state != ARENA_SLOT_BUSY || slot->is_new == wanted->is_new);
    assert_int_equal(slot->n_out, wanted->n_out + wanted->is_abandoned);
    if (slot->state == ARENA_SLOT_HELD || (slot->state == ARENA_SLOT_BUSY && !slot->is_new)) {
        assert_int_equal(slot->segment.id, wanted->segment);
        assert_int_equal(mapped(model, number), slot->segment.id);
        assert_int_equal(slot->lending.lease, model->segments[wanted->segment].lease);
        assert_int_equal(slot->absent_bytes, wanted->absent * HEAP_GRANULE);
    }
    if (slot->has_fences)
        assert_true(of_several_words(&wanted->left));
}

static void check(const struct model *model) {
    uint64_t free_bytes = 0, held_bytes = 0;

    assert_true(all_is_valid(model->arena));
    for (const struct heap_range *range = model->arena->extent.span->lowest; range != NULL;
         range = range->upper)
        check_range(model, range);
    for (uint32_t i = 0; i < model->arena->n_slots; i++)
        check_slot(model, i);
    for (unsigned i = 0; i < GRANULES; i++) {
        free_bytes += model->is[i] == FREE ? HEAP_GRANULE : 0;
        held_bytes += model->is[i] == FREE || model->is[i] >= FIRST_PIECE ? HEAP_GRANULE : 0;
    }
    assert_int_equal(stream_heap_free_bytes_locked(model->stream_heap), free_bytes);
    assert_int_equal(stream_heap_held_bytes_locked(model->stream_heap), held_bytes);
}

static void step(struct model *model) {
    unsigned number = (unsigned)random_below(PIECES_MAX);
    bool has_piece = model->pieces[number].piece != NULL;

    switch (random_below(32)) {
    case 0:
        if (has_piece && !model->pieces[number].split_off)
            step_split(model, number);
        break;
    case 1:
        (void)reclaim(model, random_below(4) == 0);
        break;
    case 2:
    case 3:
        step_release(model, true);
        break;
    case 4:
        step_take(model);
        break;
    case 5:
    case 6:
    case 7:
        step_arrive(model);
        break;
    case 8:
    case 9:
        step_daemon(model);
        break;
    case 10:
    case 11:
    case 12:
    case 13:
    case 14:
    case 15:
    case 16:
    case 17:
        if (has_piece)
            give(model, number);
        break;
    default:
        step_row(model);
    }
}

/* Ends what is under way, and gives everything back. */
static void end_history(struct model *model) {
    for (unsigned i = 0; i < ROWS; i++)
        while (model->rows[i].stage != ENDED)
            row_go_on(model, i);
    for (unsigned i = 0; i < PIECES_MAX; i++)
        if (model->pieces[i].piece != NULL)
            give(model, i);
    do
        while (model->n_out > 0)
            step_release(model, false);
    while (reclaim(model, false)); /* nothing is in use: each slot goes as a whole, or its rest */
    check(model);
    arrive_all(model);
    assert_int_equal(stream_heap_held_bytes_locked(model->stream_heap), 0);
    for (uint32_t i = 0; i < model->arena->n_slots; i++)
        assert_int_equal(model->slots[i].state,
                         model->slots[i].is_abandoned ? ARENA_SLOT_LEAVING : ARENA_SLOT_VACANT);
}

static void run_history(uint64_t seed, unsigned *moves, unsigned *refills, unsigned *grown,
                        unsigned *returns) {
    struct model *model = calloc(1, sizeof *model);
    unsigned abandons_at = seed % 4 == 0 ? STEPS / 2 : STEPS;

    assert_non_null(model);
    random_state = random_seed(seed);
    fences_reset();
    model->arena = arena_make(CAPACITY);
    model->stream_heap = model->arena->extent.stream_heap;
    for (unsigned i = 0; i < STEPS; i++) {
        step(model);
        if (i == abandons_at)
            abandon(model);
        check(model);
    }
    end_history(model);
    *moves += model->moves;
    *refills += model->refills;
    *returns += model->returns;
    *grown += model->grown;
    arena_end(model->arena);
    free(model);
}

static void random_histories_agree_with_a_model_of_every_granule(void **state) {
    unsigned moves = 0, refills = 0, grown = 0, returns = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_history(seed, &moves, &refills, &grown, &returns);
    /* The histories were of what they are about. */
    assert_true(moves > SEEDS * 5);
    assert_true(refills > SEEDS * 5);
    assert_true(grown > SEEDS);
    assert_true(returns > SEEDS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_agree_with_a_model_of_every_granule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
