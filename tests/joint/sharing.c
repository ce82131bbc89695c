/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that several programs have. Tokens lie in a mailbox, from which any thread of any program takes one:
 * also of another user, and when its buffer is gone. The programs see to it that no buffer is attached
 * which one of its holders is about to write again.
 */
#include "tests/joint/program.h"

#define TOKENS_MAX 16u

static struct joint_token tokens[TOKENS_MAX];

/* --- the mailbox --- */

/* A place for a token; NULL: none is free. */
static struct joint_token *find_place(void) {
    struct joint_token *token = &tokens[random_below(TOKENS_MAX)];
    return token->n_attaching == 0 ? token : NULL;
}

static struct joint_token *pick_token(void) {
    unsigned start = (unsigned)random_below(TOKENS_MAX);

    for (unsigned i = 0; i < TOKENS_MAX; i++)
        if (tokens[(start + i) % TOKENS_MAX].is_used)
            return &tokens[(start + i) % TOKENS_MAX];
    return NULL;
}

static bool is_being_attached(uint64_t instance) {
    for (unsigned i = 0; i < TOKENS_MAX; i++)
        if (tokens[i].instance == instance && tokens[i].n_attaching > 0)
            return true;
    return false;
}

static void withdraw(uint64_t instance) {
    for (unsigned i = 0; i < TOKENS_MAX; i++)
        if (tokens[i].instance == instance)
            tokens[i].is_used = false;
}

static bool is_rewritten(uint64_t instance) {
    for (unsigned c = 0; c < world.n_clients; c++)
        for (unsigned b = 0; b < JOINT_BUFFERS; b++)
            if (!world.clients[c].is_killed && world.clients[c].buffers[b].is_rewritten &&
                world.clients[c].buffers[b].instance == instance)
                return true;
    return false;
}

/* --- a buffer's holders --- */

/* A buffer that the token names, of a process that goes on; NULL: none is known. */
static const struct held *find_holder(const struct joint_token *token) {
    for (unsigned c = 0; c < world.n_clients; c++) {
        const struct joint_client *client = &world.clients[c];
        for (unsigned b = 0; b < JOINT_BUFFERS && !client->is_killed && !client->is_broken; b++)
            if (client->buffers[b].is_used && !client->buffers[b].is_busy &&
                client->buffers[b].instance == token->instance)
                return &client->buffers[b];
    }
    return NULL;
}

static bool holds_still(const struct held *holder, uint64_t loan) {
    for (unsigned c = 0; c < world.n_clients; c++) {
        const struct joint_client *client = &world.clients[c];
        if (holder >= client->buffers && holder < client->buffers + JOINT_BUFFERS)
            return holder->is_used && holder->loan == loan && !client->is_killed && !client->is_broken;
    }
    return false;
}

/* --- calls --- */

static void check_sharing_error(const struct joint_client *client, int r) {
    world.tally->lost += r == GPUPOOL_E_LOST;
    program_check_error(client, r);
}

static void post(const struct joint_client *client, const struct held *held, const struct joint_token *made) {
    struct joint_token *place = find_place();

    if (place == NULL || is_rewritten(held->instance)) /* since the call began */
        return;
    *place = *made;
    place->is_used = true;
    place->uid = world_uid(client->number);
    place->instance = held->instance;
    place->size_bytes = held->buffer.size_bytes;
    place->capacity_bytes = held->buffer.capacity_bytes;
    place->loan = held->loan;
    place->pool = held->buffer.pool;
    place->parts = held->parts;
}

static void share(struct joint_client *client, struct held *held) {
    struct joint_token made = {.is_sent = one_in(3)};
    void *stream =
        gpu_is_done_with(&held->parts) && one_in(2) ? GPUPOOL_NO_STREAM : program_stream_of(client, held);
    uint64_t lifetime_ns = NS_PER_US * (1 + random_below(100000));
    uint32_t takers = 1 + (uint32_t)random_below(3);
    bool is_held = one_in(2);
    int r;

    made.order = gpu_now();
    held->is_shared = true;
    program_enter(client);
    if (!made.is_sent)
        r = gpupool_share(client->client, &held->buffer, stream, &made.token);
    else if (is_held)
        r = gpupool_send_held(client->client, &held->buffer, stream, takers, lifetime_ns, &made.token);
    else
        r = gpupool_send(client->client, &held->buffer, stream, takers, lifetime_ns, &made.token);
    program_leave(client);
    check_sharing_error(client, r);
    model_resize(client, held);
    world.tally->shares += r == 0 && !made.is_sent;
    world.tally->sends += r == 0 && made.is_sent;
    if (r == 0)
        post(client, held, &made);
}

