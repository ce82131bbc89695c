/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/loop/die_here.h"
#include "daemon/loop/log.h"
#include "daemon/loop/notifier.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
#define BASE (sizeof digits - 1)

/* In kinds: the removal waits in the notifier, and would remove whatever has the name by then. */
#define STORE_FADING '-'
/* In kinds: a record of the estate names the slot, of which the manager has nothing (its message was lost with a daemon).
 * The record may stay, and its name must not come to mean another descriptor. */
#define STORE_MISSING '?'

static const char kinds[] = {STORE_LISTENER, STORE_ESTATE,  STORE_SEGMENT, STORE_SOCKET, STORE_PROCESS,
                             STORE_PAGE,     STORE_RECLAIM, STORE_BOARD,   STORE_CHANNEL, '\0'};

_Static_assert(STORE_SLOTS <= 64 * 64 * 64, "a name is a letter and at most three digits");

static void name_slot(enum store_kind kind, size_t slot, char name[STORE_NAME_SIZE]) {
    char reversed[STORE_NAME_SIZE];
    size_t n = 0, used = 0;

    do {
        reversed[n++] = digits[slot % BASE];
        slot /= BASE;
    } while (slot > 0);
    name[used++] = (char)kind;
    while (n > 0)
        name[used++] = reversed[--n];
    name[used] = '\0';
}

size_t store_slot(const char *name) {
    char same[STORE_NAME_SIZE];
    size_t slot = 0;

    if (name[0] == '\0' || strchr(kinds, name[0]) == NULL || strlen(name) < 2 ||
        strlen(name) >= STORE_NAME_SIZE)
        return STORE_SLOTS;
    for (const char *digit = name + 1; *digit != '\0'; digit++) {
        const char *place = strchr(digits, *digit);
        if (place == NULL)
            return STORE_SLOTS;
        slot = slot * BASE + (size_t)(place - digits);
    }
    if (slot >= STORE_SLOTS)
        return STORE_SLOTS;
    name_slot((enum store_kind)name[0], slot, same);
    return strcmp(same, name) == 0 ? slot : STORE_SLOTS; /* no leading zeros */
}

bool store_name(const struct store *store, size_t slot, char ret_name[STORE_NAME_SIZE]) {
    char kind = store->kinds[slot];

    if (kind == 0 || kind == STORE_FADING || kind == STORE_MISSING)
        return false;
    name_slot((enum store_kind)kind, slot, ret_name);
    return true;
}

static size_t read_limit(void) {
    const char *value = getenv("FDSTORE");
    uint64_t limit;

    if (value == NULL || getenv("NOTIFY_SOCKET") == NULL || units_parse_number(value, UINT32_MAX, &limit) < 0)
        return 0;
    return limit < STORE_SLOTS ? (size_t)limit : STORE_SLOTS;
}

static int compare_inherited(const void *a, const void *b) {
    const struct store_inherited *left = a, *right = b;
    int order = strcmp(left->name, right->name);

    return order != 0 ? order : (left->fd > right->fd) - (left->fd < right->fd);
}

/* A descriptor of this kind has the slot from now on, which had none, or one of an equal name. */
static void count_slot(struct store *store, size_t slot, char kind) {
    if (store->kinds[slot] == 0) {
        store->count++;
        store->n_segments += kind == STORE_SEGMENT;
    }
    store->kinds[slot] = kind;
}

int store_open(struct store *store, struct notifier *notifier, bool is_private) {
    char **names = NULL;

    *store = (struct store){.notifier = notifier,
                            .limit = is_private ? 0 : read_limit(),
                            .segments_limit = STORE_SLOTS,
                            .is_private = is_private};
    int n = sd_listen_fds_with_names(1, &names);
    if (n <= 0)
        return n;
    store->inherited = calloc((size_t)n, sizeof *store->inherited);
    for (int i = 0; i < n; i++) {
        if (store->inherited != NULL)
            store->inherited[store->n_inherited++] =
                (struct store_inherited){.name = take_ptr(&names[i]), .fd = SD_LISTEN_FDS_START + i};
        else
            free(names[i]);
    }
    free(names);
    if (store->inherited == NULL)
        return -ENOMEM;
    qsort(store->inherited, store->n_inherited, sizeof *store->inherited, compare_inherited);
    for (size_t i = 0; i < store->n_inherited; i++) { /* later names are others than those that are there */
        size_t slot = store_slot(store->inherited[i].name);
        if (slot < STORE_SLOTS && store_is_there(store))
            count_slot(store, slot, store->inherited[i].name[0]);
    }
    return 0;
}

void store_close(struct store *store) {
    for (size_t i = 0; i < store->n_inherited; i++) {
        if (!store->inherited[i].is_taken)
            close_fd(store->inherited[i].fd);
        free(store->inherited[i].name);
    }
    free(store->inherited);
    free(store->leaving);
    *store = (struct store){0};
}

