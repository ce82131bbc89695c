/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format's rules one by one: each broken alone in a message that is otherwise valid; the texts of
 * failures; and what the encoder must not make. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto_messages.h"

/* One rule broken at a time: what the decoder must not let through, each in a message that is otherwise
 * valid. */

enum breakage_value_size {
    BYTE = 1,
    U16 = 2,
    U32 = 4,
    U64 = 8,
};

struct breakage {
    uint16_t operation;
    size_t offset; /* in the body; from the end of the header */
    const char *field;
    size_t width;
    uint64_t value;
};

#define BODY(type, member)          offsetof(struct type, member), #member
#define INTO_BODY(type, member, at) offsetof(struct type, member) + (at), #member
#define IN_POOL(member)             INTO_POOL(member, 0)
#define INTO_POOL(member, at)       INTO_BODY(proto_pools, pools[0].member, at)
#define IN_PART(member)             INTO_BODY(proto_parts, parts[0].member, 0)
#define IN_LEASES(i, member)        INTO_BODY(proto_leases, leases[i].member, 0)
#define BEHIND_LEASES(i, member)    offsetof(struct proto_leases, leases[i].member), "leases"
#define IN_OFFER(i)                 offsetof(struct proto_offer, ids[i]), "count"
#define IN_BUFFER(type, i, member)      INTO_BODY(type, buffers[i].member, 0)
#define IN_FENCE(type, i, member)       offsetof(struct type, buffers[i].member), "has_fence"
#define BEHIND_BUFFERS(type, i, member) offsetof(struct type, buffers[i].member), "count"
#define IN_NAMES(i, member)             INTO_BODY(proto_names, names[i].member, 0)
#define IN_SEGMENT(member)          INTO_SEGMENT(member, 0)
#define INTO_SEGMENT(member, at)    INTO_BODY(proto_lease, description.member, at)

/* Valid messages with plain contents, for the table of breakages. */
static void plain_message(uint16_t operation, struct proto_message *message) {
    memset(message, 0, sizeof *message);
    message->header.operation = operation;
    message->header.request = is_one_way(operation) ? 0 : 7;
    switch (operation) {
    case PROTO_HELLO:
        message->hello = (struct proto_hello){PROTO_MAGIC, 1, 1, PROTO_HELLO_RECLAIM, 0};
        break;
    case PROTO_HELLO_REPLY:
        message->hello_reply = (struct proto_hello_reply){
            PROTO_MAGIC, PROTO_VERSION_MAX, PROTO_GPU_SIM, 3, 4, 0, {5}, "/run/admin"};
        break;
    case PROTO_POOLS:
        message->pools.count = 1;
        message->pools.pools[0] = (struct proto_pool){
            .id = 1, .kind = PROTO_POOL_HOST, .device = -1, .numa_node = 0, .name = "host memory, node 0"};
        break;
    case PROTO_ACQUIRE:
        message->acquire = (struct proto_acquire){1, 0, 1, 0, 1};
        break;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        message->release = (struct proto_release){1, 1, 512, 512, 0, 0, 0};
        break;
    case PROTO_OPENED:
        message->opened.segment = 9;
        break;
    case PROTO_CANCEL:
        message->cancel.request = 8;
        break;
    case PROTO_RECLAIMED:
        message->reclaimed = (struct proto_reclaimed){1, PROTO_RECLAIM_DONE, 3, 512};
        break;
    case PROTO_NAME:
        memcpy(message->name.name, "name", sizeof "name");
        break;
    case PROTO_CLOSED:
        message->closed = (struct proto_closed){9, 1000};
        break;
    case PROTO_IDLE:
        message->idle = (struct proto_idle){1, PROTO_IDLE_BUSY, 512};
        break;
    case PROTO_SEGMENTS:
        message->segments = (struct proto_segments){2, 0, {9, 10}};
        break;
    case PROTO_OFFER:
        message->offer = (struct proto_offer){1, 2, {9, 10}};
        break;
    case PROTO_ASK_PARTS:
    case PROTO_DESCRIBE:
        message->describe = (struct proto_part_name){1, 1, 2, 0};
        break;
    case PROTO_PARTS:
        message->parts = (struct proto_parts){
            2, 3, {{9, SEGMENT_STEP, 512, SEGMENT_STEP - 512}, {10, SEGMENT_STEP, 0, SEGMENT_STEP}}};
        break;
    case PROTO_LEASE:
        message->lease = (struct proto_lease){
            1, 1, 9, 512, 1000, 1024, 1, 0, {9, SEGMENT_STEP, 1, PROTO_SEGMENT_MEMFD, {0}}};
        break;
    case PROTO_ACQUIRE_SEGMENTS:
        message->acquire_segments = (struct proto_acquire_segments){1, 0, SEGMENT_STEP, 2, 0, 1};
        break;
    case PROTO_LEASES:
        message->leases = (struct proto_leases){1, 2, 1, 3, SEGMENT_STEP, {{1, 1, 9}, {2, 2, 10}}};
        break;
    case PROTO_INFO:
        message->info = (struct proto_info){9, 512, 1000, 1024, 1, 1, 0, 0};
        break;
    case PROTO_BOARD:
        message->board = (struct proto_board_reply){PROTO_BOARD_BYTES, 3};
        break;
    case PROTO_TOKEN:
        message->token.lease = 1;
        break;
    case PROTO_SEND:
        message->send = (struct proto_send){{1, 1, 512, 1024, 1000}, 5, 2, 0};
        break;
    case PROTO_HOLDERS:
        message->holders = (struct proto_holders){1, 2, 0, 0, {{1, 2, 3}, {4, 5, 6}}};
        break;
    case PROTO_PAGE:
        message->page = (struct proto_page_reply){PROTO_PAGE_BYTES, 0};
        break;
    case PROTO_WRITE_DIRECTORY:
    case PROTO_DIRECTORY:
        message->directory = (struct proto_directory_part){100, 3, {1, 2, 3}};
        break;
    case PROTO_PUBLISH:
        message->publish = (struct proto_publish){
            "name", PROTO_PUBLISH_KEEP, 2, 3, 0, 5, {{1, 1, 512, {6, 7, 8}, 1, 0}, {2, 2, 512, {0}, 0, 0}}};
        break;
    case PROTO_UNPUBLISH:
        message->unpublish = (struct proto_unpublish){"name", 5, 0, 0};
        break;
    case PROTO_MAKE_CHANNEL:
        message->make_channel = (struct proto_make_channel){"name", 3, 4, 4096, 8, 64, 2, PROTO_CHANNEL_WAIT,
                                                            PROTO_MAKE_CHANNEL_KEEP, 0};
        break;
    case PROTO_JOIN_CHANNEL:
        message->join_channel = (struct proto_join_channel){"name", 5, 1, 0};
        break;
    case PROTO_LEAVE_CHANNEL:
    case PROTO_ASK_CHANNEL_MEMORY:
        message->leave_channel = (struct proto_channel_page_name){5, 1, 0};
        break;
    case PROTO_CHANNEL:
        message->channel = (struct proto_channel_reply){5, {{1}}, 4096, 8, 64, 2, PROTO_CHANNEL_WAIT, 1, 6};
        break;
    case PROTO_CHANNEL_MEMORY:
        message->channel_memory = (struct proto_channel_page_reply){5, 8192, 1, 1};
        break;
    case PROTO_OPEN_NAME:
        message->open_name = (struct proto_open_name){"name", 5, 1, PROTO_OPEN_NAME_BUILD, 0};
        break;
    case PROTO_READ_DIRECTORY:
        message->read_directory = (struct proto_read_directory){"name", 5, 100, 0};
        break;
    case PROTO_PUBLISHED:
        message->published.generation = 5;
        break;
    case PROTO_NAMED:
        message->named = (struct proto_named){
            PROTO_NAME_THERE, PROTO_PUBLISH_KEEP, 5, 4, 3, 1, 3, {{{{9}}, 512, {6, 7, 8}, 1, 1}}};
        break;
    case PROTO_NAMES:
        message->names = (struct proto_names){
            2, 1, {{4, 5, 512, 6, 7, PROTO_PUBLISH_KEEP, 1, "name"}, {5, 0, 0, 0, 7, 0, 0, "other"}}};
        break;
    case PROTO_ERROR:
        proto_failure_set(&message->failure, PROTO_E_STALE, "lease %d", 5);
        break;
    default:
        break;
    }
}

