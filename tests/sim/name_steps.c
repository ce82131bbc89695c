/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of sessions that are about names: publish, withdraw, open, build, wait, cancel, read and list. */
#include <stdio.h>
#include <string.h>

#include "daemon/core/name.h"
#include "tests/sim/world.h"

/* The byte of a directory. Each directory has another content. */
static uint8_t byte_of(uint64_t content, uint32_t offset_bytes) {
    return (uint8_t)((content + offset_bytes) * UINT64_C(0x9e3779b97f4a7c15) >> 40);
}

static void step_write_directory(struct world *world) {
    static struct proto_directory_part part;
    unsigned s = pick_session(world, false);
    struct model_use use;
    if (s == SIM_SESSIONS)
        return;
    struct model_draft *draft = &world->names.drafts[s];
    uint64_t content = one_in(world, 2) ? random64(world) : draft->content;
    bool is_anew = draft->n_bytes == 0 || content != draft->content;
    part.offset_bytes = is_anew ? 0 : draft->n_bytes + (uint32_t)one_in(world, 8);
    part.n_bytes = 1 + (uint32_t)random_below(world, one_in(world, 4) ? 3000 : 40);
    for (uint32_t i = 0; i < part.n_bytes; i++)
        part.bytes[i] = byte_of(content, part.offset_bytes + i);
    if (part.offset_bytes + part.n_bytes > PROTO_DIRECTORY_BYTES_MAX)
        return;
    int r = core_write_directory(world->sessions[s].session, &part);
    if (part.offset_bytes == 0)
        *draft = (struct model_draft){.content = content};
    if (out_of_memory(r))
        return;
    model_add_up(world, &use);
    unsigned tenant = world->sessions[s].tenant;
    bool fits = use.used[tenant][QUOTA_REPLIES] + part.n_bytes <=
                model_limit(world, tenant, QUOTA_REPLIES, SIM_GROUPS);
    must(r == (part.offset_bytes != draft->n_bytes ? PROTO_E_INVALID
               : fits                              ? 0
                                                   : PROTO_E_LIMIT),
         "a directory is written otherwise than is right");
    draft->n_bytes += r == 0 ? part.n_bytes : 0;
}

/* --- publishing --- */

/* Draws a buffer, mostly of the session. Returns the error of a PUBLISH with it; 0: none. */
static int draw_buffer(struct world *world, unsigned s, struct proto_publish_buffer *ret_buffer,
                       struct model_named_part *ret_part) {
    unsigned l = pick_row_or_lease(world);

    for (unsigned tries = 0; tries < 8 && l != SIM_LEASES && world->leases[l].session != s; tries++)
        l = pick_row_or_lease(world);
    if (l == SIM_LEASES)
        return PROTO_E_STALE;
    const struct model_lease *lease = &world->leases[l];
    const struct model_block *block = &world->blocks[lease->block];
    struct model_board *board = &world->names.boards[s];
    bool is_foreign_slot = false;
    *ret_buffer = (struct proto_publish_buffer){.lease = lease->id, .generation = lease->generation};
    ret_buffer->size_bytes = 1 + random_below(world, block->capacity + (one_in(world, 8) ? world->grain : 0));
    *ret_part = (struct model_named_part){.block = lease->block};
    if (one_in(world, 2)) {
        is_foreign_slot = !board->is_there || one_in(world, 16);
        ret_part->has_fence = true;
        ret_part->word = (uint32_t)random_below(world, SIM_BOARD_WORDS);
        ret_part->value = board->last[ret_part->word] + random_below(world, 3);
        board->last[ret_part->word] = board->is_there ? ret_part->value : 0;
        ret_buffer->has_fence = 1;
        ret_buffer->fence =
            (struct proto_board_fence){is_foreign_slot ? s + 1 : s, ret_part->word, ret_part->value};
    }
    if (lease->session != s)
        return PROTO_E_STALE;
    return ret_buffer->size_bytes > block->capacity || block->held != block->capacity ||
                   lease->withheld > 0 || is_foreign_slot
               ? PROTO_E_INVALID
               : 0;
}

