/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/channel_pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/connection.h"
#include "client/session/error.h"
#include "client/session/memfd.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define PAGE_TEXT "a page of the channel"
/* Other threads' answers may be unread for a moment: some 10 ms. */
#define ASKS 100u

static int map(int fd, uint64_t size_bytes, bool is_own, struct own_mapping **ret_mapping) {
    void *memory = mmap(NULL, size_bytes, PROT_READ | (is_own ? PROT_WRITE : 0), MAP_SHARED, fd, 0);

    if (memory == MAP_FAILED)
        return error_set(GPUPOOL_E_DRIVER, "mapping " PAGE_TEXT ": %s (%s)", strerrorname_np(errno),
                         strerrordesc_np(errno));
    own_mapping_advise(memory, size_bytes);
    int r = own_mapping_adopt(memory, size_bytes, ret_mapping);
    if (r == 0)
        return 0;
    munmap(memory, size_bytes);
    return error_set(GPUPOOL_E_DRIVER, "mapping " PAGE_TEXT ": %s (%s)", strerrorname_np(-r),
                     strerrordesc_np(-r));
}

/* Asks for a page, and again where its descriptor did not arrive. */
static int ask(struct session *session, const struct proto_channel_page_name *wanted,
               struct request **ret_reply) {
    struct connection *connection = &session->connection;
    int r;

    for (unsigned n = 1;; n++) {
        struct request *request = connection_request(connection, PROTO_ASK_CHANNEL_MEMORY);
        if (request == NULL)
            return GPUPOOL_E_NO_MEMORY;
        request->message.ask_channel_memory = *wanted;
        r = connection_exchange(connection, &request, connection_deadline_ns(connection, 0));
        bool is_lost = r == 0 && request->has_lost_fd;
        if (is_lost) {
            request_recycle(request);
            r = error_lost_descriptor(PAGE_TEXT);
        }
        if (r == 0)
            *ret_reply = request;
        if ((r != GPUPOOL_E_EXHAUSTED && !is_lost) || n == ASKS)
            return r < 0 ? error_prefix(r, "asking for " PAGE_TEXT) : 0;
        wait_pause(n * NS_PER_MS, NS_PER_MS);
    }
}

static int open_page(struct session *session, uint64_t channel,
                     const struct proto_channel_capacities *capacities, unsigned number,
                     struct channel_pages *pages) {
    const struct proto_channel_page_name wanted = {.channel = channel, .page = number};
    _cleanup_(request_recyclep) struct request *reply = NULL;
    bool is_own = number == pages->place + 1;

    int r = ask(session, &wanted, &reply);
    if (r < 0)
        return r;
    const struct proto_channel_page_reply *page = &reply->message.channel_memory;
    if (page->channel != channel || page->page != number || page->size_bytes != proto_channel_page_bytes(capacities, number) ||
        (is_own && page->is_own == 0) || memfd_flaw(reply->fd, page->size_bytes) != NULL)
        return connection_refuse(&session->connection, "a page of another channel, or of another size");
    return map(reply->fd, page->size_bytes, is_own, &pages->mappings[number]);
}

int channel_pages_open(struct session *session, const struct proto_channel_reply *reply,
                       struct channel_pages *ret_pages) {
    const struct proto_channel_capacities capacities = {
        reply->slot_bytes, reply->n_slots, reply->metadata_bytes, reply->n_consumers, reply->policy};
    const struct proto_channel_consumer *consumers[PROTO_CHANNEL_CONSUMERS_MAX];
    struct channel_pages pages = {.place = reply->place, .n_pages = 2 + (unsigned)reply->n_consumers};
    int r = 0;

    for (unsigned i = 0; r == 0 && i < pages.n_pages; i++)
        r = open_page(session, reply->channel, &capacities, i, &pages);
    if (r == 0) {
        for (unsigned i = 0; i < capacities.n_consumers; i++)
            consumers[i] = pages.mappings[2 + i]->memory;
        pages.own = pages.mappings[1 + pages.place]->memory;
        if (!channel_view_init(&pages.view, pages.mappings[0]->memory, pages.mappings[1]->memory, consumers,
                               &capacities))
            r = connection_refuse(&session->connection, "a roll of another channel");
    }
    if (r < 0)
        channel_pages_close(&pages);
    else
        *ret_pages = pages;
    return r;
}

void channel_pages_close(struct channel_pages *pages) {
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES + 1; i++) {
        (void)own_mapping_unmap(pages->mappings[i]);
        pages->mappings[i] = NULL;
    }
}
