/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format as the sources have it, in lines of text, for test_wire.py to compare with docs/wire.md.
 * Commands come on standard input, one a line; each answer ends with an empty line.
 *
 *   layout                       MESSAGE NUMBER SENDER BODY-BYTES, then FIELD OFFSET SIZE KIND for each field
 *   limits                       NAME VALUE
 *   errors                       NAME NUMBER
 *   page                         OFFSET of each part of a session's page
 *   decode SENDER HEX            FIELD VALUE for each field, then "again HEX"; or "refused REASON"
 *   try SENDER HEX OFFSET SIZE   VALUE REASON for each extreme value of a field (tests/wire_fields.h); "-":
 * fine
 *
 * Offsets are those in the packet, in bytes. A field that is missing here leaves a hole, which ends the
 * program with status 2.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/user_policy.h"
#include "daemon/core/limits.h"
#include "daemon/data/lingering.h"
#include "daemon/data/outbox.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/store.h"
#include "proto/page.h"
#include "proto/proto.h"
#include "tests/wire_fields.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* By enum wire_kind. */
static const char *const kinds[] = {"unsigned", "signed", "bytes", "text"};

#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type)                       \
    [PROTO_##name] = sizeof(struct type),
static const size_t struct_bytes[] = {
#include "proto/messages.def"
};

/* Of a body, as far as it is in every such message or once in an array. */
static size_t body_bytes_of(unsigned operation) {
    switch (operation) {
    case PROTO_POOLS:
        return offsetof(struct proto_pools, pools[1]);
    case PROTO_PARTS:
        return offsetof(struct proto_parts, parts[1]);
    case PROTO_LEASES:
        return offsetof(struct proto_leases, leases[1]);
    case PROTO_HOLDERS:
        return offsetof(struct proto_holders, fences[1]);
    case PROTO_PUBLISH:
        return offsetof(struct proto_publish, buffers[1]);
    case PROTO_NAMED:
        return offsetof(struct proto_named, buffers[1]);
    case PROTO_NAMES:
        return offsetof(struct proto_names, names[1]);
    case PROTO_ERROR: /* without the text's NUL and padding */
        return sizeof(struct proto_failure) - sizeof(uint32_t);
    default:
        return struct_bytes[operation];
    }
}

static const char *sender_name(unsigned operation) {
    return wire_is_from_client(operation) ? "client" : "daemon";
}

/* Ends the program where the fields of a message do not lie side by side up to its end. */
static void check_tiles(unsigned operation, size_t body_bytes) {
    size_t end = operation == 0 ? 0 : sizeof(struct proto_header);
    size_t wanted = end + (operation == 0 ? sizeof(struct proto_header) : body_bytes);

    for (size_t i = 0; i < WIRE_FIELDS; i++) {
        if (wire_fields[i].operation != operation)
            continue;
        if (wire_fields[i].offset != end) {
            fprintf(stderr, "%s: nothing describes the bytes before %s\n", proto_operation_name(operation),
                    wire_fields[i].name);
            exit(2);
        }
        bool is_text = operation == PROTO_ERROR && wire_fields[i].kind == WIRE_TEXT;
        end += is_text ? PROTO_TEXT_MAX : wire_fields[i].size * wire_fields[i].count;
    }
    if (end == wanted)
        return;
    fprintf(stderr, "%s: fields of %zu bytes of %zu\n", proto_operation_name(operation), end, wanted);
    exit(2);
}

static void print_fields(unsigned operation) {
    for (size_t i = 0; i < WIRE_FIELDS; i++)
        if (wire_fields[i].operation == operation)
            printf("%s %zu %zu %s\n", wire_fields[i].name, wire_fields[i].offset, wire_fields[i].size,
                   kinds[wire_fields[i].kind]);
}

static void print_layout(void) {
    check_tiles(0, 0);
    printf("header 0 both %zu\n", sizeof(struct proto_header));
    print_fields(0);
    for (unsigned operation = 1; operation <= UINT16_MAX; operation++) {
        if (strcmp(proto_operation_name(operation), "unknown operation") == 0)
            continue;
        size_t bytes = body_bytes_of(operation);
        check_tiles(operation, bytes);
        printf("%s %u %s %zu\n", proto_operation_name(operation), operation, sender_name(operation), bytes);
        print_fields(operation);
    }
}

#define LIMIT(name) printf(#name " %" PRIu64 "\n", (uint64_t)(name))

static void print_limits(void) {
    LIMIT(PROTO_VERSION_MIN);
    LIMIT(PROTO_VERSION_MAX);
    LIMIT(PROTO_MAGIC);
    LIMIT(PROTO_PACKET_MAX);
    LIMIT(PROTO_POOLS_MAX);
    LIMIT(PROTO_NAME_SIZE);
    LIMIT(PROTO_IDENTITY_BYTES);
    LIMIT(PROTO_PROCESS_NAME_SIZE);
    LIMIT(PROTO_PATH_SIZE);
    LIMIT(PROTO_TEXT_MAX);
    LIMIT(PROTO_HANDLE_BYTES);
    LIMIT(PROTO_TOKEN_BYTES);
    LIMIT(PROTO_SIZE_MAX);
    LIMIT(PROTO_PAGE_BYTES);
    LIMIT(PROTO_PAGE_FENCES);
    LIMIT(PROTO_PAGE_COUNTERS);
    LIMIT(PROTO_BOARD_BYTES);
    LIMIT(PROTO_BOARD_SLOTS);
    LIMIT(PROTO_BOARD_WORDS);
    LIMIT(PROTO_PARCEL_NS_MAX);
    LIMIT(PARCELS_MAX);
    LIMIT(PROTO_HOLDERS_MAX);
    LIMIT(PROTO_NAME_TEXT_SIZE);
    LIMIT(PROTO_NAME_BUFFERS_MAX);
    LIMIT(PROTO_DIRECTORY_BYTES_MAX);
    LIMIT(PROTO_DIRECTORY_PART_MAX);
    LIMIT(PROTO_NAMES_PER_MESSAGE);
    LIMIT(NAMES_MAX);
    LIMIT(PROTO_CLOSE_MAX);
    LIMIT(PROTO_ONE_WAY_MAX);
    LIMIT(PROTO_ONE_WAY_PER_TURN);
    LIMIT(PROTO_UNHEARD_MAX);
    LIMIT(PROTO_HOLDERS_ASKS);
    LIMIT(PROTO_PARTS_MAX);
    LIMIT(PROTO_ROW_PARTS_MAX);
    LIMIT(PROTO_LEASES_MAX);
    LIMIT(PROTO_LEASES_PER_MESSAGE);
    LIMIT(SEGMENT_GRANULE);
    LIMIT(SESSION_WAITING_MAX);
    LIMIT(SESSION_LEASES_DEFAULT);
    LIMIT(HOST_SEGMENT_MAX);
    LIMIT(BLOCK_RANGES_MAX);
    LIMIT(OUTBOX_MAX);
}

/* Figures of other pages. */
static void print_figures(void) {
    struct descriptor_shares shares;

    LIMIT(SESSIONS_MAX_DEFAULT);
    LIMIT(SESSION_LEASES_DEFAULT);
    LIMIT(LEASES_DEFAULT);
    LIMIT(RANGES_DEFAULT);
    LIMIT(WAITING_DEFAULT);
    LIMIT(REPLIES_DEFAULT);
    LIMIT(UNDELIVERED_MAX);
    LIMIT(PASSES_MAX);
    LIMIT(PARCELS_MAX);
    LIMIT(PROTO_PAGE_COUNTERS);
    LIMIT(PROTO_BOARD_SLOTS);
    LIMIT(PROTO_BOARD_WORDS);
    LIMIT(PROTO_PAGE_FENCES);
    LIMIT(PROTO_ROW_PARTS_MAX);
    LIMIT(PROTO_ONE_WAY_PER_TURN);
    LIMIT(PROTO_UNHEARD_MAX);
    LIMIT(PROTO_HOLDERS_ASKS);
    LIMIT(HOST_SEGMENT_MAX);
    LIMIT(LINGERING_MIN);
    LIMIT(STORE_SLOTS);
    uint32_t stored = descriptors_share_store(STORE_SLOTS, SESSIONS_MAX_DEFAULT);
    uint32_t stored_pages = descriptors_share_stored_pages(stored);
    printf("STORED_SEGMENTS %" PRIu32 "\nUSER_PAGES %" PRIu32 "\nUSER_CHANNELS %" PRIu32 "\n",
           stored - stored_pages, stored_pages / 2, stored_pages / 2 / 3);
    printf("LINGERING_PER %u\n", LINGERING_SHARE * LINGERING_DESCRIPTORS_PER);
    static const unsigned limits[] = {65536, 4096, 256};
    for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++) {
        descriptors_share(limits[i], SESSIONS_MAX_DEFAULT, 2, &shares);
        printf("SESSIONS_OF_%u %" PRIu32 "\nSEGMENTS_OF_%u %" PRIu32 "\nPAGES_OF_%u %" PRIu32 "\n", limits[i],
               shares.sessions, limits[i], shares.segments, limits[i], shares.channel_pages);
    }
}

