/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ESTATE_ESTATE_H
#define DAEMON_ESTATE_ESTATE_H
/*
 * The estate: what a daemon knows, as records in memory that outlives it. A successor reads them and goes on.
 *
 * A *record* is of an object of the daemon's, and of that object's *kind*. It has two copies. A *step* is what
 * happens between two calls of estate_end_step(): all changes of a step take effect at once, by one store of
 * its number, or none of them does. In a step the older copy of each changed record is written, and stamped
 * with the step's number. Of the two copies that with the higher stamp holds, as long as the stamp is of a
 * step that has ended. So no copy that holds is ever written to. A daemon that dies between two stores leaves
 * copies of a step that never ended, and its successor sees the records as they were before that step: there is
 * nothing to redo or to undo.
 *
 * The memory is a head and chunks of ESTATE_CHUNK_BYTES, each of records of one kind. A record stays where it
 * is from its beginning to its end, so other records can name it by its number. There is nothing to compact.
 *
 *     estate_add() ──▶ ( estate_change() )… ──▶ estate_remove()
 *
 * The payload of a kind never changes once a release has it: neither its size nor the meaning of a member. A daemon
 * that keeps more of an object keeps it in a record of a further kind, which names the first one. Records of a
 * kind of that number with another size are those of an unknown kind.
 *
 * Invariants:
 *   - A record that was removed is used again after the step's end, and not before.
 *   - Each copy is whole, or of a step that did not end. Those of a record that no object ever had are blank, which
 *     is not 0: where zeros were written over a record, it is damaged, and not gone.
 *   - A stamp has a check of itself. Each whole copy has a sum of its bytes, its place, its kind and its stamp. A
 *     record with a copy that fails is damaged, and said so.
 *   - While no step has ended, the estate is empty, however far the first step has come.
 *
 * The estate makes no system call: the owner gives it memory, and more of it by `grow`. It is the memory of one
 * process at a time. Not thread-safe.
 *
 * Numbers are in the machine's own order of bytes: an estate never leaves it.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ESTATE_CHUNK_BYTES ((size_t)65536)
/* The layout of head, chunks and copies; another one cannot be read. */
#define ESTATE_MAJOR 1u

/* A kind of objects. Kinds are numbered from 1. */
struct estate_kind {
    uint16_t size_bytes; /* of the payload: a multiple of 8. 0: there is no kind of this number */
    /* A reader that does not know the kind may not use memory that such a record could be about. */
    bool holds;
    /* Writes the object's payload, all of it, whose bytes are 0 before. */
    void (*write)(const void *object, void *payload);
    /* NULL: its records may be of any group. Or the group of the object: all that its record could contradict is of
     * the same one. 0: of none. It is known of a damaged record too, as far as the damage leaves it. */
    uint32_t (*group)(const void *object);
};

#define ESTATE_KINDS_MAX 32u

/* The calls of the owner of the memory. */
struct estate_owner {
    /* Makes the memory so many bytes long, at the same address: the new bytes are 0, and are there
     * (fallocate()), since no store may fail. Returns 0, or -ENOMEM: it stays as it was. */
    int (*grow)(void *argument, size_t size_bytes);
    /* NULL, or called before each store into the memory, so that a test can end there, or in its middle. */
    void (*before_store)(void *argument, void *to, const void *from, size_t size_bytes);
    void *argument;
};

/* The head of the memory. */
struct estate_head {
    uint64_t magic; /* stored behind the rest; 0: the estate was not made yet */
    uint32_t major, chunk_bytes;
    uint64_t incarnation;  /* which daemon has it: 1 is the first */
    uint64_t n_chunks;     /* the head's own among them; as a stamp, which has a check of itself */
    uint64_t step;         /* the stamp of the last one that has ended; 0: none has */
};

struct estate_chunk;