/* Others have released a buffer, perhaps: then its memory is this program's alone. */
static void reuse(struct joint_client *client, struct held *held) {
    void *stream = program_stream_of(client, held);

    withdraw(held->instance);
    held->is_rewritten = true;
    program_enter(client);
    int r = gpupool_reuse(client->client, &held->buffer, stream);
    program_leave(client);
    held->is_rewritten = false;
    world.tally->held_by_others += r == GPUPOOL_E_SHARED;
    check_sharing_error(client, r);
    if (r < 0)
        return;
    model_reuse(held);
    world.tally->reuses++;
}

static void query(struct joint_client *client, struct held *held) {
    struct gpupool_buffer_info info;

    program_enter(client);
    int r = gpupool_query(client->client, &held->buffer, &info);
    program_leave(client);
    check_sharing_error(client, r);
    if (r < 0)
        return;
    must(info.buffer.data == held->buffer.data && info.buffer.capacity_bytes == held->buffer.capacity_bytes &&
             info.buffer.pool == held->buffer.pool && info.holders > 0,
         "the daemon knows a buffer as the program does");
    world.tally->queries++;
}

static void attach(struct joint_client *client, struct held *held, struct joint_token *token) {
    const struct held *holder = token->is_sent ? NULL : find_holder(token);
    uint64_t holders_loan = holder != NULL ? holder->loan : 0;
    bool is_foreign = token->uid != world_uid(client->number), was_revoked = token->is_revoked;
    void *stream = one_in(6) ? GPUPOOL_NO_STREAM : program_pick_stream(client, token->pool);
    uint32_t flags = token->pool == JOINT_VMM + 1 && one_in(4) ? GPUPOOL_READ_ONLY : 0;
    struct gpupool_buffer buffer;

    token->n_attaching++;
    program_enter(client);
    int r = gpupool_attach(client->client, &token->token, stream, flags, &buffer);
    program_leave(client);
    check_sharing_error(client, r);
    must(r < 0 || (!is_foreign && !was_revoked), "a token is good for its user, and until it is revoked");
    must(r != GPUPOOL_E_NO_TOKEN || is_foreign || holder == NULL || !holds_still(holder, holders_loan),
         "a token is good while any process holds the buffer");
    if (r == 0)
        model_attach(client, held, &buffer, token, stream);
    token->n_attaching--;
    if (r == GPUPOOL_E_NO_TOKEN && !is_foreign && one_in(2))
        token->is_used = false;
    world.tally->attaches += r == 0;
    world.tally->no_token += r == GPUPOOL_E_NO_TOKEN && !is_foreign;
    world.tally->foreign_tokens += is_foreign;
}

static void revoke(struct joint_client *client, struct joint_token *token) {
    bool is_foreign = token->uid != world_uid(client->number);

    token->n_attaching++;
    program_enter(client);
    int r = gpupool_revoke(client->client, &token->token);
    program_leave(client);
    check_sharing_error(client, r);
    must(r < 0 || (token->is_sent && !is_foreign), "a user revokes what the user's processes have sent");
    token->is_revoked = token->is_revoked || r == 0;
    token->n_attaching--;
    world.tally->revokes += r == 0;
}

/* --- steps --- */

static void step_token(struct joint_client *client) {
    struct held *held = program_find_room(client);
    struct joint_token *token = pick_token();

    if (held == NULL || token == NULL)
        return;
    held->is_busy = true;
    if (one_in(8))
        revoke(client, token);
    else
        attach(client, held, token);
    held->is_busy = false;
}

static void step_buffer(struct joint_client *client) {
    struct held *held = program_pick(client);

    if (held == NULL)
        return;
    held->is_busy = true;
    bool is_quiet = !held->is_of_capture && !held->was_elsewhere && !is_rewritten(held->instance);
    if (one_in(8))
        query(client, held);
    else if (is_quiet && held->is_shared && one_in(2) && !is_being_attached(held->instance))
        reuse(client, held);
    else if (is_quiet)
        share(client, held);
    held->is_busy = false;
}

void program_share_any(struct program_thread *own) {
    if (one_in(2))
        step_token(own->client);
    else
        step_buffer(own->client);
}
