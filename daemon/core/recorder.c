/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/recorder.h"

#include <string.h>

#include "base/clock.h"
#include "daemon/core/quota.h"

/* A peak's holders are looked for when it has grown by this part of itself. */
#define PEAK_STEP_SHARE 64u

static_assert(PROTO_RECORD_QUOTA_POOL == QUOTA_POOLS + 1 &&
                  PROTO_RECORD_QUOTA_SESSIONS == QUOTA_SESSIONS + 1 &&
                  PROTO_RECORD_QUOTA_REPLIES == QUOTA_REPLIES + 1,
              "a record's detail is 1 and the quota's item");

static uint64_t realtime_ns(const struct recorder *recorder) {
    return recorder->now_ns + recorder->ahead_ns;
}

/* from: NULL: none. A name that is longer is cut. */
static void copy_name(char *name, size_t size, const char *from) {
    memset(name, 0, size);
    if (from != NULL)
        memcpy(name, from, strnlen(from, size - 1));
}

static const char *name_of(const struct recorded *recorded) {
    return recorded->text != NULL      ? recorded->text
           : recorded->scope != NULL   ? recorded->scope->terms.name
           : recorded->session != NULL ? recorded->session->peer.command
                                       : NULL;
}

/* So that the name of a scope that is there for long can be found in the ring. */
static void record_scopes(struct core *core) {
    list_for_each_entry(const struct scope, scope, &core->scopes, link) {
        record(core, &(struct recorded){.kind = PROTO_RECORD_SCOPE, .scope = scope});
    }
}

/* Begins the hour that it is: what is leased now counts in it. */
static void begin_hour(struct core *core) {
    struct recorder *recorder = &core->recorder;
    uint64_t now_ns = realtime_ns(recorder), hour = now_ns / NS_PER_HOUR;

    recorder->hour_end_ns = (hour + 1) * NS_PER_HOUR - recorder->ahead_ns;
    if (hour == recorder->hour)
        return;
    recorder->hour = hour;
    record_scopes(core);
    for (unsigned i = 0; i < core->n_pools; i++) {
        struct proto_hour *row = proto_records_hour(recorder->file, hour, i + 1);
        if (row->hour != hour) /* otherwise an earlier daemon has begun it */
            *row = (struct proto_hour){.hour = hour};
        recorder->held_bytes[i] = row->leased_peak_bytes;
        recorder_note_peaks(core->pools[i]);
    }
}

void recorder_open(struct core *core, struct proto_records *file) {
    core->recorder = (struct recorder){.file = file, .next = atomic_load(&file->next)};
}

void recorder_close(struct core *core) {
    core->recorder.file = NULL;
}

void recorder_set_clock(struct core *core, uint64_t now_ns, uint64_t real_ns) {
    if (core->recorder.file == NULL)
        return;
    core->recorder.now_ns = now_ns;
    core->recorder.ahead_ns = real_ns - now_ns;
    begin_hour(core);
}

