/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections: socket pairs of the system, in which packets lie until the daemon or the client reads
 * them. A client's end is full or late now and then: nothing can be sent, or nothing has come yet.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/joint/wrapped.h"
#include "tests/joint/world.h"

#define WIRES_MAX 64u

static struct wire {
    int fd; /* the client's end */
    unsigned client;
    bool is_full, is_late;
} wires[WIRES_MAX];
static unsigned n_wires;

static struct wire *find(int fd) {
    for (unsigned i = 0; i < n_wires; i++)
        if (wires[i].fd == fd)
            return &wires[i];
    return NULL;
}

void wires_connect(int fd) {
    int ends[2];

    must(n_wires < WIRES_MAX, "the simulator has no room for a connection");
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "a pair of sockets can be made");
    must(dup3(ends[0], fd, O_CLOEXEC) == fd, "a descriptor can be replaced");
    __real_close(ends[0]);
    wires[n_wires++] = (struct wire){.fd = fd, .client = baton_client()};
    baton_enter_world();
    daemon_accept(ends[1], baton_client());
    baton_leave_world();
}

bool wires_is_full(int fd) {
    const struct wire *wire = find(fd);
    return wire != NULL && wire->is_full;
}

bool wires_is_late(int fd) {
    const struct wire *wire = find(fd);
    return wire != NULL && wire->is_late;
}

void wires_note_use(int fd) {
    struct wire *wire = find(fd);

    if (wire == NULL || world.is_calm)
        return;
    if (!wire->is_full && one_in(world.full_sockets)) {
        wire->is_full = true;
        world.tally->full++;
    }
    if (!wire->is_late && one_in(world.late_sockets)) {
        wire->is_late = true;
        world.tally->late++;
    }
}

void wires_forget(int fd) {
    struct wire *wire = find(fd);
    if (wire != NULL)
        *wire = wires[--n_wires];
}

bool wires_act(void) {
    unsigned start = n_wires > 0 ? (unsigned)random_below(n_wires) : 0;

    for (unsigned i = 0; i < n_wires; i++) {
        struct wire *wire = &wires[(start + i) % n_wires];
        if (wire->is_full || wire->is_late) {
            if (wire->is_full)
                wire->is_full = false;
            else
                wire->is_late = false;
            return true;
        }
    }
    return false;
}

void wires_kill(unsigned client) {
    for (unsigned i = 0; i < n_wires;)
        if (wires[i].client == client) {
            __real_close(wires[i].fd);
            wires[i] = wires[--n_wires];
        } else {
            i++;
        }
}