/* A word of a text, between characters that no name has. */
static bool has_word(const char *text, const char *word) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        if ((at == text || strchr(letters, at[-1]) == NULL) &&
            (at[strlen(word)] == '\0' || strchr(letters, at[strlen(word)]) == NULL))
            return true;
    return false;
}

/* The reason why a packet is refused begins with the message's name and has the field's. */
static void assert_reason_names(enum proto_sender sender, const void *packet, size_t size,
                                const char *message, const char *field) {
    struct proto_message decoded;
    const char *reason = "";
    const char *last = strrchr(field, '.');

    assert_int_equal(proto_decode(sender, packet, size, &decoded, &reason), -EBADMSG);
    size_t length = strlen(message);
    if (strncmp(reason, message, length) != 0 || reason[length] != '.' ||
        !has_word(reason, last != NULL ? last + 1 : field))
        fail_msg("the reason why %s.%s is refused does not name it: %s", message, field, reason);
}

static void each_broken_rule_is_refused_by_its_name(void **state) {
    (void)state;
    static const struct breakage breakages[] = {
        {PROTO_HELLO, BODY(proto_hello, magic), U32, PROTO_MAGIC + 1},
        {PROTO_HELLO, BODY(proto_hello, version_min), U16, 0},
        {PROTO_HELLO, BODY(proto_hello, version_min), U16, 2},
        {PROTO_HELLO, BODY(proto_hello, flags), U32, PROTO_HELLO_QUESTION | PROTO_HELLO_NO_GPU},
        {PROTO_HELLO, BODY(proto_hello, flags), U32, 8},
        {PROTO_HELLO, BODY(proto_hello, flags), U32, UINT32_MAX},
        {PROTO_HELLO, BODY(proto_hello, reserved), U32, 1},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, magic), U32, 0},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, version), U16, 0},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, version), U16, PROTO_VERSION_MAX + 1},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, gpu), U16, 3},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, flags), U32, 2},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, flags), U32, UINT32_MAX},
        {PROTO_HELLO_REPLY, BODY(proto_hello_reply, admin_path), 1, '\n'},
        {PROTO_HELLO_REPLY, INTO_BODY(proto_hello_reply, admin_path, PROTO_PATH_SIZE - 1), 1, 'x'},
        {PROTO_POOLS, BODY(proto_pools, count), U32, 0},
        {PROTO_POOLS, BODY(proto_pools, count), U32, 2},
        {PROTO_POOLS, BODY(proto_pools, count), U32, PROTO_POOLS_MAX + 1},
        {PROTO_POOLS, BODY(proto_pools, count), U32, UINT32_MAX},
        {PROTO_POOLS, BODY(proto_pools, count), U32, UINT64_C(0x10000001)},
        {PROTO_POOLS, BODY(proto_pools, reserved), U32, 1},
        {PROTO_POOLS, IN_POOL(id), U32, 0},
        {PROTO_POOLS, IN_POOL(kind), U32, 0},
        {PROTO_POOLS, IN_POOL(kind), U32, 3},
        {PROTO_POOLS, IN_POOL(flags), U16, 2},
        {PROTO_POOLS, IN_POOL(kind), U32, PROTO_POOL_DEVICE}, /* its device is -1 */
        {PROTO_POOLS, IN_POOL(device), U32, 0},
        {PROTO_POOLS, IN_POOL(device), U32, UINT32_MAX - 1},
        {PROTO_POOLS, IN_POOL(numa_node), U32, UINT32_MAX - 1},
        {PROTO_POOLS, IN_POOL(uuid), BYTE, 1},
        {PROTO_POOLS, INTO_POOL(uuid, 15), BYTE, 1},
        {PROTO_POOLS, IN_POOL(reserved_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_POOLS, IN_POOL(leased_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_POOLS, IN_POOL(free_bytes), U64, UINT64_MAX},
        {PROTO_POOLS, IN_POOL(quarantined_bytes), U64, UINT64_MAX},
        {PROTO_POOLS, IN_POOL(largest_free_bytes), U64, UINT64_MAX},
        {PROTO_POOLS, IN_POOL(name), BYTE, '\n'},
        {PROTO_POOLS, IN_POOL(name), BYTE, 0x7f},
        {PROTO_POOLS, IN_POOL(name), BYTE, 0xc3},
        {PROTO_POOLS, IN_POOL(name), BYTE, 0}, /* and a rest that is not zero */
        {PROTO_POOLS, INTO_POOL(name, 63), BYTE, 'x'},
        {PROTO_ACQUIRE, BODY(proto_acquire, flags), U32, PROTO_ACQUIRE_FLAGS + 1},
        {PROTO_ACQUIRE, BODY(proto_acquire, flags), U32, UINT32_MAX},
        {PROTO_ACQUIRE, BODY(proto_acquire, least_bytes), U64, 2}, /* its size is 1 */
        {PROTO_ACQUIRE, BODY(proto_acquire, least_bytes), U64, UINT64_MAX},
        {PROTO_ACQUIRE, BODY(proto_acquire, size_bytes), U64, 0},
        {PROTO_ACQUIRE, BODY(proto_acquire, size_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_RELEASE, BODY(proto_release, size_bytes), U64, 0}, /* its offset is 512 */
        {PROTO_RELEASE, BODY(proto_release, size_bytes), U64, PROTO_SIZE_MAX},
        {PROTO_RELEASE, BODY(proto_release, size_bytes), U64, UINT64_MAX - 511},
        {PROTO_RELEASE, BODY(proto_release, offset_bytes), U64, UINT64_MAX - 511},
        {PROTO_RELEASE, BODY(proto_release, fence), U32, PROTO_PAGE_FENCES + 1},
        {PROTO_RELEASE, BODY(proto_release, fence), U32, UINT32_MAX},
        {PROTO_RELEASE, BODY(proto_release, board_word), U32, 1}, /* it is of a part */
        {PROTO_RELEASE, BODY(proto_release, board_word), U32, PROTO_BOARD_WORDS + 1},
        {PROTO_RELEASE, BODY(proto_release, board_value), U64, 1}, /* its board_word is 0 */
        {PROTO_RELEASE, BODY(proto_release, fence_value), U64, 1}, /* its fence is 0 */
        {PROTO_SPLIT, BODY(proto_release, offset_bytes), U64, PROTO_SIZE_MAX},
        {PROTO_SPLIT, BODY(proto_release, offset_bytes), U64, UINT64_MAX - 511},
        {PROTO_SPLIT, BODY(proto_release, size_bytes), U64, 0},
        {PROTO_SPLIT, BODY(proto_release, size_bytes), U64, PROTO_SIZE_MAX},
        {PROTO_SPLIT, BODY(proto_release, size_bytes), U64, UINT64_MAX - 511},
        {PROTO_SPLIT, BODY(proto_release, fence), U32, 1},
        {PROTO_SPLIT, BODY(proto_release, board_word), U32, 1},
        {PROTO_SPLIT, BODY(proto_release, board_value), U64, 1},
        {PROTO_SPLIT, BODY(proto_release, fence_value), U64, 1},
        {PROTO_SHARE, BODY(proto_share, size_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_SHARE, BODY(proto_share, size_bytes), U64, UINT64_MAX},
        {PROTO_SHARE, BODY(proto_share, offset_bytes), U64, 512},
        {PROTO_SHARE, BODY(proto_share, offset_bytes), U64, UINT64_MAX - 511},
        {PROTO_SHARE, BODY(proto_share, part_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_TOKEN, BODY(proto_token_reply, lease), U64, 0},
        {PROTO_OPENED, BODY(proto_opened, segment), U64, 0},
        {PROTO_CANCEL, BODY(proto_cancel, request), U64, 0},
        {PROTO_RECLAIMED, BODY(proto_reclaimed, pool), U32, 0},
        {PROTO_RECLAIMED, BODY(proto_reclaimed, outcome), U32, 0},
        {PROTO_RECLAIMED, BODY(proto_reclaimed, outcome), U32, PROTO_RECLAIM_PENDING + 1},
        {PROTO_RECLAIMED, BODY(proto_reclaimed, kept_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_NAME, BODY(proto_name, name), 1, '\0'},
        {PROTO_NAME, BODY(proto_name, name), 1, '\n'},
        {PROTO_NAME, INTO_BODY(proto_name, name, PROTO_PROCESS_NAME_SIZE - 1), 1, 'x'},
        {PROTO_LEASE, BODY(proto_lease, segment), U64, 0},
        {PROTO_LEASE, BODY(proto_lease, segment), U64, 10},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, 1},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, SEGMENT_STEP - 512},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, SEGMENT_STEP},
        {PROTO_LEASE, BODY(proto_lease, offset_bytes), U64, UINT64_MAX - 511},
        {PROTO_LEASE, BODY(proto_lease, size_bytes), U64, 0},
        {PROTO_LEASE, BODY(proto_lease, size_bytes), U64, 1025},
        {PROTO_LEASE, BODY(proto_lease, capacity_bytes), U64, 1001},
        {PROTO_LEASE, BODY(proto_lease, capacity_bytes), U64, SEGMENT_STEP},
        {PROTO_LEASE, BODY(proto_lease, capacity_bytes), U64, UINT64_MAX - 511},
        {PROTO_LEASE, BODY(proto_lease, pool), U32, 0},
        {PROTO_LEASE, BODY(proto_lease, pool), U32, 2},
        {PROTO_LEASE, BODY(proto_lease, parts), U32, 1},
        {PROTO_LEASE, BODY(proto_lease, parts), U32, PROTO_ROW_PARTS_MAX + 1},
        {PROTO_LEASE, IN_SEGMENT(id), U64, 0},
        {PROTO_LEASE, IN_SEGMENT(id), U64, 10},
        {PROTO_LEASE, IN_SEGMENT(size_bytes), U64, 0},
        {PROTO_LEASE, IN_SEGMENT(size_bytes), U64, SEGMENT_STEP + 512},
        {PROTO_LEASE, IN_SEGMENT(size_bytes), U64, PROTO_SIZE_MAX + SEGMENT_STEP},
        {PROTO_LEASE, IN_SEGMENT(pool), U32, 2},
        {PROTO_LEASE, IN_SEGMENT(kind), U32, 0},
        {PROTO_LEASE, IN_SEGMENT(kind), U32, 5},
        {PROTO_LEASE, IN_SEGMENT(handle), BYTE, 1},
        {PROTO_LEASE, INTO_SEGMENT(handle, 63), BYTE, 1},
        {PROTO_INFO, BODY(proto_info, segment), U64, 0},
        {PROTO_INFO, BODY(proto_info, offset_bytes), U64, 256},
        {PROTO_INFO, BODY(proto_info, offset_bytes), U64, PROTO_SIZE_MAX},
        {PROTO_INFO, BODY(proto_info, size_bytes), U64, 0},
        {PROTO_INFO, BODY(proto_info, size_bytes), U64, 1025},
        {PROTO_INFO, BODY(proto_info, capacity_bytes), U64, 1023},
        {PROTO_INFO, BODY(proto_info, pool), U32, 0},
        {PROTO_INFO, BODY(proto_info, holders), U32, 0},
        {PROTO_INFO, BODY(proto_info, shared), U32, 2},
        {PROTO_INFO, BODY(proto_info, parts), U32, 1},
        {PROTO_INFO, BODY(proto_info, parts), U32, PROTO_ROW_PARTS_MAX + 1},
        {PROTO_BOARD, BODY(proto_board_reply, size_bytes), U32, PROTO_BOARD_BYTES / 2},
        {PROTO_BOARD, BODY(proto_board_reply, slot), U32, PROTO_BOARD_SLOTS},
        {PROTO_SEND, BODY(proto_send, share.size_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_SEND, BODY(proto_send, share.part_bytes), U64, PROTO_SIZE_MAX},
        {PROTO_SEND, BODY(proto_send, lifetime_ns), U64, 0},
        {PROTO_SEND, BODY(proto_send, lifetime_ns), U64, PROTO_PARCEL_NS_MAX + 1},
        {PROTO_SEND, BODY(proto_send, takers), U32, 0},
        {PROTO_SEND, BODY(proto_send, flags), U32, PROTO_SEND_HELD << 1},
        {PROTO_HOLDERS, BODY(proto_holders, count), U32, 1},
        {PROTO_HOLDERS, BODY(proto_holders, count), U32, PROTO_HOLDERS_MAX + 1},
        {PROTO_HOLDERS, BODY(proto_holders, reserved), U32, 1},
        {PROTO_HOLDERS, INTO_BODY(proto_holders, fences[1].slot, 0), U32, PROTO_BOARD_SLOTS},
        {PROTO_HOLDERS, INTO_BODY(proto_holders, fences[1].word, 0), U32, PROTO_BOARD_WORDS},
        {PROTO_PAGE, BODY(proto_page_reply, size_bytes), U32, 0},
        {PROTO_PAGE, BODY(proto_page_reply, size_bytes), U32, PROTO_PAGE_BYTES * 2},
        {PROTO_PAGE, BODY(proto_page_reply, reserved), U32, 1},
        {PROTO_CLOSED, BODY(proto_closed, segment), U64, 0},
        {PROTO_IDLE, BODY(proto_idle, flags), U32, PROTO_IDLE_FLAGS + 1},
        {PROTO_IDLE, BODY(proto_idle, flags), U32, UINT32_MAX},
        {PROTO_IDLE, BODY(proto_idle, size_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_SEGMENTS, BODY(proto_segments, count), U32, 1},
        {PROTO_SEGMENTS, BODY(proto_segments, count), U32, 3},
        {PROTO_SEGMENTS, BODY(proto_segments, count), U32, PROTO_CLOSE_MAX + 1},
        {PROTO_SEGMENTS, BODY(proto_segments, reserved), U32, 1},
        {PROTO_SEGMENTS, BODY(proto_segments, ids), U64, 0},
        {PROTO_ASK_PARTS, BODY(proto_part_name, part), U32, PROTO_ROW_PARTS_MAX},
        {PROTO_ASK_PARTS, BODY(proto_part_name, flags), U32, 1},
        {PROTO_DESCRIBE, BODY(proto_part_name, part), U32, PROTO_ROW_PARTS_MAX},
        {PROTO_DESCRIBE, BODY(proto_part_name, flags), U32, 2},
        {PROTO_PARTS, BODY(proto_parts, count), U32, 0},
        {PROTO_PARTS, BODY(proto_parts, count), U32, 1},
        {PROTO_PARTS, BODY(proto_parts, count), U32, PROTO_PARTS_MAX + 1},
        {PROTO_PARTS, BODY(proto_parts, total), U32, 1},
        {PROTO_PARTS, BODY(proto_parts, total), U32, PROTO_ROW_PARTS_MAX + 1},
        {PROTO_PARTS, IN_PART(segment), U64, 0},
        {PROTO_PARTS, IN_PART(segment_bytes), U64, 0},
        {PROTO_PARTS, IN_PART(segment_bytes), U64, SEGMENT_STEP + 512},
        {PROTO_PARTS, IN_PART(segment_bytes), U64, PROTO_SIZE_MAX + SEGMENT_STEP},
        {PROTO_PARTS, IN_PART(offset_bytes), U64, 256},
        {PROTO_PARTS, IN_PART(offset_bytes), U64, 1024},
        {PROTO_PARTS, IN_PART(offset_bytes), U64, UINT64_MAX - 511},
        {PROTO_PARTS, IN_PART(size_bytes), U64, 0},
        {PROTO_PARTS, IN_PART(size_bytes), U64, 1000},
        {PROTO_PARTS, IN_PART(size_bytes), U64, SEGMENT_STEP},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, flags), U32, PROTO_ACQUIRE_FLAGS + 1},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, flags), U32, UINT32_MAX},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, segment_bytes), U64, 0},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, segment_bytes), U64, SEGMENT_STEP + 512},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, segment_bytes), U64, SEGMENT_STEP / 2},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, segment_bytes), U64,
         PROTO_SIZE_MAX + SEGMENT_STEP},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, segment_bytes), U64,
         UINT64_MAX - SEGMENT_STEP + 1},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, segment_bytes), U64,
         PROTO_SIZE_MAX / 2 + SEGMENT_STEP}, /* its count is 2 */
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, count), U32, 0},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, count), U32, PROTO_LEASES_MAX + 1},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, count), U32, UINT32_MAX},
        {PROTO_ACQUIRE_SEGMENTS, BODY(proto_acquire_segments, reserved), U32, 1},
        {PROTO_LEASES, BODY(proto_leases, pool), U32, 0},
        {PROTO_LEASES, BODY(proto_leases, count), U32, 0},
        {PROTO_LEASES, BODY(proto_leases, count), U32, 1},
        {PROTO_LEASES, BODY(proto_leases, count), U32, 3},
        {PROTO_LEASES, BODY(proto_leases, count), U32, PROTO_LEASES_PER_MESSAGE + 1},
        {PROTO_LEASES, BODY(proto_leases, count), U32, UINT32_MAX},
        {PROTO_LEASES, BODY(proto_leases, n_described), U32, 3}, /* its count is 2 */
        {PROTO_LEASES, BODY(proto_leases, n_described), U32, UINT32_MAX},
        {PROTO_LEASES, BODY(proto_leases, n_left), U32, PROTO_LEASES_MAX - 1},
        {PROTO_LEASES, BODY(proto_leases, n_left), U32, UINT32_MAX},
        {PROTO_LEASES, BODY(proto_leases, segment_bytes), U64, 0},
        {PROTO_LEASES, BODY(proto_leases, segment_bytes), U64, SEGMENT_STEP + 512},
        {PROTO_LEASES, BODY(proto_leases, segment_bytes), U64, PROTO_SIZE_MAX + SEGMENT_STEP},
        {PROTO_LEASES, IN_LEASES(0, segment), U64, 0},
        {PROTO_LEASES, IN_LEASES(1, segment), U64, 0},
        {PROTO_LEASES, BEHIND_LEASES(2, lease), U64, 1}, /* its count is 2 */
        {PROTO_LEASES, BEHIND_LEASES(2, generation), U64, 1},
        {PROTO_LEASES, BEHIND_LEASES(2, segment), U64, 11},
        {PROTO_LEASES, BEHIND_LEASES(63, segment), U64, UINT64_MAX},
        {PROTO_OFFER, BODY(proto_offer, count), U32, 0},
        {PROTO_OFFER, BODY(proto_offer, count), U32, 1},
        {PROTO_OFFER, BODY(proto_offer, count), U32, 3},
        {PROTO_OFFER, BODY(proto_offer, count), U32, PROTO_CLOSE_MAX + 1},
        {PROTO_OFFER, BODY(proto_offer, count), U32, UINT32_MAX},
        {PROTO_OFFER, IN_OFFER(0), U64, 0},
        {PROTO_OFFER, IN_OFFER(1), U64, 0},
        {PROTO_OFFER, IN_OFFER(2), U64, 11}, /* its count is 2 */
        {PROTO_OFFER, IN_OFFER(PROTO_CLOSE_MAX - 1), U64, UINT64_MAX},
        {PROTO_WRITE_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, 0},
        {PROTO_WRITE_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, 2},
        {PROTO_WRITE_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, 4},
        {PROTO_WRITE_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, PROTO_DIRECTORY_PART_MAX + 1},
        {PROTO_WRITE_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, UINT32_MAX},
        {PROTO_WRITE_DIRECTORY, BODY(proto_directory_part, offset_bytes), U32, PROTO_DIRECTORY_BYTES_MAX - 2},
        {PROTO_WRITE_DIRECTORY, BODY(proto_directory_part, offset_bytes), U32, UINT32_MAX},
        {PROTO_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, 0},
        {PROTO_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, 2},
        {PROTO_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, 4},
        {PROTO_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, PROTO_DIRECTORY_PART_MAX + 1},
        {PROTO_DIRECTORY, BODY(proto_directory_part, n_bytes), U32, UINT32_MAX},
        {PROTO_DIRECTORY, BODY(proto_directory_part, offset_bytes), U32, PROTO_DIRECTORY_BYTES_MAX - 2},
        {PROTO_DIRECTORY, BODY(proto_directory_part, offset_bytes), U32, UINT32_MAX},
        {PROTO_PUBLISH, BODY(proto_publish, name), BYTE, 0},
        {PROTO_PUBLISH, BODY(proto_publish, name), BYTE, '\n'},
        {PROTO_PUBLISH, INTO_BODY(proto_publish, name, 2), BYTE, 0xc3},
        {PROTO_PUBLISH, INTO_BODY(proto_publish, name, PROTO_NAME_TEXT_SIZE - 1), BYTE, 'x'},
        {PROTO_PUBLISH, BODY(proto_publish, flags), U32, PROTO_PUBLISH_FLAGS + 1},
        {PROTO_PUBLISH, BODY(proto_publish, count), U32, 0},
        {PROTO_PUBLISH, BODY(proto_publish, count), U32, 1},
        {PROTO_PUBLISH, BODY(proto_publish, count), U32, PROTO_NAME_BUFFERS_MAX + 1},
        {PROTO_PUBLISH, BODY(proto_publish, count), U32, UINT32_MAX},
        {PROTO_PUBLISH, BODY(proto_publish, directory_bytes), U32, PROTO_DIRECTORY_BYTES_MAX + 1},
        {PROTO_PUBLISH, BODY(proto_publish, reserved), U32, 1},
        {PROTO_PUBLISH, IN_BUFFER(proto_publish, 0, size_bytes), U64, 0},
        {PROTO_PUBLISH, IN_BUFFER(proto_publish, 0, size_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_PUBLISH, IN_FENCE(proto_publish, 0, fence.slot), U32, PROTO_BOARD_SLOTS},
        {PROTO_PUBLISH, IN_FENCE(proto_publish, 0, fence.word), U32, PROTO_BOARD_WORDS},
        {PROTO_PUBLISH, IN_FENCE(proto_publish, 0, has_fence), U32, 0},
        {PROTO_PUBLISH, IN_FENCE(proto_publish, 0, has_fence), U32, 2},
        {PROTO_PUBLISH, IN_FENCE(proto_publish, 1, fence.value), U64, 1},
        {PROTO_PUBLISH, IN_BUFFER(proto_publish, 0, reserved), U32, 1},
        {PROTO_PUBLISH, BEHIND_BUFFERS(proto_publish, 2, lease), U64, 1},
        {PROTO_PUBLISH, BEHIND_BUFFERS(proto_publish, 63, reserved), U32, 1},
        {PROTO_UNPUBLISH, BODY(proto_unpublish, name), BYTE, 0},
        {PROTO_UNPUBLISH, BODY(proto_unpublish, name), BYTE, '\n'},
        {PROTO_UNPUBLISH, INTO_BODY(proto_unpublish, name, 2), BYTE, 0xc3},
        {PROTO_UNPUBLISH, INTO_BODY(proto_unpublish, name, PROTO_NAME_TEXT_SIZE - 1), BYTE, 'x'},
        {PROTO_UNPUBLISH, BODY(proto_unpublish, flags), U32, PROTO_UNPUBLISH_BUILD + 1},
        {PROTO_UNPUBLISH, BODY(proto_unpublish, reserved), U32, 1},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, name), BYTE, 0},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, slot_bytes), U64, 0},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, slot_bytes), U64, PROTO_SIZE_MAX / 8 + 1},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, n_slots), U64, PROTO_CHANNEL_SLOTS_MIN - 1},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, n_slots), U64, PROTO_CHANNEL_SLOTS_MAX + 1},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, metadata_bytes), U64, PROTO_CHANNEL_METADATA_MAX + 1},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, n_consumers), U64, 0},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, n_consumers), U64, PROTO_CHANNEL_CONSUMERS_MAX + 1},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, policy), U64, 0},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, policy), U64, PROTO_CHANNEL_FAIL + 1},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, flags), U32, 2},
        {PROTO_MAKE_CHANNEL, BODY(proto_make_channel, reserved), U32, 1},
        {PROTO_JOIN_CHANNEL, BODY(proto_join_channel, name), BYTE, 0},
        {PROTO_JOIN_CHANNEL, BODY(proto_join_channel, place), U32, PROTO_CHANNEL_PLACES},
        {PROTO_JOIN_CHANNEL, BODY(proto_join_channel, place), U32, UINT32_MAX - 1},
        {PROTO_JOIN_CHANNEL, BODY(proto_join_channel, reserved), U32, 1},
        {PROTO_LEAVE_CHANNEL, BODY(proto_channel_page_name, page), U32, PROTO_CHANNEL_PLACES},
        {PROTO_LEAVE_CHANNEL, BODY(proto_channel_page_name, reserved), U32, 1},
        {PROTO_ASK_CHANNEL_MEMORY, BODY(proto_channel_page_name, page), U32, PROTO_CHANNEL_PLACES + 1},
        {PROTO_ASK_CHANNEL_MEMORY, BODY(proto_channel_page_name, reserved), U32, 1},
        {PROTO_CHANNEL, BODY(proto_channel_reply, channel), U64, 0},
        {PROTO_CHANNEL, BODY(proto_channel_reply, slot_bytes), U64, 0},
        {PROTO_CHANNEL, BODY(proto_channel_reply, n_slots), U64, 1},
        {PROTO_CHANNEL, BODY(proto_channel_reply, metadata_bytes), U64, 1025},
        {PROTO_CHANNEL, BODY(proto_channel_reply, n_consumers), U64, 17},
        {PROTO_CHANNEL, BODY(proto_channel_reply, policy), U64, 4},
        {PROTO_CHANNEL, BODY(proto_channel_reply, place), U32, 3},
        {PROTO_CHANNEL, BODY(proto_channel_reply, pool), U32, 0},
        {PROTO_CHANNEL_MEMORY, BODY(proto_channel_page_reply, channel), U64, 0},
        {PROTO_CHANNEL_MEMORY, BODY(proto_channel_page_reply, size_bytes), U64, 0},
        {PROTO_CHANNEL_MEMORY, BODY(proto_channel_page_reply, size_bytes), U64, 4097},
        {PROTO_CHANNEL_MEMORY, BODY(proto_channel_page_reply, page), U32, PROTO_CHANNEL_PLACES + 1},
        {PROTO_CHANNEL_MEMORY, BODY(proto_channel_page_reply, is_own), U32, 2},
        {PROTO_OPEN_NAME, BODY(proto_open_name, name), BYTE, 0},
        {PROTO_OPEN_NAME, BODY(proto_open_name, name), BYTE, '\n'},
        {PROTO_OPEN_NAME, INTO_BODY(proto_open_name, name, 2), BYTE, 0xc3},
        {PROTO_OPEN_NAME, INTO_BODY(proto_open_name, name, PROTO_NAME_TEXT_SIZE - 1), BYTE, 'x'},
        {PROTO_OPEN_NAME, BODY(proto_open_name, flags), U32, PROTO_OPEN_NAME_FLAGS},
        {PROTO_OPEN_NAME, BODY(proto_open_name, flags), U32, PROTO_OPEN_NAME_FLAGS + 1},
        {PROTO_OPEN_NAME, BODY(proto_open_name, reserved), U32, 1},
        {PROTO_READ_DIRECTORY, BODY(proto_read_directory, name), BYTE, 0},
        {PROTO_READ_DIRECTORY, BODY(proto_read_directory, name), BYTE, '\n'},
        {PROTO_READ_DIRECTORY, INTO_BODY(proto_read_directory, name, 2), BYTE, 0xc3},
        {PROTO_READ_DIRECTORY, INTO_BODY(proto_read_directory, name, PROTO_NAME_TEXT_SIZE - 1), BYTE, 'x'},
        {PROTO_READ_DIRECTORY, BODY(proto_read_directory, reserved), U32, 1},
        {PROTO_PUBLISHED, BODY(proto_published, generation), U64, 0},
        {PROTO_NAMED, BODY(proto_named, state), U32, 0},
        {PROTO_NAMED, BODY(proto_named, state), U32, PROTO_NAME_BUILD},
        {PROTO_NAMED, BODY(proto_named, state), U32, PROTO_NAME_GONE},
        {PROTO_NAMED, BODY(proto_named, state), U32, PROTO_NAME_GONE + 1},
        {PROTO_NAMED, BODY(proto_named, flags), U32, PROTO_PUBLISH_SAME_LAYOUT},
        {PROTO_NAMED, BODY(proto_named, generation), U64, 0},
        {PROTO_NAMED, BODY(proto_named, count), U32, 0},
        {PROTO_NAMED, BODY(proto_named, count), U32, 2},
        {PROTO_NAMED, BODY(proto_named, count), U32, PROTO_NAME_BUFFERS_MAX + 1},
        {PROTO_NAMED, BODY(proto_named, directory_bytes), U32, PROTO_DIRECTORY_BYTES_MAX + 1},
        {PROTO_NAMED, IN_BUFFER(proto_named, 0, size_bytes), U64, 0},
        {PROTO_NAMED, IN_BUFFER(proto_named, 0, size_bytes), U64, PROTO_SIZE_MAX + 1},
        {PROTO_NAMED, IN_FENCE(proto_named, 0, fence.slot), U32, PROTO_BOARD_SLOTS},
        {PROTO_NAMED, IN_FENCE(proto_named, 0, fence.word), U32, PROTO_BOARD_WORDS},
        {PROTO_NAMED, IN_FENCE(proto_named, 0, has_fence), U32, 0},
        {PROTO_NAMED, IN_FENCE(proto_named, 0, has_fence), U32, 2},
        {PROTO_NAMED, IN_BUFFER(proto_named, 0, pool), U32, 0},
        {PROTO_NAMED, BEHIND_BUFFERS(proto_named, 1, pool), U32, 1},
        {PROTO_NAMED, BEHIND_BUFFERS(proto_named, 63, has_fence), U32, 1},
        {PROTO_NAMES, BODY(proto_names, count), U32, 1},
        {PROTO_NAMES, BODY(proto_names, count), U32, 3},
        {PROTO_NAMES, BODY(proto_names, count), U32, PROTO_NAMES_PER_MESSAGE + 1},
        {PROTO_NAMES, IN_NAMES(0, id), U64, 0},
        {PROTO_NAMES, IN_NAMES(0, flags), U32, PROTO_PUBLISH_SAME_LAYOUT},
        {PROTO_NAMES, IN_NAMES(0, count), U32, PROTO_NAME_BUFFERS_MAX + 1},
        {PROTO_NAMES, IN_NAMES(0, count), U32, 0},
        {PROTO_NAMES, IN_NAMES(1, count), U32, 1},
        {PROTO_NAMES, IN_NAMES(0, name), BYTE, 0},
        {PROTO_NAMES, IN_NAMES(1, name), BYTE, '\n'},
        {PROTO_NAMES, offsetof(struct proto_names, names[63].id), "count", U64, 1},
        {PROTO_ERROR, BODY(proto_failure, error), U32, 0},
        {PROTO_ERROR, BODY(proto_failure, error), U32, PROTO_E_MAX + 1},
        {PROTO_ERROR, BODY(proto_failure, text_length), U32, 6},
        {PROTO_ERROR, BODY(proto_failure, text_length), U32, 8},
        {PROTO_ERROR, BODY(proto_failure, text_length), U32, UINT32_MAX},
        {PROTO_ERROR, BODY(proto_failure, text), BYTE, 0},
        {PROTO_ERROR, BODY(proto_failure, text), BYTE, 0x1b},
        {PROTO_ERROR, INTO_BODY(proto_failure, text, 6), BYTE, 0xc3},
    };
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(breakages); i++) {
        const struct breakage *breakage = &breakages[i];
        plain_message(breakage->operation, &message);
        size_t size = proto_encode(&message, packet);
        assert_int_equal(decode_exactly(sender_of(breakage->operation), packet, size, &decoded), 0);
        memcpy(packet + 16 + breakage->offset, &breakage->value, breakage->width);
        if (decode_exactly(sender_of(breakage->operation), packet, size, &decoded) == 0)
            fail_msg("breakage %zu of %s was let through", i, proto_operation_name(breakage->operation));
        assert_reason_names(sender_of(breakage->operation), packet, size,
                            proto_operation_name(breakage->operation), breakage->field);
    }
}

