/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/estate/estate.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define MAGIC       UINT64_C(0x6570617473656770) /* "pgestape", in memory */
#define CHUNK_MAGIC 0x6b6e6863u
#define INDEX_BITS  11u
#define IS_FREE     1u /* copy.flags */
#define PAYLOAD_MAX 1024u

/* Before the payload of each copy. The stamp is stored first, by itself: a copy that is not whole has that of a
 * step which did not end. */
struct copy {
    uint64_t stamp; /* of the step that wrote it; 0: none, and the copy is blank: free, of no group */
    uint32_t sum;   /* of all the rest, of the stamp, and of where the copy is and of which kind */
    uint32_t flags;
    uint32_t group;     /* estate_kind.group() */
    uint32_t group_sum; /* of it and of where the copy is: it is known also where the rest is damaged */
};

/* A stamp is the number of a step, and a check of it: a damaged one is not taken for another step's. */
#define STAMP_BITS 48u

/* At the beginning of each chunk but the first. */
struct chunk_head {
    uint32_t magic;
    uint16_t kind, copy_bytes;
    uint32_t holds;
    uint32_t sum; /* of the above, and of the chunk's number */
    uint64_t reserved[6];
};

/* The bookkeeping of a record, in the memory of the daemon itself. */
struct slot {
    void *object;    /* NULL: none has it */
    uint32_t next;   /* in a list: free ones, changed ones */
    bool is_changed; /* it is in the list of those */
    bool is_removed; /* by the present step */
    bool is_new;     /* the present step has added it */
    uint8_t damaged; /* as it was read: bit 0 and 1 for the copies; 0: it is whole */
    uint8_t holding; /* the copy that holds, 0 or 1 */
};

struct estate_chunk {
    char *memory;
    unsigned kind, n_slots;
    bool is_known; /* its kind is, and has this size */
    size_t copy_bytes;
    struct slot slots[];
};

_Static_assert(sizeof(struct chunk_head) == 64, "chunks begin on a cache line");
_Static_assert(sizeof(struct copy) == 24, "payloads are aligned");
_Static_assert(ESTATE_CHUNK_BYTES / (2 * (sizeof(struct copy) + 8)) < 1u << INDEX_BITS, "an index has room");

/* --- stores --- */

/* Every store into the memory goes through this. */
static void store(const struct estate *estate, void *to, const void *from, size_t size_bytes) {
    if (estate->owner.before_store != NULL)
        estate->owner.before_store(estate->owner.argument, to, from, size_bytes);
    if (size_bytes == sizeof(uint64_t)) /* a stamp, a step, a count: at once */
        *(volatile uint64_t *)to = *(const uint64_t *)from;
    else
        memcpy(to, from, size_bytes);
    /* The process may be killed at any instruction: what is stored before is seen, and the compiler may not
     * change the order. */
    atomic_signal_fence(memory_order_seq_cst);
}

static uint64_t stamp_of(uint64_t step) {
    uint64_t number = step & ((UINT64_C(1) << STAMP_BITS) - 1), check = number * UINT64_C(0x9e3779b97f4a7c15);
    return number | (check >> STAMP_BITS | 1) << STAMP_BITS;
}

/* The step of a stamp; 0: of none. False: it is damaged. */
static bool stamp_read(uint64_t stamp, uint64_t *ret_step) {
    *ret_step = stamp & ((UINT64_C(1) << STAMP_BITS) - 1);
    return stamp == 0 || stamp == stamp_of(*ret_step);
}

static struct estate_head *head_of(const struct estate *estate) {
    return (struct estate_head *)(void *)estate->memory;
}

static uint64_t mix(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * UINT64_C(0xff51afd7ed558ccd);
    return sum ^ sum >> 32;
}

/* --- places --- */

static struct estate_chunk *chunk_of(const struct estate *estate, uint32_t record) {
    size_t number = record >> INDEX_BITS;
    return number < estate->n_chunks ? estate->chunks[number] : NULL;
}

static unsigned index_of(uint32_t record) {
    return record & ((1u << INDEX_BITS) - 1);
}

static struct slot *slot_of(const struct estate *estate, uint32_t record) {
    return &chunk_of(estate, record)->slots[index_of(record)];
}