/* The answer to a PUBLISH with good buffers. */
static int judge_publish(const struct world *world, unsigned s, unsigned text,
                         const struct proto_publish *publish, const struct model_edition *edition,
                         const struct model_edition *before) {
    unsigned tenant = world->sessions[s].tenant;
    unsigned n_more = edition->n_parts > before->n_parts ? edition->n_parts - before->n_parts : 0;
    uint64_t kept = names_kept(world, tenant), limit = model_limit(world, tenant, QUOTA_KEPT, SIM_GROUPS),
             bytes = names_bytes(world, edition),
             bytes_before = (before->flags & PROTO_PUBLISH_KEEP) != 0 ? names_bytes(world, before) : 0;

    if (publish->directory_bytes != world->names.drafts[s].n_bytes)
        return PROTO_E_STALE;
    if ((publish->flags & PROTO_PUBLISH_SAME_LAYOUT) != 0 &&
        (before->generation == 0 || before->layout != publish->layout))
        return PROTO_E_INVALID;
    if (n_more > 0 && tenant_lacks_leases(world, tenant, n_more))
        return PROTO_E_LIMIT;
    if ((publish->flags & PROTO_PUBLISH_KEEP) != 0 && bytes > bytes_before &&
        (kept > limit || bytes - bytes_before > limit - kept))
        return PROTO_E_LIMIT;
    return channels_find(world, tenant, text) < SIM_CHANNELS ? PROTO_E_INVALID : 0;
}

/* The core has published it. */
static void note_published(struct world *world, unsigned s, unsigned text,
                           const struct proto_publish *publish, struct model_edition *edition) {
    unsigned tenant = world->sessions[s].tenant;
    struct model_draft *draft = &world->names.drafts[s];

    must(edition->generation > world->last_generation, "a generation is published again");
    world->last_generation = edition->generation;
    for (unsigned i = 0; i < edition->n_parts; i++) {
        struct model_block *block = &world->blocks[edition->parts[i].block];
        if (!block->shared)
            block->token = edition->parts[i].token - 1;
        block->shared = true;
        block->size = publish->buffers[i].size_bytes;
    }
    edition->directory_bytes = draft->n_bytes;
    edition->content = draft->content;
    *draft = (struct model_draft){0};
    world->tally->names_replaced += world->names.names[tenant][text].edition.generation != 0;
    names_publish(world, tenant, text, edition);
    if (world->names.names[tenant][text].builder == s + 1)
        names_give_up(world, tenant, text);
    world->tally->names_published++;
}

/* Without memory blocks may have got tokens, and nothing else has changed. */
static void note_tokens(struct world *world, unsigned s, const struct proto_publish *publish,
                        const struct model_edition *edition) {
    for (unsigned i = 0; i < edition->n_parts; i++) {
        const struct proto_lease_name name = {publish->buffers[i].lease, publish->buffers[i].generation};
        struct model_block *block = &world->blocks[edition->parts[i].block];
        struct proto_info info;
        must(core_query(world->sessions[s].session, &name, &info) == 0, "a lease is not known");
        must(info.size_bytes == block->size, "a block that was not published has another size");
        if (info.shared && !block->shared)
            block->token = edition->parts[i].token - 1;
        block->shared = info.shared;
    }
}

