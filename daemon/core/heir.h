/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_HEIR_H
#define DAEMON_CORE_HEIR_H
/*
 * How inherit.c makes a core of an estate: a function for each record of a kind, in the order that inherit.c says. Each
 * checks the record's members, which may be of any value, makes the object, and binds the record to it. All return 0,
 * -ENOMEM, or -EBADMSG with the reason in the heir. After a failure inherit.c undoes the rest.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/inherit_shell.h"

/* The counters of a daemon begin at 0 and count its objects. */
#define HEIR_NUMBER_MAX (UINT64_MAX / 2)

/* The estate that is read, and the core that is made of it. */
struct heir {
    struct core *core;
    struct estate *estate;
    const struct inherit_shell *shell;
    size_t slots_max, leases_max; /* no segment has a slot, no lease an id beyond */
    uint32_t *lost;               /* groups of records of which one is damaged */
    size_t n_lost, lost_room;
    struct inherit_loss loss;
    const char *reason;
};

/* A function for a record: its number and its payload. */
typedef int heir_step(struct heir *heir, uint32_t record, const void *payload);

/* --- heir_segments.c */

heir_step heir_add_segment;
/* CLOSING, once its mappers are known. */
heir_step heir_close_segment;

/* --- heir_sessions.c */

heir_step heir_add_session;
heir_step heir_map_segments;
/* Each word of a session has a record, or a change of it would be lost. */
heir_step heir_check_words;
/* Which segments a session was told to close. */
heir_step heir_tell_session;
/* The session is lost, once its leases are there. */
heir_step heir_lose_session;

/* --- heir_blocks.c */

heir_step heir_add_block;
heir_step heir_add_range;
/* The ranges of a row in its order; then those of all other blocks in the order of their offsets. */
heir_step heir_link_row;
void heir_link_ranges(const struct core *core);
heir_step heir_end_block;
/* Each block is of a session or of a parcel. */
heir_step heir_check_block;

/* --- heir_leases.c */

heir_step heir_add_fences;
int heir_add_leases(struct heir *heir);

/* --- heir_requests.c: parcels, too */

heir_step heir_add_parcel;
/* In the order of their arrival. */
int heir_add_requests(struct heir *heir);
/* The core keeps the estate again: grants that cannot be told are taken back, and their requests wait again. */
void heir_take_back_untold(struct core *core);

/* --- heir_names.c */

heir_step heir_add_name;
heir_step heir_add_edition;
heir_step heir_add_directory;
int heir_add_parts(struct heir *heir);
heir_step heir_add_channel;
int heir_add_name_waits(struct heir *heir);
/* The core keeps the estate again: editions whose memory no further process can map are withdrawn. */
void heir_drop_names(struct core *core);

/* --- heir.c */

static inline int heir_refuse(struct heir *heir, const char *reason) {
    heir->reason = reason;
    return -EBADMSG;
}

/* The object is the record's from now on. */
void heir_bind(const struct heir *heir, uint32_t record, void *object, uint32_t *ret_record);
void *heir_object(const struct heir *heir, uint32_t record, enum kept_kind kind);

/* NULL: there is none of this number. */
struct pool *heir_pool(const struct heir *heir, uint32_t id);
struct session *heir_session(const struct heir *heir, uint64_t id);

int heir_tenant(struct heir *heir, const struct kept_tenant *kept, struct tenant **ret_tenant);

static inline struct tenant_id heir_tenant_id(const struct kept_tenant *kept) {
    return (struct tenant_id){.uid = kept->uid, .scope = kept->scope};
}

/* A record that was found, for a kind whose records come in another order than theirs in the estate. */
struct found_record {
    uint32_t record;
    uint64_t number; /* no other one of the kind has it */
    int64_t
        later; /* leases behind a word of one session: how much later than the first one its value comes */
    const void *payload;
};

struct found_records {
    struct found_record *list;
    size_t count;
};

/* Finds all records of a kind, in the order of their numbers. twice: the reason to refuse an estate in which two have one
 * number. The caller frees the list, also after a failure. */
int heir_find_all(struct heir *heir, enum kept_kind kind, uint64_t (*number_of)(const void *payload),
                  const char *twice, struct found_records *ret_records);

/* Adds all records of a kind in that order, up to the first that fails. */
int heir_add_in_order(struct heir *heir, enum kept_kind kind, uint64_t (*number_of)(const void *payload),
                      const char *twice, int (*add)(struct heir *heir, const struct found_record *found));

void heir_sort(struct found_records *records, int (*compare)(const void *a, const void *b));
int heir_compare_numbers(const void *a, const void *b);

#endif
