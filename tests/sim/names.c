/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, as the model has them: the editions, the sessions that build, and the requests that wait. It knows the rules of
 * daemon/core/name.h, edition.h and name_wait.h, and follows none of their pointers. Names are in one world of four,
 * and draw from numbers of their own, so that all other worlds are what they were without names.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/world.h"

#define NAMES_SALT  UINT64_C(0x6e616d6573) /* draws of names have nothing to do with the world's own */
#define WORLDS_WITH 4u                     /* one in so many has names */

/* The sessions' slots on the board, which the core reads. The model's words are their contents. */
static struct proto_board_slot slots[SIM_SESSIONS];

const char *names_text(unsigned text) {
    static const char *const texts[SIM_NAMES] = {"a", "8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"};
    return texts[text]; /* the last two have one hash */
}

static void show_words(const struct world *world) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        for (unsigned word = 0; word < SIM_BOARD_WORDS; word++)
            atomic_store_explicit(&slots[s].words[word], world->names.boards[s].words[word],
                                  memory_order_relaxed);
}

void names_begin(struct world *world) {
    uint64_t state = random_seed(world->seed ^ NAMES_SALT);

    world->names =
        (struct model_names){.are_there = random_next(&state) % WORLDS_WITH == 0, .random_state = state};
    memset(slots, 0, sizeof slots);
}

uint64_t names_draw(struct world *world, uint64_t bound) {
    return random_next(&world->names.random_state) % bound;
}

/* --- boards --- */

void names_give_board(struct world *world, unsigned s) {
    struct model_board *board = &world->names.boards[s];

    if (board->is_there)
        return;
    board->is_there = true;
    for (unsigned word = 0; word < SIM_BOARD_WORDS; word++)
        board->words[word] = board->last[word] = proto_board_first(1 + world->names.n_epochs % 60000);
    world->names.n_epochs++;
    show_words(world);
    core_session_set_board(world->sessions[s].session, s, &slots[s]);
}

void names_move_streams(struct world *world) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        struct model_board *board = &world->names.boards[s];
        if (!board->is_there || one_in(world, 2) ||
            kernel_work_is_over(&world->kernel, world->sessions[s].process, world->now_ns))
            continue;
        for (unsigned word = 0; word < SIM_BOARD_WORDS; word++)
            board->words[word] += random_below(world, board->last[word] - board->words[word] + 1);
    }
    show_words(world);
}

/* --- editions --- */

static struct model_name *name_of(struct world *world, unsigned tenant, unsigned text) {
    return &world->names.names[tenant][text];
}

static bool is_there(const struct model_edition *edition) {
    return edition->generation != 0;
}

uint64_t names_bytes(const struct world *world, const struct model_edition *edition) {
    uint64_t bytes = 0;

    for (unsigned i = 0; i < edition->n_parts; i++)
        bytes += world->blocks[edition->parts[i].block].held;
    return bytes;
}

uint64_t names_kept(const struct world *world, unsigned tenant) {
    uint64_t bytes = 0;

    for (unsigned text = 0; text < SIM_NAMES; text++) {
        const struct model_edition *edition = &world->names.names[tenant][text].edition;
        bytes +=
            is_there(edition) && (edition->flags & PROTO_PUBLISH_KEEP) != 0 ? names_bytes(world, edition) : 0;
    }
    return bytes + channels_kept(world, tenant);
}

uint64_t names_directory_bytes(const struct world *world, unsigned tenant) {
    uint64_t bytes = 0;

    for (unsigned text = 0; text < SIM_NAMES; text++)
        bytes += world->names.names[tenant][text].edition.directory_bytes;
    return bytes;
}

unsigned names_parts(const struct world *world, unsigned tenant) {
    unsigned n = 0;

    for (unsigned text = 0; text < SIM_NAMES; text++)
        n += world->names.names[tenant][text].edition.n_parts;
    return n + channels_of_tenant(world, tenant);
}

