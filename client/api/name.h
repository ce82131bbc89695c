/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_NAME_H
#define CLIENT_API_NAME_H
/*
 * Parts that the calls for names (<gpupool/names.h>) share.
 */
#include <gpupool/names.h>

#include "proto/proto.h"

/* Begins a call: the client is there and its daemon knows names, and the text is one. text: room for the wire's
 * text, filled up with NULs. INVALID, VERSION, FORKED, or what the connection broke with. */
int name_enter(struct gpupool_client *client, const char *call, const char *name,
               char text[static PROTO_NAME_TEXT_SIZE]);

#endif