#define ERROR(name) printf(#name " %d\n", PROTO_E_##name)

static void print_errors(void) {
    ERROR(INVALID);
    ERROR(VERSION);
    ERROR(NO_POOL);
    ERROR(TOO_LARGE);
    ERROR(EXHAUSTED);
    ERROR(STALE);
    ERROR(NO_TOKEN);
    ERROR(SHARED);
    ERROR(LIMIT);
    ERROR(DRIVER);
    ERROR(SHUTDOWN);
    ERROR(NO_MEMORY);
    ERROR(CANCELLED);
    ERROR(NO_NAME);
    _Static_assert(PROTO_E_MAX == 14, "each error is printed");
}

/* Two digits a byte, without anything between. Returns how many bytes there are. */
static size_t parse_hex(const char *text, uint8_t *packet) {
    size_t size = 0;
    for (unsigned byte; size < PROTO_PACKET_MAX && sscanf(text + 2 * size, "%2x", &byte) == 1; size++)
        packet[size] = (uint8_t)byte;
    return size;
}

static void print_hex(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        printf("%02x", bytes[i]);
}

static uint64_t read_unsigned(const uint8_t *bytes, size_t size) {
    uint64_t value = 0;
    memcpy(&value, bytes, size); /* little-endian, as proto.c asserts */
    return value;
}

