/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_ALIVE_H
#define DAEMON_DATA_ALIVE_H
/*
 * The pipe by which sessions see that the daemon has ended. The daemon alone has its write end, and never writes.
 * Sessions get the read end: it hangs up with the daemon, however that ends. It is not stored, so a successor has
 * another one. The clients own it. Where it could not be made when the daemon began, it is when a session asks.
 */

struct alive {
    int read_fd, write_fd; /* -1: not made yet */
};

void alive_init(struct alive *alive);
void alive_deinit(struct alive *alive);

/* Returns the read end, borrowed, or a negative errno. */
int alive_need(struct alive *alive);

#endif
