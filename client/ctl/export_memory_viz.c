/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as a snapshot for PyTorch's memory_viz page (pytorch.org/memory_viz): a pickle of what
 * torch.cuda.memory._snapshot() returns. A pool is a device, a lease a block, a process a category. Memory
 * that was given back behind a fence, or is in quarantine, is free_requested: the page calls it pending free.
 *
 * Records name no addresses. A block gets one of its own that nothing before had, and the device's one
 * segment goes as far. A shared buffer is a block of each holder.
 *
 * The page reads pickles of the protocols 2 to 4, few opcodes, and numbers up to 2^53 exactly. It fails where
 * there are categories and none of them is "unknown": the event "snapshot" has that one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "base/utf8.h"
#include "client/ctl/export.h"
#include "client/ctl/sorted.h"
#include "proto/text.h"

/* --- pickle --- */

static void put_bytes(uint64_t value, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        putchar((int)(value >> (8 * i) & 0xff));
}

static void put_integer(uint64_t value) {
    putchar(0x8a); /* LONG1: of 8 bytes, signed; no value is as large as 2^63 */
    putchar(8);
    put_bytes(value, 8);
}

/* Of UTF-8. */
static void put_text(const char *text) {
    putchar('X'); /* BINUNICODE */
    put_bytes(strlen(text), 4);
    fputs(text, stdout);
}

/* {key: …}, whose value comes next; then "s". */
static void put_member(const char *key, uint64_t value) {
    put_text(key);
    put_integer(value);
    putchar('s'); /* SETITEM */
}

static void put_text_member(const char *key, const char *text) {
    put_text(key);
    put_text(text);
    putchar('s');
}

/* --- blocks --- */

/* A lease, as far as records are known. The part behind fences is a block of its own, if not all is. */
struct viz_block {
    uint64_t lease, session;
    uint64_t address, bytes; /* 0 bytes: no block */
    uint64_t fenced_address, fenced_bytes;
    bool is_fenced; /* all of it: the first block is pending free */
    uint8_t pool;
};

struct viz {
    struct export *export;
    const struct records_filter *filter;
    unsigned pool;            /* that is printed */
    struct sorted blocks;     /* struct viz_block */
    uint64_t next_address;
    bool is_shown; /* the present record passes the filter */
};

static uint64_t take_address(struct viz *viz, uint64_t bytes) {
    uint64_t address = viz->next_address;
    viz->next_address += bytes;
    return address;
}

/* --- events --- */

/* The process as a category: "4242 train.py". */
static void category_of(const struct viz *viz, const struct proto_record *record, char *text, size_t size) {
    const char *name = record_names_session(&viz->export->names, record->session);
    char plain[PROTO_RECORD_NAME_SIZE] = "";

    if (name != NULL)
        snprintf(plain, sizeof plain, "%s", name);
    plain[text_whole_characters(plain, strlen(plain))] = '\0';
    utf8_make_valid(plain);
    utf8_make_plain(plain, strlen(plain));
    snprintf(text, size, "%" PRIu32 " %s", record->pid, plain);
}

static void put_event(struct viz *viz, const struct proto_record *record, const struct viz_block *block,
                      const char *action, uint64_t address, uint64_t bytes) {
    char category[64], lease[32];

    if (!viz->is_shown)
        return;
    category_of(viz, record, category, sizeof category);
    snprintf(lease, sizeof lease, "lease %" PRIu64, block->lease);
    putchar('}'); /* EMPTY_DICT */
    put_text_member("action", action);
    put_member("addr", address);
    put_member("size", bytes);
    put_member("stream", 0);
    put_member("time_us", record->time_ns / 1000);
    put_text_member("category", category);
    put_text("frames");
    fputs("]}", stdout); /* EMPTY_LIST, EMPTY_DICT */
    put_text_member("filename", category);
    put_member("line", record->session);
    put_text_member("name", lease);
    fputs("as", stdout); /* APPEND the frame, SETITEM the list */
    putchar('a');        /* APPEND the event */
}

static void put_free(struct viz *viz, const struct proto_record *record, const struct viz_block *block,
                     uint64_t address, uint64_t bytes, bool was_requested) {
    if (!was_requested)
        put_event(viz, record, block, "free_requested", address, bytes);
    put_event(viz, record, block, "free_completed", address, bytes);
}

/* Gives the block of a lease another size: it ends, and one at another address begins. */
static void resize(struct viz *viz, const struct proto_record *record, struct viz_block *block,
                   uint64_t bytes) {
    if (block->bytes > 0)
        put_free(viz, record, block, block->address, block->bytes, block->is_fenced);
    block->bytes = bytes;
    block->is_fenced = false;
    if (bytes == 0)
        return;
    block->address = take_address(viz, bytes);
    put_event(viz, record, block, "alloc", block->address, bytes);
}

static void resize_fenced(struct viz *viz, const struct proto_record *record, struct viz_block *block,
                          uint64_t bytes) {
    if (block->fenced_bytes > 0)
        put_free(viz, record, block, block->fenced_address, block->fenced_bytes, true);
    block->fenced_bytes = bytes;
    if (bytes == 0)
        return;
    block->fenced_address = take_address(viz, bytes);
    put_event(viz, record, block, "alloc", block->fenced_address, bytes);
    put_event(viz, record, block, "free_requested", block->fenced_address, bytes);
}