static void step_publish(struct world *world) {
    unsigned s = pick_session(world, false), text = (unsigned)random_below(world, SIM_NAMES);
    struct proto_publish publish = {.flags = (uint32_t)random_below(world, PROTO_PUBLISH_FLAGS + 1),
                                    .layout = random_below(world, 2)};
    struct proto_token tokens[2 * SIM_NAME_PARTS];
    struct model_edition edition = {0};
    if (s == SIM_SESSIONS)
        return;
    if (!one_in(world, 4))
        publish.flags &= ~PROTO_PUBLISH_SAME_LAYOUT;
    if (one_in(world, 2))
        names_give_board(world, s);
    int expected = 0;
    unsigned n = 1 + (unsigned)random_below(world, SIM_NAME_PARTS);
    for (unsigned i = 0; i < n; i++) {
        int r = draw_buffer(world, s, &publish.buffers[i], &edition.parts[i]);
        if (r != 0 && publish.buffers[i].lease == 0)
            return;
        expected = expected == 0 ? r : expected;
        edition.parts[i].token = world->next_token + 2;
        tokens[2 * i] = token_make(++world->next_token);
        tokens[2 * i + 1] = token_make(++world->next_token);
    }
    edition.flags = publish.flags & ~PROTO_PUBLISH_SAME_LAYOUT;
    edition.layout = publish.layout;
    edition.publisher = s + 1;
    edition.session = world->sessions[s].id;
    publish.count = edition.n_parts = n;
    publish.directory_bytes = world->names.drafts[s].n_bytes + (uint32_t)one_in(world, 16);
    snprintf(publish.name, sizeof publish.name, "%s", names_text(text));
    const struct model_edition *before = &world->names.names[world->sessions[s].tenant][text].edition;
    if (expected == 0)
        expected = judge_publish(world, s, text, &publish, &edition, before);
    int r = core_publish(world->sessions[s].session, &publish, tokens, world->now_ns, &edition.generation);
    if (out_of_memory(r)) {
        if (expected == 0)
            note_tokens(world, s, &publish, &edition);
        return;
    }
    must(r == expected, "a publication gets another answer than is right");
    if (r != 0)
        return;
    note_published(world, s, text, &publish, &edition);
}

static void step_unpublish(struct world *world) {
    unsigned s = pick_session(world, false), text = (unsigned)random_below(world, SIM_NAMES);
    if (s == SIM_SESSIONS)
        return;
    unsigned tenant = world->sessions[s].tenant;
    const struct model_name *name = &world->names.names[tenant][text];
    struct proto_unpublish wanted = {.generation = one_in(world, 2)   ? 0
                                                   : one_in(world, 4) ? world->last_generation
                                                                      : name->edition.generation,
                                     .flags = one_in(world, 3) ? PROTO_UNPUBLISH_BUILD : 0};
    unsigned c = channels_find(world, tenant, text);
    uint64_t present = c < SIM_CHANNELS ? world->channels.all[c].id : name->edition.generation;
    bool is_build = wanted.flags != 0;
    bool is_right = is_build ? name->builder == s + 1
                             : present != 0 && (wanted.generation == 0 || wanted.generation == present);
    snprintf(wanted.name, sizeof wanted.name, "%s", names_text(text));
    int r = core_unpublish(world->sessions[s].session, &wanted, world->now_ns);
    must(r == (is_right ? 0 : PROTO_E_NO_NAME), "a name is withdrawn otherwise than is right");
    if (r != 0)
        return;
    if (is_build) {
        names_give_up(world, tenant, text);
        world->tally->names_given_up++;
    } else {
        names_withdraw(world, tenant, text);
        world->tally->names_withdrawn++;
    }
}

/* --- opening --- */

/* Makes the request. Returns what the core answers. */
static int ask(struct world *world, const struct model_name_wait *wait, uint64_t timeout_ns) {
    struct session *session = world->sessions[wait->session].session;
    struct proto_open_name open = {
        .generation = wait->generation, .timeout_ns = timeout_ns, .flags = wait->flags};
    struct proto_join_channel join = {.timeout_ns = timeout_ns, .place = wait->place};

    snprintf(open.name, sizeof open.name, "%s", names_text(wait->text));
    snprintf(join.name, sizeof join.name, "%s", names_text(wait->text));
    return (wait->flags & NAME_WAIT_JOIN) != 0 ? core_join_channel(session, wait->id, &join, world->now_ns)
                                               : core_open_name(session, wait->id, &open, world->now_ns);
}

