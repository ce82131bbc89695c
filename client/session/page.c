/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/page.h"

#include "base/cleanup.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/connection.h"
#include "client/session/error.h"
#include "client/session/memfd.h"

#define PAGE_TEXT "the page that fences and counters lie in"

static int page_open(struct page *page, struct connection *connection, uint64_t deadline_ns,
                     bool *ret_may_retry) {
    _cleanup_(request_recyclep) struct request *request = NULL;
    int r = connection_ask_descriptor(connection, PROTO_ASK_PAGE, &page->request, PAGE_TEXT, deadline_ns,
                                      &request, ret_may_retry);

    if (r < 0)
        return r;
    if (memfd_flaw(request->fd, PROTO_PAGE_BYTES) != NULL)
        return connection_refuse(connection, "a page that is no sealed memfd of its size");
    r = memfd_map(request->fd, PROTO_PAGE_BYTES, PAGE_TEXT, &page->mapping);
    if (r == 0)
        page->memory = page->mapping->memory;
    return r;
}

int page_need(struct page *page, struct connection *connection, uint64_t deadline_ns) {
    pthread_mutex_lock(&page->lock);
    bool before = page->asked, may_retry;
    if (!before) {
        page->error = page_open(page, connection, deadline_ns, &may_retry);
        page->asked = !may_retry;
    }
    int r = page->error;
    pthread_mutex_unlock(&page->lock);
    return r < 0 && before ? error_set(r, "there is no page for fences and counters: asking for it failed")
                           : r;
}

void page_close(struct page *page) {
    (void)own_mapping_unmap(take_ptr(&page->mapping));
    page->memory = NULL;
    pthread_mutex_destroy(&page->lock);
}