unsigned names_block_of(const struct world *world, uint64_t token) {
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        for (unsigned text = 0; text < SIM_NAMES; text++) {
            const struct model_edition *edition = &world->names.names[tenant][text].edition;
            for (unsigned i = 0; i < edition->n_parts; i++)
                if (edition->parts[i].token == token)
                    return edition->parts[i].block;
        }
    return channels_block_of(world, token);
}

void names_publish(struct world *world, unsigned tenant, unsigned text, const struct model_edition *edition) {
    struct model_name *name = name_of(world, tenant, text);
    const struct model_edition before = name->edition;

    name->edition = *edition;
    for (unsigned i = 0; i < edition->n_parts; i++)
        world->blocks[edition->parts[i].block].parcels++;
    for (unsigned i = 0; i < before.n_parts; i++) {
        world->blocks[before.parts[i].block].parcels--;
        model_end_block(world, before.parts[i].block);
    }
    names_serve(world, tenant, text);
}

void names_withdraw(struct world *world, unsigned tenant, unsigned text) {
    const struct model_edition none = {0};

    channels_end(world, tenant, text);
    names_publish(world, tenant, text, &none);
}

void names_end_all(struct world *world, unsigned tenant) {
    for (unsigned text = 0; text < SIM_NAMES; text++)
        names_withdraw(world, tenant, text);
}

/* --- requests --- */

/* The answer to a request for a place. */
static enum name_wait_state answer_to_join(const struct world *world, const struct model_name_wait *wait) {
    unsigned tenant = world->sessions[wait->session].tenant;
    unsigned c = channels_find(world, tenant, wait->text);

    if (c == SIM_CHANNELS)
        return is_there(&world->names.names[tenant][wait->text].edition) ? NAME_WAIT_REFUSED
                                                                         : NAME_WAIT_WAITING;
    if (wait->place != PROTO_CHANNEL_ANY_CONSUMER &&
        wait->place > world->channels.all[c].capacities.n_consumers)
        return NAME_WAIT_REFUSED;
    return channels_free_place(world, c, wait->place) >= 0 ? NAME_WAIT_JOINED : NAME_WAIT_WAITING;
}

static enum name_wait_state answer_to(const struct world *world, const struct model_name_wait *wait) {
    const struct model_name *name = &world->names.names[world->sessions[wait->session].tenant][wait->text];
    uint64_t generation = name->edition.generation;
    bool is_change = (wait->flags & PROTO_OPEN_NAME_CHANGE) != 0;

    if ((wait->flags & NAME_WAIT_JOIN) != 0)
        return answer_to_join(world, wait);
    if (channels_find(world, world->sessions[wait->session].tenant, wait->text) < SIM_CHANNELS)
        return NAME_WAIT_REFUSED;
    if (is_change && generation != wait->generation)
        return generation != 0 ? NAME_WAIT_THERE : NAME_WAIT_GONE;
    if (!is_change && generation != 0 && generation >= wait->generation)
        return NAME_WAIT_THERE;
    if ((wait->flags & PROTO_OPEN_NAME_BUILD) != 0 && generation == 0 && name->builder == 0)
        return NAME_WAIT_BUILDS;
    return NAME_WAIT_WAITING;
}

static void answer(struct world *world, struct model_name_wait *wait, enum name_wait_state state,
                   enum proto_error error) {
    wait->state = state;
    wait->error = error;
    wait->order = ++world->names.next_order;
    if (state == NAME_WAIT_BUILDS)
        name_of(world, world->sessions[wait->session].tenant, wait->text)->builder = wait->session + 1;
    if (state == NAME_WAIT_JOINED) {
        unsigned c = channels_find(world, world->sessions[wait->session].tenant, wait->text);
        wait->got = (uint32_t)channels_free_place(world, c, wait->place);
        wait->channel = world->channels.all[c].id;
        channels_take(world, c, wait->got, wait->session);
    }
}

