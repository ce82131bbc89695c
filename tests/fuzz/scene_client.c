/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/scene.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/packet.h"
#include "tests/raw_client.h"

struct scene scene;

struct puppet *scene_choose_client(struct input *input) {
    return &scene.clients[input_below(input, CLIENTS)];
}

/* --- what a client says --- */

static void give_up(struct puppet *client, uint64_t lease, uint64_t generation) {
    struct ledger_entry *entry = ledger_find(&scene.ledger, client->number, lease, generation);
    if (entry != NULL)
        entry->used = false;
    if (client->n_given_up < GIVEN_UP)
        client->given_up[client->n_given_up++] = (struct proto_lease_name){lease, generation};
}

static bool has_given_up(const struct puppet *client, uint64_t lease, uint64_t generation) {
    for (unsigned i = 0; i < client->n_given_up; i++)
        if (client->given_up[i].lease == lease && client->given_up[i].generation == generation)
            return true;
    return client->n_given_up == GIVEN_UP || client->said_bye;
}

/* Notes what a packet that is about to be sent means, if it means anything. */
static void note(struct puppet *client, const uint8_t *packet, size_t size) {
    struct proto_message *message = &scene.message;

    if (proto_decode(PROTO_FROM_CLIENT, packet, size, message, NULL) < 0)
        return;
    if (message->header.request != 0) {
        if (client->n_outstanding < OUTSTANDING)
            client->outstanding[client->n_outstanding++] =
                (__typeof__(*client->outstanding)){message->header.request, message->header.operation};
        else
            client->lost_count = true;
    }
    struct ledger_entry *entry;
    switch (message->header.operation) {
    case PROTO_HELLO:
        client->no_gpu = client->no_gpu || (message->hello.flags & PROTO_HELLO_NO_GPU) != 0;
        return;
    case PROTO_SHARE:
        entry = ledger_find(&scene.ledger, client->number, message->share.lease, message->share.generation);
        if (entry != NULL)
            entry->attached = true;
        return;
    case PROTO_SEND:
        entry = ledger_find(&scene.ledger, client->number, message->send.share.lease,
                            message->send.share.generation);
        if (entry != NULL)
            entry->attached = true;
        return;
    case PROTO_PUBLISH:
        for (uint32_t i = 0; i < message->publish.count; i++) {
            entry = ledger_find(&scene.ledger, client->number, message->publish.buffers[i].lease,
                                message->publish.buffers[i].generation);
            if (entry != NULL)
                entry->attached = true;
        }
        return;
    case PROTO_MAKE_CHANNEL:
        entry = ledger_find(&scene.ledger, client->number, message->make_channel.lease,
                            message->make_channel.generation);
        if (entry != NULL)
            entry->attached = true;
        return;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        give_up(client, message->release.lease, message->release.generation);
        return;
    case PROTO_MERGE:
        give_up(client, message->merge.lease, message->merge.generation);
        give_up(client, message->merge.other_lease, message->merge.other_generation);
        return;
    case PROTO_OPENED:
        if (message->opened.segment == client->unopened)
            client->unopened = 0;
        return;
    case PROTO_BYE:
        client->said_bye = true;
        ledger_leave_connection(&scene.ledger, client->number);
        return;
    default:
        return;
    }
}