void record(struct core *core, const struct recorded *recorded) {
    struct recorder *recorder = &core->recorder;
    const struct session *session = recorded->session;

    if (recorder->file == NULL)
        return;
    struct proto_record *record = proto_records_record(recorder->file, recorder->next);
    atomic_store_explicit(&record->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    record->time_ns = realtime_ns(recorder);
    if (recorded->kind == PROTO_RECORD_OPEN || recorded->kind == PROTO_RECORD_NAME ||
        recorded->kind == PROTO_RECORD_SCOPE || recorded->kind == PROTO_RECORD_NAMED) {
        copy_name(record->name, sizeof record->name, name_of(recorded));
    } else {
        record->bytes = recorded->bytes;
        record->leased_bytes = recorded->pool != NULL ? recorded->pool->leased_bytes : 0;
        record->value = recorded->value;
    }
    record->session = session != NULL ? session->id : 0;
    record->pid = session != NULL ? (uint32_t)session->peer.pid : 0;
    record->uid = session != NULL ? session->peer.uid : 0;
    if (recorded->edition != NULL) {
        record->session = recorded->edition->publisher;
        record->pid = (uint32_t)recorded->edition->pid;
        record->uid = recorded->edition->name->tenant->id.uid;
    }
    record->kind = (uint8_t)recorded->kind;
    record->pool = recorded->pool != NULL ? (uint8_t)recorded->pool->id : 0;
    record->reason = (uint8_t)recorded->reason;
    record->detail = (uint8_t)(recorded->quota_item < PROTO_RECORD_QUOTA_POOL ? recorded->quota_item
                                                                              : PROTO_RECORD_QUOTA_POOL);
    record->flags = recorded->flags;
    record->scope = (uint16_t)(recorded->scope != NULL ? recorded->scope->id
                               : session != NULL       ? session->peer.scope
                                                       : SCOPE_ORDINARY);
    atomic_store_explicit(&record->number, recorder->next, memory_order_release);
    recorder->next++;
    atomic_store_explicit(&recorder->file->next, recorder->next, memory_order_release);
}

struct proto_hour *recorder_hour(struct pool *pool) {
    struct recorder *recorder = &pool->core->recorder;

    if (recorder->file == NULL)
        return NULL;
    if (recorder->now_ns >= recorder->hour_end_ns)
        begin_hour(pool->core);
    return proto_records_hour(recorder->file, recorder->hour, pool->id);
}

/* Finds the user with the most memory of the pool, and of this user's processes the one with the most. */
static void note_holders(const struct pool *pool, struct proto_hour *row) {
    const struct tenant *largest = NULL;
    const struct session *process = NULL;

    row->user_bytes = row->process_bytes = 0;
    list_for_each_entry(const struct tenant_heap, heap, &pool->heaps, pool_link) {
        /* Its use counts quarantine, too, and the peak does not. */
        uint64_t bytes = heap->tenant->quota.used[QUOTA_POOLS + pool->id - 1];
        bytes = bytes < pool->leased_bytes ? bytes : pool->leased_bytes;
        if (bytes <= row->user_bytes)
            continue;
        row->user_bytes = bytes;
        largest = heap->tenant;
    }
    row->user = largest != NULL ? largest->id.uid : UINT32_MAX;
    row->scope = (uint16_t)(largest != NULL ? largest->id.scope : SCOPE_ORDINARY);
    if (largest != NULL)
        list_for_each_entry(const struct session, session, &largest->members, tenant_link) {
            uint64_t bytes = session->pools[pool->id - 1].leased_bytes;
            if (bytes <= row->process_bytes)
                continue;
            row->process_bytes = bytes;
            process = session;
        }
    row->process_pid = process != NULL ? (uint32_t)process->peer.pid : 0;
    copy_name(row->process_name, sizeof row->process_name, process != NULL ? process->peer.command : NULL);
}

void recorder_note_peaks(struct pool *pool) {
    struct proto_hour *row = recorder_hour(pool);

    if (row == NULL)
        return;
    note_peak(&row->reserved_peak_bytes, pool->reserved_bytes);
    note_peak(&row->quarantined_peak_bytes, pool->quarantined_bytes);
    if (pool->leased_bytes <= row->leased_peak_bytes)
        return;
    uint64_t *held_bytes = &pool->core->recorder.held_bytes[pool->id - 1];
    row->leased_peak_bytes = pool->leased_bytes;
    row->leased_peak_ns = realtime_ns(&pool->core->recorder);
    if (pool->leased_bytes - *held_bytes < *held_bytes / PEAK_STEP_SHARE)
        return;
    *held_bytes = pool->leased_bytes;
    note_holders(pool, row);
}

void recorder_note_wait(struct pool *pool, uint64_t waited_ns) {
    struct proto_hour *row = recorder_hour(pool);

    if (row == NULL)
        return;
    row->n_waits++;
    row->wait_sum_ns += waited_ns;
    note_peak(&row->wait_longest_ns, waited_ns);
}