static void an_acquire_may_name_a_smaller_size_whatever_else_it_says(void **state) {
    (void)state;
    static const uint64_t timeouts[] = {0, 1, UINT64_MAX};
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (uint64_t least = 0; least <= 5; least++)
        for (uint32_t flags = 0; flags <= PROTO_ACQUIRE_FLAGS; flags++)
            for (size_t i = 0; i < LENGTH(timeouts); i++) {
                plain_message(PROTO_ACQUIRE, &message);
                message.acquire = (struct proto_acquire){1, flags, 4, 4, timeouts[i]};
                size_t size = proto_encode(&message, packet);
                memcpy(packet + 16 + offsetof(struct proto_acquire, least_bytes), &least, sizeof least);
                assert_int_equal(decode_exactly(PROTO_FROM_CLIENT, packet, size, &decoded),
                                 least <= 4 ? 0 : -EBADMSG);
            }
}

static void the_limits_of_a_request_for_segments_are_reached(void **state) {
    (void)state;
    static const struct {
        uint64_t segment_bytes;
        uint32_t count;
        bool is_right;
    } cases[] = {
        {SEGMENT_STEP, 1, true},
        {SEGMENT_STEP, PROTO_LEASES_MAX, true},
        {PROTO_SIZE_MAX, 1, true},
        {PROTO_SIZE_MAX, 2, false},
        {PROTO_SIZE_MAX / PROTO_LEASES_MAX, PROTO_LEASES_MAX, true},
        {PROTO_SIZE_MAX / PROTO_LEASES_MAX + SEGMENT_STEP, PROTO_LEASES_MAX, false},
        {PROTO_SIZE_MAX / 3 / SEGMENT_STEP * SEGMENT_STEP, 3, true},
        {PROTO_SIZE_MAX / 3 / SEGMENT_STEP * SEGMENT_STEP + SEGMENT_STEP, 3, false},
    };
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(cases); i++)
        for (uint32_t flags = 0; flags <= PROTO_ACQUIRE_FLAGS; flags++) {
            plain_message(PROTO_ACQUIRE_SEGMENTS, &message);
            size_t size = proto_encode(&message, packet);
            message.acquire_segments = (struct proto_acquire_segments){
                UINT32_MAX, flags, cases[i].segment_bytes, cases[i].count, 0, flags};
            memcpy(packet + 16, &message.acquire_segments, sizeof message.acquire_segments);
            assert_int_equal(decode_exactly(PROTO_FROM_CLIENT, packet, size, &decoded),
                             cases[i].is_right ? 0 : -EBADMSG);
        }
}