static struct copy *copy_of(const struct estate_chunk *chunk, unsigned index, unsigned which) {
    return (struct copy *)(void *)(chunk->memory + sizeof(struct chunk_head) +
                                   (2 * (size_t)index + which) * chunk->copy_bytes);
}

static size_t payload_bytes(const struct estate_chunk *chunk) {
    return chunk->copy_bytes - sizeof(struct copy);
}

/* Begins a sum with a place of the memory: it fails for what belongs elsewhere. */
static uint64_t sum_begin(const struct estate *estate, const struct copy *place) {
    return mix(UINT64_C(0x9e3779b97f4a7c15), (uint64_t)((const char *)place - estate->memory));
}

static uint32_t sum_of_group(const struct estate *estate, const struct copy *place, uint32_t group) {
    uint64_t sum = mix(sum_begin(estate, place), group);
    return (uint32_t)(sum ^ sum >> 29);
}

/* The sum of a copy that is, or will be, at a place in the chunk. */
static uint32_t sum_of_copy(const struct estate *estate, const struct estate_chunk *chunk,
                            const struct copy *place, const struct copy *copy) {
    uint64_t sum = mix(sum_begin(estate, place), copy->stamp), word;

    sum = mix(mix(sum, (uint64_t)chunk->kind << 32 | copy->flags), copy->group);
    for (size_t i = 0; i + sizeof word <= payload_bytes(chunk); i += sizeof word) {
        memcpy(&word, (const char *)(copy + 1) + i, sizeof word);
        sum = mix(sum, word);
    }
    return (uint32_t)(sum ^ sum >> 29);
}

/* Fills in the sums of a copy that is for a place. */
static void seal(const struct estate *estate, const struct estate_chunk *chunk, const struct copy *place,
                 struct copy *copy) {
    copy->group_sum = sum_of_group(estate, place, copy->group);
    copy->sum = sum_of_copy(estate, chunk, place, copy);
}

static void push(struct estate *estate, uint32_t *list, uint32_t record) {
    slot_of(estate, record)->next = *list;
    *list = record;
}

static uint32_t pop(struct estate *estate, uint32_t *list) {
    uint32_t record = *list;
    *list = slot_of(estate, record)->next;
    return record;
}

/* --- chunks --- */

/* Adds the bookkeeping of a chunk. Its records are in no list. Returns it; NULL without memory. */
static struct estate_chunk *add_chunk(struct estate *estate, const struct chunk_head *head) {
    unsigned n_slots = (unsigned)((ESTATE_CHUNK_BYTES - sizeof *head) / (2 * (size_t)head->copy_bytes));
    struct estate_chunk **chunks =
        array_room(estate->chunks, estate->n_chunks, &estate->chunks_room, sizeof(void *));

    if (chunks == NULL)
        return NULL;
    estate->chunks = chunks;
    struct estate_chunk *chunk = calloc(1, sizeof *chunk + n_slots * sizeof *chunk->slots);
    if (chunk == NULL)
        return NULL;
    chunk->memory = estate->memory + estate->n_chunks * ESTATE_CHUNK_BYTES;
    chunk->kind = head->kind;
    chunk->copy_bytes = head->copy_bytes;
    chunk->n_slots = n_slots;
    chunks[estate->n_chunks++] = chunk;
    return chunk;
}

static uint32_t sum_of_head(const struct chunk_head *head, size_t number) {
    uint64_t sum = mix(mix(head->magic, number), (uint64_t)head->kind << 16 | head->copy_bytes);
    sum = mix(sum, head->holds);
    return (uint32_t)(sum ^ sum >> 29);
}

