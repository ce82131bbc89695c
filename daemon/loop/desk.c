/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/desk.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/loop/die_here.h"
#include "proto/proto.h"

#define MAGIC   (UINT64_C(0x006b736564706770) | (uint64_t)DESK_VERSION << 56) /* "gpdesk", and the version */
#define PENDING UINT64_MAX                   /* packet.step: of a predecessor */

_Static_assert(sizeof(struct desk_memory) <= DESK_BYTES, "the desk has its place");

/* The process may be killed at any instruction: the compiler may not change the order of stores. */
static void fence(void) {
    die_here();
    atomic_signal_fence(memory_order_seq_cst);
}

/* The step last, so that a packet is whole or there is none. */
static void begin(struct desk_packet *packet, uint64_t session, uint64_t step) {
    packet->step = 0;
    fence();
    packet->session = session;
    packet->size_bytes = packet->is_sent = packet->n_deaths = 0;
    memset(packet->bytes, 0, sizeof(struct proto_header));
    fence();
    packet->step = step;
    fence();
}

void desk_make(struct desk *desk, void *memory, struct estate *estate, const uint8_t *identity) {
    *desk = (struct desk){.memory = memory, .estate = estate};
    memcpy(desk->memory->identity, identity, sizeof desk->memory->identity);
    desk->memory->n_starts = 1;
    fence();
    desk->memory->magic = MAGIC;
}

int desk_open(struct desk *desk, void *memory, struct estate *estate) {
    struct desk_memory *found = memory;
    struct desk_packet *read = &found->read;

    if (found->magic != MAGIC)
        return -EBADMSG;
    *desk = (struct desk){.memory = found, .estate = estate};
    found->n_starts++;
    /* Its step has the number of this daemon's first one, which ends before the packet's turn comes. */
    if (read->step == estate->step)
        read->step = PENDING;
    if (read->step == PENDING)
        read->n_deaths++;
    if (found->sent.step >= estate->step) /* it was never sent, and another step gets its number */
        found->sent.step = 0;
    fence();
    return 0;
}

unsigned desk_starts(const struct desk *desk) {
    return desk->memory != NULL ? desk->memory->n_starts : 1;
}

void desk_note_ready(struct desk *desk) {
    if (desk->memory != NULL)
        desk->memory->n_starts = 0;
}

uint8_t *desk_receive(struct desk *desk, uint64_t session, uint8_t *own) {
    if (desk->memory == NULL || session == 0)
        return own;
    begin(&desk->memory->read, session, desk->estate->step);
    return desk->memory->read.bytes;
}

uint8_t *desk_message(struct desk *desk, uint64_t session, uint8_t *own) {
    if (desk->memory == NULL || session == 0)
        return own;
    begin(&desk->memory->sent, session, 0);
    return desk->memory->sent.bytes;
}

static bool is_here(const struct desk *desk, const uint8_t *message) {
    return desk->memory != NULL && message == desk->memory->sent.bytes;
}

void desk_commit(struct desk *desk, const uint8_t *message, size_t size_bytes) {
    if (!is_here(desk, message)) {
        desk_end_step(desk);
        return;
    }
    desk->memory->sent.size_bytes = (uint32_t)size_bytes;
    fence();
    desk->memory->sent.step = desk->estate->step;
    fence();
    estate_must_end_step(desk->estate);
    desk_end_step(desk);
}

void desk_sent(struct desk *desk, const uint8_t *message) {
    if (is_here(desk, message))
        desk->memory->sent.is_sent = 1;
    fence();
}

void desk_end_step(struct desk *desk) {
    if (desk->estate != NULL)
        estate_end_step(desk->estate);
}

void desk_note_alive(struct desk *desk, uint64_t now_ns) {
    if (desk->memory != NULL)
        desk->memory->alive_ns = now_ns;
}

/* The packet says its length itself: the daemon may have died before it knew. */
static size_t received_bytes(const struct desk_packet *read) {
    struct proto_header header;

    memcpy(&header, read->bytes, sizeof header);
    if (header.operation == 0)
        return 0;
    return header.length >= sizeof header && header.length <= PROTO_PACKET_MAX ? header.length
                                                                               : sizeof header;
}

size_t desk_find_packet(struct desk *desk, uint64_t *ret_session, unsigned *ret_n_deaths,
                        uint8_t packet[PROTO_PACKET_MAX]) {
    const struct desk_packet *read = desk->memory != NULL ? &desk->memory->read : NULL;
    size_t n = read != NULL && read->step == PENDING ? received_bytes(read) : 0;

    if (n == 0)
        return 0;
    *ret_session = read->session;
    *ret_n_deaths = read->n_deaths;
    memcpy(packet, read->bytes, n);
    return n;
}

void desk_take_packet(struct desk *desk) {
    desk_end_step(desk);
    if (desk->memory != NULL && desk->memory->read.step == PENDING) {
        estate_must_end_step(desk->estate);
        desk->memory->read.step = desk->estate->step;
    }
    fence();
}

size_t desk_find_message(const struct desk *desk, uint64_t *ret_session, const uint8_t **ret_message) {
    const struct desk_packet *sent = desk->memory != NULL ? &desk->memory->sent : NULL;

    if (sent == NULL || sent->step == 0 || sent->step + 1 != desk->estate->step || sent->is_sent)
        return 0;
    *ret_session = sent->session;
    *ret_message = sent->bytes;
    return sent->size_bytes;
}