struct estate {
    char *memory; /* borrowed */
    const struct estate_kind *kinds;
    unsigned n_kinds; /* the highest number */
    struct estate_owner owner;
    struct estate_chunk **chunks; /* by number; chunks[0] is NULL: the head's */
    size_t n_chunks, chunks_room;
    char *scratch;                   /* for a new chunk's bytes; NULL: there was none yet */
    uint32_t free[ESTATE_KINDS_MAX]; /* by kind: the first of its free records; 0: none */
    uint32_t changed;                /* the first of those that the step has changed; 0: none */
    uint64_t step;                   /* the present one */
    bool must_end;                   /* it ends also where no record has changed */
    size_t n_records;
};

/* Makes an estate in memory of which at least ESTATE_CHUNK_BYTES are accessible, and whose bytes are 0. (Those of the
 * head may be what a call left that died.) kinds: by number, borrowed; kinds[0] is not looked at. Returns 0 or
 * -ENOMEM. */
int estate_make(struct estate *estate, void *memory, const struct estate_kind *kinds, unsigned n_kinds,
                const struct estate_owner *owner);

/* Reads the estate of a predecessor, and begins the next incarnation. Makes an estate where the predecessor died
 * before it had done so. size_bytes: of the memory. Records that no object has afterwards (estate_bind()) are to be
 * removed. Returns 0, -ENOMEM, or -EBADMSG: it is none, of another major version, or its head or a chunk's is
 * damaged; *ret_reason, a constant string, says which. */
int estate_open(struct estate *estate, void *memory, size_t size_bytes, const struct estate_kind *kinds,
                unsigned n_kinds, const struct estate_owner *owner, const char **ret_reason);

/* Frees the bookkeeping. The memory is the owner's. Accepts a zeroed one. */
void estate_deinit(struct estate *estate);

/* A record that was found in the memory. */
struct estate_found {
    uint32_t record;
    unsigned kind;
    bool is_unknown; /* its kind is none of the estate's, or has another size there */
    bool holds;      /* as its kind, also where that is unknown */
    bool is_damaged; /* its payload is not to be trusted, and it may be one that was removed */
    bool
        is_confined; /* it is of these groups, or of none; if damaged, of one of them as it was last or before */
    uint32_t groups[2];  /* 0: none */
    const void *payload; /* as long as the kind's, where that is known */
    size_t size_bytes;
};

/* Whether no step has ended: nothing was kept yet. */
bool estate_is_empty(const struct estate *estate);

/* The records that there is room for in the chunks of a kind: at least as many as there ever were at once. */
size_t estate_room(const struct estate *estate, unsigned kind);

/* Finds the next record behind a record (0: the first) of the kind (0: of any, also of unknown ones). Returns false
 * where there is none. */
bool estate_next(const struct estate *estate, unsigned kind, uint32_t record, struct estate_found *ret_found);

/* Copies the payload of a found record. */
void estate_read(const struct estate *estate, const struct estate_found *found, void *ret_payload);

/* A found record is of this object from now on. */
void estate_bind(struct estate *estate, uint32_t record, void *object);

/* The object that a record is of; NULL: none, or there is no such record of the kind. */
void *estate_object(const struct estate *estate, uint32_t record, unsigned kind);

/* Gives an object a record, which is written at the end of the step: *ret_record, not 0. Returns 0 or -ENOMEM.
 * Without an estate (NULL) there are no records: 0, and *ret_record is 0. So in the following calls. */
int estate_add(struct estate *estate, unsigned kind, void *object, uint32_t *ret_record);

/* The object has changed. Nothing is written before the end of the step. */
void estate_change(struct estate *estate, uint32_t record);

/* The object is no more; it is not looked at again. */
void estate_remove(struct estate *estate, uint32_t record);

/* The step ends with the next estate_end_step() even if no record changes: something beside the records follows
 * from its number. */
void estate_must_end_step(struct estate *estate);

/* Writes the changes of the step, and ends it; without changes nothing happens.
 * Nothing may leave the daemon that follows from the step before. */
void estate_end_step(struct estate *estate);

/* Whether the bookkeeping is as the memory says, and each object's record is what its kind would write. Between
 * steps. Linear in everything: for tests. *ret_kind: of the first record that is not so; 0: none is known. */
bool estate_is_valid(const struct estate *estate, unsigned *ret_kind);

#endif
