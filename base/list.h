/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LIST_H
#define BASE_LIST_H
/*
 * An intrusive, circular, doubly linked list. A `struct list` is either a list's head or a member's link; an
 * unlinked member points to itself, so that list_remove() may be called on it again without harm.
 */
#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *previous;
};

#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline void list_init(struct list *list) {
    list->next = list->previous = list;
}

static inline bool list_is_empty(const struct list *list) {
    return list->next == list;
}

/* Links a member in front of a position; in front of the head is the list's end. */
static inline void list_insert_before(struct list *position, struct list *member) {
    member->previous = position->previous;
    member->next = position;
    position->previous->next = member;
    position->previous = member;
}

static inline void list_append(struct list *head, struct list *member) {
    list_insert_before(head, member);
}

static inline void list_prepend(struct list *head, struct list *member) {
    list_insert_before(head->next, member);
}

static inline void list_remove(struct list *member) {
    member->previous->next = member->next;
    member->next->previous = member->previous;
    list_init(member);
}

#define list_last(head, type, member)                                                                        \
    (list_is_empty(head) ? NULL : container_of((head)->previous, type, member))
#define list_first(head, type, member) (list_is_empty(head) ? NULL : container_of((head)->next, type, member))

static inline size_t list_length(const struct list *head) {
    size_t length = 0;
    for (const struct list *position = head->next; position != head; position = position->next)
        length++;
    return length;
}

/* The link of an entry, by its address alone: behind the last entry comes the head, which is in no object of
 * the type, and may lack the type's alignment. */
#define list_link_of(entry, type, member) ((struct list *)(void *)((char *)(entry) + offsetof(type, member)))

/* Goes through the members as objects: list_for_each_entry(struct session, session, &core->sessions, link).
 * The type may be const. The body stands in braces. */
#define list_for_each_entry(type, entry, head, member)                                                       \
    for (type *entry = container_of((head)->next, type, member);                                             \
         list_link_of(entry, type, member) != (head);                                                        \
         entry = container_of(list_link_of(entry, type, member)->next, type, member))

/* As list_for_each_entry, and the entry at hand may be removed in the body. */
#define list_for_each_entry_safe(type, entry, head, member)                                                  \
    for (type *entry = container_of((head)->next, type, member),                                             \
              *next_##entry = container_of(list_link_of(entry, type, member)->next, type, member);           \
         list_link_of(entry, type, member) != (head); entry = next_##entry,                                  \
              next_##entry = container_of(list_link_of(next_##entry, type, member)->next, type, member))

#endif