/* The one with the least number among the used ones behind a number; NULL: there is none. */
static struct model_name_wait *next_wait(struct world *world, uint64_t number) {
    struct model_name_wait *next = NULL;

    for (unsigned w = 0; w < SIM_NAME_WAITS; w++) {
        struct model_name_wait *wait = &world->names.waits[w];
        if (wait->used && wait->number > number && (next == NULL || wait->number < next->number))
            next = wait;
    }
    return next;
}

void names_serve(struct world *world, unsigned tenant, unsigned text) {
    struct model_name_wait *wait = next_wait(world, 0);

    for (; wait != NULL; wait = next_wait(world, wait->number)) {
        if (wait->state != NAME_WAIT_WAITING || wait->text != text ||
            world->sessions[wait->session].tenant != tenant)
            continue;
        enum name_wait_state state = answer_to(world, wait);
        if (state != NAME_WAIT_WAITING)
            answer(world, wait, state, state == NAME_WAIT_REFUSED ? PROTO_E_INVALID : (enum proto_error)0);
    }
}

unsigned names_waiting(const struct world *world, unsigned tenant) {
    unsigned n = 0;

    for (unsigned w = 0; w < SIM_NAME_WAITS; w++) {
        const struct model_name_wait *wait = &world->names.waits[w];
        n +=
            wait->used && wait->state == NAME_WAIT_WAITING && world->sessions[wait->session].tenant == tenant;
    }
    return n;
}

void names_pass(struct world *world) {
    for (;;) {
        struct model_name_wait *due = NULL;
        for (struct model_name_wait *wait = next_wait(world, 0); wait != NULL;
             wait = next_wait(world, wait->number))
            if (wait->state == NAME_WAIT_WAITING && wait->deadline_ns <= world->now_ns &&
                (due == NULL || wait->deadline_ns < due->deadline_ns))
                due = wait;
        if (due == NULL)
            return;
        answer(world, due, NAME_WAIT_REFUSED, PROTO_E_NO_NAME);
        world->tally->names_late++;
    }
}

void names_cancel(struct world *world, uint64_t id) {
    for (unsigned w = 0; w < SIM_NAME_WAITS; w++) {
        struct model_name_wait *wait = &world->names.waits[w];
        if (wait->used && wait->id == id && wait->state == NAME_WAIT_WAITING)
            answer(world, wait, NAME_WAIT_REFUSED, PROTO_E_CANCELLED);
    }
}

/* --- ends of sessions --- */

void names_leave(struct world *world, unsigned s) {
    unsigned tenant = world->sessions[s].tenant;

    for (unsigned w = 0; w < SIM_NAME_WAITS; w++)
        if (world->names.waits[w].used && world->names.waits[w].session == s)
            world->names.waits[w].used = false;
    for (unsigned text = 0; text < SIM_NAMES; text++)
        if (name_of(world, tenant, text)->builder == s + 1)
            names_give_up(world, tenant, text);
    for (unsigned text = 0; text < SIM_NAMES; text++) {
        const struct model_edition *edition = &name_of(world, tenant, text)->edition;
        if (is_there(edition) && edition->publisher == s + 1 && (edition->flags & PROTO_PUBLISH_KEEP) == 0)
            names_withdraw(world, tenant, text);
    }
    world->names.drafts[s] = (struct model_draft){0};
}

void names_give_up(struct world *world, unsigned tenant, unsigned text) {
    name_of(world, tenant, text)->builder = 0;
    names_serve(world, tenant, text);
}

/* Whether the streams came to where they write the word. Slots here have one session after another, each with an epoch
 * of its own, and none is told how far the one before came. */
static bool has_come(const struct model_board *board, const struct model_named_part *part) {
    return board->words[part->word] >= part->value;
}