/* From the decoded message, not from the packet. */
static void print_value(const struct proto_message *message, const struct wire_field *field, size_t offset) {
    const uint8_t *bytes = (const uint8_t *)message + offset;
    bool is_directory = strcmp(field->name, "bytes") == 0; /* as long as the message says */
    int32_t number;

    switch (field->kind) {
    case WIRE_UNSIGNED:
        printf("%" PRIu64 "\n", read_unsigned(bytes, field->size));
        return;
    case WIRE_SIGNED:
        memcpy(&number, bytes, sizeof number);
        printf("%" PRId32 "\n", number);
        return;
    case WIRE_BYTES:
        print_hex(bytes, is_directory ? message->directory.n_bytes : field->size);
        printf("\n");
        return;
    case WIRE_TEXT:
        printf("%s\n", (const char *)bytes);
        return;
    }
}

/* pools[i].id of pool 3: pools[3].id */
static void print_name(const struct wire_field *field, size_t index) {
    const char *i = strstr(field->name, "[i]");
    if (i == NULL)
        printf("%s ", field->name);
    else
        printf("%.*s[%zu]%s ", (int)(i - field->name), field->name, index, i + strlen("[i]"));
}

struct array {
    size_t count, stride;
};

/* How often a field is in the message, and how far apart. */
static struct array array_of(const struct proto_message *message, const struct wire_field *field) {
    bool is_in_struct = strstr(field->name, "[i].") != NULL;

    switch (is_in_struct ? message->header.operation : 0) {
    case PROTO_POOLS:
        return (struct array){message->pools.count, sizeof(struct proto_pool)};
    case PROTO_PARTS:
        return (struct array){message->parts.count, sizeof(struct proto_part)};
    case PROTO_LEASES:
        return (struct array){message->leases.count, sizeof(struct proto_segment_lease)};
    case PROTO_PUBLISH:
        return (struct array){message->publish.count, sizeof(struct proto_publish_buffer)};
    case PROTO_NAMED:
        return (struct array){message->named.count, sizeof(struct proto_named_buffer)};
    case PROTO_NAMES:
        return (struct array){message->names.count, sizeof(struct proto_listed_name)};
    default:
        return (struct array){field->count, field->size};
    }
}

static void print_message(const struct proto_message *message) {
    static uint8_t packet[PROTO_PACKET_MAX];

    for (size_t i = 0; i < WIRE_FIELDS; i++) {
        const struct wire_field *field = &wire_fields[i];
        if (field->operation != 0 && field->operation != message->header.operation)
            continue;
        struct array array = array_of(message, field);
        for (size_t n = 0; n < array.count; n++) {
            print_name(field, n);
            print_value(message, field, field->offset + n * array.stride);
        }
    }
    printf("again ");
    print_hex(packet, proto_encode(message, packet));
    printf("\n");
}

int main(void) {
    static char line[2 * PROTO_PACKET_MAX + 256], hex[2 * PROTO_PACKET_MAX + 1];
    static uint8_t packet[PROTO_PACKET_MAX];
    static struct proto_message message;
    char command[16], sender[16];
    size_t offset = 0, size = 0;

    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *reason = "";
        int words = sscanf(line, "%15s %15s %32768s %zu %zu", command, sender, hex, &offset, &size);
        enum proto_sender from =
            words > 1 && strcmp(sender, "client") == 0 ? PROTO_FROM_CLIENT : PROTO_FROM_DAEMON;
        size_t bytes = words > 2 ? parse_hex(hex, packet) : 0;
        if (strcmp(command, "layout") == 0) {
            print_layout();
        } else if (strcmp(command, "limits") == 0) {
            print_limits();
        } else if (strcmp(command, "figures") == 0) {
            print_figures();
        } else if (strcmp(command, "errors") == 0) {
            print_errors();
        } else if (strcmp(command, "page") == 0) {
            printf("%zu\n%zu\n%zu\n", offsetof(struct proto_page, fences),
                   offsetof(struct proto_page, counters), offsetof(struct proto_page, shortage));
        } else if (strcmp(command, "decode") == 0) {
            if (proto_decode(from, packet, bytes, &message, &reason) < 0)
                printf("refused %s\n", reason);
            else
                print_message(&message);
        } else if (strcmp(command, "try") == 0 && words == 5 && size <= 8 && offset + size <= bytes) {
            for (size_t i = 0; i < WIRE_EXTREMES; i++) {
                const struct wire_field field = {.offset = offset, .size = size};
                (void)parse_hex(hex, packet);
                wire_set(&field, wire_extremes[i], packet);
                int r = proto_decode(from, packet, bytes, &message, &reason);
                printf("%" PRIu64 " %s\n", wire_extremes[i], r < 0 ? reason : "-");
            }
        } else {
            fprintf(stderr, "no such command: %s", line);
            return 1;
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