static int make_chunk(struct estate *estate, unsigned kind) {
    struct chunk_head head = {.magic = CHUNK_MAGIC,
                              .kind = (uint16_t)kind,
                              .copy_bytes = (uint16_t)(sizeof(struct copy) + estate->kinds[kind].size_bytes),
                              .holds = estate->kinds[kind].holds};
    const uint64_t n_chunks = estate->n_chunks + 1, stamp = stamp_of(n_chunks);

    if (estate->owner.grow(estate->owner.argument, n_chunks * ESTATE_CHUNK_BYTES) < 0)
        return -ENOMEM;
    if (estate->scratch == NULL)
        estate->scratch = malloc(ESTATE_CHUNK_BYTES);
    struct estate_chunk *chunk = estate->scratch != NULL ? add_chunk(estate, &head) : NULL;
    if (chunk == NULL)
        return -ENOMEM;
    char *bytes = memset(estate->scratch, 0, ESTATE_CHUNK_BYTES);
    chunk->is_known = true;
    head.sum = sum_of_head(&head, estate->n_chunks - 1);
    memcpy(bytes, &head, sizeof head);
    for (unsigned i = 0; i < 2 * chunk->n_slots; i++) {
        struct copy *place = copy_of(chunk, i / 2, i % 2);
        struct copy *copy = (struct copy *)(void *)(bytes + ((char *)place - chunk->memory));
        copy->flags = IS_FREE;
        seal(estate, chunk, place, copy);
    }
    store(estate, chunk->memory, bytes, ESTATE_CHUNK_BYTES);
    store(estate, &head_of(estate)->n_chunks, &stamp, sizeof stamp); /* it counts from now on */
    for (unsigned i = chunk->n_slots; i-- > 0;)
        push(estate, &estate->free[kind], (uint32_t)(n_chunks - 1) << INDEX_BITS | i);
    return 0;
}

static int begin(struct estate *estate, void *memory, const struct estate_kind *kinds, unsigned n_kinds,
                 const struct estate_owner *owner) {
    assert(n_kinds < ESTATE_KINDS_MAX);
    *estate = (struct estate){.memory = memory, .kinds = kinds, .n_kinds = n_kinds, .owner = *owner};
    estate->chunks = array_room(NULL, 0, &estate->chunks_room, sizeof(void *));
    if (estate->chunks == NULL)
        return -ENOMEM;
    estate->chunks[estate->n_chunks++] = NULL;
    return 0;
}

int estate_make(struct estate *estate, void *memory, const struct estate_kind *kinds, unsigned n_kinds,
                const struct estate_owner *owner) {
    int r = begin(estate, memory, kinds, n_kinds, owner);
    if (r < 0)
        return r;
    const struct estate_head head = {.magic = MAGIC,
                                     .major = ESTATE_MAJOR,
                                     .chunk_bytes = ESTATE_CHUNK_BYTES,
                                     .incarnation = 1,
                                     .n_chunks = stamp_of(1)};
    store(estate, estate->memory + sizeof head.magic, &head.major, sizeof head - sizeof head.magic);
    store(estate, estate->memory, &head.magic, sizeof head.magic); /* it is an estate from now on */
    estate->step = 1;
    return 0;
}

void estate_deinit(struct estate *estate) {
    for (size_t i = 1; i < estate->n_chunks; i++)
        free(estate->chunks[i]);
    free(estate->chunks);
    free(estate->scratch);
    *estate = (struct estate){0};
}

/* --- a predecessor's --- */

/* Whether the daemon died in estate_make(), or before it. */
static bool is_unmade(const struct estate_head *head, size_t size_bytes) {
    return size_bytes >= ESTATE_CHUNK_BYTES && head->magic == 0 && head->incarnation <= 1 && head->step == 0;
}

/* The fault of a head; NULL: it has none. *ret_n_chunks and *ret_step: what it says. */
static const char *flaw_of(const struct estate_head *head, size_t size_bytes, uint64_t *ret_n_chunks,
                           uint64_t *ret_step) {
    if (size_bytes < ESTATE_CHUNK_BYTES || head->magic != MAGIC)
        return "it is no estate";
    if (head->major != ESTATE_MAJOR || head->chunk_bytes != ESTATE_CHUNK_BYTES)
        return "it is of another version";
    if (!stamp_read(head->n_chunks, ret_n_chunks) || !stamp_read(head->step, ret_step) ||
        *ret_n_chunks == 0 || *ret_n_chunks > size_bytes / ESTATE_CHUNK_BYTES || head->incarnation == 0)
        return "its head is damaged";
    return NULL;
}

/* Makes a copy blank that a step wrote which did not end. Its stamp goes last: until then the rest does not count. */
static void blank_copy(const struct estate *estate, const struct estate_chunk *chunk, struct copy *place) {
    _Alignas(8) char bytes[sizeof(struct copy) + PAYLOAD_MAX] = {0};
    struct copy *copy = (struct copy *)(void *)bytes;

    copy->flags = IS_FREE;
    seal(estate, chunk, place, copy);
    store(estate, (char *)place + sizeof copy->stamp, bytes + sizeof copy->stamp,
          chunk->copy_bytes - sizeof copy->stamp);
    store(estate, &place->stamp, &copy->stamp, sizeof copy->stamp);
}

