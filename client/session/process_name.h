/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_PROCESS_NAME_H
#define CLIENT_SESSION_PROCESS_NAME_H
/*
 * The name by which the daemon's tables call this process. The kernel's name of a process is often that of
 * its interpreter, so the telling part of the command line is better: "train.py" of "python3 -u train.py".
 */
#include <stdbool.h>

#include "proto/proto.h"

/* Writes a name that can be sent: wanted, as far as it has room; or, where that is NULL, the script or the
 * module of an interpreter, else the name of the program's file. Returns false where the kernel's name is the
 * better one: the program has set it (PR_SET_NAME), or nothing else is known. */
bool process_name(const char *wanted, struct proto_name *ret_name);

/* For tests: the telling part of a command line of size bytes, with a NUL behind each word. Returns NULL
 * where there is none, else a part of the line. */
const char *process_name_of(const char *line, size_t size);

#endif
