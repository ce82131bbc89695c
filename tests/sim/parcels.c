/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on their way: sent, taken, revoked, and too late. */
#include <string.h>

#include "tests/sim/world.h"

unsigned parcel_of_token(const struct world *world, uint64_t token) {
    unsigned p = 0;

    while (p < SIM_PARCELS && !(world->parcels[p].takers > 0 && world->parcels[p].token == token))
        p++;
    return p;
}

unsigned parcels_of_tenant(const struct world *world, unsigned tenant) {
    unsigned n = 0;

    for (unsigned p = 0; p < SIM_PARCELS; p++)
        n += world->parcels[p].takers > 0 && world->parcels[p].tenant == tenant;
    return n + names_parts(world, tenant);
}

void parcel_end(struct world *world, unsigned p) {
    unsigned b = world->parcels[p].block;

    world->parcels[p].takers = 0;
    world->blocks[b].parcels--;
    model_end_block(world, b);
}

void parcel_was_taken(struct world *world, unsigned p) {
    world->tally->taken++;
    if (world->parcels[p].takers == 1)
        parcel_end(world, p);
    else
        world->parcels[p].takers--;
}

void parcels_pass(struct world *world) {
    for (unsigned p = 0; p < SIM_PARCELS; p++)
        if (world->parcels[p].takers > 0 && world->parcels[p].deadline_ns <= world->now_ns) {
            parcel_end(world, p);
            world->tally->too_late++;
        }
}

void parcels_begin(struct world *world, const struct session *sender) {
    for (unsigned p = 0; p < SIM_PARCELS; p++) {
        struct model_parcel *parcel = &world->parcels[p];
        if (parcel->takers > 0 && parcel->sender == sender->id && parcel->deadline_ns == NS_FOREVER)
            parcel->deadline_ns = world->now_ns + parcel->lifetime_ns;
    }
}

uint64_t pick_parcel(struct world *world) {
    unsigned start = (unsigned)random_below(world, SIM_PARCELS);

    for (unsigned i = 0; i < SIM_PARCELS; i++) {
        const struct model_parcel *parcel = &world->parcels[(start + i) % SIM_PARCELS];
        if (parcel->takers > 0)
            return parcel->token;
    }
    return world->tokens[random_below(world, SIM_TOKENS)];
}

void step_send(struct world *world) {
    unsigned l = pick_row_or_lease(world), p = 0;
    while (p < SIM_PARCELS && world->parcels[p].takers > 0)
        p++;
    if (l == SIM_LEASES || p == SIM_PARCELS)
        return;
    unsigned s = world->leases[l].session;
    const struct proto_token fresh[2] = {token_make(world->next_token + 1),
                                         token_make(world->next_token + 2)};
    struct proto_send send = {.lifetime_ns =
                                  1 + random_below(world, one_in(world, 2) ? NS_PER_S : 100 * NS_PER_S),
                              .takers = 1 + (uint32_t)random_below(world, 3),
                              .flags = one_in(world, 3) ? PROTO_SEND_HELD : 0};
    struct proto_token token;
    struct lease *lease = NULL;
    int expected = draw_share(world, l, &send.share);
    bool is_part = send.share.part_bytes > 0;
    if (tenant_lacks_leases(world, world->sessions[s].tenant, is_part ? 2 : 1))
        expected = PROTO_E_LIMIT;
    int r = core_send(world->sessions[s].session, &send, fresh, world->now_ns, &lease, &token);
    world->next_token += 2;
    if (out_of_memory(r)) {
        const struct proto_lease_name name = {world->leases[l].id, world->leases[l].generation};
        struct model_block *block = &world->blocks[world->leases[l].block];
        struct proto_info info;
        must(core_query(world->sessions[s].session, &name, &info) == 0, "a lease is not known");
        must(!is_part || info.shared == block->shared, "a part that was not sent is shared");
        if (info.shared && !block->shared) /* by then */
            block->token = world->next_token - 1;
        block->shared = info.shared;
        return;
    }
    must(r == expected, "a sender gets another answer than is right");
    if (r != 0)
        return;
    must(memcmp(&token, &fresh[1], sizeof token) == 0, "a parcel has another token than it was given");
    l = model_share(world, l, &send.share, lease);
    unsigned b = world->leases[l].block;
    struct model_block *block = &world->blocks[b];
    if (!block->shared)
        block->token = world->next_token - 1;
    block->shared = true;
    block->parcels++;
    world->parcels[p] = (struct model_parcel){
        .token = world->next_token,
        .block = b,
        .tenant = world->sessions[s].tenant,
        .sender = world->sessions[s].session->id,
        .takers = send.takers,
        .lifetime_ns = send.lifetime_ns,
        .deadline_ns = send.flags == PROTO_SEND_HELD ? NS_FOREVER : world->now_ns + send.lifetime_ns};
    world->tokens[random_below(world, SIM_TOKENS)] = world->next_token;
    world->tally->sends++;
}

/* By any session, of what is on its way, or of something else. */
void step_revoke(struct world *world) {
    unsigned s = pick_session(world, false);
    uint64_t number = one_in(world, 4) ? world->tokens[random_below(world, SIM_TOKENS)] : pick_parcel(world);
    const struct proto_token token = token_make(number);
    if (s == SIM_SESSIONS)
        return;
    unsigned p = parcel_of_token(world, number);
    bool is_own = p < SIM_PARCELS && world->parcels[p].tenant == world->sessions[s].tenant;
    if (is_own)
        parcel_end(world, p); /* the core lends what comes back at once */
    int r = core_revoke(world->sessions[s].session, &token, world->now_ns);
    must(r == (is_own ? 0 : PROTO_E_NO_TOKEN), "a session revokes what it may not, or cannot revoke its own");
    world->tally->revoked += is_own;
}

void step_revoke_all(struct world *world) {
    uint64_t bytes, sender = 0;

    if (!one_in(world, 2)) {
        unsigned s = pick_session(world, false);
        if (s == SIM_SESSIONS)
            return;
        sender = world->sessions[s].session->id;
    }
    unsigned expected = 0;
    for (unsigned p = 0; p < SIM_PARCELS; p++)
        if (world->parcels[p].takers > 0 && (sender == 0 || world->parcels[p].sender == sender)) {
            parcel_end(world, p);
            expected++;
        }
    unsigned n = core_revoke_all(world->core, sender, world->now_ns, &bytes);
    must(n == expected, "an operator revokes others than those of the sender");
}
