/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADOPTION_ASK_H
#define DAEMON_ADOPTION_ASK_H
/*
 * The other side of adoption.h: the first child of a keeper asks a daemon that is alive to be held by that keeper.
 *
 * The keeper hears of the daemon's process from this child (MAINPID=) before the daemon is asked, so that it takes the
 * daemon's messages from the first one on.
 */
#include <stdbool.h>

/* Asks the daemon that serves the path, if it is of the same user and has lost its keeper. Returns whether the keeper
 * has that daemon now. */
bool adoption_ask(const char *admin_path);

#endif
