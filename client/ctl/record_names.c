/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/record_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "client/ctl/records.h"
#include "proto/text.h"

bool record_has_name(const struct proto_record *record) {
    return record->kind == PROTO_RECORD_OPEN || record->kind == PROTO_RECORD_NAME ||
           record->kind == PROTO_RECORD_SCOPE;
}

/* Scopes lie behind all sessions. */
static uint64_t key_of_scope(uint32_t scope) {
    return UINT64_C(1) << 63 | scope;
}

/* The place of a key in their order. */
static size_t names_place(const struct record_names *names, uint64_t key) {
    size_t low = 0, high = names->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (names->entries[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool names_has(const struct record_names *names, size_t place, uint64_t key) {
    return place < names->count && names->entries[place].key == key;
}

/* A name that comes later replaces an earlier one. A session that began before the ring's oldest record may
 * lie between others. */
static void names_add(struct record_names *names, const struct proto_record *record) {
    uint64_t key = record->kind == PROTO_RECORD_SCOPE ? key_of_scope(record->scope) : record->session;
    size_t place = names_place(names, key);
    bool is_new = !names_has(names, place, key);

    if (is_new && names->count == names->room) {
        size_t room = names->room == 0 ? 64 : 2 * names->room;
        struct record_name *entries = realloc(names->entries, room * sizeof *entries);
        if (entries == NULL) /* it is shown without its name */
            return;
        names->entries = entries;
        names->room = room;
    }
    struct record_name *name = &names->entries[place];
    if (is_new)
        memmove(name + 1, name, (names->count++ - place) * sizeof *name);
    name->key = key;
    snprintf(name->name, sizeof name->name, "%.*s", (int)sizeof record->name, record->name);
}

static const char *names_find(const struct record_names *names, uint64_t key) {
    size_t place = names_place(names, key);
    return names_has(names, place, key) ? names->entries[place].name : NULL;
}

void record_names_learn(struct record_names *names, const struct proto_record *record) {
    if (record->kind == PROTO_RECORD_START)
        names->count = 0;
    else if (record_has_name(record))
        names_add(names, record);
}

const char *record_names_session(const struct record_names *names, uint64_t session) {
    return session == 0 ? NULL : names_find(names, session);
}

const char *record_names_scope(const struct record_names *names, unsigned scope,
                               char text[RECORD_SCOPE_SIZE]) {
    const char *name = names_find(names, key_of_scope(scope));

    if (name == NULL)
        snprintf(text, RECORD_SCOPE_SIZE, "%u", scope);
    return name != NULL ? name : text;
}

void record_names_learn_all(struct record_names *names, const struct records *records) {
    uint64_t next = atomic_load(&records->file->next);
    struct proto_record record;

    for (uint64_t number = records_first(records); number < next; number++)
        if (proto_records_read(records->file, number, &record))
            record_names_learn(names, &record);
}

void record_names_print_json(const char *name) {
    char valid[PROTO_RECORD_NAME_SIZE];

    snprintf(valid, sizeof valid, "%s", name);
    valid[text_whole_characters(valid, strlen(valid))] = '\0';
    utf8_make_valid(valid);
    utf8_make_plain(valid, strlen(valid));
    putchar('"');
    for (const char *byte = valid; *byte != '\0'; byte++) {
        if (*byte == '"' || *byte == '\\')
            putchar('\\');
        putchar(*byte);
    }
    putchar('"');
}

void record_names_deinit(struct record_names *names) {
    free(names->entries);
    *names = (struct record_names){0};
}
