/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the map from pointers to pieces. Neither the memory nor the pieces exist: the map
 * compares addresses and touches nothing. mmap is wrapped by the linker, so that the n-th node can fail to be
 * made.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "base/units.h"
#include "client/cache/pointer_map.h"
#include "unit.h"

#define LEAF_BYTES   (UINT64_C(1) << (POINTER_MAP_GRANULE_BITS + POINTER_MAP_LEAF_BITS))
#define BRANCH_BYTES (LEAF_BYTES << POINTER_MAP_BRANCH_BITS)
#define END_BYTES    (UINT64_C(1) << POINTER_MAP_ADDRESS_BITS)

static unsigned fail_at; /* the n-th mmap from now fails, once; 0: none */

void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (fail_at != 0 && --fail_at == 0) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(address, size, protection, flags, fd, offset);
}

static void *at(uint64_t address) {
    return (void *)(uintptr_t)address;
}

/* A piece that does not exist, one for each number. */
static struct piece *piece(uint64_t number) {
    return (struct piece *)(uintptr_t)(16 * number + 16);
}

static void an_address_has_the_piece_that_was_set_there_and_no_other_has_it(void **state) {
    /* the first and the last of each level, and their neighbours across its edge */
    static const uint64_t addresses[] = {
        512,
        LEAF_BYTES - 512,
        LEAF_BYTES,
        LEAF_BYTES + 512,
        BRANCH_BYTES - 512,
        BRANCH_BYTES,
        7 * BRANCH_BYTES + 3 * LEAF_BYTES + 5 * 512,
        END_BYTES / 2 - 512,
        END_BYTES / 2,
        END_BYTES - 512,
    };
    const unsigned count = sizeof addresses / sizeof *addresses;

    (void)state;
    for (unsigned i = 0; i < count; i++) {
        assert_null(pointer_map_find(at(addresses[i])));
        assert_int_equal(pointer_map_set(at(addresses[i]), piece(i)), 0);
        for (unsigned j = 0; j < count; j++)
            assert_ptr_equal(pointer_map_find(at(addresses[j])), j <= i ? piece(j) : NULL);
    }
    for (unsigned i = 0; i < count; i++) {
        for (unsigned inside = 1; inside < 512; inside++)
            assert_null(pointer_map_find(at(addresses[i] + inside)));
        pointer_map_clear(at(addresses[i]), piece(i));
        for (unsigned j = 0; j < count; j++)
            assert_ptr_equal(pointer_map_find(at(addresses[j])), j <= i ? NULL : piece(j));
    }
}

static void an_address_that_the_map_does_not_cover_is_refused(void **state) {
    static const uint64_t addresses[] = {1,         511, 513, END_BYTES, END_BYTES + 512, UINT64_MAX - 511,
                                         UINT64_MAX};

    (void)state;
    assert_null(pointer_map_find(NULL));
    for (unsigned i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        assert_int_equal(pointer_map_set(at(addresses[i]), piece(1)), -ERANGE);
        assert_null(pointer_map_find(at(addresses[i])));
        pointer_map_clear(at(addresses[i]), piece(1));
    }
}

static void clearing_takes_ones_own_entry_only(void **state) {
    void *memory = at(40 * BRANCH_BYTES);

    (void)state;
    pointer_map_clear(memory, piece(1)); /* where nothing ever was */
    assert_int_equal(pointer_map_set(memory, piece(1)), 0);
    assert_int_equal(pointer_map_set(memory, piece(2)), 0); /* another client has the memory now */
    pointer_map_clear(memory, piece(1));
    assert_ptr_equal(pointer_map_find(memory), piece(2));
    pointer_map_clear(memory, piece(2));
    assert_null(pointer_map_find(memory));
}

static void many_pieces_are_all_found(void **state) {
    const uint64_t count = 300000, first = 100 * BRANCH_BYTES - 77 * LEAF_BYTES;
    const uint64_t step = 3 * 512 + LEAF_BYTES / 64; /* over thousands of leaves and two branches */

    (void)state;
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(pointer_map_set(at(first + i * step), piece(i)), 0);
    for (uint64_t i = 0; i < count; i++) {
        assert_ptr_equal(pointer_map_find(at(first + i * step)), piece(i));
        assert_null(pointer_map_find(at(first + i * step + 512)));
    }
    for (uint64_t i = 0; i < count; i += 2)
        pointer_map_clear(at(first + i * step), piece(i));
    for (uint64_t i = 0; i < count; i++)
        assert_ptr_equal(pointer_map_find(at(first + i * step)), i % 2 == 0 ? NULL : piece(i));
    for (uint64_t i = 1; i < count; i += 2)
        pointer_map_clear(at(first + i * step), piece(i));
}