static int take(struct store_inherited *inherited) {
    inherited->is_taken = true;
    return inherited->fd;
}

/* Takes what a daemon stored and is not taken yet. Returns the descriptor and its name. */
static int take_named(struct store_inherited *inherited, char ret_name[STORE_NAME_SIZE]) {
    strcpy(ret_name, inherited->name); /* a name with a slot is that short */
    return take(inherited);
}

static bool can_be_taken(const struct store_inherited *inherited) {
    return !inherited->is_taken && store_slot(inherited->name) < STORE_SLOTS;
}

int store_take(struct store *store, const char *name) {
    size_t begin = 0, end = store->n_inherited, slot = store_slot(name);

    while (begin < end) { /* the first that is not before the name */
        size_t middle = begin + (end - begin) / 2;
        if (strcmp(store->inherited[middle].name, name) < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    for (; begin < store->n_inherited && strcmp(store->inherited[begin].name, name) == 0; begin++)
        if (!store->inherited[begin].is_taken)
            return take(&store->inherited[begin]);
    if (slot < STORE_SLOTS && store->kinds[slot] == 0)
        store->kinds[slot] = STORE_MISSING;
    return -1;
}

/* Whether it is a listening Unix socket of this type that was bound to this path. */
static bool is_listener_of(int fd, const char *path, int type) {
    struct sockaddr_un address = {0};
    socklen_t length = sizeof address, size = sizeof(int);
    int actual_type = 0, listens = 0;

    return getsockname(fd, (struct sockaddr *)&address, &length) == 0 && address.sun_family == AF_UNIX &&
           strlen(path) < sizeof address.sun_path &&
           strncmp(address.sun_path, path, sizeof address.sun_path) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &actual_type, &size) == 0 && actual_type == type &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens;
}

int store_take_kind(struct store *store, enum store_kind kind, char ret_name[STORE_NAME_SIZE]) {
    for (size_t i = 0; i < store->n_inherited; i++) {
        struct store_inherited *inherited = &store->inherited[i];
        if (inherited->name[0] == (char)kind && can_be_taken(inherited))
            return take_named(inherited, ret_name);
    }
    return -1;
}

int store_take_listener(struct store *store, const char *path, int type, char ret_name[STORE_NAME_SIZE]) {
    if (!store_is_there(store))
        return -1;
    for (size_t i = 0; i < store->n_inherited; i++) {
        struct store_inherited *inherited = &store->inherited[i];
        if (can_be_taken(inherited) && is_listener_of(inherited->fd, path, type))
            return take_named(inherited, ret_name);
    }
    return -1;
}

/* Sends a message, with a descriptor (-1: none) that stays the caller's. Returns 0; 1: it is sent later; or a negative
 * errno. */
static int tell(const struct store *store, const char *text, int fd) {
    struct notifier *notifier = store->notifier;
    int r;

    die_here();
    if (store->manager == STORE_ADRIFT)
        return 0;
    /* A removal that overtook the message which stores the descriptor would leave it there for ever, under a name that
     * another one can get. */
    if (notifier->worker.started && fd < 0 && notifier->worker.pending > 0) {
        r = notifier_pass(notifier, text, fd);
        return r < 0 ? r : 1;
    }
    if (notifier->worker.started)
        return notifier_tell_at_once(notifier, text, fd);
    r = sd_pid_notify_with_fds(0, 0, text, &fd, fd >= 0 ? 1 : 0);
    return r < 0 ? r : 0;
}

void store_write_message(const char *name, char text[STORE_MESSAGE_SIZE]) {
    /* Without FDPOLL, systemd drops a descriptor at a hang-up. */
    snprintf(text, STORE_MESSAGE_SIZE, "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
}

static void free_fading(struct store *store) {
    for (size_t slot = 0; store->n_fading > 0 && slot < STORE_SLOTS; slot++) {
        if (store->kinds[slot] != STORE_FADING)
            continue;
        store->kinds[slot] = 0;
        store->n_fading--;
    }
}

static int put(struct store *store, enum store_kind kind, int fd, char name[STORE_NAME_SIZE]) {
    char text[STORE_MESSAGE_SIZE];
    size_t slot = store->next, n = 0;

    if (store->notifier->worker.pending == 0) /* all removals were sent */
        free_fading(store);
    while (n < STORE_SLOTS && store->kinds[slot % STORE_SLOTS] != 0)
        slot++, n++;
    if (n == STORE_SLOTS || store->count >= store->limit)
        return -ENOSPC;
    if (kind == STORE_SEGMENT && store->n_segments >= store->segments_limit)
        return -EDQUOT;
    slot %= STORE_SLOTS;
    name_slot(kind, slot, name);
    store_write_message(name, text);
    int r = tell(store, text, fd);
    if (r < 0)
        return r;
    count_slot(store, slot, (char)kind);
    store->next = slot + 1;
    return 0;
}

/* Once for each reason: a full store is full for long. */
static void complain(struct store *store, int error) {
    if (error == -EDQUOT && !store->complained_of_segments)
        log_warning("a segment is not stored, since sessions need the store's room: when the daemon ends, the "
                    "memory of this and of further ones is lent no more (%zu segments are stored; the store "
                    "holds %zu descriptors at most: raise FileDescriptorStoreMax= of the unit or the keeper's "
                    "hard limit of descriptors, or the pool's step)",
                    store->n_segments, store->limit);
    else if (error != -EDQUOT && !store->complained)
        log_warning("a descriptor is not stored, so what needs it does not survive the daemon: %s (%zu of "
                    "%zu are stored: raise FileDescriptorStoreMax= of the unit, or the keeper's hard limit "
                    "of descriptors)",
                    strerror(-error), store->count, store->limit);
    store->complained_of_segments |= error == -EDQUOT;
    store->complained |= error != -EDQUOT;
}

void store_put(struct store *store, enum store_kind kind, int fd, char ret_name[STORE_NAME_SIZE]) {
    ret_name[0] = '\0';
    if (!store_is_there(store) || (store->is_let_go && kind != STORE_LISTENER))
        return;
    int r = put(store, kind, fd, ret_name);
    if (r == 0)
        return;
    ret_name[0] = '\0';
    complain(store, r);
}

void store_bound_segments(struct store *store, size_t limit) {
    if (limit > store->segments_limit)
        store->complained_of_segments = false;
    store->segments_limit = limit;
}

void store_remove(struct store *store, const char *name) {
    char text[64 + UINT8_MAX];

    if (!store_is_there(store) || name[0] == '\0' || (store->is_let_go && name[0] != STORE_LISTENER))
        return;
    size_t slot = store_slot(name);
    snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s", name);
    int r = tell(store, text, -1);
    if (slot < STORE_SLOTS && store->kinds[slot] == name[0]) {
        if (r >= 0) /* else the manager has it, and no other descriptor may get the name */
            store->kinds[slot] = r == 0 ? 0 : STORE_FADING;
        store->n_fading += r == 1;
        store->n_segments -= name[0] == STORE_SEGMENT;
        store->count--;
    }
    if (r < 0) /* the next daemon finds it, and removes it */
        log_warning("the service manager does not hear that it need not store '%s' any more: %s", name,
                    strerror(-r));
}

void store_leave(struct store *store, char *name) {
    void *room = NULL;

    if (store_is_there(store) && name[0] != '\0')
        room = array_room(store->leaving, store->n_leaving, &store->leaving_room, sizeof *store->leaving);
    if (room != NULL) {
        store->leaving = room;
        strcpy(store->leaving[store->n_leaving++], name);
    }
    name[0] = '\0';
}

void store_remove_leaving(struct store *store) {
    while (store->n_leaving > 0)
        store_remove(store, store->leaving[--store->n_leaving]);
}

size_t store_let_go(struct store *store) {
    char name[STORE_NAME_SIZE];
    size_t n = 0;

    store_remove_leaving(store);
    for (size_t slot = 0; store_is_there(store) && slot < STORE_SLOTS; slot++) {
        if (!store_name(store, slot, name) || name[0] == STORE_LISTENER)
            continue;
        store_remove(store, name);
        n++;
    }
    store->is_let_go = true;
    return n;
}

void store_settle(struct store *store) {
    for (size_t i = 0; i < store->n_inherited; i++) {
        struct store_inherited *inherited = &store->inherited[i];
        if (inherited->is_taken)
            continue;
        close_fd(take(inherited));
        if (store_slot(inherited->name) == STORE_SLOTS)
            log_warning(
                "the service manager passed a descriptor named '%s', which this daemon does not know; "
                "it is closed",
                inherited->name);
        store_remove(store, inherited->name);
    }
}

void store_lose_manager(struct store *store) {
    store->manager = STORE_ADRIFT;
}

void store_begin_move(struct store *store, size_t limit) {
    store_remove_leaving(store); /* the other one need not have them at all */
    free_fading(store);          /* their removals go to the one before */
    store->limit = limit < STORE_SLOTS ? limit : STORE_SLOTS;
    store->complained = store->complained_of_segments = false;
    store->manager = STORE_MOVING;
}

void store_note_held(struct store *store) {
    store->manager = STORE_HELD;
}

int store_wait(const struct store *store, uint64_t timeout_ns) {
    if (!store_is_there(store))
        return 0;
    assert(!store->notifier->worker.started); /* its messages would be behind the barrier */
    int r = sd_notify_barrier(0, timeout_ns / NS_PER_US);
    return r < 0 ? r : 0;
}