void ask_for_name(struct world *world, unsigned s, unsigned text, struct model_name_wait wait) {
    static const uint64_t timeouts_ns[] = {0, 50 * NS_PER_MS, 3 * NS_PER_S, NS_FOREVER, NS_FOREVER};
    unsigned tenant = world->sessions[s].tenant, w = 0;
    uint64_t timeout_ns = timeouts_ns[random_below(world, 5)];
    struct model_use use;

    while (w < SIM_NAME_WAITS && world->names.waits[w].used)
        w++;
    if (w == SIM_NAME_WAITS)
        return;
    model_add_up(world, &use);
    bool fits = use.used[tenant][QUOTA_WAITING] < model_limit(world, tenant, QUOTA_WAITING, SIM_GROUPS);
    wait.session = s;
    wait.text = text;
    wait.id = ++world->next_request;
    int r = ask(world, &wait, timeout_ns);
    if (out_of_memory(r))
        return;
    must(r == (fits ? 0 : PROTO_E_LIMIT), "a request for a name is not taken, or against the quota");
    if (r != 0)
        return;
    wait.used = true;
    wait.number = ++world->names.next_number;
    wait.deadline_ns = clock_deadline_ns(world->now_ns, timeout_ns);
    world->names.waits[w] = wait;
    names_serve(world, tenant, text);
    names_pass(world);
}

static void step_open_name(struct world *world) {
    unsigned s = pick_session(world, false), text = (unsigned)random_below(world, SIM_NAMES);

    if (s == SIM_SESSIONS)
        return;
    uint64_t now = world->names.names[world->sessions[s].tenant][text].edition.generation;
    struct model_name_wait wait = {.generation = one_in(world, 2) ? 0 : now + random_below(world, 2)};
    wait.flags = (uint32_t)random_below(world, 3);
    ask_for_name(world, s, text, wait);
}

static void step_cancel_name(struct world *world) {
    const struct model_name_wait *wait = &world->names.waits[random_below(world, SIM_NAME_WAITS)];

    if (!wait->used)
        return;
    uint64_t id = wait->id;
    core_cancel(world->sessions[wait->session].session, id, world->now_ns);
    names_cancel(world, id);
}

static void step_read_directory(struct world *world) {
    static struct proto_directory_part part;
    unsigned s = pick_session(world, false), text = (unsigned)random_below(world, SIM_NAMES);
    if (s == SIM_SESSIONS)
        return;
    const struct model_edition *edition = &world->names.names[world->sessions[s].tenant][text].edition;
    struct proto_read_directory read = {.generation = edition->generation + one_in(world, 8),
                                        .offset_bytes =
                                            (uint32_t)random_below(world, edition->directory_bytes + 2)};
    snprintf(read.name, sizeof read.name, "%s", names_text(text));
    int r = core_read_directory(world->sessions[s].session, &read, &part);
    must(r == (edition->generation == 0                        ? PROTO_E_NO_NAME
               : read.generation != edition->generation        ? PROTO_E_STALE
               : read.offset_bytes >= edition->directory_bytes ? PROTO_E_INVALID
                                                               : 0),
         "a directory is read otherwise than is right");
    if (r != 0)
        return;
    must(part.offset_bytes == read.offset_bytes &&
             part.n_bytes == edition->directory_bytes - read.offset_bytes,
         "another part of a directory is read");
    for (uint32_t i = 0; i < part.n_bytes; i++)
        must(part.bytes[i] == byte_of(edition->content, part.offset_bytes + i),
             "a directory has other bytes");
    world->tally->names_read++;
}

/* Whether the name is listed: it stands for something, or a session builds it or waits for it. */
static bool is_used(const struct world *world, unsigned tenant, unsigned text) {
    const struct model_name *name = &world->names.names[tenant][text];
    bool is_awaited = false;

    for (unsigned w = 0; w < SIM_NAME_WAITS; w++) {
        const struct model_name_wait *wait = &world->names.waits[w];
        is_awaited = is_awaited ||
                     (wait->used && wait->text == text && world->sessions[wait->session].tenant == tenant);
    }
    return name->edition.generation != 0 || name->builder != 0 || is_awaited ||
           channels_find(world, tenant, text) < SIM_CHANNELS;
}