static void one_to_64_segments_of_any_pool_are_offered(void **state) {
    (void)state;
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (uint32_t count = 0; count <= PROTO_CLOSE_MAX; count++) {
        plain_message(PROTO_OFFER, &message);
        size_t size = proto_encode(&message, packet);
        message.offer = (struct proto_offer){count % 2 == 0 ? 0 : UINT32_MAX, count, {0}};
        for (uint32_t i = 0; i < count; i++)
            message.offer.ids[i] = i % 2 == 0 ? UINT64_MAX : 1; /* also the same one several times */
        memcpy(packet + 16, &message.offer, sizeof message.offer);
        assert_int_equal(decode_exactly(PROTO_FROM_CLIENT, packet, size, &decoded), count > 0 ? 0 : -EBADMSG);
    }
}

static void the_leases_of_a_message_and_those_that_are_left_are_at_most_4096(void **state) {
    (void)state;
    static const struct {
        uint32_t count, n_described, n_left;
        bool is_right;
    } cases[] = {
        {0, 0, 0, false},     {1, 0, 0, true},   {1, 1, 0, true},    {1, 0, 4095, true},
        {1, 0, 4096, false},  {64, 64, 0, true}, {64, 65, 0, false}, {64, 64, 4032, true},
        {64, 0, 4033, false}, {65, 0, 0, false},
    };
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(cases); i++) {
        plain_message(PROTO_LEASES, &message);
        size_t size = proto_encode(&message, packet);
        message.leases = (struct proto_leases){
            1, cases[i].count, cases[i].n_described, cases[i].n_left, PROTO_SIZE_MAX, {{0}}};
        for (uint32_t k = 0; k < cases[i].count && k < PROTO_LEASES_PER_MESSAGE; k++)
            message.leases.leases[k].segment = k + 1;
        memcpy(packet + 16, &message.leases, sizeof message.leases);
        assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded),
                         cases[i].is_right ? 0 : -EBADMSG);
    }
}