/* Reads a copy's step, and forgets that of the step which did not end: the next one has its number. False: the
 * copy is damaged. */
static bool open_copy(const struct estate *estate, const struct estate_chunk *chunk, struct copy *copy,
                      uint64_t *ret_step) {
    if (!stamp_read(copy->stamp, ret_step) || *ret_step > estate->step) {
        *ret_step = 0;
        return false;
    }
    if (*ret_step == estate->step) {
        blank_copy(estate, chunk, copy);
        *ret_step = 0;
    }
    return copy->sum == sum_of_copy(estate, chunk, copy, copy);
}

/* Chooses the copy that holds. */
static void open_slot(const struct estate *estate, struct estate_chunk *chunk, unsigned index) {
    struct slot *slot = &chunk->slots[index];
    uint64_t last_steps[2];
    bool is_first_whole = open_copy(estate, chunk, copy_of(chunk, index, 0), &last_steps[0]);
    bool is_second_whole = open_copy(estate, chunk, copy_of(chunk, index, 1), &last_steps[1]);

    slot->damaged = (is_first_whole ? 0 : 1) | (is_second_whole ? 0 : 2);
    slot->holding = last_steps[1] > last_steps[0];
}

static bool is_free(const struct estate_chunk *chunk, unsigned index) {
    const struct slot *slot = &chunk->slots[index];
    const struct copy *copy = copy_of(chunk, index, slot->holding);
    return slot->damaged == 0 && (copy->stamp == 0 || copy->flags == IS_FREE);
}

static int open_chunk(struct estate *estate, const char **ret_reason) {
    const struct chunk_head *head =
        (const struct chunk_head *)(const void *)(estate->memory + estate->n_chunks * ESTATE_CHUNK_BYTES);

    *ret_reason = "a part of it is damaged";
    if (head->magic != CHUNK_MAGIC || head->sum != sum_of_head(head, estate->n_chunks) || head->kind == 0 ||
        head->copy_bytes < sizeof(struct copy) + 8 || head->copy_bytes % 8 != 0 ||
        head->copy_bytes > sizeof(struct copy) + PAYLOAD_MAX)
        return -EBADMSG;
    struct estate_chunk *chunk = add_chunk(estate, head);
    if (chunk == NULL)
        return -ENOMEM;
    chunk->is_known =
        chunk->kind <= estate->n_kinds && payload_bytes(chunk) == estate->kinds[chunk->kind].size_bytes;
    for (unsigned i = chunk->n_slots; i-- > 0;) {
        open_slot(estate, chunk, i);
        if (!is_free(chunk, i))
            estate->n_records++;
        else if (chunk->is_known)
            push(estate, &estate->free[chunk->kind], (uint32_t)(estate->n_chunks - 1) << INDEX_BITS | i);
    }
    return 0;
}

int estate_open(struct estate *estate, void *memory, size_t size_bytes, const struct estate_kind *kinds,
                unsigned n_kinds, const struct estate_owner *owner, const char **ret_reason) {
    const struct estate_head *head = memory;

    *ret_reason = NULL;
    if (is_unmade(head, size_bytes))
        return estate_make(estate, memory, kinds, n_kinds, owner);
    int r = begin(estate, memory, kinds, n_kinds, owner);
    uint64_t n_chunks = 0, step = 0;
    *ret_reason = flaw_of(head, size_bytes, &n_chunks, &step);
    if (r == 0 && *ret_reason != NULL)
        r = -EBADMSG;
    estate->step = step + 1;
    while (r == 0 && estate->n_chunks < n_chunks)
        r = open_chunk(estate, ret_reason);
    if (r == 0 && step == 0 && estate->n_records > 0) {
        *ret_reason = "its head is damaged";
        r = -EBADMSG;
    }
    if (r < 0) {
        estate_deinit(estate);
        return r;
    }
    const uint64_t incarnation = head->incarnation + 1;
    store(estate, &head_of(estate)->incarnation, &incarnation, sizeof incarnation);
    return 0;
}

