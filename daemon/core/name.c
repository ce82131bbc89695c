/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/name.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "daemon/core/edition.h"
#include "daemon/core/kept.h"
#include "daemon/core/recorder.h"
#include "daemon/core/tenant.h"

/* A tenant whose texts have one hash slows its own calls. */
static uint64_t hash_of(const char *text) {
    return fnv_hash(FNV_FIRST, text, strlen(text));
}

struct name *name_find(const struct tenant *tenant, const char *text) {
    uint64_t hash = hash_of(text);

    for (struct tree_node *node = tree_find(&tenant->names, hash); node != NULL && node->key == hash;
         node = tree_next(node)) {
        struct name *name = container_of(node, struct name, text_node);
        if (strcmp(name->text, text) == 0)
            return name;
    }
    return NULL;
}

/* The name, which has its id and no record yet, is one of the tenant's. */
static void enter(struct tenant *tenant, struct name *name) {
    name->tenant = tenant;
    list_init(&name->waits);
    list_init(&name->builder_link);
    tree_insert(&tenant->names, &name->text_node, hash_of(name->text), name->id);
    tree_insert(&tenant->names_by_id, &name->id_node, name->id, 0);
    tenant->n_names++;
}

static struct name *new_name(const char *text) {
    struct name *name = calloc(1, sizeof *name);

    if (name != NULL)
        memcpy(name->text, text, strnlen(text, sizeof name->text - 1));
    return name;
}

int name_get(struct tenant *tenant, const char *text, struct name **ret_name) {
    struct core *core = tenant->core;
    struct name *name = name_find(tenant, text);

    if (name != NULL) {
        *ret_name = name;
        return 0;
    }
    if (tenant->n_names >= NAMES_MAX) {
        tenant_note_refusal(tenant);
        return PROTO_E_LIMIT;
    }
    name = new_name(text);
    if (name == NULL || kept_add(core, KEPT_NAME, name, &name->record) < 0) {
        free(name);
        return -ENOMEM;
    }
    name->id = ++core->leases.next_generation;
    kept_number(core);
    enter(tenant, name);
    *ret_name = name;
    return 0;
}

int name_restore(struct tenant *tenant, const char *text, uint64_t id, struct name **ret_name) {
    if (name_find(tenant, text) != NULL || tree_find(&tenant->names_by_id, id) != NULL)
        return -EBADMSG;
    struct name *name = new_name(text);
    if (name == NULL)
        return -ENOMEM;
    name->id = id;
    enter(tenant, name);
    *ret_name = name;
    return 0;
}

void name_drop_if_unused(struct name *name) {
    struct tenant *tenant = name->tenant;

    if (name->edition != NULL || name->channel != NULL || name->builder != NULL || name->n_waits > 0)
        return;
    tree_remove(&tenant->names, &name->text_node);
    tree_remove(&tenant->names_by_id, &name->id_node);
    tenant->n_names--;
    kept_end(tenant->core, &name->record);
    free(name);
}

void name_set_edition(struct name *name, struct edition *edition) {
    struct edition *before = name->edition;

    name->edition = edition;
    if (edition != NULL) {
        edition->name = name;
        kept_change(name->tenant->core, edition->record);
    }
    if (before == NULL)
        return;
    record(name->tenant->core, &(struct recorded){.kind = PROTO_RECORD_UNPUBLISH,
                                                  .scope = name->tenant->scope,
                                                  .edition = before,
                                                  .bytes = before->bytes,
                                                  .value = before->generation});
    before->name = NULL;
    edition_free(before);
}

void name_set_builder(struct name *name, struct session *session) {
    list_remove(&name->builder_link);
    name->builder = session;
    if (session != NULL)
        list_append(&session->builds, &name->builder_link);
    kept_change(name->tenant->core, name->record);
}

struct name *name_after(const struct tenant *tenant, uint64_t id) {
    struct tree_node *node = tree_at_least(&tenant->names_by_id, id + 1);

    return node == NULL ? NULL : container_of(node, struct name, id_node);
}

static bool waits_are_valid(const struct name *name, uint64_t *sums) {
    unsigned n_waiting = 0;
    uint64_t number = 0;

    list_for_each_entry(const struct name_wait, wait, &name->waits, link) {
        if (wait->name != name || wait->state != NAME_WAIT_WAITING || wait->number <= number ||
            wait->session->tenant != name->tenant || wait->session->state != SESSION_ACTIVE ||
            !tree_has(&wait->deadline_node) || !charge_add_up(&wait->charge, &name->tenant->quota, sums))
            return false;
        number = wait->number;
        n_waiting++;
    }
    return n_waiting <= name->n_waits;
}

bool names_are_valid(const struct tenant *tenant, uint64_t *sums) {
    size_t n_names = tree_count(&tenant->names);

    if (n_names != tenant->n_names || tree_count(&tenant->names_by_id) != n_names || n_names > NAMES_MAX)
        return false;
    for (const struct name *name = name_after(tenant, 0); name != NULL; name = name_after(tenant, name->id)) {
        const struct edition *edition = name->edition;
        if (name->tenant != tenant || name_find(tenant, name->text) != name ||
            (edition == NULL && name->channel == NULL && name->builder == NULL && name->n_waits == 0) ||
            (name->channel != NULL && (edition != NULL || name->channel->name != name)) ||
            (name->builder != NULL &&
             (name->builder->state != SESSION_ACTIVE || name->builder->tenant != tenant)) ||
            list_is_empty(&name->builder_link) != (name->builder == NULL) || !waits_are_valid(name, sums))
            return false;
        if (name->channel != NULL && !charge_add_up(&name->channel->kept, &tenant->quota, sums))
            return false;
        if (edition == NULL)
            continue;
        if (edition->name != name || !edition_is_valid(edition) ||
            edition->parcels[0]->block->segment->owner->tenant != tenant ||
            !charge_add_up(&edition->kept, &tenant->quota, sums) ||
            !charge_add_up(&edition->directory_charge, &tenant->quota, sums))
            return false;
    }
    return true;
}
