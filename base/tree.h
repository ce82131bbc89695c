/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_TREE_H
#define BASE_TREE_H
/*
 * An intrusive search tree, ordered by a key and, where keys are equal, by a second number that is unique
 * among them. A tree and a node of zeros are empty and in no tree, so that objects from calloc() need no
 * initialisation. No call allocates or fails.
 *
 * It is a treap (Seidel and Aragon, 1996): a search tree in which each node has a larger priority than its
 * children. Priorities are a hash of the numbers, so that the depth is logarithmic whatever the order of
 * insertion; all calls below take as long.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tree_node {
    struct tree_node *parent, *left, *right;
    uint64_t key, number;
    uint64_t priority; /* 0: in no tree */
};

struct tree {
    struct tree_node *root; /* NULL: empty */
};

static inline bool tree_is_empty(const struct tree *tree) {
    return tree->root == NULL;
}

static inline bool tree_has(const struct tree_node *node) {
    return node->priority != 0;
}

/* Puts a node that is in no tree into one. */
void tree_insert(struct tree *tree, struct tree_node *node, uint64_t key, uint64_t number);

/* Takes a node out of its tree. Does nothing where it is in none. */
void tree_remove(struct tree *tree, struct tree_node *node);

/* The node with the least or largest key. NULL: the tree is empty. */
struct tree_node *tree_first(const struct tree *tree);
struct tree_node *tree_last(const struct tree *tree);

/* The node behind or before another one. NULL: there is none. */
struct tree_node *tree_next(const struct tree_node *node);
struct tree_node *tree_previous(const struct tree_node *node);

/* The first node whose key is at least that. NULL: there is none. */
struct tree_node *tree_at_least(const struct tree *tree, uint64_t key);

/* The first node of that key. NULL: there is none. */
struct tree_node *tree_find(const struct tree *tree, uint64_t key);

/* Checks order, priorities and links. For validators: linear. Returns the nodes, or SIZE_MAX where something
 * is wrong. */
size_t tree_count(const struct tree *tree);

#endif