void names_settle(struct world *world, unsigned s, bool is_done) {
    unsigned tenant = world->sessions[s].tenant;

    for (unsigned text = 0; text < SIM_NAMES; text++) {
        struct model_edition *edition = &name_of(world, tenant, text)->edition;
        bool is_whole = true;
        if (!is_there(edition) || edition->publisher != s + 1)
            continue;
        for (unsigned i = 0; i < edition->n_parts; i++) {
            struct model_named_part *part = &edition->parts[i];
            is_whole = is_whole && (is_done || !part->has_fence || has_come(&world->names.boards[s], part));
            part->has_fence = false;
            part->word = 0;
            part->value = 0;
        }
        edition->publisher = 0;
        if (!is_whole) {
            names_withdraw(world, tenant, text);
            world->tally->names_spoiled++;
        } else {
            world->tally->names_outlived++;
        }
    }
    world->names.boards[s] = (struct model_board){0}; /* the core still reads the slot's words, once */
}

/* --- answers --- */

static void check_described(const struct world *world, const struct model_edition *edition,
                            const struct proto_named *named) {
    must(named->state == PROTO_NAME_THERE && named->generation == edition->generation &&
             named->flags == edition->flags && named->layout == edition->layout &&
             named->session == edition->session && named->count == edition->n_parts &&
             named->directory_bytes == edition->directory_bytes,
         "a name is described as another");
    for (unsigned i = 0; i < edition->n_parts; i++) {
        const struct model_named_part *part = &edition->parts[i];
        const struct proto_named_buffer *buffer = &named->buffers[i];
        const struct proto_token token = token_make(part->token);
        const struct model_block *block = &world->blocks[part->block];
        must(memcmp(&buffer->token, &token, sizeof token) == 0 && buffer->size_bytes == block->size &&
                 buffer->pool == world->segments[block->segment].pool + 1,
             "a buffer of a name is described as another");
        must(buffer->has_fence == part->has_fence && buffer->fence.word == part->word &&
                 buffer->fence.value == part->value &&
                 buffer->fence.slot == (part->has_fence ? edition->publisher - 1 : 0),
             "a buffer of a name is said to be behind another fence");
    }
}

/* The request for a name that was answered first. A request whose answer is not true any more waits again. NULL: there is
 * none. */
static struct model_name_wait *next_answer(struct world *world, unsigned tenant, unsigned text) {
    for (;;) {
        struct model_name_wait *first = NULL;
        for (unsigned w = 0; w < SIM_NAME_WAITS; w++) {
            struct model_name_wait *wait = &world->names.waits[w];
            if (wait->used && wait->state != NAME_WAIT_WAITING && wait->text == text &&
                world->sessions[wait->session].tenant == tenant &&
                (first == NULL || wait->order < first->order))
                first = wait;
        }
        if (first == NULL || first->state == NAME_WAIT_REFUSED)
            return first;
        bool holds = first->state == NAME_WAIT_BUILDS
                         ? name_of(world, tenant, text)->builder == first->session + 1
                     : first->state == NAME_WAIT_JOINED ? channels_has_joined(world, first)
                                                        : answer_to(world, first) == first->state;
        if (holds)
            return first;
        first->state = NAME_WAIT_WAITING;
        world->tally->names_again++;
        names_serve(world, tenant, text);
    }
}

/* The model's request that the core answers. It is the next one of its name. */
static struct model_name_wait *find_answered(struct world *world, const struct name_answer *answer) {
    unsigned w = 0;

    while (w < SIM_NAME_WAITS && !(world->names.waits[w].used && world->names.waits[w].id == answer->request))
        w++;
    must(w < SIM_NAME_WAITS, "a request for a name is answered that is not there");
    struct model_name_wait *wait = &world->names.waits[w];
    must(world->sessions[wait->session].session == answer->session, "another session gets the answer");
    must(next_answer(world, world->sessions[wait->session].tenant, wait->text) == wait,
         "a request for a name is answered that another one comes before, or that has to wait");
    return wait;
}

