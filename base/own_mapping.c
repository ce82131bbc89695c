/* SPDX-License-Identifier: Apache-2.0 */
#include "base/own_mapping.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/lock.h"
#include "base/mapping.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* Linux 4.17; older kernels take the address as a hint */
#endif

/* The smallest page of the machines that the library runs on: the hole of a driver's mapping is filled page
 * by page at worst. */
#define PAGE_BYTES UINT64_C(4096)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list mappings = {&mappings, &mappings};
static struct list of_parents = {&of_parents, &of_parents};
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static int prepare_error;
static atomic_bool dumped;

static bool set_inherited(const struct own_mapping *mapping, bool is_inherited) {
    return madvise(mapping->memory, mapping->size_bytes, is_inherited ? MADV_DOFORK : MADV_DONTFORK) == 0;
}

/* --- around fork() --- */

static void before_fork(void) {
    pthread_mutex_lock(&lock);
    list_for_each_entry(struct own_mapping, mapping, &mappings, link) {
        mapping->is_inherited = set_inherited(mapping, true);
        if (!mapping->is_inherited)
            (void)set_inherited(mapping, false); /* a part of it may have been changed */
    }
}

static void after_fork_in_parent(void) {
    list_for_each_entry(struct own_mapping, mapping, &mappings, link) {
        if (mapping->is_inherited)
            (void)set_inherited(mapping, false);
        mapping->is_inherited = false;
    }
    pthread_mutex_unlock(&lock);
}

static void *map_inaccessible(void *memory, uint64_t size_bytes, int flags) {
    return mmap(memory, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

/* Fills what is free of a range. */
static void fill_hole(char *memory, uint64_t size_bytes) {
    void *made = map_inaccessible(memory, size_bytes, MAP_FIXED_NOREPLACE);

    if (made == memory)
        return;
    if (made != MAP_FAILED) { /* Linux before 4.17 */
        munmap(made, size_bytes);
        errno = EEXIST;
    }
    if (errno != EEXIST || size_bytes <= PAGE_BYTES)
        return;
    uint64_t half = size_bytes / 2 / PAGE_BYTES * PAGE_BYTES;
    fill_hole(memory, half);
    fill_hole(memory + half, size_bytes - half);
}

/* Makes system calls alone: any lock of the C library may be another thread's of the parent. */
static void after_fork_in_child(void) {
    list_for_each_entry_safe(struct own_mapping, mapping, &mappings, link) {
        if (!mapping->is_inherited)
            fill_hole(mapping->memory, mapping->size_bytes);
        else if (map_inaccessible(mapping->memory, mapping->size_bytes, MAP_FIXED) == MAP_FAILED &&
                 mprotect(mapping->memory, mapping->size_bytes, PROT_NONE) < 0)
            abort(); /* the child would write to memory that only its parent has */
        list_remove(&mapping->link);
        list_append(&of_parents, &mapping->link);
    }
    pthread_mutex_unlock(&lock);
}

static void prepare(void) {
    prepare_error = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* --- the table --- */

void own_mapping_advise(void *memory, uint64_t size_bytes) {
    (void)madvise(memory, size_bytes, MADV_DONTFORK);
    (void)madvise(memory, size_bytes, atomic_load(&dumped) ? MADV_DODUMP : MADV_DONTDUMP);
}

static int mapping_new(struct own_mapping **ret_mapping) {
    pthread_once(&prepared, prepare);
    struct own_mapping *mapping = prepare_error == 0 ? calloc(1, sizeof *mapping) : NULL;
    if (mapping == NULL)
        return -ENOMEM;
    list_init(&mapping->link);
    *ret_mapping = mapping;
    return 0;
}

/* Locked. */
static void enter(struct own_mapping *mapping, void *memory, uint64_t size_bytes) {
    mapping->memory = memory;
    mapping->size_bytes = size_bytes;
    own_mapping_advise(memory, size_bytes);
    list_append(&mappings, &mapping->link);
}

int own_mapping_make(int fd, uint64_t size_bytes, uint64_t align_bytes, struct own_mapping **ret_mapping) {
    _cleanup_(freep) struct own_mapping *mapping = NULL;
    void *memory;
    int r = mapping_new(&mapping);

    if (r < 0)
        return r;
    LOCKED(&lock); /* no child has the memory without its place in the table */
    r = mapping_make(fd, size_bytes, align_bytes, &memory);
    if (r < 0)
        return r;
    enter(mapping, memory, size_bytes);
    *ret_mapping = take_ptr(&mapping);
    return 0;
}

int own_mapping_adopt(void *memory, uint64_t size_bytes, struct own_mapping **ret_mapping) {
    struct own_mapping *mapping;
    int r = mapping_new(&mapping);

    if (r < 0)
        return r;
    LOCKED(&lock);
    enter(mapping, memory, size_bytes);
    *ret_mapping = mapping;
    return 0;
}

void own_mapping_forget(struct own_mapping *mapping) {
    if (mapping == NULL)
        return;
    pthread_mutex_lock(&lock);
    list_remove(&mapping->link);
    pthread_mutex_unlock(&lock);
    free(mapping);
}

bool own_mapping_unmap(struct own_mapping *mapping) {
    if (mapping == NULL)
        return true;
    void *memory = mapping->memory;
    uint64_t size_bytes = mapping->size_bytes;
    own_mapping_forget(mapping);
    return munmap(memory, size_bytes) == 0;
}

bool own_mapping_replace(struct own_mapping *mapping) {
    if (mapping == NULL)
        return true;
    void *memory = mapping->memory;
    uint64_t size_bytes = mapping->size_bytes;
    own_mapping_forget(mapping);
    return mmap(memory, size_bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool own_mapping_is_parents(const void *address) {
    list_for_each_entry(const struct own_mapping, mapping, &of_parents, link) {
        if ((uintptr_t)address - (uintptr_t)mapping->memory < mapping->size_bytes)
            return true;
    }
    return false;
}

void own_mapping_set_dumped(bool is_dumped) {
    atomic_store(&dumped, is_dumped);
}
