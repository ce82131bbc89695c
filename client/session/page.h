/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_PAGE_H
#define CLIENT_SESSION_PAGE_H
/*
 * The page that this client shares with the daemon (proto/page.h), mapped. A client owns one, from its first
 * need on: its cache counts in it, its streams write their fences there. Not inherited by forked children.
 *
 * Invariant: memory != NULL exactly when open; it does not move until the client closes. Where the daemon or
 * the kernel refused it, there is none until then. Where only the answer did not come in time, or its
 * descriptor was lost, the next need asks again, or takes the answer that has come since.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/own_mapping.h"
#include "proto/page.h"

struct connection;
struct request;

struct page {
    pthread_mutex_t lock; /* over the exchange: who comes second waits for its end */
    bool asked;           /* and that is over */
    struct request *request;   /* that was not answered yet; NULL: none */
    int error;                 /* why there is none, once it was asked for */
    struct own_mapping *mapping;
    struct proto_page *memory; /* read after page_need */
};

/* Asks the daemon for the page and maps it, unless that was done before. A call after a refusal fails again,
 * with the same error. Thread-safe. 0; DRIVER (the kernel maps nothing),
 * PROTOCOL (what came is no such page) and what connection_exchange says. */
int page_need(struct page *page, struct connection *connection, uint64_t deadline_ns);

/* Unmaps it. No thread and no GPU work uses it any more. */
void page_close(struct page *page);

#endif
