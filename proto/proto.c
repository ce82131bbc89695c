/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format's code: messages.def says for each operation which side sends it, how long its body is, and
 * what its request id must be. Decoding goes: header, table, length, copy, check (check.h).
 * Nothing of a packet is looked at before its length is known to cover it. Encoding goes the other way and,
 * in builds with assertions, decodes what it made.
 *
 * There is one encoding of each message: what decodes encodes to the same bytes. Bytes that mean nothing
 * (reserved fields, the rest of a name's array) must be zero, so that neither side can leak its memory
 * through them.
 */
#include "proto/proto.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "proto/check.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The wire format is the memory's layout of a little-endian machine; this machine is none."
#endif

/* Where each field lies stands in docs/wire.md, whose test compares it with the structs. That these have no
 * padding of their own shows in their sizes. The failure travels as 8 bytes and its text: its own size does
 * not. */
#define SIZE_OF(type, size) _Static_assert(sizeof(struct type) == (size), "size of " #type)
SIZE_OF(proto_header, 16);
SIZE_OF(proto_hello, 16);
SIZE_OF(proto_hello_reply, 24 + PROTO_IDENTITY_BYTES + PROTO_PATH_SIZE);
SIZE_OF(proto_pool, 144);
SIZE_OF(proto_pools, 8 + 144 * PROTO_POOLS_MAX);
SIZE_OF(proto_acquire, 32);
SIZE_OF(proto_acquire_segments, 32);
SIZE_OF(proto_release, 56);
SIZE_OF(proto_merge, 32);
SIZE_OF(proto_lease_name, 16);
SIZE_OF(proto_share, 40);
SIZE_OF(proto_token, PROTO_TOKEN_BYTES);
SIZE_OF(proto_send, 56);
SIZE_OF(proto_token_reply, 48);
SIZE_OF(proto_opened, 8);
SIZE_OF(proto_cancel, 8);
SIZE_OF(proto_closed, 16);
SIZE_OF(proto_reclaimed, 24);
SIZE_OF(proto_name, PROTO_PROCESS_NAME_SIZE);
SIZE_OF(proto_idle, 16);
SIZE_OF(proto_segments, 8 + 8 * PROTO_CLOSE_MAX);
SIZE_OF(proto_offer, 8 + 8 * PROTO_CLOSE_MAX);
SIZE_OF(proto_part_name, 24);
SIZE_OF(proto_part, 32);
SIZE_OF(proto_parts, 8 + 32 * PROTO_PARTS_MAX);
SIZE_OF(proto_segment, 88);
SIZE_OF(proto_lease, 144);
SIZE_OF(proto_segment_lease, 24);
SIZE_OF(proto_leases, 24 + 24 * PROTO_LEASES_PER_MESSAGE);
SIZE_OF(proto_info, 48);
SIZE_OF(proto_page_reply, 8);
SIZE_OF(proto_directory_part, 8 + PROTO_DIRECTORY_PART_MAX);
SIZE_OF(proto_publish_buffer, 48);
SIZE_OF(proto_publish, PROTO_NAME_TEXT_SIZE + 24 + 48 * PROTO_NAME_BUFFERS_MAX);
SIZE_OF(proto_published, 8);
SIZE_OF(proto_unpublish, PROTO_NAME_TEXT_SIZE + 16);
SIZE_OF(proto_open_name, PROTO_NAME_TEXT_SIZE + 24);
SIZE_OF(proto_named_buffer, PROTO_TOKEN_BYTES + 32);
SIZE_OF(proto_named, 40 + (PROTO_TOKEN_BYTES + 32) * PROTO_NAME_BUFFERS_MAX);
SIZE_OF(proto_read_directory, PROTO_NAME_TEXT_SIZE + 16);
SIZE_OF(proto_make_channel, PROTO_NAME_TEXT_SIZE + 64);
SIZE_OF(proto_join_channel, PROTO_NAME_TEXT_SIZE + 16);
SIZE_OF(proto_channel_page_name, 16);
SIZE_OF(proto_channel_reply, PROTO_TOKEN_BYTES + 56);
SIZE_OF(proto_channel_page_reply, 24);
SIZE_OF(proto_list_names, 8);
SIZE_OF(proto_listed_name, 48 + PROTO_NAME_TEXT_SIZE);
SIZE_OF(proto_names, 8 + (48 + PROTO_NAME_TEXT_SIZE) * PROTO_NAMES_PER_MESSAGE);

_Static_assert(sizeof(struct proto_header) + sizeof(struct proto_pools) <= PROTO_PACKET_MAX,
               "POOLS fits a packet");
_Static_assert(sizeof(struct proto_header) + sizeof(struct proto_failure) <= PROTO_PACKET_MAX,
               "ERROR fits a packet");
_Static_assert(sizeof(struct proto_header) + sizeof(struct proto_directory_part) <= PROTO_PACKET_MAX &&
                   sizeof(struct proto_header) + sizeof(struct proto_names) <= PROTO_PACKET_MAX,
               "so do DIRECTORY and NAMES");

enum request_rule {
    ANSWERED,
    ONE_WAY,
    EITHER,
};

#define SOME UINT8_MAX /* descriptors: as the message says */

/* fixed_size: of the body without what varies. variable_size() is for the text or the pools that may follow
 * it. */
struct operation {
    const char *name;
    enum proto_sender sender;
    enum request_rule request;
    enum proto_operation reply;
    uint8_t descriptors;
    bool is_variable;
    size_t fixed_size;
};

#define ROW(name, sender, request, reply, descriptors, is_variable, size)                                    \
    [PROTO_##name] = {#name, PROTO_FROM_##sender, request, PROTO_##reply, descriptors, is_variable, size},
#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type)                       \
    ROW(name, sender, request, reply, descriptors, false, sizeof(struct type))
#define PROTO_MESSAGE_OPEN(name, number, sender, request, reply, descriptors, member, type, open)            \
    ROW(name, sender, request, reply, descriptors, true, offsetof(struct type, open))
static const struct operation operations[] = {
#include "proto/messages.def"
};

static const struct operation *operation_find(unsigned number) {
    if (number >= sizeof operations / sizeof *operations || operations[number].name == NULL)
        return NULL;
    return &operations[number];
}

/* All bodies start where the union does. */
#define BODY_OFFSET offsetof(struct proto_message, hello)
_Static_assert(BODY_OFFSET == sizeof(struct proto_header),
               "the body follows the header, in memory as in the packet");

/* The texts of what is wrong name these limits. */
_Static_assert(PROTO_POOLS_MAX == 64 && PROTO_TEXT_MAX == 1024 && PROTO_PACKET_MAX == 16384,
               "the texts below name other limits");

/* How many bytes follow the fixed part, by the count in it. Returns NULL, or what is wrong
 * with the count. */
static const char *variable_size(const struct proto_message *message, size_t *ret_size) {
    *ret_size = 0;
    switch (message->header.operation) {
    case PROTO_POOLS:
        if (message->pools.count > PROTO_POOLS_MAX)
            return "POOLS.count: above 64";
        *ret_size = message->pools.count * sizeof(struct proto_pool);
        return NULL;
    case PROTO_ERROR:
        if (message->failure.text_length > PROTO_TEXT_MAX)
            return "ERROR.text_length: above 1024";
        *ret_size = message->failure.text_length;
        return NULL;
    case PROTO_WRITE_DIRECTORY:
    case PROTO_DIRECTORY:
        if (message->directory.n_bytes > PROTO_DIRECTORY_PART_MAX)
            return message->header.operation == PROTO_DIRECTORY ? "DIRECTORY.n_bytes: above 15360"
                                                                : "WRITE_DIRECTORY.n_bytes: above 15360";
        *ret_size = message->directory.n_bytes;
        return NULL;
    default:
        return NULL;
    }
}

/* The flaw of a message whose fixed part is followed by another number of bytes than variable_size() says. */
static const char *rest_flaw(unsigned operation) {
    switch (operation) {
    case PROTO_POOLS:
        return "POOLS.count: not the pools that follow";
    case PROTO_DIRECTORY:
        return "DIRECTORY.n_bytes: not the bytes that follow";
    case PROTO_WRITE_DIRECTORY:
        return "WRITE_DIRECTORY.n_bytes: not the bytes that follow";
    default:
        return "ERROR.text_length: not the bytes that follow";
    }
}

/* NULL, or what is wrong. */
static const char *decode(enum proto_sender sender, const uint8_t *packet, size_t size,
                          struct proto_message *message) {
    struct proto_header *header = &message->header;
    size_t rest;

    if (size < sizeof *header)
        return "packet: shorter than the 16 bytes of a header";
    if (size > PROTO_PACKET_MAX)
        return "packet: longer than 16384 bytes";
    memcpy(header, packet, sizeof *header);
    if (header->length != size)
        return "header.length: not the packet's";
    if ((header->flags & ~(sender == PROTO_FROM_DAEMON ? PROTO_AGAIN : 0)) != 0)
        return "header.flags: unknown ones are set";
    const struct operation *operation = operation_find(header->operation);
    if (operation == NULL)
        return "header.operation: unknown";
    if (operation->sender != sender)
        return "header.operation: one of the other side's";
    if (operation->request == ANSWERED && header->request == 0)
        return "header.request: 0 in a message that is answered";
    if (operation->request == ONE_WAY && header->request != 0)
        return "header.request: not 0 in a one-way message";

    size -= sizeof *header;
    packet += sizeof *header;
    uint8_t *body = (uint8_t *)message + BODY_OFFSET;
    if (operation->is_variable ? size < operation->fixed_size : size != operation->fixed_size)
        return "header.length: not the operation's";
    memcpy(body, packet, operation->fixed_size);
    const char *flaw = variable_size(message, &rest);
    if (flaw != NULL)
        return flaw;
    if (size - operation->fixed_size != rest)
        return rest_flaw(header->operation);
    memcpy(body + operation->fixed_size, packet + operation->fixed_size, rest);
    if (header->operation == PROTO_ERROR)
        message->failure.text[rest] = '\0';
    return proto_check(message);
}

int proto_decode(enum proto_sender sender, const void *packet, size_t size, struct proto_message *ret_message,
                 const char **ret_reason) {
    const char *reason = decode(sender, packet, size, ret_message);
    if (reason == NULL)
        return 0;
    if (ret_reason != NULL)
        *ret_reason = reason;
    return -EBADMSG;
}

uint64_t proto_packet_request(const void *packet, size_t size) {
    struct proto_header header;

    if (size < sizeof header)
        return 0;
    memcpy(&header, packet, sizeof header);
    return header.request;
}

size_t proto_encode(const struct proto_message *message, void *packet) {
    const struct operation *operation = operation_find(message->header.operation);
    size_t rest = 0;

    assert(operation != NULL);
    const char *flaw = variable_size(message, &rest);
    assert(flaw == NULL);
    (void)flaw;

    struct proto_header header = {
        .operation = message->header.operation,
        .flags = message->header.flags,
        .length = (uint32_t)(sizeof header + operation->fixed_size + rest),
        .request = message->header.request,
    };
    memcpy(packet, &header, sizeof header);
    memcpy((uint8_t *)packet + sizeof header, (const uint8_t *)message + BODY_OFFSET,
           operation->fixed_size + rest);
#ifndef NDEBUG
    struct proto_message decoded;
    const char *reason = decode(operation->sender, packet, header.length, &decoded);
    assert(reason == NULL);
#endif
    return header.length;
}

enum proto_operation proto_reply_to(unsigned operation) {
    const struct operation *found = operation_find(operation);
    return found != NULL ? found->reply : PROTO_NONE;
}

bool proto_is_answered(const struct proto_header *header) {
    return proto_reply_to(header->operation) != PROTO_NONE && header->request != 0;
}

unsigned proto_message_fds(const struct proto_message *message) {
    const struct operation *operation = operation_find(message->header.operation);

    if (operation == NULL || operation->descriptors != SOME)
        return operation != NULL ? operation->descriptors : 0;
    switch (message->header.operation) {
    case PROTO_HELLO_REPLY:
        return (message->hello_reply.flags & PROTO_HELLO_REPLY_EVENTFD) != 0;
    case PROTO_LEASES:
        return message->leases.n_described;
    default:
        return message->lease.description.kind > PROTO_SEGMENT_LEGACY_IPC;
    }
}

const char *proto_operation_name(unsigned operation) {
    const struct operation *found = operation_find(operation);
    return found != NULL ? found->name : "unknown operation";
}
