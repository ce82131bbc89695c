/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/thread_cache.h"

#include <assert.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool thread_cache_locks = true;

/* Without these the owner takes the mutex. */
#define BARRIER_COMMANDS (MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)

static pthread_once_t prepared = PTHREAD_ONCE_INIT, registered = PTHREAD_ONCE_INIT;
static int barrier_command = MEMBARRIER_CMD_PRIVATE_EXPEDITED; /* that a visitor gives */
static pthread_key_t exit_key;
/* Which thread caches a client's cache has, and which one a thread cache is of. */
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;

void thread_caches_lock(void) {
    pthread_mutex_lock(&registry);
}

void thread_caches_unlock(void) {
    pthread_mutex_unlock(&registry);
}

/* With keep_lines in a forked child: the page is not there, and the lock may be another thread's. */
static void thread_bins_free_all(struct thread_cache *cache, bool keep_lines) {
    while (cache->all != NULL) {
        struct thread_bins *own = cache->all;
        cache->all = own->next;
        for (unsigned size_class = 0; size_class < SIZE_CLASSES; size_class++)
            bin_deinit(&own->bins[size_class]);
        if (own->has_line && !keep_lines)
            counters_give(own->stream_heap->counters, own->counters);
        free(own);
    }
    cache->last = NULL;
}

/* The thread ends: its pieces go back to their stream heaps. */
static void on_thread_exit(void *argument) {
    struct thread_cache *cache = argument;

    client_thread()->caches = NULL;
    pthread_mutex_lock(&registry);
    while (cache != NULL) {
        struct thread_cache *next = cache->next_of_thread;
        if (cache->owner != NULL) {
            thread_cache_enter(cache);
            thread_cache_flush(cache, NULL, false);
            thread_cache_leave(cache);
            list_remove(&cache->link);
        }
        thread_bins_free_all(cache, false);
        pthread_mutex_destroy(&cache->lock);
        free(cache);
        cache = next;
    }
    pthread_mutex_unlock(&registry);
}

/* A forked child has one thread, whose caches were for clients of the parent. No thread is inside or visiting
 * while the registry is locked, so no lock is left behind that no thread would open. */
static void after_fork_in_child(void) {
    for (struct thread_cache *cache = client_thread()->caches; cache != NULL; cache = cache->next_of_thread) {
        list_remove(&cache->link);
        thread_bins_free_all(cache, true);
        cache->owner = NULL;
    }
    pthread_mutex_unlock(&registry);
}

static void prepare(void) {
    pthread_key_create(&exit_key, on_thread_exit);
    pthread_atfork(thread_caches_lock, thread_caches_unlock, after_fork_in_child);
    long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    thread_cache_locks =
        !THREAD_CACHE_KNOWS_MEMBARRIER || commands < 0 || (commands & BARRIER_COMMANDS) != BARRIER_COMMANDS;
}

void thread_cache_prepare(void) {
    pthread_once(&prepared, prepare);
}

/* Only a filter of system calls refuses the registration where the kernel offers it. */
static void register_for_barriers(void) {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
        barrier_command = MEMBARRIER_CMD_GLOBAL; /* needs none, and takes milliseconds each time */
}

void thread_cache_register(void) {
    if (!thread_cache_locks)
        pthread_once(&registered, register_for_barriers);
}

struct thread_cache *thread_cache_get(struct cache *owner, struct list *caches) {
    struct thread_cache *cache, *unused = NULL, *before = NULL;

    for (cache = client_thread()->caches; cache != NULL && cache->owner != owner;
         cache = cache->next_of_thread) {
        if (cache->owner == NULL)
            unused = cache;
        before = cache;
    }
    if (cache != NULL) {
        if (before != NULL) { /* to the front: the next call finds it at once */
            before->next_of_thread = cache->next_of_thread;
            cache->next_of_thread = client_thread()->caches;
            client_thread()->caches = cache;
            pthread_setspecific(exit_key, cache);
        }
        return cache;
    }
    cache = unused;
    if (cache == NULL) {
        cache = aligned_alloc(CACHE_LINE_BYTES, sizeof *cache);
        if (cache == NULL)
            return NULL;
        memset(cache, 0, sizeof *cache);
        pthread_mutex_init(&cache->lock, NULL);
        list_init(&cache->link);
        cache->visited = thread_cache_locks;
        cache->next_of_thread = client_thread()->caches;
        if (pthread_setspecific(exit_key, cache) != 0) {
            pthread_mutex_destroy(&cache->lock);
            free(cache);
            return NULL;
        }
        client_thread()->caches = cache;
    }
    pthread_mutex_lock(&registry);
    cache->owner = owner;
    list_append(caches, &cache->link);
    pthread_mutex_unlock(&registry);
    return unused == NULL ? cache : thread_cache_get(owner, caches);
}

