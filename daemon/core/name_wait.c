/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/name_wait.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/core/channel.h"
#include "daemon/core/kept.h"
#include "daemon/core/name.h"
#include "daemon/core/tenant.h"

/* The request, which has what it asks for, is one of its session's and its name's. */
static void enter(struct name_wait *wait) {
    struct name *name = wait->name;
    struct session *session = wait->session;

    name->n_waits++;
    session->n_name_waits++;
    list_append(&session->name_waits, &wait->session_link);
    if (wait->state != NAME_WAIT_WAITING) {
        list_append(&session->core->names_answered, &wait->link);
        return;
    }
    charge_force(&wait->charge, &name->tenant->quota, QUOTA_WAITING, 1);
    list_append(&name->waits, &wait->link);
    tree_insert(&session->core->name_deadlines, &wait->deadline_node, wait->deadline_ns, wait->number);
}

int name_wait_new(struct session *session, struct name *name, uint64_t id,
                  const struct proto_open_name *open, uint32_t place, uint64_t now_ns,
                  struct name_wait **ret_wait) {
    struct core *core = session->core;

    if (session->n_name_waits >= SESSION_WAITING_MAX ||
        quota_left(&session->tenant->quota, QUOTA_WAITING) == 0) {
        tenant_note_refusal(session->tenant);
        return PROTO_E_LIMIT;
    }
    struct name_wait *wait = calloc(1, sizeof *wait);
    if (wait == NULL || kept_add(core, KEPT_NAME_WAIT, wait, &wait->record) < 0) {
        free(wait);
        return -ENOMEM;
    }
    wait->session = session;
    wait->name = name;
    wait->id = id;
    wait->number = ++core->next_request_number;
    kept_number(core);
    wait->deadline_ns = clock_deadline_ns(now_ns, open->timeout_ns);
    wait->generation = open->generation;
    wait->flags = open->flags;
    wait->place = place;
    enter(wait);
    *ret_wait = wait;
    return 0;
}

int name_wait_restore(const struct name_wait *wanted, struct name_wait **ret_wait) {
    struct name_wait *wait = malloc(sizeof *wait);

    if (wait == NULL)
        return -ENOMEM;
    *wait = *wanted;
    enter(wait);
    *ret_wait = wait;
    return 0;
}

/* It waits no more. */
static void leave_queue(struct name_wait *wait) {
    list_remove(&wait->link);
    tree_remove(&wait->session->core->name_deadlines, &wait->deadline_node);
    charge_free(&wait->charge);
}

static void answer(struct name_wait *wait, enum name_wait_state state) {
    leave_queue(wait);
    wait->state = state;
    kept_change(wait->session->core, wait->record);
    list_append(&wait->session->core->names_answered, &wait->link);
}

void name_wait_free(struct name_wait *wait) {
    leave_queue(wait);
    list_remove(&wait->session_link);
    wait->name->n_waits--;
    wait->session->n_name_waits--;
    kept_end(wait->session->core, &wait->record);
    free(wait);
}

void name_wait_refuse(struct name_wait *wait, enum proto_error error) {
    wait->error = error;
    answer(wait, NAME_WAIT_REFUSED);
}

/* What the request is answered as the name is; WAITING: nothing yet. */
static enum name_wait_state answer_to(const struct name_wait *wait) {
    const struct name *name = wait->name;
    uint64_t generation = name->edition != NULL ? name->edition->generation : 0;

    if (name->channel != NULL ? (wait->flags & NAME_WAIT_JOIN) == 0
                              : (wait->flags & NAME_WAIT_JOIN) != 0 && generation != 0)
        return NAME_WAIT_REFUSED;
    if ((wait->flags & NAME_WAIT_JOIN) != 0)
        return name->channel != NULL && channel_free_place(name->channel, wait->place) >= 0 ? NAME_WAIT_JOINED
                                                                                           : NAME_WAIT_WAITING;
    if ((wait->flags & PROTO_OPEN_NAME_CHANGE) != 0)
        return generation == wait->generation ? NAME_WAIT_WAITING
               : generation == 0              ? NAME_WAIT_GONE
                                              : NAME_WAIT_THERE;
    if (generation != 0 && generation >= wait->generation)
        return NAME_WAIT_THERE;
    return (wait->flags & PROTO_OPEN_NAME_BUILD) != 0 && generation == 0 && name->builder == NULL
               ? NAME_WAIT_BUILDS
               : NAME_WAIT_WAITING;
}

void name_serve(struct name *name) {
    list_for_each_entry_safe(struct name_wait, wait, &name->waits, link) {
        enum name_wait_state state = answer_to(wait);
        if (state == NAME_WAIT_BUILDS)
            name_set_builder(name, wait->session);
        if (state == NAME_WAIT_JOINED) {
            wait->place = (uint32_t)channel_free_place(name->channel, wait->place);
            channel_take(name->channel, wait->place, wait->session);
        }
        if (state == NAME_WAIT_REFUSED)
            wait->error = PROTO_E_INVALID;
        if (state != NAME_WAIT_WAITING)
            answer(wait, state);
    }
    name_drop_if_unused(name);
}

void name_waits_expire(struct core *core, uint64_t now_ns) {
    struct tree_node *node;

    while ((node = tree_first(&core->name_deadlines)) != NULL && node->key <= now_ns)
        name_wait_refuse(container_of(node, struct name_wait, deadline_node), PROTO_E_NO_NAME);
}

uint64_t name_waits_next_ns(const struct core *core) {
    const struct tree_node *node = tree_first(&core->name_deadlines);
    return node == NULL ? NS_FOREVER : node->key;
}
