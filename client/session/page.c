/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/page.h"

#include "base/cleanup.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/connection.h"
#include "client/session/error.h"
#include "client/session/memfd.h"

static int page_open(struct page *page, struct connection *connection, uint64_t deadline_ns) {
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_ASK_PAGE);

    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    int r = connection_exchange(connection, &request, deadline_ns);
    if (r < 0)
        return error_prefix(r, "asking for the page that fences and counters lie in");
    if (memfd_flaw(request->fd, PROTO_PAGE_BYTES) != NULL)
        return connection_refuse(connection, "a page that is no sealed memfd of its size");
    r = memfd_map(request->fd, PROTO_PAGE_BYTES, "the page that fences and counters lie in", &page->mapping);
    if (r == 0)
        page->memory = page->mapping->memory;
    return r;
}

int page_need(struct page *page, struct connection *connection, uint64_t deadline_ns) {
    pthread_mutex_lock(&page->lock);
    bool before = page->asked;
    if (!before) {
        page->error = page_open(page, connection, deadline_ns);
        page->asked = true;
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
