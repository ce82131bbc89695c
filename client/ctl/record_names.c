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
           record->kind == PROTO_RECORD_SCOPE || record->kind == PROTO_RECORD_NAMED;
}

struct record_name {
    uint64_t key; /* which session or scope */
    char name[PROTO_RECORD_NAME_SIZE];
};

/* Scopes lie behind all sessions. */
static uint64_t key_of_scope(uint32_t scope) {
    return UINT64_C(1) << 63 | scope;
}

/* A name that comes later replaces an earlier one. A session that began before the ring's oldest record may
 * lie between others. */
static void names_add(struct record_names *names, const struct proto_record *record) {
    uint64_t key = record->kind == PROTO_RECORD_SCOPE ? key_of_scope(record->scope) : record->session;
    struct record_name *name = sorted_find(&names->sorted, key, sizeof *name);

    if (name == NULL)
        name = sorted_add(&names->sorted, key, sizeof *name);
    if (name != NULL) /* else it is shown without its name */
        snprintf(name->name, sizeof name->name, "%.*s", (int)sizeof record->name, record->name);
}

static const char *names_find(const struct record_names *names, uint64_t key) {
    const struct record_name *name = sorted_find(&names->sorted, key, sizeof *name);
    return name != NULL ? name->name : NULL;
}

void record_names_learn(struct record_names *names, const struct proto_record *record) {
    if (record->kind == PROTO_RECORD_START)
        names->sorted.count = 0;
    else if (record_has_name(record) && record->kind != PROTO_RECORD_NAMED)
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
    free(names->sorted.elements);
    *names = (struct record_names){0};
}
