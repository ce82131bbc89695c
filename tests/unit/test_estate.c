/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The estate. Its daemon dies before each store there is, or in the middle of it, and so does the successor that
 * reads: each reads just what there was at the end of the last step. Bytes are damaged one by one, and no record
 * is taken for what it was not.
 */
#include "daemon/estate/estate.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/failing_memory.h"
#include "tests/random.h"
#include "tests/unit/unit.h"

#define OBJECTS 64u
#define CHUNKS  8u
#define STEPS   300u
#define GROUP   77u

enum {
    SMALL = 1,
    LARGE,
    KINDS
};

/* An object of the daemon's, and what its record says. */
struct object {
    unsigned kind; /* 0: there is none */
    uint32_t record;
    uint64_t values[12];
};

static void write_small(const void *object, void *payload) {
    memcpy(payload, ((const struct object *)object)->values, 16);
}

static void write_large(const void *object, void *payload) {
    memcpy(payload, ((const struct object *)object)->values, 96);
}

static uint32_t group_of_large(const void *object) {
    (void)object;
    return GROUP;
}

static const struct estate_kind kinds[KINDS] = {
    [SMALL] = {.size_bytes = 16, .write = write_small},
    [LARGE] = {.size_bytes = 96, .holds = true, .write = write_large, .group = group_of_large},
};

/* The memory, and the death that is to come. */
struct place {
    size_t size_bytes, limit_bytes;
    unsigned n_stores, dies_at; /* before that store; 0: never */
    bool tears;                 /* in the middle of it */
    uint64_t random_state;
    jmp_buf death;
};

static _Alignas(64) char memory[CHUNKS * ESTATE_CHUNK_BYTES];

static int grow(void *argument, size_t size_bytes) {
    struct place *place = argument;
    if (size_bytes > place->limit_bytes)
        return -ENOMEM;
    if (size_bytes > place->size_bytes)
        place->size_bytes = size_bytes;
    return 0;
}

static void before_store(void *argument, void *to, const void *from, size_t size_bytes) {
    struct place *place = argument;
    if (++place->n_stores != place->dies_at)
        return;
    if (place->tears && size_bytes > sizeof(uint64_t)) { /* words are stored at once, in any order */
        size_t some = random_next(&place->random_state) % (size_bytes / 8) * 8;
        bool is_end = random_next(&place->random_state) % 2 == 0;
        size_t from_byte = is_end ? size_bytes - some : 0;
        memcpy((char *)to + from_byte, (const char *)from + from_byte, some);
    }
    longjmp(place->death, 1);
}

static struct estate_owner owner_of(struct place *place) {
    return (struct estate_owner){.grow = grow, .before_store = before_store, .argument = place};
}

static void place_begin(struct place *place) {
    memset(memory, 0, sizeof memory);
    *place = (struct place){
        .size_bytes = ESTATE_CHUNK_BYTES, .limit_bytes = sizeof memory, .random_state = random_seed(1)};
}

static struct estate estate_new(struct place *place) {
    const struct estate_owner owner = owner_of(place);
    struct estate estate;
    assert_int_equal(estate_make(&estate, memory, kinds, KINDS - 1, &owner), 0);
    return estate;
}

/* One change of the objects. */
static void change_any(struct estate *estate, struct object *objects, uint64_t *random_state) {
    struct object *object = &objects[random_next(random_state) % OBJECTS];

    if (object->kind == 0) {
        unsigned kind = 1 + random_next(random_state) % 2;
        if (estate_add(estate, kind, object, &object->record) == 0)
            object->kind = kind;
    } else if (random_next(random_state) % 4 == 0) {
        estate_remove(estate, object->record);
        *object = (struct object){0};
        return;
    } else {
        estate_change(estate, object->record);
    }
    for (unsigned i = 0; i < 12; i++)
        object->values[i] = random_next(random_state);
}

