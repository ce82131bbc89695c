/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/name_wait.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/core/channel.h"
#include "daemon/core/kept.h"
#include "daemon/core/name.h"
#include "daemon/core/tenant.h"

/* The request waits: it counts as such, and has a deadline. */
static void await_deadline(struct name_wait *wait) {
    charge_force(&wait->charge, &wait->session->tenant->quota, QUOTA_WAITING, 1);
    tree_insert(&wait->session->core->name_deadlines, &wait->deadline_node, wait->deadline_ns, wait->number);
}

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
    list_append(&name->waits, &wait->link);
    await_deadline(wait);
}

/* Makes a request. Returns 0, PROTO_E_LIMIT or -ENOMEM. */
static int make(struct session *session, struct name *name, uint64_t id, const struct proto_open_name *open,
                uint32_t place, uint64_t now_ns) {
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

/* The answer to a request for a place while the name is as it is; WAITING: none yet. */
static enum name_wait_state answer_to_join(const struct name_wait *wait) {
    const struct channel *channel = wait->name->channel;

    if (channel == NULL)
        return wait->name->edition != NULL ? NAME_WAIT_REFUSED : NAME_WAIT_WAITING;
    if (!channel_has_place(channel, wait->place))
        return NAME_WAIT_REFUSED;
    return channel_free_place(channel, wait->place) >= 0 ? NAME_WAIT_JOINED : NAME_WAIT_WAITING;
}

/* The answer to any request likewise. */
static enum name_wait_state answer_to(const struct name_wait *wait) {
    const struct name *name = wait->name;
    uint64_t generation = name->edition != NULL ? name->edition->generation : 0;

    if ((wait->flags & NAME_WAIT_JOIN) != 0)
        return answer_to_join(wait);
    if (name->channel != NULL)
        return NAME_WAIT_REFUSED;
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
            wait->got = (uint32_t)channel_free_place(name->channel, wait->place);
            wait->generation = name->channel->id;
            channel_take(name->channel, wait->got, wait->session);
        }
        if (state == NAME_WAIT_REFUSED)
            wait->error = PROTO_E_INVALID;
        if (state != NAME_WAIT_WAITING)
            answer(wait, state);
    }
    name_drop_if_unused(name);
}

int name_ask(struct session *session, uint64_t request, const struct proto_open_name *open, uint32_t place,
             uint64_t now_ns) {
    struct name *name;

    int r = name_get(session->tenant, open->name, &name);
    if (r != 0)
        return r;
    r = make(session, name, request, open, place, now_ns);
    if (r != 0) {
        name_drop_if_unused(name);
        return r;
    }
    name_serve(name);
    name_waits_expire(session->core, now_ns); /* its timeout may be 0 */
    return 0;
}

void name_serve_channel(struct channel *channel) {
    struct name *name = channel->name;

    if (name != NULL)
        name_serve(name);
    name = channel_drop_if_unused(channel);
    if (name != NULL)
        name_serve(name);
}

/* Whether the session has the place that its request got. The name may stand for another channel by now. */
static bool has_joined(const struct name_wait *wait) {
    const struct channel *channel = wait->name->channel;

    return channel != NULL && channel->id == wait->generation &&
           channel->places[wait->got].session == wait->session;
}

/* The name does not stand for its channel any more. A session that was not told yet of its place leaves it. */
static void end_channel(struct name *name) {
    struct channel *channel = name->channel;

    list_for_each_entry(const struct name_wait, wait, &name->tenant->core->names_answered, link) {
        if (wait->name == name && wait->state == NAME_WAIT_JOINED && has_joined(wait))
            channel_leave(&channel->places[wait->got]);
    }
    channel_end(channel);
    (void)channel_drop_if_unused(channel);
}

void name_withdraw(struct name *name) {
    name_set_edition(name, NULL);
    if (name->channel != NULL)
        end_channel(name);
    name_serve(name);
}

struct name_wait *name_wait_find(const struct session *session, uint64_t id) {
    list_for_each_entry(struct name_wait, wait, &session->name_waits, session_link) {
        if (wait->id == id && wait->state == NAME_WAIT_WAITING)
            return wait;
    }
    return NULL;
}

/* Whether what the request was answered is still so. */
static bool holds(const struct name_wait *wait) {
    switch (wait->state) {
    case NAME_WAIT_REFUSED:
        return true;
    case NAME_WAIT_BUILDS:
        return wait->name->builder == wait->session;
    case NAME_WAIT_JOINED:
        return has_joined(wait);
    default:
        return answer_to(wait) == wait->state;
    }
}

/* The request, which was answered, waits in its place. */
static void wait_again(struct name_wait *wait) {
    struct list *behind = &wait->name->waits;

    list_remove(&wait->link);
    wait->state = NAME_WAIT_WAITING;
    kept_change(wait->session->core, wait->record);
    list_for_each_entry(struct name_wait, other, &wait->name->waits, link) {
        if (other->number > wait->number) {
            behind = &other->link;
            break;
        }
    }
    list_insert_before(behind, &wait->link);
    await_deadline(wait);
}

struct name_wait *name_waits_next_answer(struct core *core) {
    struct name_wait *wait;

    while ((wait = list_first(&core->names_answered, struct name_wait, link)) != NULL && !holds(wait)) {
        wait_again(wait);
        name_serve(wait->name);
    }
    return wait;
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

static bool wait_is_valid(const struct name_wait *wait, const struct session *session) {
    bool waits = wait->state == NAME_WAIT_WAITING;

    return wait->session == session && session->state == SESSION_ACTIVE &&
           wait->name->tenant == session->tenant && !list_is_empty(&wait->link) &&
           wait->charge.amount == waits && tree_has(&wait->deadline_node) == waits &&
           (wait->state == NAME_WAIT_REFUSED) == (wait->error != 0) &&
           (!waits || answer_to(wait) == NAME_WAIT_WAITING);
}

bool name_waits_are_valid(const struct core *core) {
    size_t n_all = 0, n_waiting = 0, n_answered = 0, n_of_names = 0;

    list_for_each_entry(const struct session, session, &core->sessions, link) {
        unsigned n_own = 0;
        list_for_each_entry(const struct name_wait, wait, &session->name_waits, session_link) {
            if (!wait_is_valid(wait, session))
                return false;
            n_waiting += wait->state == NAME_WAIT_WAITING;
            n_own++;
        }
        if (n_own != session->n_name_waits)
            return false;
        n_all += n_own;
    }
    list_for_each_entry(const struct name_wait, wait, &core->names_answered, link) {
        if (wait->state == NAME_WAIT_WAITING)
            return false;
        n_answered++;
    }
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        for (const struct name *name = name_after(tenant, 0); name != NULL;
             name = name_after(tenant, name->id))
            n_of_names += name->n_waits;
    }
    return tree_count(&core->name_deadlines) == n_waiting && n_waiting + n_answered == n_all &&
           n_of_names == n_all;
}