static void without_memory_an_entry_is_refused_and_the_map_is_as_it_was(void **state) {
    void *memory = at(200 * BRANCH_BYTES + LEAF_BYTES);
    unsigned failures = 0;

    (void)state;
    for (unsigned n = 1;; n++) {
        fail_at = n;
        int r = pointer_map_set(memory, piece(9));
        bool armed = fail_at != 0; /* nothing failed */
        fail_at = 0;
        assert_int_equal(r, armed ? 0 : -ENOMEM);
        assert_ptr_equal(pointer_map_find(memory), armed ? piece(9) : NULL);
        if (armed)
            break;
        failures++;
    }
    assert_int_equal(failures, 2); /* a branch, a leaf */
    pointer_map_clear(memory, piece(9));
}

/* --- threads --- */

#define THREADS 4u
#define ROUNDS  40u
#define ENTRIES 3000u

struct crowd {
    pthread_barrier_t start;
    atomic_bool over;
    atomic_uint wrong;
};

struct writer {
    struct crowd *crowd;
    unsigned number;
};

/* The addresses of the threads interleave, so that they make and use the same nodes. */
static uint64_t address_of(unsigned round, unsigned entry, unsigned thread) {
    return (300 + round) * BRANCH_BYTES + ((uint64_t)entry * THREADS + thread) * 9 * 512;
}

static void *write_own(void *argument) {
    struct writer *writer = argument;
    struct crowd *crowd = writer->crowd;

    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&crowd->start); /* all make the same nodes now */
        for (unsigned i = 0; i < ENTRIES; i++) {
            void *memory = at(address_of(round, i, writer->number));
            if (pointer_map_set(memory, piece(writer->number)) != 0)
                atomic_fetch_add(&crowd->wrong, 1);
        }
        for (unsigned i = 0; i < ENTRIES; i++) {
            void *memory = at(address_of(round, i, writer->number));
            if (pointer_map_find(memory) != piece(writer->number))
                atomic_fetch_add(&crowd->wrong, 1);
            pointer_map_clear(memory, piece(writer->number));
        }
    }
    return NULL;
}

static void *read_all(void *argument) {
    struct crowd *crowd = argument;

    while (!atomic_load(&crowd->over))
        for (unsigned round = 0; round < ROUNDS; round++)
            for (unsigned i = 0; i < ENTRIES; i += 97)
                for (unsigned thread = 0; thread < THREADS; thread++) {
                    const struct piece *found = pointer_map_find(at(address_of(round, i, thread)));
                    if (found != NULL && found != piece(thread))
                        atomic_fetch_add(&crowd->wrong, 1);
                }
    return NULL;
}

static void threads_that_set_and_look_up_at_once_find_what_was_set(void **state) {
    struct crowd crowd = {0};
    struct writer writers[THREADS];
    pthread_t threads[THREADS], reader;

    (void)state;
    pthread_barrier_init(&crowd.start, NULL, THREADS);
    assert_int_equal(pthread_create(&reader, NULL, read_all, &crowd), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        writers[i] = (struct writer){&crowd, i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_own, &writers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(threads[i], NULL);
    atomic_store(&crowd.over, true);
    TEST_JOIN(reader, NULL);
    pthread_barrier_destroy(&crowd.start);
    assert_int_equal(crowd.wrong, 0);
}

/* Also where the entries lie in other leaves and branches. */
static void the_piece_below_an_address_is_found(void **state) {
    static const uint64_t begins[] = {BRANCH_BYTES - 512, 3 * BRANCH_BYTES, 3 * BRANCH_BYTES + 5 * 512,
                                      3 * BRANCH_BYTES + 7 * LEAF_BYTES};
    const unsigned count = sizeof begins / sizeof *begins;

    (void)state;
    assert_null(pointer_map_find_below(at(BRANCH_BYTES)));
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(pointer_map_set(at(begins[i]), piece(i)), 0);
    assert_null(pointer_map_find_below(at(begins[0] - 1)));
    for (unsigned i = 0; i < count; i++) {
        uint64_t last = i + 1 < count ? begins[i + 1] - 1 : END_BYTES - 1;
        assert_ptr_equal(pointer_map_find_below(at(begins[i])), piece(i));
        assert_ptr_equal(pointer_map_find_below(at(begins[i] + 1)), piece(i));
        assert_ptr_equal(pointer_map_find_below(at(begins[i] + (last - begins[i]) / 2)), piece(i));
        assert_ptr_equal(pointer_map_find_below(at(last)), piece(i));
    }
    assert_null(pointer_map_find_below(at(END_BYTES)));
    for (unsigned i = 0; i < count; i++)
        pointer_map_clear(at(begins[i]), piece(i));
    assert_null(pointer_map_find_below(at(END_BYTES - 1)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_piece_below_an_address_is_found),
        cmocka_unit_test(an_address_has_the_piece_that_was_set_there_and_no_other_has_it),
        cmocka_unit_test(an_address_that_the_map_does_not_cover_is_refused),
        cmocka_unit_test(clearing_takes_ones_own_entry_only),
        cmocka_unit_test(many_pieces_are_all_found),
        cmocka_unit_test(without_memory_an_entry_is_refused_and_the_map_is_as_it_was),
        cmocka_unit_test(threads_that_set_and_look_up_at_once_find_what_was_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
