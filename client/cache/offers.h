/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_OFFERS_H
#define CLIENT_CACHE_OFFERS_H
/*
 * Segments that the process may not need mapped any more. When idle memory of movable segments goes back to
 * the daemon because it was not used for a time, the segments are noted. The next time they are offered,
 * and after a trim at once: the daemon names those of which nothing is leased and that no other process has
 * mapped, and the process closes them. Memory that is used again in between, or that a fence keeps, is not
 * named. It is offered a few times more, and after that when it goes back again.
 *
 * The lock of the giver-back (cache.give_lock) guards this object.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* So many segments are noted at a time; the others stay mapped. */
#define OFFERS_MAX 4096u
/* Times that a segment is offered: a fence is ready by then, unless its work hangs. */
#define OFFERS_TRIES 8u

struct offers {
    struct offer {
        uint32_t pool;
        unsigned tries;
        uint64_t segment; /* its id */
    } * entries;
    size_t count, capacity;
};

struct session;

void offers_deinit(struct offers *offers);

/* Notes a segment. Where there is no memory for that, the segment stays mapped. */
void offers_note(struct offers *offers, uint32_t pool, uint64_t segment);

/* Offers what was noted, and closes what the daemon names. The rest stays noted, unless it was offered often
 * enough. 0, or what the daemon or the connection says. */
int offers_send(struct offers *offers, struct session *session);

#endif