/* A part of a lease, or all of it, is given back: at once, or behind a fence. */
static void give_back(struct viz *viz, const struct proto_record *record, struct viz_block *block) {
    bool is_fence = record->kind == PROTO_RECORD_FENCE;

    if (record->bytes < block->bytes) {
        resize(viz, record, block, block->bytes - record->bytes);
        if (is_fence)
            resize_fenced(viz, record, block, block->fenced_bytes + record->bytes);
    } else if (is_fence) {
        put_event(viz, record, block, "free_requested", block->address, block->bytes);
        block->is_fenced = true;
    } else {
        resize(viz, record, block, 0);
    }
}

/* A fence was reached. */
static void pass(struct viz *viz, const struct proto_record *record, struct viz_block *block) {
    if (block->fenced_bytes > 0)
        resize_fenced(viz, record, block,
                      block->fenced_bytes > record->bytes ? block->fenced_bytes - record->bytes : 0);
    else if (block->is_fenced)
        resize(viz, record, block, 0);
}

/* A session ended, or its quarantine began: for all of its blocks in the pool. */
static void end_session(struct viz *viz, const struct proto_record *record) {
    for (size_t i = viz->blocks.count; i-- > 0;) {
        struct viz_block *block = (struct viz_block *)viz->blocks.elements + i;
        if (block->session != record->session || block->pool != record->pool)
            continue;
        if (record->kind != PROTO_RECORD_DEATH) {
            resize(viz, record, block, 0);
            resize_fenced(viz, record, block, 0);
            sorted_remove(&viz->blocks, block, sizeof *block);
        } else if (!block->is_fenced && block->bytes > 0) {
            put_event(viz, record, block, "free_requested", block->address, block->bytes);
            block->is_fenced = true;
        }
    }
}

static void take_record(struct viz *viz, const struct proto_record *record) {
    struct viz_block *block = sorted_find(&viz->blocks, record->value, sizeof *block);

    switch ((enum proto_record_kind)record->kind) {
    case PROTO_RECORD_LEASE:
    case PROTO_RECORD_ATTACH:
        if (block != NULL) { /* a number is used again, and its end was overwritten */
            resize(viz, record, block, 0);
            resize_fenced(viz, record, block, 0);
        } else {
            block = sorted_add(&viz->blocks, record->value, sizeof *block);
            viz->export->failed |= block == NULL;
        }
        if (block == NULL)
            return;
        block->session = record->session;
        block->pool = record->pool;
        resize(viz, record, block, record->bytes);
        return;
    case PROTO_RECORD_RELEASE:
    case PROTO_RECORD_FENCE:
        if (block != NULL)
            give_back(viz, record, block);
        break;
    case PROTO_RECORD_PASS:
        if (block != NULL)
            pass(viz, record, block);
        break;
    case PROTO_RECORD_FAREWELL:
    case PROTO_RECORD_DEATH:
    case PROTO_RECORD_RETURN:
        end_session(viz, record);
        return;
    default:
        return;
    }
    if (block != NULL && block->bytes == 0 && block->fenced_bytes == 0)
        sorted_remove(&viz->blocks, block, sizeof *block);
}

/* The events of one pool. */
static void put_trace(struct viz *viz) {
    const struct records *records = viz->export->records;
    uint64_t next = atomic_load(&records->file->next);
    struct proto_record record;

    viz->blocks.count = 0;
    viz->next_address = 0;
    putchar(']');
    fputs("}", stdout);
    put_text_member("action", "snapshot");
    put_member("addr", 0);
    put_member("size", 0);
    put_member("stream", 0);
    put_text_member("category", "unknown");
    putchar('a');
    for (uint64_t number = records_first(records); number < next && !viz->export->failed; number++) {
        if (!proto_records_read(records->file, number, &record))
            continue;
        record_names_learn(&viz->export->names, &record);
        if (record.kind == PROTO_RECORD_START)
            viz->blocks.count = 0;
        viz->is_shown = records_pass(viz->filter, &viz->export->names, &record);
        if (record.pool == viz->pool && record.session != 0)
            take_record(viz, &record);
    }
}

void export_memory_viz(struct export *export, const struct records_filter *filter) {
    struct viz viz = {.export = export, .filter = filter};
    unsigned n_pools = export->records->file->pools_count;
    uint64_t *sizes = calloc(n_pools + 1, sizeof *sizes);

    if (sizes == NULL) {
        export->failed = true;
        return;
    }
    fputs("\x80\x04}", stdout); /* PROTO 4, EMPTY_DICT */
    put_text("device_traces");
    putchar(']');
    for (viz.pool = 1; viz.pool <= n_pools; viz.pool++) {
        put_trace(&viz);
        putchar('a');
        sizes[viz.pool] = viz.next_address;
    }
    putchar('s');
    put_text("segments");
    putchar(']');
    for (unsigned pool = 1; pool <= n_pools; pool++) {
        putchar('}');
        put_member("device", pool - 1);
        put_member("address", 0);
        put_member("total_size", sizes[pool]);
        put_member("stream", 0);
        put_text("blocks");
        fputs("]s", stdout);
        putchar('a');
    }
    putchar('s');
    putchar('.'); /* STOP */
    free(viz.blocks.elements);
    free(sizes);
}
