/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PAGE_H
#define CLIENT_PAGE_H
/*
 * The page that this client shares with the daemon (proto/page.h), mapped. A client owns one, from its first
 * need on: its cache counts in it, its streams write their fences there. Not inherited by forked children.
 *
 * Invariant: memory != NULL exactly when open; it does not move until the client closes.
 */
#include "proto/page.h"

struct gpupool_client;

struct page {
    struct proto_page *memory;
};

/* Asks the daemon for the page and maps it. One exchange; once in a client's life. 0; DRIVER (the kernel maps
 * nothing), PROTOCOL (what came is no such page) and what connection_exchange says. */
int page_open(struct gpupool_client *client, uint64_t deadline_ns);

/* Unmaps it. Nobody may use it any more, the GPU included. */
void page_close(struct page *page);

#endif
