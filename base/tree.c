/* SPDX-License-Identifier: Apache-2.0 */
#include "base/tree.h"

#include <assert.h>

/* The finaliser of splitmix64 (Steele, Lea and Flood, 2014): each bit of the result depends on each one. */
static uint64_t mix(uint64_t value) {
    value ^= value >> 30;
    value *= UINT64_C(0xbf58476d1ce4e5b9);
    value ^= value >> 27;
    value *= UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static bool comes_before(const struct tree_node *node, const struct tree_node *other) {
    return node->key != other->key ? node->key < other->key : node->number < other->number;
}

/* The pointer that leads to a node: its parent's, or the tree's. */
static struct tree_node **way_to(struct tree *tree, const struct tree_node *node) {
    if (node->parent == NULL)
        return &tree->root;
    return node->parent->left == node ? &node->parent->left : &node->parent->right;
}

/* Puts a node in the place of its parent, which becomes its child. */
static void rotate_up(struct tree *tree, struct tree_node *node) {
    struct tree_node *parent = node->parent, *moved;

    *way_to(tree, parent) = node;
    node->parent = parent->parent;
    if (parent->left == node) {
        moved = parent->left = node->right;
        node->right = parent;
    } else {
        moved = parent->right = node->left;
        node->left = parent;
    }
    parent->parent = node;
    if (moved != NULL)
        moved->parent = parent;
}

void tree_insert(struct tree *tree, struct tree_node *node, uint64_t key, uint64_t number) {
    struct tree_node **way = &tree->root, *parent = NULL;

    assert(!tree_has(node));
    *node = (struct tree_node){.key = key, .number = number, .priority = mix(mix(key) + number) | 1};
    while (*way != NULL) {
        parent = *way;
        way = comes_before(node, parent) ? &parent->left : &parent->right;
    }
    node->parent = parent;
    *way = node;
    while (node->parent != NULL && node->parent->priority < node->priority)
        rotate_up(tree, node);
}

void tree_remove(struct tree *tree, struct tree_node *node) {
    if (!tree_has(node))
        return;
    while (node->left != NULL && node->right != NULL)
        rotate_up(tree, node->left->priority > node->right->priority ? node->left : node->right);
    struct tree_node *child = node->left != NULL ? node->left : node->right;
    *way_to(tree, node) = child;
    if (child != NULL)
        child->parent = node->parent;
    *node = (struct tree_node){0};
}

static struct tree_node *leftmost(struct tree_node *node) {
    while (node != NULL && node->left != NULL)
        node = node->left;
    return node;
}

static struct tree_node *rightmost(struct tree_node *node) {
    while (node != NULL && node->right != NULL)
        node = node->right;
    return node;
}

struct tree_node *tree_first(const struct tree *tree) {
    return leftmost(tree->root);
}

struct tree_node *tree_last(const struct tree *tree) {
    return rightmost(tree->root);
}

struct tree_node *tree_next(const struct tree_node *node) {
    if (node->right != NULL)
        return leftmost(node->right);
    while (node->parent != NULL && node->parent->right == node)
        node = node->parent;
    return node->parent;
}

struct tree_node *tree_previous(const struct tree_node *node) {
    if (node->left != NULL)
        return rightmost(node->left);
    while (node->parent != NULL && node->parent->left == node)
        node = node->parent;
    return node->parent;
}

struct tree_node *tree_at_least(const struct tree *tree, uint64_t key) {
    struct tree_node *node = tree->root, *found = NULL;

    while (node != NULL) {
        if (node->key >= key)
            found = node;
        node = node->key >= key ? node->left : node->right;
    }
    return found;
}

struct tree_node *tree_find(const struct tree *tree, uint64_t key) {
    struct tree_node *node = tree_at_least(tree, key);
    return node != NULL && node->key == key ? node : NULL;
}

static bool link_is_valid(const struct tree_node *node, const struct tree_node *child) {
    return child == NULL || (child->parent == node && child->priority <= node->priority);
}

size_t tree_count(const struct tree *tree) {
    const struct tree_node *before = NULL;
    size_t count = 0;

    if (tree->root != NULL && tree->root->parent != NULL)
        return SIZE_MAX;
    for (const struct tree_node *node = tree_first(tree); node != NULL; node = tree_next(node)) {
        if (!tree_has(node) || !link_is_valid(node, node->left) || !link_is_valid(node, node->right) ||
            (before != NULL && !comes_before(before, node)))
            return SIZE_MAX;
        before = node;
        count++;
    }
    return count;
}