/* The record at or behind a place; 0: there is none. */
static uint32_t find(const struct estate *estate, unsigned kind, uint32_t record) {
    for (size_t number = record >> INDEX_BITS; number < estate->n_chunks; number++, record = 0) {
        const struct estate_chunk *chunk = estate->chunks[number];
        if (chunk == NULL || (kind != 0 && (chunk->kind != kind || !chunk->is_known)))
            continue;
        for (unsigned i = index_of(record); i < chunk->n_slots; i++)
            if (!is_free(chunk, i) && !chunk->slots[i].is_removed)
                return (uint32_t)number << INDEX_BITS | i;
    }
    return 0;
}

/* Adds the groups that a damaged record may be of: which of its copies holds is not known. */
static void find_groups(const struct estate *estate, const struct estate_chunk *chunk,
                        struct estate_found *found) {
    found->is_confined = !found->is_unknown && (estate->kinds[found->kind].group != NULL || !found->holds);
    for (unsigned which = 0; which < 2; which++) {
        const struct copy *copy = copy_of(chunk, index_of(found->record), which);
        found->groups[which] = copy->group;
        if (copy->group_sum != sum_of_group(estate, copy, copy->group))
            found->is_confined = false;
    }
}

bool estate_next(const struct estate *estate, unsigned kind, uint32_t record,
                 struct estate_found *ret_found) {
    uint32_t found = find(estate, kind, record == 0 ? 1u << INDEX_BITS : record + 1);

    if (found == 0)
        return false;
    const struct estate_chunk *chunk = chunk_of(estate, found);
    const struct copy *copy = copy_of(chunk, index_of(found), slot_of(estate, found)->holding);
    *ret_found = (struct estate_found){
        .record = found,
        .kind = chunk->kind,
        .is_unknown = !chunk->is_known,
        .holds = ((const struct chunk_head *)(const void *)chunk->memory)->holds != 0,
        .is_damaged = slot_of(estate, found)->damaged != 0 || copy->flags != 0,
        .is_confined = true,
        .groups = {copy->group, copy->group},
        .payload = copy + 1,
        .size_bytes = payload_bytes(chunk),
    };
    if (ret_found->is_damaged)
        find_groups(estate, chunk, ret_found);
    return true;
}

void estate_read(const struct estate *estate, const struct estate_found *found, void *ret_payload) {
    (void)estate;
    memcpy(ret_payload, found->payload, found->size_bytes);
}

bool estate_is_empty(const struct estate *estate) {
    return estate->step == 1 && estate->n_records == 0;
}

size_t estate_room(const struct estate *estate, unsigned kind) {
    size_t n_slots = 0;

    for (size_t number = 1; number < estate->n_chunks; number++)
        if (estate->chunks[number]->kind == kind && estate->chunks[number]->is_known)
            n_slots += estate->chunks[number]->n_slots;
    return n_slots;
}

void estate_bind(struct estate *estate, uint32_t record, void *object) {
    slot_of(estate, record)->object = object;
}

void *estate_object(const struct estate *estate, uint32_t record, unsigned kind) {
    const struct estate_chunk *chunk = chunk_of(estate, record);

    return chunk != NULL && chunk->kind == kind && chunk->is_known && index_of(record) < chunk->n_slots
               ? chunk->slots[index_of(record)].object
               : NULL;
}

/* --- a step --- */

int estate_add(struct estate *estate, unsigned kind, void *object, uint32_t *ret_record) {
    *ret_record = 0;
    if (estate == NULL)
        return 0;
    if (estate->free[kind] == 0 && make_chunk(estate, kind) < 0)
        return -ENOMEM;
    *ret_record = pop(estate, &estate->free[kind]);
    struct slot *slot = slot_of(estate, *ret_record);
    slot->object = object;
    slot->is_new = true;
    estate->n_records++;
    estate_change(estate, *ret_record);
    return 0;
}

void estate_change(struct estate *estate, uint32_t record) {
    if (estate == NULL || record == 0)
        return;
    struct slot *slot = slot_of(estate, record);
    if (slot->is_changed)
        return;
    slot->is_changed = true;
    push(estate, &estate->changed, record);
}

void estate_remove(struct estate *estate, uint32_t record) {
    if (estate == NULL || record == 0)
        return;
    struct slot *slot = slot_of(estate, record);
    estate_change(estate, record);
    slot->object = NULL;
    slot->is_removed = true;
    estate->n_records--;
}