static void the_segment_of_a_row_ends_before_its_block_does(void **state) {
    (void)state;
    static const struct {
        uint32_t parts, kind;
        uint64_t offset, capacity;
        bool is_right;
    } cases[] = {
        {2, PROTO_SEGMENT_VMM_FD, 512, SEGMENT_STEP, true},
        {2, PROTO_SEGMENT_VMM_FD, 0, 4 * SEGMENT_STEP, true},
        {2, PROTO_SEGMENT_VMM_FD, SEGMENT_STEP - 512, 1024, true},
        {2, PROTO_SEGMENT_VMM_FD, 512, SEGMENT_STEP - 512, false},    /* one segment does */
        {2, PROTO_SEGMENT_VMM_FD, SEGMENT_STEP, SEGMENT_STEP, false}, /* nothing of it is in the segment */
        {2, PROTO_SEGMENT_MEMFD, 512, SEGMENT_STEP, false},
        {2, PROTO_SEGMENT_LEGACY_IPC, 512, SEGMENT_STEP, false},
        {2, PROTO_SEGMENT_HOST_VMM_FD, 512, SEGMENT_STEP, false},
        {0, PROTO_SEGMENT_HOST_VMM_FD, 512, SEGMENT_STEP - 512, true},
        {0, PROTO_SEGMENT_VMM_FD, 512, SEGMENT_STEP, false},
        {0, PROTO_SEGMENT_VMM_FD, 512, SEGMENT_STEP - 512, true},
    };
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(cases); i++) {
        plain_message(PROTO_LEASE, &message);
        size_t size = proto_encode(&message, packet);
        message.lease.parts = cases[i].parts;
        message.lease.description.kind = cases[i].kind;
        message.lease.offset_bytes = cases[i].offset;
        message.lease.capacity_bytes = cases[i].capacity;
        memcpy(packet + 16, &message.lease, sizeof message.lease);
        assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded),
                         cases[i].is_right ? 0 : -EBADMSG);
    }
}

