/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/channel/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memfd.h"
#include "client/session/word_wait.h"

static _Noreturn void fail(const char *what) {
    perror(what);
    exit(1);
}

static int make_memfd(uint64_t size_bytes) {
    int fd = memfd_create("channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)size_bytes) < 0 || fcntl(fd, F_ADD_SEALS, MEMFD_SEALS) < 0)
        fail("memfd");
    return fd;
}

static void *map(int fd, uint64_t size_bytes, bool is_written) {
    void *memory = mmap(NULL, size_bytes, PROT_READ | (is_written ? PROT_WRITE : 0), MAP_SHARED, fd, 0);

    if (memory == MAP_FAILED)
        fail("mmap");
    return memory;
}

/* A place's page. */
static void *map_page(const struct channel_pages *pages, unsigned place, bool is_written) {
    if (pages->memory[place] != NULL)
        return pages->memory[place];
    return map(pages->fds[place], proto_channel_page_bytes(&pages->capacities, 1 + place), is_written);
}

static void *map_frames(const struct channel_pages *pages, bool is_written) {
    if (pages->frames != NULL)
        return pages->frames;
    return map(pages->frames_fd, pages->capacities.n_slots * pages->capacities.slot_bytes, is_written);
}

void channel_pages_make(struct channel_pages *pages, const struct proto_channel_capacities *capacities,
                        bool has_threads) {
    *pages = (struct channel_pages){.capacities = *capacities, .has_threads = has_threads};
    pages->roll_fd = make_memfd(proto_channel_roll_bytes());
    pages->frames_fd = make_memfd(capacities->n_slots * capacities->slot_bytes);
    for (unsigned place = 0; place <= capacities->n_consumers; place++)
        pages->fds[place] = make_memfd(proto_channel_page_bytes(capacities, 1 + place));
    pages->roll = map(pages->roll_fd, proto_channel_roll_bytes(), true);
    pages->roll->magic = PROTO_CHANNEL_MAGIC;
    pages->roll->capacities = *capacities;
    for (unsigned place = 0; has_threads && place <= capacities->n_consumers; place++)
        pages->memory[place] = map_page(pages, place, true);
    if (has_threads)
        pages->frames = map_frames(pages, true);
}

void channel_pages_map(const struct channel_pages *pages, unsigned place, struct channel_mapped *mapped) {
    const struct proto_channel_capacities *capacities = &pages->capacities;
    bool is_producer = place == PROTO_CHANNEL_PRODUCER;
    const struct proto_channel_consumer *consumers[PROTO_CHANNEL_CONSUMERS_MAX];

    *mapped = (struct channel_mapped){0};
    void *producer = map_page(pages, PROTO_CHANNEL_PRODUCER, is_producer);
    for (unsigned i = 0; i < capacities->n_consumers; i++) {
        void *page = map_page(pages, i + 1, place == i + 1);
        consumers[i] = page;
        if (place == i + 1)
            mapped->consumer = page;
    }
    if (is_producer)
        mapped->producer = producer;
    mapped->frames = map_frames(pages, is_producer);
    const void *roll =
        pages->has_threads ? pages->roll : map(pages->roll_fd, proto_channel_roll_bytes(), false);
    if (!channel_view_init(&mapped->view, roll, producer, consumers, capacities))
        fail("the roll");
}

void channel_pages_set(struct channel_pages *pages, unsigned place, enum proto_channel_state state) {
    _Atomic uint64_t *word = &pages->roll->places[place].state;
    uint64_t before = atomic_load(word);
    bool comes = state == PROTO_CHANNEL_TAKEN;
    uint64_t queue = proto_channel_queue_of(before) +
                     (comes && proto_channel_state_of(before) == PROTO_CHANNEL_LEFT ? 1 : 0);

    atomic_store(word, proto_channel_state_word(state, queue, proto_channel_processes_of(before) + comes));
    atomic_fetch_add(&pages->roll->changes, 1);
    word_wake(&pages->roll->changes);
}
