/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/counters.h"

#include <assert.h>

void counters_init(struct counters *counters) {
    *counters = (struct counters){0};
    pthread_mutex_init(&counters->lock, NULL);
}

void counters_deinit(struct counters *counters) {
    pthread_mutex_destroy(&counters->lock);
}

/* A line of the pool whose thread has ended, else one that no thread had: the daemon looks no further than
 * the first of these. */
static struct proto_counters *find_line(struct counters *counters, uint32_t pool) {
    struct proto_counters *lines = counters->page->counters;

    for (unsigned i = 0; i < counters->lines; i++)
        if (!counters->taken[i] && atomic_load_explicit(&lines[i].pool, memory_order_relaxed) == pool)
            return &lines[i];
    if (counters->lines == PROTO_PAGE_COUNTERS)
        return NULL;
    struct proto_counters *line = &lines[counters->lines++];
    atomic_store_explicit(&line->pool, pool, memory_order_release);
    return line;
}

struct proto_counters *counters_take(struct counters *counters, uint32_t pool) {
    struct proto_counters *line = NULL;

    pthread_mutex_lock(&counters->lock);
    if (counters->page != NULL)
        line = find_line(counters, pool);
    if (line != NULL)
        counters->taken[line - counters->page->counters] = true;
    pthread_mutex_unlock(&counters->lock);
    return line;
}

void counters_give(struct counters *counters, const struct proto_counters *line) {
    pthread_mutex_lock(&counters->lock);
    assert(counters->taken[line - counters->page->counters]);
    counters->taken[line - counters->page->counters] = false;
    pthread_mutex_unlock(&counters->lock);
}

uint64_t counters_takes(struct counters *counters, uint32_t pool) {
    uint64_t takes = 0;

    pthread_mutex_lock(&counters->lock);
    for (unsigned i = 0; i < counters->lines; i++) {
        const struct proto_counters *line = &counters->page->counters[i];
        if (atomic_load_explicit(&line->pool, memory_order_relaxed) == pool)
            takes += atomic_load_explicit(&line->hits, memory_order_relaxed) +
                     atomic_load_explicit(&line->misses, memory_order_relaxed);
    }
    pthread_mutex_unlock(&counters->lock);
    return takes;
}