static void lease_without_a_description_still_names_segment_and_pool(void **state) {
    (void)state;
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (unsigned zero = 0; zero < 3; zero++) {
        plain_message(PROTO_LEASE, &message);
        memset(&message.lease.description, 0, sizeof message.lease.description);
        size_t size = proto_encode(&message, packet);
        if (zero == 1)
            memset(packet + 16 + offsetof(struct proto_lease, segment), 0, sizeof message.lease.segment);
        else if (zero == 2)
            memset(packet + 16 + offsetof(struct proto_lease, pool), 0, sizeof message.lease.pool);
        assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded), zero == 0 ? 0 : -EBADMSG);
    }
}

static void request_ids_are_where_they_belong(void **state) {
    (void)state;
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(operations); i++)
        for (uint64_t request = 0; request <= 1; request++) {
            plain_message(operations[i], &message);
            size_t size = proto_encode(&message, packet);
            memcpy(packet + 8, &request, sizeof request);
            bool wanted = operations[i] == PROTO_ERROR || operations[i] == PROTO_RELEASE ||
                          operations[i] == PROTO_MERGE || is_one_way(operations[i]) == (request == 0);
            assert_int_equal(decode_exactly(sender_of(operations[i]), packet, size, &decoded),
                             wanted ? 0 : -EBADMSG);
        }
}

