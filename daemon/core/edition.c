/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/edition.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/parcel.h"
#include "daemon/core/recorder.h"

/* --- drafts --- */

void draft_drop(struct session *session) {
    struct draft *draft = &session->draft;

    charge_free(&draft->charge);
    free(draft->bytes);
    draft->bytes = NULL;
    draft->n_bytes = 0;
}

int draft_write(struct session *session, const struct proto_directory_part *part) {
    struct draft *draft = &session->draft;

    if (part->offset_bytes == 0)
        draft_drop(session);
    if (part->offset_bytes != draft->n_bytes)
        return PROTO_E_INVALID;
    int r = charge_make(&draft->charge, &session->tenant->quota, QUOTA_REPLIES, part->n_bytes);
    if (r != 0)
        return r;
    uint8_t *bytes = realloc(draft->bytes, (size_t)draft->n_bytes + part->n_bytes);
    if (bytes == NULL) {
        charge_reduce(&draft->charge, part->n_bytes);
        return -ENOMEM;
    }
    memcpy(bytes + draft->n_bytes, part->bytes, part->n_bytes);
    draft->bytes = bytes;
    draft->n_bytes += part->n_bytes;
    return 0;
}

/* --- the directory's records --- */

static unsigned parts_of(uint32_t directory_bytes) {
    return (directory_bytes + KEPT_DIRECTORY_BYTES - 1) / KEPT_DIRECTORY_BYTES;
}

static void free_parts(const struct core *core, struct edition *edition) {
    for (unsigned i = 0; i < edition->n_parts; i++)
        kept_end(core, &edition->parts[i].record);
    free(edition->parts);
    edition->parts = NULL;
    edition->n_parts = 0;
}

/* Room for the parts of the directory, which have no records yet. */
static int make_parts(struct edition *edition) {
    unsigned n = parts_of(edition->directory_bytes);

    edition->parts = n == 0 ? NULL : calloc(n, sizeof *edition->parts);
    if (n > 0 && edition->parts == NULL)
        return -ENOMEM;
    edition->n_parts = n;
    for (unsigned i = 0; i < n; i++)
        edition->parts[i] =
            (struct directory_part){.edition = edition, .offset_bytes = i * KEPT_DIRECTORY_BYTES};
    return 0;
}

/* Has the draft become the directory. The draft stays where that fails. */
static int take_draft(struct session *session, struct edition *edition) {
    edition->directory_bytes = session->draft.n_bytes;
    int r = make_parts(edition);
    for (unsigned i = 0; r == 0 && i < edition->n_parts; i++)
        r = kept_add(session->core, KEPT_DIRECTORY, &edition->parts[i], &edition->parts[i].record);
    if (r < 0) {
        free_parts(session->core, edition);
        return r;
    }
    edition->directory = take_ptr(&session->draft.bytes);
    if (edition->directory_bytes > 0)
        charge_move(&session->draft.charge, &edition->directory_charge, edition->directory_bytes);
    draft_drop(session);
    return 0;
}

/* --- editions --- */

void edition_free(struct edition *edition) {
    if (edition == NULL)
        return;
    assert(edition->name == NULL);
    while (edition->n_parcels > 0)
        parcel_close(edition->core, edition->parcels[--edition->n_parcels]);
    free_parts(edition->core, edition);
    charge_free(&edition->kept);
    charge_free(&edition->directory_charge);
    kept_end(edition->core, &edition->record);
    list_remove(&edition->session_link);
    free(edition->directory);
    free(edition);
}

static int add_parcels(struct session *session, struct edition *edition, const struct proto_publish *publish,
                       struct lease *const *leases, const struct proto_token *tokens, uint64_t now_ns) {
    struct core *core = session->core;
    struct proto_token old;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < publish->count; i++) {
        struct block *block = leases[i]->block;
        r = block_share(core, block, &tokens[2 * i], &old);
        if (r == 0)
            r = parcel_open_part(edition, session, block, &tokens[2 * i + 1], &publish->buffers[i], now_ns);
    }
    return r;
}

/* Nothing can fail any more: the blocks have the sizes that readers are told. */
static void set_sizes(struct edition *edition, const struct proto_publish *publish) {
    for (unsigned i = 0; i < edition->n_parcels; i++) {
        struct block *block = edition->parcels[i]->block;
        block->size_bytes = publish->buffers[i].size_bytes;
        kept_change(edition->core, block->record);
        edition->bytes += block->held_bytes;
    }
}