void names_drain(struct world *world) {
    struct name_answer answer;

    while (core_next_name_answer(world->core, &answer)) {
        struct model_name_wait *wait = find_answered(world, &answer);
        must(answer.error == wait->error && answer.is_of_channel == (wait->state == NAME_WAIT_JOINED),
             "a request for a name gets another answer than is right");
        const struct model_edition *edition =
            &name_of(world, world->sessions[wait->session].tenant, wait->text)->edition;
        if (wait->state == NAME_WAIT_THERE) {
            check_described(world, edition, &answer.named);
            for (unsigned i = 0; i < edition->n_parts; i++)
                world->names.tokens[names_draw(world, SIM_TOKENS)] = edition->parts[i].token;
            world->tally->names_opened++;
        } else if (wait->state == NAME_WAIT_REFUSED) {
            must(answer.failure.error == wait->error && answer.failure.text_length > 0,
                 "a refusal of a name says nothing");
        } else if (wait->state == NAME_WAIT_JOINED) {
            channels_check_answer(world, wait, &answer);
        } else {
            must(answer.named.state == (wait->state == NAME_WAIT_BUILDS ? PROTO_NAME_BUILD : PROTO_NAME_GONE),
                 "a request for a name gets another answer than is right");
            world->tally->names_built += wait->state == NAME_WAIT_BUILDS;
            world->tally->names_gone += wait->state == NAME_WAIT_GONE;
        }
        wait->used = false;
    }
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        for (unsigned text = 0; text < SIM_NAMES; text++)
            must(next_answer(world, tenant, text) == NULL,
                 "a request for a name waits that could be answered");
}

/* --- what holds between steps --- */

void names_check(const struct world *world) {
    size_t n_parts = 0;

    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        n_parts += names_parts(world, tenant);
    must(world->core->parcels.n_named == n_parts, "a published block is held too long, or not long enough");
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        const struct session *session = world->sessions[s].session;
        if (session == NULL)
            continue;
        const struct quota *quota = &session->tenant->quota;
        must(quota->used[QUOTA_KEPT] == names_kept(world, world->sessions[s].tenant),
             "a tenant is charged for other names than it keeps");
        must(quota_limit(quota, QUOTA_KEPT) ==
                 model_limit(world, world->sessions[s].tenant, QUOTA_KEPT, SIM_GROUPS),
             "a tenant may keep something else than the policy says");
    }
}

/* --- pictures and successors --- */

void names_restored(struct world *world) {
    show_words(world);
}

const struct proto_board_slot *names_slot(const struct world *world, unsigned s) {
    return world->names.boards[s].is_there ? &slots[s] : NULL;
}

/* The successor's core has a name as the model has it. */
static void compare_name(const struct world *world, unsigned tenant, unsigned text) {
    const struct model_name *own = &world->names.names[tenant][text];
    const struct tenant *there = tenant_find(world->core, model_tenant_id(world, tenant));
    const struct name *name = there != NULL ? name_find(there, names_text(text)) : NULL;
    const struct edition *edition = name != NULL ? name->edition : NULL;
    struct proto_named named;

    must((edition != NULL) == is_there(&own->edition), "a successor has other names");
    if (edition != NULL) {
        edition_describe(edition, &named);
        check_described(world, &own->edition, &named);
        must((edition->session != NULL ? edition->session : NULL) ==
                 (own->edition.publisher != 0 ? world->sessions[own->edition.publisher - 1].session : NULL),
             "a successor has a name of another publisher");
    }
    const struct session *builder = name != NULL ? name->builder : NULL;
    must(builder == (own->builder != 0 ? world->sessions[own->builder - 1].session : NULL),
         "a successor has another session build");
}

void names_bind(struct world *world) {
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        for (unsigned text = 0; text < SIM_NAMES; text++)
            compare_name(world, tenant, text);
    for (unsigned w = 0; w < SIM_NAME_WAITS;
         w++) /* answers that were not taken come in the order of the requests */
        world->names.waits[w].order = world->names.waits[w].number;
    if (world->names.next_number > world->names.next_order)
        world->names.next_order = world->names.next_number;
    memset(world->names.drafts, 0, sizeof world->names.drafts);
}
