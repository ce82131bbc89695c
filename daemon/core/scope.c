/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/scope.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/recorder.h"

struct scope *scope_find(const struct core *core, uint32_t id) {
    list_for_each_entry(struct scope, scope, &core->scopes, link) {
        if (scope->id == id)
            return scope;
    }
    return NULL;
}

struct scope *scope_find_name(const struct core *core, const char *name) {
    list_for_each_entry(struct scope, scope, &core->scopes, link) {
        if (strcmp(scope->terms.name, name) == 0)
            return scope;
    }
    return NULL;
}

/* The next one that no scope has, so that a number comes again as late as possible. */
uint32_t scope_next_id(const struct core *core) {
    uint32_t id = core->last_scope;

    do
        id = id % SCOPE_ID_MAX + 1;
    while (scope_find(core, id) != NULL);
    return id;
}

int scope_add(struct core *core, const struct scope_terms *terms, struct scope **ret_scope) {
    if (core->n_scopes >= SCOPES_MAX)
        return -ENOSPC;
    struct scope *scope = calloc(1, sizeof *scope);
    if (scope == NULL)
        return -ENOMEM;
    assert(scope_find_name(core, terms->name) == NULL);
    bool is_free =
        terms->id != SCOPE_ORDINARY && terms->id <= SCOPE_ID_MAX && scope_find(core, terms->id) == NULL;
    uint32_t next = scope_next_id(core);
    scope->core = core;
    scope->id = is_free ? terms->id : next;
    if (scope->id == next || scope->id > core->last_scope)
        core->last_scope = scope->id;
    scope->terms = *terms;
    list_append(&core->scopes, &scope->link);
    core->n_scopes++;
    record(core, &(struct recorded){.kind = PROTO_RECORD_SCOPE, .scope = scope});
    *ret_scope = scope;
    return 0;
}

bool scope_admits(const struct scope *scope, uid_t uid) {
    for (unsigned i = 0; i < scope->terms.n_uids; i++)
        if (scope->terms.uids[i] == uid)
            return true;
    return scope->terms.n_uids == 0;
}

static void free_if_gone(struct scope *scope) {
    if (!scope->is_dropped || scope->n_tenants > 0)
        return;
    scope->core->n_scopes--;
    record(scope->core, &(struct recorded){.kind = PROTO_RECORD_SCOPE_END, .scope = scope});
    list_remove(&scope->link);
    free(scope);
}

void scope_drop(struct scope *scope) {
    scope->is_dropped = true;
    scope->owner = NULL;
    free_if_gone(scope);
}

void scope_join(struct scope *scope) {
    if (scope != NULL)
        scope->n_tenants++;
}

void scope_leave(struct scope *scope) {
    if (scope == NULL)
        return;
    scope->n_tenants--;
    free_if_gone(scope);
}

const char *scope_tenant_text(const struct core *core, struct tenant_id id, char *text, size_t size) {
    const struct scope *scope = scope_find(core, id.scope);

    if (scope == NULL)
        snprintf(text, size, "user %u", (unsigned)id.uid);
    else
        snprintf(text, size, "user %u of scope '%s'", (unsigned)id.uid, scope->terms.name);
    return text;
}
