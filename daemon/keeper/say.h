/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_KEEPER_SAY_H
#define DAEMON_KEEPER_SAY_H
/* The keeper's messages, one line each on stderr, beside the daemon's own (daemon/loop/log.h). A message that
 * the reader of stderr has no room for is lost: the keeper waits for no reader. */

enum say_level {
    SAY_ERROR,
    SAY_WARNING,
    SAY_INFO,
};

void say(enum say_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