void puppet_send(struct puppet *client, const uint8_t *packet, size_t size, unsigned n_fds) {
    const int fds[3] = {client->fd, client->fd, client->fd};

    if (client->fd < 0)
        return;
    note(client, packet, size);
    ssize_t n = send_with_fds(client->fd, packet, size, fds, n_fds, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EPERM && n_fds > 0) /* a kernel that lets the daemon refuse them at the door */
        (void)send(client->fd, packet, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* --- what a client hears --- */

/* Which operation it is the answer to; 0: that is not followed any more. */
static unsigned find_request(struct puppet *client, uint64_t request) {
    if (request == 0 || client->lost_count)
        return 0;
    for (unsigned i = 0; i < client->n_outstanding; i++)
        if (client->outstanding[i].request == request) {
            unsigned operation = client->outstanding[i].operation;
            client->outstanding[i] = client->outstanding[--client->n_outstanding];
            return operation;
        }
    MUST(!"an answer to no request");
}

static void remember(struct puppet *client, const struct proto_lease *lease) {
    unsigned i = client->n_names < NAMES ? client->n_names++ : (unsigned)(lease->lease % NAMES);
    client->names[i] = (struct proto_lease_name){lease->lease, lease->generation};
    client->offsets[i] = lease->offset_bytes;
    client->capacities[i] = lease->capacity_bytes;
}

/* Whether an attached block has no gaps: only when it is one that somebody got whole and shared. */
static bool is_known_whole(const struct ledger_entry *attached) {
    for (unsigned i = 0; i < scene.ledger.n_entries; i++) {
        const struct ledger_entry *entry = &scene.ledger.entries[i];
        if (entry->used && entry->attached && entry->whole && entry->segment == attached->segment &&
            entry->offset_bytes == attached->offset_bytes &&
            entry->capacity_bytes == attached->capacity_bytes)
            return true;
    }
    return false;
}

static void hear_lease(struct puppet *client, const struct proto_lease *lease, unsigned operation) {
    const struct stage_process *process = &scene.stage->processes[client->process];

    remember(client, lease);
    if (lease->description.kind == PROTO_SEGMENT_MEMFD) {
        client->unopened = lease->description.id;
    } else if (lease->description.kind == PROTO_SEGMENT_LEGACY_IPC) {
        const void *memory; /* what the stage's driver makes a handle of */
        memcpy(&memory, lease->description.handle, sizeof memory);
        ledger_describe(&scene.ledger, lease->description.id, memory);
        client->no_gpu = false;
        ledger_note_gpu_work(&scene.ledger, client->number);
    }
    if (has_given_up(client, lease->lease, lease->generation) ||
        (process->dead && (!process->listed || process->foreign || client->no_gpu)))
        return;
    struct ledger_entry entry = {.process = client->process,
                                 .connection = client->number,
                                 .uid = process->uid,
                                 .lease = lease->lease,
                                 .generation = lease->generation,
                                 .segment = lease->segment,
                                 .offset_bytes = lease->offset_bytes,
                                 .capacity_bytes = lease->capacity_bytes,
                                 .attached = operation != PROTO_ACQUIRE && operation != PROTO_SPLIT,
                                 .whole = true,
                                 .no_gpu = client->no_gpu};
    if (entry.attached)
        entry.whole = is_known_whole(&entry);
    ledger_enter(&scene.ledger, &entry);
}

static void hear_page(struct puppet *client, int fd) {
    if (client->page != NULL)
        munmap(client->page, PROTO_PAGE_BYTES);
    void *memory = mmap(NULL, PROTO_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    client->page = memory;
}

/* A segment that a client is told to close has no block in the ledger. */
static void hear_segments(struct puppet *client, const struct proto_segments *segments) {
    for (uint32_t i = 0; i < segments->count; i++) {
        for (unsigned j = 0; j < scene.ledger.n_entries; j++)
            MUST(!scene.ledger.entries[j].used || scene.ledger.entries[j].segment != segments->ids[i]);
        client->closable = segments->ids[i];
    }
}

static void remember_token(const struct proto_token *token) {
    scene.tokens[scene.n_tokens < TOKENS ? scene.n_tokens++ : token->bytes[0] % TOKENS] = *token;
}

static void hear_named(const struct proto_named *named) {
    MUST(named->generation <= scene.stage->daemon->core->leases.next_generation);
    for (uint32_t i = 0; i < named->count; i++)
        remember_token(&named->buffers[i].token);
}

static void hear_channel(const struct proto_channel_reply *reply) {
    scene.channel = reply->channel;
    remember_token(&reply->token);
}

/* A page of another place can be mapped for reading alone. The client scribbles over its own one. */
static void hear_channel_page(const struct proto_channel_page_reply *reply, int fd) {
    void *memory = mmap(NULL, reply->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    MUST((memory != MAP_FAILED) == (reply->is_own != 0));
    if (memory == MAP_FAILED)
        return;
    memset(memory, 0xa5, reply->size_bytes);
    munmap(memory, reply->size_bytes);
}

static void hear(struct puppet *client, int fd) {
    const struct proto_message *reply = &scene.reply;

    MUST(!client->was_rejected); /* nothing comes after the message that ends the session */
    if (reply->header.operation == PROTO_ERROR && strstr(reply->failure.text, "; the session ends") != NULL) {
        client->was_rejected = true; /* it answers what was no message, and waits for no OPENED */
        return;
    }
    MUST(client->unopened == 0); /* nothing comes between a segment's descriptor and its OPENED */
    unsigned operation = find_request(client, reply->header.request);
    if (reply->header.operation == PROTO_LEASE)
        hear_lease(client, &reply->lease, operation);
    else if (reply->header.operation == PROTO_TOKEN)
        remember_token(&reply->token.token);
    else if (reply->header.operation == PROTO_NAMED)
        hear_named(&reply->named);
    else if (reply->header.operation == PROTO_PUBLISHED)
        scene.generation = reply->published.generation;
    else if (reply->header.operation == PROTO_CHANNEL)
        hear_channel(&reply->channel);
    else if (reply->header.operation == PROTO_CHANNEL_MEMORY)
        hear_channel_page(&reply->channel_memory, fd);
    else if (reply->header.operation == PROTO_SEGMENTS)
        hear_segments(client, &reply->segments);
    else if (reply->header.operation == PROTO_PAGE)
        hear_page(client, fd);
}

bool puppet_read_reply(struct puppet *client) {
    uint8_t packet[PROTO_PACKET_MAX];
    const char *reason = NULL;
    int fd = -1;

    if (client->fd < 0)
        return false;
    ssize_t n = raw_client_receive(client->fd, packet, MSG_DONTWAIT, &fd);
    MUST(n >= 0 || errno != EPROTO);
    if (n <= 0)
        return false;
    int r = proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &scene.reply, &reason);
    if (r < 0)
        fprintf(stderr, "the daemon sent what does not check out: %s\n", reason);
    MUST(r == 0);
    MUST((fd >= 0) == proto_message_fds(&scene.reply));
    hear(client, fd);
    close_fd(fd);
    return true;
}

void puppet_disconnect(struct puppet *client) {
    if (client->page != NULL)
        munmap(client->page, PROTO_PAGE_BYTES);
    client->page = NULL;
    client->fd = close_fd(client->fd);
}
