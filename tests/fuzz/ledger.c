/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/ledger.h"

#include "tests/fuzz/fuzz.h"

static void check_pair(const struct ledger_entry *a, const struct ledger_entry *b) {
    if (a->segment != b->segment)
        return;
    MUST(a->uid == b->uid);
    if (!a->whole || !b->whole)
        return;
    bool apart = a->offset_bytes + a->capacity_bytes <= b->offset_bytes ||
                 b->offset_bytes + b->capacity_bytes <= a->offset_bytes;
    bool same = a->offset_bytes == b->offset_bytes && a->capacity_bytes == b->capacity_bytes;
    MUST(apart || (same && (a->attached || b->attached)));
}

void ledger_enter(struct ledger *ledger, const struct ledger_entry *entry) {
    struct ledger_entry *free_entry = NULL;

    for (unsigned i = 0; i < ledger->n_entries; i++) {
        struct ledger_entry *other = &ledger->entries[i];
        if (!other->used)
            free_entry = other;
        else
            check_pair(entry, other);
    }
    if (free_entry == NULL && ledger->n_entries < LEDGER_MAX)
        free_entry = &ledger->entries[ledger->n_entries++];
    if (free_entry == NULL)
        return;
    *free_entry = *entry;
    free_entry->used = true;
}

void ledger_describe(struct ledger *ledger, uint64_t segment, const void *memory) {
    if (ledger->n_segments == LEDGER_SEGMENTS)
        return;
    ledger->segments[ledger->n_segments].segment = segment;
    ledger->segments[ledger->n_segments++].memory = memory;
}

void ledger_free(struct ledger *ledger, const void *memory) {
    for (unsigned i = 0; i < ledger->n_segments; i++)
        for (unsigned j = 0; ledger->segments[i].memory == memory && j < ledger->n_entries; j++)
            MUST(!ledger->entries[j].used || ledger->entries[j].segment != ledger->segments[i].segment);
}

struct ledger_entry *ledger_find(struct ledger *ledger, unsigned connection, uint64_t lease,
                                 uint64_t generation) {
    for (unsigned i = 0; i < ledger->n_entries; i++) {
        struct ledger_entry *entry = &ledger->entries[i];
        if (entry->used && entry->connection == connection && entry->lease == lease &&
            entry->generation == generation)
            return entry;
    }
    return NULL;
}

void ledger_leave_connection(struct ledger *ledger, unsigned connection) {
    for (unsigned i = 0; i < ledger->n_entries; i++)
        if (ledger->entries[i].connection == connection)
            ledger->entries[i].used = false;
}

void ledger_note_gpu_work(struct ledger *ledger, unsigned connection) {
    for (unsigned i = 0; i < ledger->n_entries; i++)
        if (ledger->entries[i].connection == connection)
            ledger->entries[i].no_gpu = false;
}

void ledger_end_process(struct ledger *ledger, unsigned process) {
    for (unsigned i = 0; i < ledger->n_entries; i++)
        if (ledger->entries[i].process == process && ledger->entries[i].no_gpu)
            ledger->entries[i].used = false;
}

void ledger_leave_process(struct ledger *ledger, unsigned process) {
    for (unsigned i = 0; i < ledger->n_entries; i++)
        if (ledger->entries[i].process == process)
            ledger->entries[i].used = false;
}