static void check_listed_channel(const struct world *world, const struct model_channel *channel,
                                 const struct proto_listed_name *listed) {
    bool is_kept = (channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0;

    must(listed->generation == channel->id && listed->count == 1 && listed->layout == 0 &&
             listed->bytes == world->blocks[channel->block].held && listed->session == channel->maker &&
             listed->flags == (PROTO_NAME_CHANNEL | (is_kept ? PROTO_PUBLISH_KEEP : 0)),
         "a channel is listed as another");
}

static void check_listed(const struct world *world, unsigned tenant, const struct proto_listed_name *listed) {
    unsigned text = 0;

    while (text < SIM_NAMES && strcmp(listed->name, names_text(text)) != 0)
        text++;
    must(text < SIM_NAMES && is_used(world, tenant, text), "a name is listed that is not there");
    unsigned c = channels_find(world, tenant, text);
    if (c < SIM_CHANNELS) {
        check_listed_channel(world, &world->channels.all[c], listed);
        return;
    }
    const struct model_name *name = &world->names.names[tenant][text];
    const struct model_edition *edition = &name->edition;
    must(listed->generation == edition->generation && listed->count == edition->n_parts &&
             listed->bytes == names_bytes(world, edition) && listed->flags == edition->flags &&
             listed->layout == edition->layout,
         "a name is listed as another");
    must(listed->session == (edition->generation != 0 ? edition->session
                             : name->builder != 0     ? world->sessions[name->builder - 1].id
                                                      : 0),
         "a name is listed as another session's");
}

static void step_list_names(struct world *world) {
    unsigned s = pick_session(world, false), n = 0;
    struct proto_names names;
    if (s == SIM_SESSIONS)
        return;
    unsigned tenant = world->sessions[s].tenant;
    core_list_names(world->sessions[s].session, 0, &names);
    for (unsigned text = 0; text < SIM_NAMES; text++)
        n += is_used(world, tenant, text);
    must(names.count == n && names.n_left == 0, "other names are listed than there are");
    for (unsigned i = 0; i < n; i++) {
        must(i == 0 || names.names[i].id > names.names[i - 1].id, "names are listed out of their order");
        check_listed(world, tenant, &names.names[i]);
    }
}

/* By the token of what is published, or was. */
static void step_attach_name(struct world *world) {
    uint64_t number = world->names.tokens[random_below(world, SIM_TOKENS)];
    unsigned s = pick_session(world, false);
    const struct proto_token token = token_make(number);

    if (s == SIM_SESSIONS || number == 0)
        return;
    if (one_in(world, 8))
        must(core_revoke(world->sessions[s].session, &token, world->now_ns) == PROTO_E_NO_TOKEN,
             "a session revokes what it may not, or cannot revoke its own");
    else
        attach_by(world, s, number);
}

void step_names(struct world *world) {
    static void (*const steps[])(struct world * world) = {
        step_write_directory, step_publish,        step_publish,    step_publish,      step_unpublish,
        step_open_name,       step_open_name,      step_open_name,  step_cancel_name,  step_attach_name,
        step_attach_name,     step_read_directory, step_list_names, names_move_streams};
    uint64_t random_state = world->random_state;

    if (!world->names.are_there || world->is_restarting || names_draw(world, 3) > 0)
        return;
    model_see(world);
    world->step_name = "names";
    world->random_state = world->names.random_state; /* whatever draws here draws from the names' numbers */
    do {                                             /* several before the shell takes the answers */
        if (world->channels.are_there && one_in(world, 2))
            step_channels(world);
        else
            steps[random_below(world, sizeof steps / sizeof *steps)](world);
        model_see(world);
    } while (one_in(world, 2));
    world->names.random_state = world->random_state;
    world->random_state = random_state;
}