static void a_broken_header_is_refused_by_its_fields_name(void **state) {
    (void)state;
    static const struct {
        size_t offset, width;
        const char *field;
        uint16_t operation;
        uint64_t value;
    } cases[] = {
        {0, 2, "operation", PROTO_QUERY, 0},         {0, 2, "operation", PROTO_QUERY, 63},
        {0, 2, "operation", PROTO_QUERY, PROTO_OK},  {2, 2, "flags", PROTO_QUERY, 1},
        {4, 4, "length", PROTO_QUERY, 31},           {4, 4, "length", PROTO_QUERY, UINT32_MAX},
        {0, 2, "length", PROTO_QUERY, PROTO_SHARE},  {8, 8, "request", PROTO_QUERY, 0},
        {8, 8, "request", PROTO_OPENED, UINT64_MAX}, {8, 8, "request", PROTO_CANCEL, 1},
        {8, 8, "request", PROTO_RECLAIMED, 1},       {8, 8, "request", PROTO_NAME, 1},
    };
    struct proto_message message;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(cases); i++) {
        plain_message(cases[i].operation, &message);
        size_t size = proto_encode(&message, packet);
        memcpy(packet + cases[i].offset, &cases[i].value, cases[i].width);
        assert_reason_names(PROTO_FROM_CLIENT, packet, size, "header", cases[i].field);
    }
}

static void only_the_daemon_sends_something_again(void **state) {
    (void)state;
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < LENGTH(operations); i++) {
        enum proto_sender sender = sender_of(operations[i]);
        plain_message(operations[i], &message);
        size_t size = proto_encode(&message, packet);
        packet[2] = PROTO_AGAIN;
        if (sender == PROTO_FROM_CLIENT) {
            assert_reason_names(sender, packet, size, "header", "flags");
            continue;
        }
        assert_int_equal(decode_exactly(sender, packet, size, &decoded), 0);
        assert_int_equal(decoded.header.flags, PROTO_AGAIN);
        packet[2] = PROTO_AGAIN << 1;
        assert_reason_names(sender, packet, size, "header", "flags");
    }
}

static void the_request_of_a_refused_packet_is_in_its_header(void **state) {
    (void)state;
    uint8_t packet[17];

    for (size_t i = 0; i < sizeof packet; i++)
        packet[i] = (uint8_t)i;
    for (size_t size = 0; size < 16; size++)
        assert_int_equal(proto_packet_request(packet, size), 0);
    assert_true(proto_packet_request(packet, 16) == UINT64_C(0x0f0e0d0c0b0a0908));
    assert_true(proto_packet_request(packet, 17) == UINT64_C(0x0f0e0d0c0b0a0908));
}

static void malformed_utf8_is_refused(void **state) {
    (void)state;
    static const char *const malformed[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xc2",
        "\xc2 ",
        "\xe0\x9f\xbf",
        "\xe2\x80",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf",
        "\xf0\x9f\x98",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "\xfe",
        "\xc2\x80",
        "\xc2\x9f",
        "a\tb",
        "\r",
        "\x1f",
        "\x7f",
        "\xe2\x28\xa1",
        "\xf0\x90\x80\xc0",
    };
    struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    plain_message(PROTO_ERROR, &message);
    for (size_t i = 0; i < LENGTH(malformed); i++) {
        size_t length = strlen(malformed[i]);
        message.failure.text_length = (uint32_t)length;
        memset(message.failure.text, 'x', length);
        size_t size = proto_encode(&message, packet);
        memcpy(packet + 24, malformed[i], length);
        assert_false(is_printable(malformed[i], length));
        assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded), -EBADMSG);
    }
}

