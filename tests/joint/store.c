/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of the simulated daemon, as the service manager has it (daemon/loop/store.h): descriptors that outlive
 * the daemon, by name. Nothing that is put there gets lost.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "tests/joint/restarts.h"
#include "tests/joint/world.h"
#include "tests/joint/wrapped.h"

#define ENTRIES_MAX 512u

static struct entry {
    char name[STORE_NAME_SIZE]; /* "": the place is free */
    int fd;
    bool is_taken;   /* by the daemon that lives */
    bool is_leaving; /* with the end of the step */
} entries[ENTRIES_MAX];

static struct entry *find(const char *name) {
    for (unsigned i = 0; name[0] != '\0' && i < ENTRIES_MAX; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}

static void drop(struct entry *entry) {
    __real_close(entry->fd);
    *entry = (struct entry){.fd = -1};
}

void store_put(struct store *store, enum store_kind kind, int fd, char ret_name[STORE_NAME_SIZE]) {
    unsigned i = 0;

    (void)store;
    while (i < ENTRIES_MAX && entries[i].name[0] != '\0')
        i++;
    must(i < ENTRIES_MAX, "the simulator has no room for a stored descriptor");
    entries[i] = (struct entry){.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0), .is_taken = true};
    must(entries[i].fd >= 0, "a descriptor can be stored");
    snprintf(entries[i].name, sizeof entries[i].name, "%c%u", (char)kind, i);
    memcpy(ret_name, entries[i].name, STORE_NAME_SIZE);
}

void store_leave(struct store *store, char *name) {
    struct entry *entry = find(name);

    (void)store;
    if (entry != NULL)
        entry->is_leaving = true;
    name[0] = '\0';
}

void store_remove_leaving(struct store *store) {
    (void)store;
    for (unsigned i = 0; i < ENTRIES_MAX; i++)
        if (entries[i].is_leaving)
            drop(&entries[i]);
}

int store_take(struct store *store, const char *name) {
    struct entry *entry = find(name);

    (void)store;
    if (entry == NULL)
        return -1;
    must(!entry->is_taken, "a stored descriptor is one object's");
    entry->is_taken = true;
    return fcntl(entry->fd, F_DUPFD_CLOEXEC, 0);
}

void joint_store_pass_on(void) {
    for (unsigned i = 0; i < ENTRIES_MAX; i++)
        entries[i].is_taken = entries[i].is_leaving = false;
}

void joint_store_settle(void) {
    for (unsigned i = 0; i < ENTRIES_MAX; i++)
        if (entries[i].name[0] != '\0' && !entries[i].is_taken)
            drop(&entries[i]);
}

unsigned joint_store_count(enum store_kind kind) {
    unsigned n = 0;

    for (unsigned i = 0; i < ENTRIES_MAX; i++)
        n += entries[i].name[0] == (char)kind;
    return n;
}
