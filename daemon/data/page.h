/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_PAGE_H
#define DAEMON_DATA_PAGE_H
/*
 * A session's page as the daemon has it (proto/page.h): the memfd that the client is given, and a mapping to
 * look at what the client writes. A connection owns one from ASK_PAGE on. The
 * daemon takes nothing from there but the client's word about its own memory, and writes nothing but which
 * pools are short. The seals keep the size, so the daemon never reads beyond the end, and pages that it has
 * read stay in memory. After a client punches holes, client and daemon read zeros.
 *
 * Invariant: fd ≥ 0 exactly when memory != NULL.
 */
#include "proto/page.h"

struct page {
    int fd;
    struct proto_page *memory;
};
#define PAGE_NONE ((struct page){.fd = -1})

/* Makes a page of zeros. Returns 0 or a negative errno; *page is untouched on failure. */
int page_make(struct page *page);

/* Leaves the page to the client. Accepts PAGE_NONE. */
void page_drop(struct page *page);

#endif