/* Whether the records are those of the objects, and no others. */
static void expect_records(const struct estate *estate, const struct object *objects) {
    struct estate_found found = {0};
    unsigned n_found = 0, n_objects = 0;

    while (estate_next(estate, 0, found.record, &found)) {
        const struct object *object = NULL;
        for (unsigned i = 0; i < OBJECTS; i++)
            if (objects[i].kind != 0 && objects[i].record == found.record)
                object = &objects[i];
        assert_non_null(object);
        assert_int_equal(found.kind, object->kind);
        assert_false(found.is_damaged || found.is_unknown);
        assert_int_equal(found.holds, kinds[found.kind].holds);
        assert_int_equal(found.size_bytes, kinds[found.kind].size_bytes);
        assert_memory_equal(found.payload, object->values, found.size_bytes);
        n_found++;
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        n_objects += objects[i].kind != 0;
    assert_int_equal(n_found, n_objects);
}

/* A successor reads, dies after so many stores, and so does the next one; the last one reads it all. */
static struct estate succeed(struct place *place, struct object *objects) {
    static struct estate estate; /* as all that lives across a death */
    volatile unsigned dies_at = 1;
    const char *reason;

    for (;;) {
        const struct estate_owner owner = owner_of(place);
        place->n_stores = 0;
        place->dies_at = dies_at++;
        if (setjmp(place->death) != 0) {
            estate_deinit(&estate);
            continue;
        }
        assert_int_equal(estate_open(&estate, memory, place->size_bytes, kinds, KINDS - 1, &owner, &reason),
                         0);
        break;
    }
    place->dies_at = 0;
    expect_records(&estate, objects);
    for (unsigned i = 0; i < OBJECTS; i++)
        if (objects[i].kind != 0)
            estate_bind(&estate, objects[i].record, &objects[i]);
    return estate;
}

static void deaths_lose_no_step(void **state) {
    static struct object objects[OBJECTS], before[OBJECTS];
    static uint64_t random_state;
    static struct estate estate;
    static struct place place;
    unsigned kind;

    (void)state;
    random_state = random_seed(7);
    place_begin(&place);
    estate = estate_new(&place);
    for (volatile unsigned step = 0; step < STEPS; step++) {
        volatile unsigned dies_at = 1;
        volatile bool has_ended = false;
        /* Each store of the step is died at, before the step happens at last. */
        while (!has_ended) {
            volatile uint64_t then = random_state;
            memcpy(before, objects, sizeof before);
            place.n_stores = 0;
            place.dies_at = dies_at++;
            place.tears = dies_at % 2 == 0;
            if (setjmp(place.death) == 0) {
                for (unsigned n = 1 + step % 9; n > 0; n--)
                    change_any(&estate, objects, &random_state);
                estate_end_step(&estate);
                has_ended = true;
            } else {
                memcpy(objects, before, sizeof objects);
                random_state = then;
                estate_deinit(&estate);
                estate = succeed(&place, objects);
            }
            place.dies_at = 0;
        }
        expect_records(&estate, objects);
        assert_true(estate_is_valid(&estate, &kind));
    }
    estate_deinit(&estate);
}

static void damage_is_seen(void **state) {
    struct object objects[OBJECTS] = {0};
    uint64_t random_state = random_seed(3);
    struct place place;
    const char *reason;

    (void)state;
    place_begin(&place);
    struct estate estate = estate_new(&place);
    for (unsigned i = 0; i < 401; i++) {
        change_any(&estate, objects, &random_state);
        estate_end_step(&estate);
    }
    estate_deinit(&estate);
    unsigned refused = 0, damaged = 0, n_objects = 0;
    for (unsigned i = 0; i < OBJECTS; i++)
        n_objects += objects[i].kind != 0;
    static char whole[sizeof memory];
    memcpy(whole, memory, sizeof whole);
    for (size_t at = 0; at < place.size_bytes; at += at % ESTATE_CHUNK_BYTES < 4096 ? 1 : 509) {
        const struct estate_owner owner = owner_of(&place);
        struct estate_found found = {0};
        memcpy(memory, whole, sizeof memory);
        memory[at] = (char)(memory[at] ^ (1 << at % 8));
        if (estate_open(&estate, memory, place.size_bytes, kinds, KINDS - 1, &owner, &reason) < 0) {
            assert_non_null(reason);
            refused++;
            continue;
        }
        unsigned n_found = 0;
        while (estate_next(&estate, 0, found.record, &found)) {
            bool is_one = false;
            damaged += found.is_damaged;
            n_found++;
            for (unsigned i = 0; i < OBJECTS; i++)
                is_one = is_one || (objects[i].kind != 0 && objects[i].record == found.record &&
                                    memcmp(objects[i].values, found.payload, found.size_bytes) == 0);
            assert_true(is_one || found.is_damaged);
        }
        assert_true(n_found >= n_objects); /* none is missing */
        estate_deinit(&estate);
    }
    assert_true(refused > 20 && damaged > 200);
    memcpy(memory, whole, sizeof memory);
}

static void without_memory_nothing_changes(void **state) {
    struct object object = {.kind = SMALL};
    struct place place;
    uint32_t record;
    unsigned n = 0;

    (void)state;
    place_begin(&place);
    place.limit_bytes = 2 * ESTATE_CHUNK_BYTES;
    struct estate estate = estate_new(&place);
    memory_fail_nth(1);
    assert_int_equal(estate_add(&estate, SMALL, &object, &record), -ENOMEM);
    assert_int_equal(record, 0);
    memory_fail_nth(0);
    while (estate_add(&estate, SMALL, &object, &record) == 0)
        n++;
    assert_int_equal(n, (ESTATE_CHUNK_BYTES - 64) / 80);
    assert_int_equal(estate_add(&estate, LARGE, &object, &record), -ENOMEM);
    estate_end_step(&estate);
    estate_deinit(&estate);
}

static void what_is_no_estate_is_refused(void **state) {
    struct place place;
    const char *reason = NULL;
    struct estate estate;

    (void)state;
    place_begin(&place);
    const struct estate_owner owner = owner_of(&place);
    memory[0] = 1;
    assert_int_equal(estate_open(&estate, memory, ESTATE_CHUNK_BYTES, kinds, KINDS - 1, &owner, &reason),
                     -EBADMSG);
    assert_string_equal(reason, "it is no estate");
    estate = estate_new(&place);
    estate_deinit(&estate);
    ((struct estate_head *)(void *)memory)->major++;
    assert_int_equal(estate_open(&estate, memory, ESTATE_CHUNK_BYTES, kinds, KINDS - 1, &owner, &reason),
                     -EBADMSG);
    assert_string_equal(reason, "it is of another version");
    ((struct estate_head *)(void *)memory)->major--;
    ((struct estate_head *)(void *)memory)->n_chunks++;
    assert_int_equal(estate_open(&estate, memory, ESTATE_CHUNK_BYTES, kinds, KINDS - 1, &owner, &reason),
                     -EBADMSG);
    assert_string_equal(reason, "its head is damaged");
}

static const struct estate_kind fewer[LARGE] = {[SMALL] = {.size_bytes = 16, .write = write_small}};
static const struct estate_kind longer[KINDS] = {
    [SMALL] = {.size_bytes = 24, .write = write_large},
    [LARGE] = {.size_bytes = 96, .holds = true, .write = write_large},
};

/* Another version of the daemon reads: these kinds it does not know. Of the others it can write. */
static void expect_unknown(struct place *place, const struct estate_kind *known, unsigned n_known,
                           struct object *objects, unsigned unknown) {
    const struct estate_owner owner = owner_of(place);
    struct estate_found found = {0};
    struct estate estate;
    unsigned n_found = 0;
    const char *reason;

    assert_int_equal(estate_open(&estate, memory, place->size_bytes, known, n_known, &owner, &reason), 0);
    while (estate_next(&estate, 0, found.record, &found)) {
        assert_int_equal(found.is_unknown, found.kind == unknown);
        assert_int_equal(found.holds, kinds[found.kind].holds);
        assert_false(found.is_damaged);
        n_found++;
        if (found.is_unknown)
            continue;
        estate_bind(&estate, found.record, &objects[found.kind - 1]);
        objects[found.kind - 1].values[0]++;
        estate_change(&estate, found.record);
    }
    assert_int_equal(n_found, 2);
    assert_false(estate_next(&estate, unknown, 0, &found));
    assert_null(estate_object(&estate, objects[unknown - 1].record, unknown));
    if (unknown <= n_known) {
        struct object another = {.kind = unknown};
        assert_int_equal(estate_add(&estate, unknown, &another, &another.record), 0);
        assert_int_equal(estate_room(&estate, unknown), (ESTATE_CHUNK_BYTES - 64) / 96);
        estate_end_step(&estate);
        estate_remove(&estate, another.record);
    }
    estate_end_step(&estate);
    estate_deinit(&estate);
}

static void other_versions_leave_what_they_do_not_know(void **state) {
    struct object objects[2] = {{.kind = SMALL, .values = {1, 2, 3}}, {.kind = LARGE, .values = {4}}};
    struct estate_found found = {0};
    struct place place;
    const char *reason;

    (void)state;
    place_begin(&place);
    const struct estate_owner owner = owner_of(&place);
    struct estate estate = estate_new(&place);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(estate_add(&estate, objects[i].kind, &objects[i], &objects[i].record), 0);
    estate_end_step(&estate);
    estate_deinit(&estate);
    expect_unknown(&place, fewer, LARGE - 1, objects, LARGE);  /* an older daemon */
    expect_unknown(&place, longer, KINDS - 1, objects, SMALL); /* one that would need more of a kind */

    assert_int_equal(estate_open(&estate, memory, place.size_bytes, kinds, KINDS - 1, &owner, &reason), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(estate_next(&estate, objects[i].kind, 0, &found));
        assert_false(found.is_damaged || found.is_unknown);
        assert_memory_equal(found.payload, objects[i].values, found.size_bytes);
    }
    estate_deinit(&estate);
}

/* A successor reads, and has an empty estate that works. */
static void expect_empty(struct place *place) {
    const struct estate_owner owner = owner_of(place);
    struct estate_found found = {0};
    struct estate estate;
    const char *reason;
    unsigned kind;

    place->dies_at = 0;
    assert_int_equal(estate_open(&estate, memory, place->size_bytes, kinds, KINDS - 1, &owner, &reason), 0);
    assert_true(estate_is_empty(&estate));
    assert_false(estate_next(&estate, 0, 0, &found));
    struct object object = {.kind = SMALL};
    assert_int_equal(estate_add(&estate, SMALL, &object, &object.record), 0);
    estate_end_step(&estate);
    assert_false(estate_is_empty(&estate));
    assert_true(estate_is_valid(&estate, &kind));
    estate_deinit(&estate);
}

static void an_estate_is_empty_until_a_step_has_ended(void **state) {
    static struct estate estate; /* as all that lives across a death */
    static struct place place;
    static struct object objects[2];
    volatile bool has_ended = false;
    volatile unsigned n_deaths = 0;

    (void)state;
    for (volatile unsigned dies_at = 1; !has_ended; dies_at++) {
        place_begin(&place);
        place.random_state = random_seed(dies_at);
        place.dies_at = (dies_at + 1) / 2;
        place.tears = dies_at % 2 == 0;
        const struct estate_owner owner = owner_of(&place);
        if (setjmp(place.death) == 0) {
            assert_int_equal(estate_make(&estate, memory, kinds, KINDS - 1, &owner), 0);
            for (unsigned i = 0; i < 2; i++)
                assert_int_equal(estate_add(&estate, i + 1, &objects[i], &objects[i].record), 0);
            estate_end_step(&estate);
            has_ended = true;
            assert_false(estate_is_empty(&estate));
            estate_deinit(&estate);
        } else {
            n_deaths++;
            estate_deinit(&estate);
            expect_empty(&place);
        }
    }
    assert_true(n_deaths > 20);
}

/* A copy that is whole, and is another record's. */
static void a_record_is_not_taken_for_another_one(void **state) {
    struct object objects[3] = {{.kind = LARGE}, {.kind = LARGE}, {.kind = LARGE}};
    const size_t record_bytes = 2 * (24 + 96);
    struct estate_found found = {0};
    struct place place;
    const char *reason;
    unsigned n_damaged = 0;

    (void)state;
    place_begin(&place);
    const struct estate_owner owner = owner_of(&place);
    struct estate estate = estate_new(&place);
    for (unsigned i = 0; i < 3; i++) {
        objects[i].values[0] = i;
        assert_int_equal(estate_add(&estate, LARGE, &objects[i], &objects[i].record), 0);
    }
    estate_end_step(&estate);
    estate_deinit(&estate);
    char *first = memory + ESTATE_CHUNK_BYTES + 64;
    memcpy(first, first + record_bytes, record_bytes);
    assert_int_equal(estate_open(&estate, memory, place.size_bytes, kinds, KINDS - 1, &owner, &reason), 0);
    while (estate_next(&estate, 0, found.record, &found)) {
        assert_int_equal(found.is_damaged, found.record == objects[0].record);
        n_damaged += found.is_damaged;
    }
    assert_int_equal(n_damaged, 1);
    estate_deinit(&estate);
}

/* An estate with one large record, of which these copies are damaged: bit 0 and 1. */
static void make_damaged(struct place *place, unsigned copies) {
    struct object object = {.kind = LARGE};
    uint32_t record;

    place_begin(place);
    struct estate estate = estate_new(place);
    assert_int_equal(estate_add(&estate, LARGE, &object, &record), 0);
    estate_end_step(&estate);
    object.values[0]++;
    estate_change(&estate, record);
    estate_end_step(&estate);
    estate_deinit(&estate);
    for (unsigned copy = 0; copy < 2; copy++)
        if ((copies >> copy & 1) != 0)
            memory[ESTATE_CHUNK_BYTES + 64 + copy * (24 + 96) + 24] ^= 4;
}

/* Whether a successor finds the record: if it does, it is as damaged as it was, and its group is known. */
static bool is_found_damaged(struct place *place, struct estate *ret_estate) {
    const struct estate_owner owner = owner_of(place);
    struct estate_found found = {0};
    const char *reason;

    assert_int_equal(estate_open(ret_estate, memory, place->size_bytes, kinds, KINDS - 1, &owner, &reason),
                     0);
    if (!estate_next(ret_estate, 0, 0, &found))
        return false;
    assert_true(found.is_damaged && found.is_confined && found.kind == LARGE);
    if (ret_estate->step == 3) /* that of the removal has not ended */
        assert_true(found.groups[0] == GROUP || found.groups[1] == GROUP);
    estate_remove(ret_estate, found.record);
    assert_false(estate_next(ret_estate, 0, 0, &found));
    return true;
}

static void a_damaged_record_is_damaged_until_it_is_gone(void **state) {
    static struct estate estate; /* as all that lives across a death */
    static struct place place;
    unsigned kind;

    (void)state;
    for (volatile unsigned copies = 1; copies <= 3; copies++) {
        volatile bool has_ended = false;
        for (volatile unsigned dies_at = 1; !has_ended; dies_at++) {
            make_damaged(&place, copies);
            assert_true(is_found_damaged(&place, &estate));
            place.n_stores = 0;
            place.dies_at = dies_at;
            place.tears = dies_at % 2 == 0;
            if (setjmp(place.death) == 0) {
                estate_end_step(&estate);
                has_ended = true;
                assert_true(estate_is_valid(&estate, &kind));
            }
            place.dies_at = 0;
            estate_deinit(&estate);
            bool is_found = is_found_damaged(&place, &estate);
            assert_false(is_found && has_ended);
            estate_deinit(&estate);
        }
    }
}

/* A damaged record of a kind without groups may be anyone's, if such records hold anything. */
static void damage_of_a_kind_without_groups_is_not_confined(void **state) {
    struct estate_kind without[KINDS] = {[SMALL] = kinds[SMALL], [LARGE] = kinds[LARGE]};
    struct estate_found found;
    struct estate estate;
    struct place place;
    const char *reason;

    (void)state;
    without[LARGE].group = NULL;
    make_damaged(&place, 2);
    const struct estate_owner owner = owner_of(&place);
    assert_int_equal(estate_open(&estate, memory, place.size_bytes, without, KINDS - 1, &owner, &reason), 0);
    assert_true(estate_next(&estate, 0, 0, &found));
    assert_true(found.is_damaged && !found.is_confined);
    estate_deinit(&estate);
}

/* Zeros are no record that was never used. */
static void zeros_are_damage(void **state) {
    struct estate estate;
    struct estate_found found;
    struct place place;
    const char *reason;

    (void)state;
    for (size_t at = 0; at < 2 * (24 + 96); at += 24 + 96) {
        make_damaged(&place, 0);
        memset(memory + ESTATE_CHUNK_BYTES + 64 + at, 0, 24 + 96);
        const struct estate_owner owner = owner_of(&place);
        assert_int_equal(estate_open(&estate, memory, place.size_bytes, kinds, KINDS - 1, &owner, &reason),
                         0);
        assert_true(estate_next(&estate, 0, 0, &found));
        assert_true(found.is_damaged && !found.is_confined);
        estate_deinit(&estate);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(without_memory_nothing_changes),
        cmocka_unit_test(what_is_no_estate_is_refused),
        cmocka_unit_test(other_versions_leave_what_they_do_not_know),
        cmocka_unit_test(an_estate_is_empty_until_a_step_has_ended),
        cmocka_unit_test(a_record_is_not_taken_for_another_one),
        cmocka_unit_test(a_damaged_record_is_damaged_until_it_is_gone),
        cmocka_unit_test(damage_of_a_kind_without_groups_is_not_confined),
        cmocka_unit_test(zeros_are_damage),
        cmocka_unit_test(deaths_lose_no_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
