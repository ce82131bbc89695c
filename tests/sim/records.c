/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder's records, added up: by them alone each living session has in each pool what the core
 * says. */
#include <stdatomic.h>
#include <stdlib.h>

#include "daemon/core/recorder.h"
#include "tests/sim/world.h"

/* A ring that no step of the world fills. */
#define RING_BYTES (UINT64_C(4096) * sizeof(struct proto_record))
#define HOURS      4u

/* The memory of a session by the records. */
struct recorded_session {
    uint64_t id; /* 0: the place is free */
    uint64_t leased[SIM_POOLS], fenced[SIM_POOLS];
};

struct recordings {
    struct proto_records *file;
    uint64_t next; /* record to be read */
    struct recorded_session sessions[SIM_SESSIONS];
};

void records_begin(struct world *world) {
    struct proto_records header;
    struct recordings *recordings = memory_make(1, sizeof *recordings);

    proto_records_lay_out(&header, RING_BYTES, HOURS, world->n_pools);
    recordings->file = memory_make(1, header.file_bytes);
    *recordings->file = header;
    recordings->next = 1;
    world->recordings = recordings;
    records_go_on(world);
}

void records_go_on(struct world *world) {
    recorder_open(world->core, world->recordings->file);
    recorder_set_clock(world->core, world->now_ns, world->now_ns + NS_PER_HOUR);
}

static struct recordings remembered;
static uint64_t remembered_next;

void records_remember(const struct world *world) {
    remembered = *world->recordings;
    remembered_next = atomic_load(&world->recordings->file->next);
}

void records_go_back(const struct world *world) {
    *world->recordings = remembered;
    atomic_store(&world->recordings->file->next, remembered_next);
}

void records_end(struct world *world) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        must(world->recordings->sessions[s].id == 0, "the records say nothing of a session's end");
    free(world->recordings->file);
    free(world->recordings);
}

/* id: 0: a free place. */
static struct recorded_session *find(struct world *world, uint64_t id) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->recordings->sessions[s].id == id)
            return &world->recordings->sessions[s];
    world_fail(world, "a record is of a session that the records do not know, or of too many", "find",
               __FILE__, __LINE__);
}

static void take_record(struct world *world, const struct proto_record *record) {
    if (record->session == 0 || record->kind == PROTO_RECORD_UNPUBLISH) /* a name outlives its publisher */
        return;
    struct recorded_session *session = find(world, record->kind == PROTO_RECORD_OPEN ? 0 : record->session);
    uint64_t *leased = record->pool > 0 ? &session->leased[record->pool - 1] : NULL,
             *fenced = record->pool > 0 ? &session->fenced[record->pool - 1] : NULL;

    switch ((enum proto_record_kind)record->kind) {
    case PROTO_RECORD_OPEN:
        *session = (struct recorded_session){.id = record->session};
        break;
    case PROTO_RECORD_LEASE:
    case PROTO_RECORD_ATTACH:
        *leased += record->bytes;
        break;
    case PROTO_RECORD_RELEASE:
        *leased -= record->bytes;
        break;
    case PROTO_RECORD_FENCE:
        *leased -= record->bytes;
        *fenced += record->bytes;
        break;
    case PROTO_RECORD_PASS:
        *fenced -= record->bytes;
        break;
    case PROTO_RECORD_FAREWELL:
    case PROTO_RECORD_DEATH:
        if (leased != NULL)
            must(*leased + *fenced == record->bytes,
                 "a session's end is recorded with other bytes than it had");
        break;
    default:
        break;
    }
}

/* The session has ended when the core has it no more: the last record of it was its farewell or return. */
static bool is_there(const struct core *core, uint64_t id) {
    list_for_each_entry(const struct session, session, &core->sessions, link) {
        if (session->id == id)
            return true;
    }
    return false;
}

void records_check(struct world *world) {
    struct recordings *recordings = world->recordings;
    struct proto_record record;

    for (; recordings->next < recordings->file->next; recordings->next++) {
        must(proto_records_read(recordings->file, recordings->next, &record), "a record cannot be read");
        if (record.kind ==
            PROTO_RECORD_OPEN) /* it may take the place of one that has ended in the same step */
            for (unsigned s = 0; s < SIM_SESSIONS; s++)
                if (recordings->sessions[s].id != 0 && !is_there(world->core, recordings->sessions[s].id))
                    recordings->sessions[s].id = 0;
        take_record(world, &record);
    }
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (recordings->sessions[s].id != 0 && !is_there(world->core, recordings->sessions[s].id))
            recordings->sessions[s].id = 0;
    list_for_each_entry(const struct session, session, &world->core->sessions, link) {
        const struct recorded_session *recorded = find(world, session->id);
        for (unsigned p = 0; p < world->n_pools && session->state == SESSION_ACTIVE; p++)
            must(session->pools[p].leased_bytes == recorded->leased[p] &&
                     session->pools[p].fenced_bytes == recorded->fenced[p],
                 "a session has other memory than the records say");
    }
    for (unsigned p = 0; p < world->n_pools; p++) {
        const struct proto_hour *hour = recorder_hour(world->pools[p].pool);
        must(hour->leased_peak_bytes >= world->pools[p].pool->leased_bytes,
             "an hour's peak is below what is leased in it");
    }
}
