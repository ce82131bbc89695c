/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_CHECK_H
#define PROTO_CHECK_H
/*
 * The rules of the messages' bodies: ranges, enums, reserved fields, and what one field says of another.
 * proto_decode() applies them to what arrives, and proto_encode() asserts them. docs/wire.md lists them for
 * implementers. Pure, and thread-safe.
 */
#include "proto/proto.h"

/* Returns NULL, or what is wrong with the body: a constant string that begins with the message's and the
 * field's names. Lengths and counts have been checked
 * before: the body is the one of header.operation, which is known. */
const char *proto_check(const struct proto_message *message);

#endif
