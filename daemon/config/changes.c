/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/changes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/loop/log.h"

/* A section without a key, for the one that a configuration does not have. */
struct no_section {
    struct config_section section;
    struct config_rule rule;
};

/* The section of a configuration that is for the same as a view of another one. */
static struct config_view twin_of(const struct config *config, const struct config_view *view,
                                  struct no_section *none) {
    struct config_view twin;

    if (config_find_twin(config, view, &twin))
        return twin;
    twin = *view;
    if (view->section != NULL) {
        none->section = *view->section;
        none->section.pool = config_pool_unset;
        twin.values = &none->section.pool;
        twin.lines = none->section.pool.lines;
        twin.section = &none->section;
    } else {
        none->rule = (struct config_rule){.who = view->rule->who};
        twin.values = &none->rule.limits;
        twin.lines = none->rule.limits.lines;
        twin.rule = &none->rule;
    }
    return twin;
}

static bool is_same(const char *a, const char *b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Takes the texts. */
static void note(struct config_changes *changes, const struct config_view *view, const struct config_key *key,
                 char **before, char **after, int line) {
    changes->n_restarts += key->needs_restart;
    if (changes->count++ >= CONFIG_CHANGES_MAX)
        return;
    struct config_change *change = &changes->first[changes->count - 1];
    config_section_name(view, change->section);
    change->key = key;
    change->before = take_ptr(before);
    change->after = take_ptr(after);
    change->line = line;
}

/* Gives a section of the fresh configuration the value in force. The section is made where it is not there.
 */
static int keep(struct config *fresh, const struct config_view *view, const struct config_view *in_force,
                const struct config_key *key) {
    struct config_mistakes mistakes = {0};
    const struct config_place place = {.mistakes = &mistakes};
    char name[CONFIG_SECTION_NAME_SIZE];
    struct config_view own;

    if (config_find_section(fresh, config_section_name(view, name), &place, &own) < 0)
        return -ENOMEM;
    config_value_copy(key, own.values, in_force->values);
    long index = key - own.table->keys;
    own.lines[index] = in_force->lines[index] == CONFIG_UNSET ? CONFIG_UNSET : CONFIG_KEPT;
    return 0;
}

/* Compares one key of a section. */
static int compare_key(struct config *fresh, const struct config_view *after, const struct config *in_force,
                       const struct config_view *before, const struct config_key *key,
                       struct config_changes *changes) {
    _cleanup_(freep) char *old_text = NULL, *new_text = NULL;
    const struct config_view holder = config_holder(fresh, after, key);
    bool is_common = after->section == NULL && after->rule == NULL;

    /* The section says nothing about it in either. */
    if (!is_common && config_line(before, key) == CONFIG_UNSET && config_line(after, key) == CONFIG_UNSET)
        return 0;
    int r = config_text(in_force, before, key, &old_text);
    if (r == 0)
        r = config_text(fresh, after, key, &new_text);
    if (r < 0 || is_same(old_text, new_text))
        return r;
    note(changes, after, key, &old_text, &new_text, config_line(&holder, key));
    return key->needs_restart ? keep(fresh, after, before, key) : 0;
}

int config_compare(struct config *fresh, const struct config *in_force, struct config_changes *changes) {
    struct config_view view = {0};
    struct no_section none;

    while (config_next_section(fresh, &view)) {
        const struct config_view before = twin_of(in_force, &view, &none);
        for (unsigned i = 0; i < view.table->count; i++) {
            int r = compare_key(fresh, &view, in_force, &before, &view.table->keys[i], changes);
            if (r < 0)
                return r;
        }
    }
    /* Sections that are gone. */
    view = (struct config_view){0};
    while (config_next_section(in_force, &view)) {
        struct config_view after = twin_of(fresh, &view, &none);
        for (unsigned i = 0;
             i < view.table->count && (after.section == &none.section || after.rule == &none.rule); i++) {
            int r = compare_key(fresh, &after, in_force, &view, &view.table->keys[i], changes);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

void config_changes_deinit(struct config_changes *changes) {
    for (unsigned i = 0; i < config_changes_told(changes); i++) {
        free(changes->first[i].before);
        free(changes->first[i].after);
    }
    *changes = (struct config_changes){0};
}

unsigned config_changes_told(const struct config_changes *changes) {
    return changes->count < CONFIG_CHANGES_MAX ? changes->count : CONFIG_CHANGES_MAX;
}

void config_changes_log(const struct config_changes *changes, const char *path) {
    unsigned told = config_changes_told(changes);

    for (unsigned i = 0; i < told; i++) {
        const struct config_change *change = &changes->first[i];
        const char *before = change->before != NULL ? change->before : "default";
        const char *after = change->after != NULL ? change->after : "default";
        char place[320] = "";
        if (path != NULL && change->line > 0)
            snprintf(place, sizeof place, " (%.255s:%d)", path, change->line);
        if (change->key->needs_restart)
            log_warning("[%s] %s: %.255s -> %.255s%s needs a restart; until then %.255s stays in force",
                        change->section, change->key->name, before, after, place, before);
        else
            log_info("[%s] %s: %.255s -> %.255s%s", change->section, change->key->name, before, after, place);
    }
    if (changes->count > told)
        log_info("%u more changes of the configuration are not shown", changes->count - told);
}