int edition_make(struct session *session, const struct proto_publish *publish, struct lease *const *leases,
                 const struct proto_token *tokens, uint64_t now_ns, struct edition **ret_edition) {
    struct core *core = session->core;
    struct edition *edition = calloc(1, sizeof *edition);

    if (edition == NULL)
        return -ENOMEM;
    edition->core = core;
    edition->flags = publish->flags & PROTO_NAMED_FLAGS;
    edition->layout = publish->layout;
    edition->publisher = session->id;
    edition->pid = session->peer.pid;
    edition->published_ns = now_ns;
    list_init(&edition->session_link);
    int r = kept_add(core, KEPT_EDITION, edition, &edition->record);
    if (r == 0)
        r = add_parcels(session, edition, publish, leases, tokens, now_ns);
    if (r == 0)
        r = take_draft(session, edition);
    if (r < 0) {
        edition_free(edition);
        return r;
    }
    set_sizes(edition, publish);
    edition->generation = ++core->leases.next_generation;
    kept_number(core);
    if ((edition->flags & PROTO_PUBLISH_KEEP) != 0)
        charge_force(&edition->kept, &session->tenant->quota, QUOTA_KEPT, edition->bytes);
    edition->session = session;
    list_append(&session->editions, &edition->session_link);
    *ret_edition = edition;
    return 0;
}

bool edition_settle(struct edition *edition, bool is_done) {
    struct core *core = edition->core;
    const struct proto_board_slot *words = edition->session->board_words;
    bool is_whole = true;

    for (unsigned i = 0; i < edition->n_parcels; i++) {
        struct parcel *parcel = edition->parcels[i];
        if (!parcel->has_fence)
            continue;
        is_whole =
            is_whole &&
            (is_done || (words != NULL && proto_board_state(words, parcel->fence.word, parcel->fence.value) ==
                                              PROTO_BOARD_READY));
        parcel->has_fence = false;
        parcel->fence = (struct proto_board_fence){0};
        kept_change(core, parcel->record);
    }
    edition->session = NULL;
    list_remove(&edition->session_link);
    kept_change(core, edition->record);
    return is_whole;
}

void edition_describe(const struct edition *edition, struct proto_named *ret_named) {
    *ret_named = (struct proto_named){
        .state = PROTO_NAME_THERE,
        .flags = edition->flags,
        .generation = edition->generation,
        .layout = edition->layout,
        .session = edition->publisher,
        .count = edition->n_parcels,
        .directory_bytes = edition->directory_bytes,
    };
    for (unsigned i = 0; i < edition->n_parcels; i++) {
        const struct parcel *parcel = edition->parcels[i];
        ret_named->buffers[i] = (struct proto_named_buffer){
            .token = parcel->token,
            .size_bytes = parcel->block->size_bytes,
            .fence = parcel->fence,
            .pool = parcel->block->segment->pool->id,
            .has_fence = parcel->has_fence,
        };
    }
}

int edition_restore(const struct edition *wanted, struct edition **ret_edition) {
    struct edition *edition = malloc(sizeof *edition);

    if (edition == NULL)
        return -ENOMEM;
    *edition = *wanted;
    list_init(&edition->session_link);
    edition->directory = edition->directory_bytes == 0 ? NULL : calloc(1, edition->directory_bytes);
    if ((edition->directory_bytes > 0 && edition->directory == NULL) || make_parts(edition) < 0) {
        free(edition->directory);
        free(edition);
        return -ENOMEM;
    }
    if (edition->session != NULL)
        list_append(&edition->session->editions, &edition->session_link);
    *ret_edition = edition;
    return 0;
}

void edition_restored(struct edition *edition, struct tenant *tenant) {
    for (unsigned i = 0; i < edition->n_parcels; i++)
        edition->bytes += edition->parcels[i]->block->held_bytes;
    if ((edition->flags & PROTO_PUBLISH_KEEP) != 0)
        charge_force(&edition->kept, &tenant->quota, QUOTA_KEPT, edition->bytes);
    charge_force(&edition->directory_charge, &tenant->quota, QUOTA_REPLIES, edition->directory_bytes);
}

bool edition_is_valid(const struct edition *edition) {
    const struct tenant *tenant = edition->name->tenant;
    bool is_kept = (edition->flags & PROTO_PUBLISH_KEEP) != 0;
    uint64_t bytes = 0;

    for (unsigned i = 0; i < edition->n_parcels; i++) {
        const struct parcel *parcel = edition->parcels[i];
        bytes += parcel->block->held_bytes;
        if (parcel->edition != edition || parcel->block->segment->owner->tenant != tenant ||
            (parcel->has_fence && edition->session == NULL))
            return false;
    }
    return edition->n_parcels > 0 && bytes == edition->bytes &&
           edition->n_parts == parts_of(edition->directory_bytes) &&
           (edition->directory != NULL) == (edition->directory_bytes > 0) &&
           edition->kept.amount == (is_kept ? bytes : 0) &&
           edition->directory_charge.amount == edition->directory_bytes &&
           (edition->session == NULL ||
            (edition->session->id == edition->publisher && edition->session->tenant == tenant)) &&
           list_is_empty(&edition->session_link) == (edition->session == NULL) &&
           (is_kept || (edition->session != NULL && edition->session->state == SESSION_ACTIVE));
}