void thread_cache_enter_slowly(struct thread_cache *cache) {
    if (thread_cache_locks) {
        pthread_mutex_lock(&cache->lock);
        return;
    }
    do {
        atomic_store_explicit(&cache->inside, false, memory_order_release);
        pthread_mutex_lock(&cache->lock); /* until the visitor has gone */
        pthread_mutex_unlock(&cache->lock);
        atomic_store_explicit(&cache->inside, true, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
    } while (atomic_load_explicit(&cache->visited, memory_order_acquire));
}

void thread_cache_visit(struct thread_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    if (thread_cache_locks)
        return;
    thread_cache_register();
    atomic_store_explicit(&cache->visited, true, memory_order_seq_cst);
    /* After this the owner has either seen that we are here, or we see that it is inside. */
    syscall(SYS_membarrier, barrier_command, 0, 0);
    while (atomic_load_explicit(&cache->inside, memory_order_acquire))
        sched_yield(); /* for the length of a call */
}

void thread_cache_part(struct thread_cache *cache) {
    if (!thread_cache_locks)
        atomic_store_explicit(&cache->visited, false, memory_order_release);
    pthread_mutex_unlock(&cache->lock);
}

/* The line that the thread has for a pool already. NULL: none. */
static struct proto_counters *find_counters(const struct thread_cache *cache, uint32_t pool) {
    for (const struct thread_bins *own = cache->all; own != NULL; own = own->next)
        if (own->has_line && own->stream_heap->pool == pool)
            return own->counters;
    return NULL;
}

struct thread_bins *thread_cache_add(struct thread_cache *cache, struct stream_heap *stream_heap) {
    struct thread_bins *added = aligned_alloc(CACHE_LINE_BYTES, sizeof *added);
    if (added == NULL)
        return NULL;
    memset(added, 0, sizeof *added);
    added->stream_heap = stream_heap;
    added->counters = find_counters(cache, stream_heap->pool);
    if (added->counters == NULL && stream_heap->counters != NULL) {
        added->counters = counters_take(stream_heap->counters, stream_heap->pool);
        added->has_line = added->counters != NULL;
    }
    if (added->counters == NULL)
        added->counters = &added->own_counters;
    added->single_class = SIZE_CLASS_SINGLE;
    added->next = cache->all;
    cache->all = added;
    return added;
}

static void note_use(struct thread_bins *own, unsigned size_class) {
    own->used[size_class / 64] |= UINT64_C(1) << size_class % 64;
}

struct piece *thread_bins_take(struct thread_bins *own, unsigned size_class, uint64_t size_bytes) {
    note_use(own, size_class); /* a magazine may come from the depot */
    return bin_take(&own->bins[size_class], own->stream_heap, size_class, size_bytes);
}

void thread_bins_put(struct thread_bins *own, unsigned size_class, struct piece *piece) {
    note_use(own, size_class);
    bin_put(&own->bins[size_class], own->stream_heap, size_class, piece);
}

void thread_bins_flush(struct thread_bins *own) {
    pthread_mutex_lock(&own->stream_heap->lock);
    for (unsigned word = 0; word < BIN_WORDS; word++)
        for (uint64_t bits = own->used[word]; bits != 0; bits &= bits - 1)
            bin_flush_locked(&own->bins[word * 64 + (unsigned)__builtin_ctzll(bits)], own->stream_heap);
    pthread_mutex_unlock(&own->stream_heap->lock);
}

void thread_cache_flush(struct thread_cache *cache, const struct stream_heap *stream_heap, bool idle_only) {
    for (struct thread_bins *own = cache->all; own != NULL; own = own->next) {
        if (stream_heap != NULL && own->stream_heap != stream_heap)
            continue;
        bool idle = !own->touched;
        if (idle_only)
            own->touched = false;
        if (idle || !idle_only)
            thread_bins_flush(own);
    }
}

void thread_caches_collect(struct list *caches, const struct thread_cache *except,
                           const struct stream_heap *stream_heap, bool idle_only) {
    pthread_mutex_lock(&registry);
    list_for_each_entry(struct thread_cache, cache, caches, link) {
        if (cache == except)
            continue;
        thread_cache_visit(cache);
        thread_cache_flush(cache, stream_heap, idle_only);
        thread_cache_part(cache);
    }
    pthread_mutex_unlock(&registry);
}

void thread_caches_flush_pool(struct list *caches, uint32_t pool) {
    pthread_mutex_lock(&registry);
    list_for_each_entry(struct thread_cache, cache, caches, link) {
        thread_cache_visit(cache);
        for (struct thread_bins *own = cache->all; own != NULL; own = own->next)
            if (own->stream_heap->pool == pool)
                thread_bins_flush(own);
        if (cache->last != NULL && cache->last->stream_heap->pool == pool)
            cache->last = NULL;
        thread_cache_part(cache);
    }
    pthread_mutex_unlock(&registry);
}

void thread_caches_detach(struct list *caches) {
    pthread_mutex_lock(&registry);
    list_for_each_entry_safe(struct thread_cache, cache, caches, link) {
        thread_cache_visit(cache);
        list_remove(&cache->link);
        thread_bins_free_all(cache, false);
        cache->owner = NULL;
        thread_cache_part(cache);
    }
    pthread_mutex_unlock(&registry);
}
