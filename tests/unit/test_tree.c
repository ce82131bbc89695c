/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the search tree, beside a plain array of what is in it. */
#include "base/tree.h"

#include "base/list.h"
#include "tests/random.h"
#include "unit.h"

#define NODES 300u
#define STEPS 20000u

struct thing {
    bool is_in;
    uint64_t key;
    struct tree_node node;
};

static struct thing *thing_of(struct tree_node *node) {
    return node == NULL ? NULL : container_of(node, struct thing, node);
}

static bool comes_before(const struct thing *thing, const struct thing *other, const struct thing *things) {
    return thing->key != other->key ? thing->key < other->key : thing - things < other - things;
}

/* The first thing of at least that key, found by looking at all. */
static struct thing *first_at_least(struct thing *things, uint64_t key) {
    struct thing *first = NULL;
    for (unsigned i = 0; i < NODES; i++)
        if (things[i].is_in && things[i].key >= key &&
            (first == NULL || comes_before(&things[i], first, things)))
            first = &things[i];
    return first;
}

static void what_is_in_it_is_found_in_order(void **state) {
    static struct thing things[NODES];
    struct tree tree = {0};
    uint64_t random = 7;
    size_t count = 0;

    (void)state;
    assert_true(tree_is_empty(&tree) && tree_first(&tree) == NULL && tree_last(&tree) == NULL);
    for (unsigned step = 0; step < STEPS; step++) {
        struct thing *thing = &things[random_next(&random) % NODES];
        if (thing->is_in) {
            tree_remove(&tree, &thing->node);
            count--;
        } else {
            thing->key = random_next(&random) % 64; /* many are equal */
            tree_insert(&tree, &thing->node, thing->key, (uint64_t)(thing - things));
            count++;
        }
        thing->is_in = !thing->is_in;
        assert_int_equal(tree_has(&thing->node), thing->is_in);
        assert_int_equal(tree_count(&tree), count);
        uint64_t key = random_next(&random) % 66;
        struct thing *expected = first_at_least(things, key);
        assert_ptr_equal(thing_of(tree_at_least(&tree, key)), expected);
        assert_ptr_equal(thing_of(tree_find(&tree, key)),
                         expected != NULL && expected->key == key ? expected : NULL);
    }
    size_t backwards = 0;
    for (const struct tree_node *node = tree_last(&tree); node != NULL; node = tree_previous(node))
        backwards++;
    assert_int_equal(backwards, count);
}

static void a_node_that_is_in_no_tree_is_removed_without_harm(void **state) {
    struct tree tree = {0};
    struct tree_node node = {0};

    (void)state;
    tree_remove(&tree, &node);
    tree_insert(&tree, &node, 1, 1);
    tree_remove(&tree, &node);
    tree_remove(&tree, &node);
    assert_true(tree_is_empty(&tree));
}

/* Ascending keys make a list of a tree without balance. */
static void it_stays_flat(void **state) {
    static struct tree_node nodes[1u << 14];
    struct tree tree = {0};
    size_t deepest = 0;

    (void)state;
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        tree_insert(&tree, &nodes[i], i, 0);
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        size_t depth = 0;
        for (const struct tree_node *node = &nodes[i]; node != NULL; node = node->parent)
            depth++;
        deepest = depth > deepest ? depth : deepest;
    }
    assert_true(deepest < 60); /* 14 levels are the least */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_in_it_is_found_in_order),
        cmocka_unit_test(a_node_that_is_in_no_tree_is_removed_without_harm),
        cmocka_unit_test(it_stays_flat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
