/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/channels.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/memfd.h"
#include "daemon/core/channel.h"
#include "daemon/core/core.h"
#include "daemon/data/kept_data.h"
#include "daemon/data/shared_memory.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/die_here.h"
#include "daemon/loop/log.h"

void channels_init(struct channels *channels, struct core *core, struct desk *desk, struct store *store) {
    *channels = (struct channels){.core = core, .desk = desk, .store = store};
    list_init(&channels->all);
}

/* Opens a page for reading alone. By its mode no session can open it for writing through /proc/PID/fd, not even one of
 * the daemon's own user. */
static int open_for_reading(struct channel_page *page) {
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", page->fd);
    page->reading_fd = descriptors_for_client(open(path, O_RDONLY | O_CLOEXEC));
    return page->reading_fd < 0 ? -errno : 0;
}

static int make_page(struct channels *channels, struct channel_page *page, uint64_t size_bytes) {
    page->fd = descriptors_for_client(memfd_create("gpupool-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (page->fd < 0 || fchmod(page->fd, 0400) < 0 || ftruncate(page->fd, (off_t)size_bytes) < 0 ||
        fcntl(page->fd, F_ADD_SEALS, MEMFD_SEALS) < 0)
        return -errno;
    page->size_bytes = size_bytes;
    int r = open_for_reading(page);
    if (r < 0)
        return r;
    store_put(channels->store, STORE_CHANNEL, page->fd, page->stored);
    return store_is_there(channels->store) && page->stored[0] == '\0' ? -ENOBUFS : 0;
}

static struct channel_pages *new_pages(uint64_t channel) {
    struct channel_pages *pages = calloc(1, sizeof *pages);

    if (pages == NULL)
        return NULL;
    pages->channel = channel;
    list_init(&pages->gone_link);
    list_init(&pages->link);
    for (unsigned i = 0; i < CHANNEL_PAGES_MAX; i++)
        pages->pages[i].fd = pages->pages[i].reading_fd = -1;
    return pages;
}

static void free_pages(struct channels *channels, struct channel_pages *pages) {
    estate_remove(channels->desk->estate, pages->record);
    if (pages->roll != NULL)
        munmap(pages->roll, proto_channel_roll_bytes());
    for (unsigned i = 0; i < CHANNEL_PAGES_MAX; i++) {
        struct channel_page *page = &pages->pages[i];
        store_leave(channels->store, page->stored);
        close_fd(page->fd);
        close_fd(page->reading_fd);
    }
    list_remove(&pages->gone_link);
    list_remove(&pages->link);
    free(pages);
}

static int map_roll(struct channel_pages *pages) {
    void *memory;
    int r = shared_memory_take(pages->pages[0].fd, pages->pages[0].size_bytes, &memory);

    if (r == 0)
        pages->roll = memory;
    return r;
}

int channels_make(struct channels *channels, struct channel *channel) {
    const struct proto_channel_capacities *capacities = &channel->capacities;
    struct channel_pages *pages = new_pages(channel->id);
    int r = pages == NULL ? -ENOMEM : 0;

    if (r < 0)
        return r;
    pages->n_pages = 2 + (unsigned)capacities->n_consumers;
    for (unsigned i = 0; r == 0 && i < pages->n_pages; i++)
        r = make_page(channels, &pages->pages[i], proto_channel_page_bytes(capacities, i));
    if (r == 0)
        r = map_roll(pages);
    if (r == 0)
        r = estate_add(channels->desk->estate, KEPT_CHANNEL_PAGES, pages, &pages->record);
    if (r < 0) {
        free_pages(channels, pages);
        return r;
    }
    pages->roll->capacities = *capacities;
    pages->roll->magic = PROTO_CHANNEL_MAGIC;
    list_append(&channels->all, &pages->link);
    core_channel_made(channel, &pages->gone_link);
    return 0;
}

static struct channel_pages *find(const struct channels *channels, uint64_t channel) {
    list_for_each_entry(struct channel_pages, pages, &channels->all, link) {
        if (pages->channel == channel)
            return pages;
    }
    return NULL;
}

const struct channel_page *channels_page(const struct channels *channels, uint64_t channel, uint32_t number) {
    const struct channel_pages *pages = find(channels, channel);

    return pages != NULL && number < pages->n_pages ? &pages->pages[number] : NULL;
}

/* --- what processes say --- */

/* Marks that are read at once. */
#define MARKS_READ 64u

static bool read_page(const struct channel_page *page, void *memory, size_t bytes, uint64_t offset_bytes) {
    return pread(page->fd, memory, bytes, (off_t)offset_bytes) == (ssize_t)bytes;
}

static uint64_t at_least_one(uint64_t sequence) {
    return sequence > 0 ? sequence : 1;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Counts the marks of elements from `begins` to before `next` that are held. */
static bool count_held(const struct channel_page *page, uint64_t n_slots, uint64_t begins, uint64_t next,
                       uint64_t *ret_held) {
    struct proto_channel_mark marks[MARKS_READ];
    uint64_t held = 0;

    for (uint64_t i = 0; i < n_slots; i += MARKS_READ) {
        uint64_t n = n_slots - i < MARKS_READ ? n_slots - i : MARKS_READ;
        if (!read_page(page, marks, n * sizeof *marks,
                       sizeof(struct proto_channel_consumer) + i * sizeof *marks))
            return false;
        for (uint64_t k = 0; k < n; k++) {
            uint64_t taken = atomic_load_explicit(&marks[k].taken, memory_order_relaxed);
            held += taken >= begins && taken < next &&
                    atomic_load_explicit(&marks[k].released, memory_order_relaxed) != taken;
        }
    }
    *ret_held = held;
    return true;
}

bool channels_read_account(const struct channels *channels, const struct channel *channel,
                           struct channel_account *ret_account) {
    const struct channel_pages *pages = find(channels, channel->id);
    struct channel_account account = {0};
    struct proto_channel_producer producer;

    if (pages == NULL || !read_page(&pages->pages[1 + PROTO_CHANNEL_PRODUCER], &producer, sizeof producer, 0))
        return false;
    account.sent = atomic_load_explicit(&producer.head, memory_order_relaxed);
    uint64_t floor = at_least_one(atomic_load_explicit(&producer.floor, memory_order_relaxed));
    for (unsigned i = 0; i < channel->capacities.n_consumers; i++) {
        const struct channel_page *page = &pages->pages[2 + i];
        struct proto_channel_consumer consumer;
        if (!read_page(page, &consumer, sizeof consumer, 0))
            return false;
        uint64_t begins =
            at_least_one(atomic_load_explicit(&producer.queues[i].begins, memory_order_relaxed));
        uint64_t next = at_least_one(atomic_load_explicit(&consumer.received, memory_order_relaxed));
        uint64_t first = larger(larger(begins, floor), next);
        account.consumers[i].received = next - 1;
        account.consumers[i].behind = first <= account.sent ? account.sent - first + 1 : 0;
        if (!count_held(page, channel->capacities.n_slots, begins, next, &account.consumers[i].held))
            return false;
    }
    *ret_account = account;
    return true;
}

/* --- the roll --- */

/* Writes a place. Returns whether it was another one there. */
static bool write_place(struct proto_channel_place *memory, const struct channel_place *place) {
    uint64_t word = proto_channel_state_word(place->state, place->queue, place->processes);
    bool is_new = atomic_load(&memory->state) != word || atomic_load(&memory->session) != place->last_session;

    if (!is_new)
        return false;
    die_here();
    atomic_store(&memory->session, place->last_session);
    die_here();
    atomic_store(&memory->state, word);
    return true;
}

static void write_roll(struct channel_pages *pages, const struct channel *channel, bool is_successors) {
    struct proto_channel_roll *roll = pages->roll;
    bool is_new = is_successors; /* the daemon before may have died behind the places and before this */

    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++)
        is_new |= write_place(&roll->places[i], &channel->places[i]);
    if (!is_new)
        return;
    die_here();
    atomic_store(&roll->changes, atomic_load(&roll->changes) + 1);
    die_here();
    (void)syscall(SYS_futex, (uint32_t *)&roll->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void channels_settle(struct channels *channels) {
    struct channel *channel;
    struct list *link;

    while (core_next_channel(channels->core, &channel)) {
        struct channel_pages *pages = find(channels, channel->id);
        if (pages != NULL)
            write_roll(pages, channel, false);
    }
    while ((link = core_next_channel_gone(channels->core)) != NULL)
        free_pages(channels, container_of(link, struct channel_pages, gone_link));
}

void channels_leave(struct channels *channels) {
    list_for_each_entry(struct channel_pages, pages, &channels->all, link) {
        /* what this daemon writes from now on goes nowhere */
        if (mmap(pages->roll, proto_channel_roll_bytes(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            log_warning("a channel's roll is not left alone: %s", strerror(errno));
    }
}

/* --- a predecessor's --- */

static struct channel *find_channel(const struct core *core, uint64_t id) {
    list_for_each_entry(struct channel, channel, &core->channels, link) {
        if (channel->id == id)
            return channel;
    }
    return NULL;
}

/* Takes all pages of a channel. Returns 0 or a negative errno. */
static int take_pages(struct channels *channels, struct channel_pages *pages, const struct channel *channel,
                      const struct kept_channel_pages *kept) {
    int r = 0;

    pages->n_pages = 2 + (unsigned)channel->capacities.n_consumers;
    for (unsigned i = 0; r == 0 && i < pages->n_pages; i++) {
        struct channel_page *page = &pages->pages[i];
        page->fd = store_take(channels->store, kept->pages[i].text);
        page->size_bytes = proto_channel_page_bytes(&channel->capacities, i);
        if (page->fd < 0 || !memfd_is_sealed(page->fd, page->size_bytes))
            return -ENOENT;
        memcpy(page->stored, kept->pages[i].text, sizeof page->stored - 1);
        r = open_for_reading(page);
    }
    return r == 0 ? map_roll(pages) : r;
}

/* Returns 0, also where the pages cannot be had, or -ENOMEM. */
static int inherit_one(struct channels *channels, uint32_t record, const struct kept_channel_pages *kept) {
    struct channel *channel = find_channel(channels->core, kept->channel);
    struct channel_pages *pages = channel == NULL ? NULL : new_pages(kept->channel);
    int r = channel == NULL ? -ENOENT : pages == NULL ? -ENOMEM : take_pages(channels, pages, channel, kept);

    if (r < 0) {
        if (pages != NULL)
            free_pages(channels, pages);
        for (unsigned i = 0; i < CHANNEL_PAGES_MAX; i++) {
            char stored[STORE_NAME_SIZE] = "";
            memcpy(stored, kept->pages[i].text, sizeof stored - 1);
            store_leave(channels->store, stored);
        }
        estate_remove(channels->desk->estate, record);
        return r == -ENOMEM ? r : 0;
    }
    pages->record = record;
    estate_bind(channels->desk->estate, record, pages);
    list_append(&channels->all, &pages->link);
    channel->shell_link = &pages->gone_link;
    write_roll(pages, channel, true);
    return 0;
}

int channels_inherit(struct channels *channels) {
    struct estate *estate = channels->desk->estate;
    struct estate_found found = {0};
    struct kept_channel_pages kept;

    while (estate_next(estate, KEPT_CHANNEL_PAGES, found.record, &found)) {
        estate_read(estate, &found, &kept);
        int r = inherit_one(channels, found.record, &kept);
        if (r < 0)
            return r;
    }
    list_for_each_entry_safe(struct channel, channel, &channels->core->channels, link) {
        if (channel->shell_link == NULL) {
            log_warning("channel %llu ends: its pages were not stored, or are lost",
                        (unsigned long long)channel->id);
            core_lose_channel(channel, clock_now_ns());
        }
    }
    return 0;
}
