/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_KEPT_H
#define DAEMON_CORE_KEPT_H
/*
 * The part of the core that is kept in the estate: the kinds of its records, and what each says. An object that
 * is kept has its record's number in `record`; a function that changes what the record says calls kept_change().
 * The simulator compares all records with their objects after each step, so a change that is not told is found.
 *
 * Kept is what a successor cannot find out: who has which memory, and who waits for some. Not kept is what it
 * learns anew: questions to sessions and their answers, plans, statistics. Sums, heaps, quotas and lists follow
 * from what is kept (inherit.h).
 *
 * The group of a record is a number of its tenant, which few others have: records of one tenant name none of another.
 * A segment without an owner is of no group, nor are the numbers of the core.
 *
 * Records name each other by their numbers; 0 is none. A payload does not change once a release has it, neither in
 * its size nor in the meaning of a member: what a later daemon keeps besides is a record of a further kind, which
 * names the first one (estate.h).
 */
#include "daemon/core/types.h"
#include "daemon/estate/estate.h"

enum kept_kind {
    KEPT_SEGMENT = 1,
    KEPT_SESSION,
    KEPT_MAPPED, /* which of 64 segments a session has mapped */
    KEPT_BLOCK,
    KEPT_RANGE, /* of a block */
    KEPT_LEASE,
    KEPT_FENCES, /* a queue of fences, for parts that are withheld */
    KEPT_PARCEL,
    KEPT_REQUEST,
    KEPT_NUMBERS, /* one: those that the core has given last */
    KEPT_NAME,
    KEPT_EDITION,
    KEPT_NAMED,     /* a parcel that is a part of an edition: it has no KEPT_PARCEL */
    KEPT_DIRECTORY, /* a part of an edition's */
    KEPT_NAME_WAIT,
    KEPT_CHANNEL = 24, /* those between are the shell's: daemon/data/kept_data.h */
    KEPT_KINDS,   /* none: one more than the last */
};

/* All kinds, by number. */
extern const struct estate_kind kept_kinds[KEPT_KINDS];

struct kept_tenant {
    uint32_t uid, scope;
};

struct kept_segment {
    uint64_t id, size_bytes;
    uint32_t pool, slot;
    uint32_t state; /* enum segment_state */
    uint32_t has_keeper;
    struct kept_tenant owner, keeper; /* where it has one: ASSIGNED and CLOSING have an owner */
    struct segment_label label;
};

#define KEPT_GROUPS 30u /* of a peer: with fewer groups it may do less, not more */

struct kept_session {
    uint64_t id, connected_ns, lost_ns, n_questions;
    uint32_t uid, gid, scope;
    int32_t pid;
    uint32_t board_slot;
    uint8_t state, wants_reclaim, has_said_name, n_groups;
    char command[COMMAND_SIZE];
    uint32_t groups[KEPT_GROUPS];
};

struct kept_mapped {
    uint32_t session, word;
    uint64_t mapped, told;
};

struct kept_block {
    uint64_t offset_bytes, size_bytes, capacity_bytes;
    uint32_t segment;
    uint8_t is_row, is_shared, reserved[2];
    uint8_t token[PROTO_TOKEN_BYTES];
};

struct kept_range {
    uint32_t block, segment;
    uint32_t previous; /* of a row: the one before it; of another block they are in order of their offsets */
    uint32_t reserved;
    uint64_t offset_bytes, size_bytes;
};

struct kept_lease {
    uint32_t session, block;
    uint64_t id, generation, taken_ns, withheld_bytes, fence_value;
    uint32_t fence_word; /* plus 1; 0: it is not fenced */
    uint8_t is_unanswered, is_withheld_by_fences, is_on_board, reserved;
    struct proto_board_fence board_fence;
};

struct kept_fences {
    uint32_t session, pool, word, withholds;
    uint64_t withheld_value;
};

struct kept_parcel {
    uint32_t block, takers;
    uint8_t token[PROTO_TOKEN_BYTES];
    uint64_t sent_ns, lifetime_ns, deadline_ns, sender;
    int32_t pid;
    uint32_t reserved;
};

struct kept_request {
    uint32_t session, pool; /* 0: none of that number */
    uint32_t lease;         /* GRANTED: the first */
    uint32_t n_segments, probes, passes;
    int32_t quota_item;
    uint8_t state, error, queue, no_reclaim;
    uint8_t idle_only, gave_back, waited, is_told;
    uint32_t reserved;
    uint64_t id, number, size_bytes, least_bytes, segment_bytes, asked_ns, deadline_ns;
};

struct kept_numbers {
    uint64_t session, segment, request, generation;
};

struct kept_name {
    struct kept_tenant tenant;
    uint64_t id;
    uint32_t builder; /* 0: none */
    uint32_t reserved;
    char text[PROTO_NAME_TEXT_SIZE];
};

struct kept_edition {
    uint64_t generation, layout, publisher, published_ns;
    uint32_t name, flags, n_parcels, directory_bytes;
    int32_t pid;
    uint32_t session; /* the publisher; 0: it is gone */
};

struct kept_named {
    uint32_t edition, block, number; /* which of the edition's parcels */
    uint32_t has_fence;
    struct proto_board_fence fence;
    uint8_t token[PROTO_TOKEN_BYTES];
};

#define KEPT_DIRECTORY_BYTES 960u

struct kept_directory {
    uint32_t edition, offset_bytes;
    uint8_t bytes[KEPT_DIRECTORY_BYTES];
};

struct kept_name_wait {
    uint32_t session, name, flags, place, got;
    uint8_t state, error, reserved[2];
    uint64_t id, number, generation, deadline_ns;
};

struct kept_channel {
    struct kept_tenant tenant;
    uint64_t id, slot_bytes, n_slots, metadata_bytes, n_consumers, policy, maker;
    uint32_t name; /* 0: it has ended */
    uint32_t block, flags;
    uint32_t session; /* the maker; 0: it is gone */
    uint8_t token[PROTO_TOKEN_BYTES];
    struct kept_place {
        uint64_t last_session;
        uint32_t session; /* 0: none is in it */
        uint32_t state, queue, processes;
    } places[PROTO_CHANNEL_PLACES];
};

/* The group of a user's records: a number that few others have, and not 0. */
uint32_t kept_group(struct tenant_id id);

/* Gives an object a record. Returns 0 or -ENOMEM. */
static inline int kept_add(struct core *core, enum kept_kind kind, void *object, uint32_t *ret_record) {
    return estate_add(core->estate, kind, object, ret_record);
}

/* Gives a record that was added for no object yet to one. */
static inline void kept_give(const struct core *core, uint32_t record, void *object, uint32_t *ret_record) {
    *ret_record = record;
    if (record != 0 && core->estate != NULL) /* an heir's core has none before it is whole */
        estate_bind(core->estate, record, object);
}

static inline void kept_change(const struct core *core, uint32_t record) {
    estate_change(core->estate, record);
}

/* The core has given a number to something. */
static inline void kept_number(const struct core *core) {
    estate_change(core->estate, core->record);
}

/* The record ends, and is 0. */
static inline void kept_end(const struct core *core, uint32_t *record) {
    estate_remove(core->estate, *record);
    *record = 0;
}

#endif