static void descriptors_come_with_what_is_described_a_page_and_a_reply_that_says_so(void **state) {
    (void)state;
    static struct proto_message message;

    for (size_t i = 0; i < LENGTH(operations); i++) {
        plain_message(operations[i], &message);
        assert_int_equal(proto_message_fds(&message),
                         operations[i] == PROTO_LEASE || operations[i] == PROTO_PAGE ||
                             operations[i] == PROTO_BOARD || operations[i] == PROTO_LEASES ||
                             operations[i] == PROTO_ALIVE || operations[i] == PROTO_CHANNEL_MEMORY);
    }
    plain_message(PROTO_LEASE, &message);
    message.lease.description.kind = PROTO_SEGMENT_LEGACY_IPC;
    assert_int_equal(proto_message_fds(&message), 0);
    memset(&message.lease.description, 0, sizeof message.lease.description);
    assert_int_equal(proto_message_fds(&message), 0);
    plain_message(PROTO_LEASES, &message);
    for (uint32_t n = 0; n <= message.leases.count; n++) {
        message.leases.n_described = n;
        assert_int_equal(proto_message_fds(&message), n);
    }
    plain_message(PROTO_HELLO_REPLY, &message);
    message.hello_reply.flags = PROTO_HELLO_REPLY_EVENTFD;
    assert_int_equal(proto_message_fds(&message), 1);
    plain_message(PROTO_HELLO, &message); /* its own flag asks for one */
    assert_int_equal(proto_message_fds(&message), 0);
}

static void numbers_have_names(void **state) {
    (void)state;
    assert_string_equal(proto_operation_name(PROTO_ACQUIRE), "ACQUIRE");
    assert_string_equal(proto_operation_name(PROTO_HELLO_REPLY), "HELLO_REPLY");
    assert_string_equal(proto_operation_name(UINT32_MAX), "unknown operation");
    for (unsigned error = 1; error <= PROTO_E_MAX; error++) {
        assert_string_not_equal(proto_error_text(error), "unknown error");
        for (unsigned before = 1; before < error; before++)
            assert_string_not_equal(proto_error_text(error), proto_error_text(before));
    }
    assert_string_equal(proto_error_text(0), "unknown error");
    assert_string_equal(proto_error_text(PROTO_E_MAX + 1), "unknown error");
    assert_string_equal(proto_error_text(UINT32_MAX), "unknown error");
}

/* Encodes and decodes the failure, which must succeed whatever was put into it. */
static void assert_failure_travels(const struct proto_failure *failure) {
    static struct proto_message message, decoded;
    uint8_t packet[PROTO_PACKET_MAX];

    message.header.operation = PROTO_ERROR;
    message.header.request = 1;
    message.failure = *failure;
    size_t size = proto_encode(&message, packet);
    assert_int_equal(decode_exactly(PROTO_FROM_DAEMON, packet, size, &decoded), 0);
    assert_int_equal(strlen(decoded.failure.text), failure->text_length);
    assert_string_equal(decoded.failure.text, failure->text);
}

static void failure_text_is_cut_between_characters(void **state) {
    (void)state;
    static const char *const characters[] = {"x", "\xc3\xa4", "\xe2\x80\xa6", "\xf0\x9f\x98\x80"};
    struct proto_failure failure;
    char text[4 * PROTO_TEXT_MAX + 8];

    for (size_t width = 1; width <= 4; width++)
        for (size_t before = PROTO_TEXT_MAX - 8; before <= PROTO_TEXT_MAX + 1; before++) {
            /* before bytes of x, then two characters of this width */
            memset(text, 'x', before);
            memcpy(text + before, characters[width - 1], width);
            memcpy(text + before + width, characters[width - 1], width);
            text[before + 2 * width] = '\0';
            proto_failure_set(&failure, PROTO_E_EXHAUSTED, "%s", text);

            size_t wanted = before > PROTO_TEXT_MAX ? PROTO_TEXT_MAX : before;
            for (unsigned k = 0; k < 2 && wanted + width <= PROTO_TEXT_MAX; k++)
                wanted += width;
            assert_int_equal(failure.error, PROTO_E_EXHAUSTED);
            assert_int_equal(failure.text_length, wanted);
            assert_memory_equal(failure.text, text, wanted);
            assert_int_equal(failure.text[wanted], 0);
            assert_failure_travels(&failure);
        }
}

static void failure_text_is_made_printable(void **state) {
    (void)state;
    struct proto_failure failure;
    char text[2 * PROTO_TEXT_MAX];

    proto_failure_set(&failure, PROTO_E_DRIVER, "%s has %u", "a\nb\x1b[31m\xff\xc3\xa4\xc3", 3u);
    assert_string_equal(failure.text, "a?b?[31m?\xc3\xa4? has 3");
    assert_failure_travels(&failure);
    proto_failure_set(&failure, PROTO_E_DRIVER, "%s",
                      "a\xe2\x80\xae"
                      "b"); /* turns the direction of writing */
    assert_string_equal(failure.text, "a???b");
    proto_failure_set(&failure, PROTO_E_DRIVER, "%s", "");
    assert_int_equal(failure.text_length, 0);
    assert_failure_travels(&failure);

    random_state = 7;
    for (unsigned round = 0; round < 5000; round++) {
        size_t length = random_to(sizeof text - 1);
        for (size_t i = 0; i < length; i++) /* many beginnings and middles of characters */
            text[i] = (char)(random_to(3) ? 0x80 + random_to(127) : 1 + random_to(126));
        text[length] = '\0';
        proto_failure_set(&failure, PROTO_E_DRIVER, "%s", text);
        assert_true(failure.text_length <= PROTO_TEXT_MAX);
        assert_true(failure.text_length >= (length > PROTO_TEXT_MAX ? PROTO_TEXT_MAX - 3 : length));
        assert_failure_travels(&failure);
    }
}

static void encoding_what_would_be_refused_is_caught(void **state) {
    (void)state;
#ifdef NDEBUG
    skip(); /* this build has no assertions */
#else
    static struct proto_message message;
    uint8_t packet[PROTO_PACKET_MAX];

    for (unsigned round = 0; round < 4; round++) {
        plain_message(round == 0   ? PROTO_ACQUIRE
                      : round == 1 ? PROTO_LEASE
                      : round == 2 ? PROTO_POOLS
                                   : PROTO_OK,
                      &message);
        switch (round) {
        case 0:
            message.acquire.size_bytes = 0;
            break;
        case 1:
            message.lease.description.kind = PROTO_SEGMENT_HOST_VMM_FD + 1;
            break;
        case 2:
            message.pools.count = PROTO_POOLS_MAX + 1;
            break;
        default:
            message.header.operation = 63;
        }
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            signal(SIGABRT, SIG_DFL);
            close(STDERR_FILENO);
            proto_encode(&message, packet);
            _exit(0);
        }
        int status = 0;
        TEST_REAP(pid, &status);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_broken_rule_is_refused_by_its_name),
        cmocka_unit_test(an_acquire_may_name_a_smaller_size_whatever_else_it_says),
        cmocka_unit_test(the_limits_of_a_request_for_segments_are_reached),
        cmocka_unit_test(one_to_64_segments_of_any_pool_are_offered),
        cmocka_unit_test(the_leases_of_a_message_and_those_that_are_left_are_at_most_4096),
        cmocka_unit_test(the_segment_of_a_row_ends_before_its_block_does),
        cmocka_unit_test(lease_without_a_description_still_names_segment_and_pool),
        cmocka_unit_test(request_ids_are_where_they_belong),
        cmocka_unit_test(a_broken_header_is_refused_by_its_fields_name),
        cmocka_unit_test(only_the_daemon_sends_something_again),
        cmocka_unit_test(the_request_of_a_refused_packet_is_in_its_header),
        cmocka_unit_test(malformed_utf8_is_refused),
        cmocka_unit_test(descriptors_come_with_what_is_described_a_page_and_a_reply_that_says_so),
        cmocka_unit_test(numbers_have_names),
        cmocka_unit_test(failure_text_is_cut_between_characters),
        cmocka_unit_test(failure_text_is_made_printable),
        cmocka_unit_test(encoding_what_would_be_refused_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