/* Writes the older copy of a record. Of a damaged one the whole copy, if there is one: which of them is the older is
 * not known, and the record stays damaged until the step has ended. */
static void write_copy(const struct estate *estate, const struct estate_chunk *chunk, unsigned index) {
    _Alignas(8) char bytes[sizeof(struct copy) + PAYLOAD_MAX];
    struct slot *slot = (struct slot *)&chunk->slots[index];
    struct copy *copy = (struct copy *)(void *)bytes;

    memset(bytes, 0, chunk->copy_bytes);
    copy->stamp = stamp_of(estate->step);
    if (slot->is_removed)
        copy->flags = IS_FREE;
    else
        estate->kinds[chunk->kind].write(slot->object, copy + 1);
    if (!slot->is_removed && estate->kinds[chunk->kind].group != NULL)
        copy->group = estate->kinds[chunk->kind].group(slot->object);
    slot->holding = slot->damaged == 0 || slot->damaged == 3 ? !slot->holding : slot->damaged == 1;
    char *to = (char *)copy_of(chunk, index, slot->holding);
    seal(estate, chunk, (const struct copy *)(const void *)to, copy);
    store(estate, to, bytes, sizeof copy->stamp);
    store(estate, to + sizeof copy->stamp, bytes + sizeof copy->stamp,
          chunk->copy_bytes - sizeof copy->stamp);
}

void estate_must_end_step(struct estate *estate) {
    estate->must_end = true;
}

/* A record that came and went within the step was never there. */
static void write_changes(const struct estate *estate) {
    for (uint32_t record = estate->changed; record != 0; record = slot_of(estate, record)->next) {
        const struct slot *slot = slot_of(estate, record);
        if (!slot->is_new || !slot->is_removed)
            write_copy(estate, chunk_of(estate, record), index_of(record));
    }
}

void estate_end_step(struct estate *estate) {
    if (estate == NULL || (estate->changed == 0 && !estate->must_end))
        return;
    estate->must_end = false;
    write_changes(estate);
    store(estate, &head_of(estate)->step, &(const uint64_t){stamp_of(estate->step)}, sizeof(uint64_t));
    estate->step++;
    while (estate->changed != 0) {
        uint32_t record = pop(estate, &estate->changed);
        struct slot *slot = slot_of(estate, record);
        slot->is_changed = false;
        if (slot->damaged != 0) {
            const struct estate_chunk *chunk = chunk_of(estate, record);
            blank_copy(estate, chunk, copy_of(chunk, index_of(record), !slot->holding));
            slot->damaged = 0;
        }
        if (slot->is_removed && chunk_of(estate, record)->is_known)
            push(estate, &estate->free[chunk_of(estate, record)->kind], record);
        slot->is_removed = slot->is_new = false;
    }
}

/* --- validation --- */

static bool slot_is_valid(const struct estate *estate, const struct estate_chunk *chunk, unsigned index) {
    const struct slot *slot = &chunk->slots[index];
    const struct copy *copy = copy_of(chunk, index, slot->holding);
    _Alignas(8) char payload[PAYLOAD_MAX] = {0};
    uint64_t step, other_step;

    if (slot->is_changed || slot->is_removed || slot->damaged != 0 || !stamp_read(copy->stamp, &step) ||
        !stamp_read(copy_of(chunk, index, !slot->holding)->stamp, &other_step) || step >= estate->step ||
        step < other_step)
        return false;
    if (is_free(chunk, index) || slot->object == NULL)
        return is_free(chunk, index) && slot->object == NULL;
    estate->kinds[chunk->kind].write(slot->object, payload);
    return copy->flags == 0 && copy->sum == sum_of_copy(estate, chunk, copy, copy) &&
           memcmp(payload, copy + 1, payload_bytes(chunk)) == 0;
}

bool estate_is_valid(const struct estate *estate, unsigned *ret_kind) {
    size_t n_records = 0;

    *ret_kind = 0;
    for (size_t number = 1; number < estate->n_chunks; number++)
        for (unsigned i = 0; i < estate->chunks[number]->n_slots; i++) {
            n_records += !is_free(estate->chunks[number], i);
            if (slot_is_valid(estate, estate->chunks[number], i))
                continue;
            *ret_kind = estate->chunks[number]->kind;
            return false;
        }
    return n_records == estate->n_records && head_of(estate)->n_chunks == stamp_of(estate->n_chunks);
}
