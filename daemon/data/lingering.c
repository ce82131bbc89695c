/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/lingering.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "daemon/core/account.h"
#include "daemon/core/core.h"
#include "daemon/core/tenant.h"
#include "daemon/loop/rights.h"

struct lingering_socket {
    int fd;
    uint64_t since_ns;
    struct undelivered undelivered;
    struct list link; /* in lingering->sockets */
};

static void lingering_end(struct lingering *lingering, struct lingering_socket *socket) {
    undelivered_close(&socket->undelivered);
    rights_close(lingering->closer, socket->fd);
    list_remove(&socket->link);
    lingering->n_sockets--;
    free(socket);
}

/* Returns whether the socket is over. */
static bool lingering_check(struct lingering *lingering, struct lingering_socket *socket) {
    uint64_t bytes = outbox_unread_bytes(socket->fd);
    if (bytes == 0) {
        lingering_end(lingering, socket);
        return true;
    }
    undelivered_shrink(&socket->undelivered, bytes);
    return false;
}

static unsigned less_of(unsigned a, unsigned b) {
    return a < b ? a : b;
}

static void lingering_on_timer(uv_timer_t *timer) {
    struct lingering *lingering = timer->data;

    for (unsigned n = less_of(lingering->n_sockets, LINGERING_LOOKS); n > 0; n--) {
        struct lingering_socket *socket = list_first(&lingering->sockets, struct lingering_socket, link);
        list_remove(&socket->link);
        list_append(&lingering->sockets, &socket->link);
        lingering_check(lingering, socket);
    }
    if (lingering->n_sockets == 0)
        uv_timer_stop(&lingering->timer);
}

void lingering_init(struct lingering *lingering, struct core *core, struct closer *closer) {
    struct rlimit limit;

    *lingering = (struct lingering){.core = core, .closer = closer};
    list_init(&lingering->sockets);
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    rlim_t share = limit.rlim_cur / LINGERING_SHARE, sockets = share / LINGERING_DESCRIPTORS_PER;
    if (sockets < LINGERING_MIN)
        sockets = share < LINGERING_MIN ? share : LINGERING_MIN;
    if (sockets < core->undelivered_limit)
        core->undelivered_limit = (uint32_t)sockets;
}

void lingering_start(struct lingering *lingering, uv_loop_t *loop) {
    uv_timer_init(loop, &lingering->timer);
    lingering->timer.data = lingering;
    lingering->started = true;
}

void lingering_stop(struct lingering *lingering) {
    lingering->started = false;
    while (!list_is_empty(&lingering->sockets))
        lingering_end(lingering, list_first(&lingering->sockets, struct lingering_socket, link));
}

void lingering_leave(struct lingering *lingering, int fd, struct tenant_id id) {
    uint64_t bytes = fd < 0 ? 0 : outbox_unread_bytes(fd);

    struct lingering_socket *socket = bytes > 0 && lingering->started ? calloc(1, sizeof *socket) : NULL;
    if (socket != NULL && undelivered_open(&socket->undelivered, lingering->core, id, bytes) < 0) {
        free(socket);
        socket = NULL;
    }
    if (socket == NULL) {
        rights_close(lingering->closer, fd);
        return;
    }
    shutdown(fd, SHUT_RDWR); /* the client sees the end after what it reads */
    socket->fd = fd;
    socket->since_ns = clock_now_ns();
    list_append(&lingering->sockets, &socket->link);
    lingering->n_sockets++;
    if (!uv_is_active((uv_handle_t *)&lingering->timer))
        uv_timer_start(&lingering->timer, lingering_on_timer, LINGERING_LOOK_MS, LINGERING_LOOK_MS);
}

uint64_t lingering_oldest_ns(const struct lingering *lingering) {
    uint64_t oldest_ns = NS_FOREVER;

    list_for_each_entry(const struct lingering_socket, socket, &lingering->sockets, link) {
        if (socket->since_ns < oldest_ns)
            oldest_ns = socket->since_ns;
    }
    return oldest_ns;
}

/* The tenant goes with the last of its sockets at the earliest. */
unsigned lingering_look(struct lingering *lingering, struct tenant_id id) {
    struct tenant *tenant = tenant_find(lingering->core, id);
    unsigned n_over = 0;

    for (unsigned n = tenant == NULL ? 0 : less_of(tenant->n_undelivered, LINGERING_LOOKS_BEFORE_REFUSAL);
         n > 0; n--) {
        struct undelivered *undelivered = list_first(&tenant->undelivered, struct undelivered, link);
        list_remove(&undelivered->link);
        list_append(&tenant->undelivered, &undelivered->link);
        n_over += lingering_check(lingering, container_of(undelivered, struct lingering_socket, undelivered));
    }
    return n_over;
}

static bool has_as_many(const struct lingering *lingering, struct tenant_id id, unsigned sockets) {
    return account_sockets(lingering->core, id) >= sockets;
}

bool lingering_has_room(struct lingering *lingering, struct tenant_id id) {
    unsigned limit = lingering->core->undelivered_limit;
    /* Where most of those looked at are over, the user's clients read their replies: another look is worth
     * its time. */
    while (has_as_many(lingering, id, limit))
        if (lingering_look(lingering, id) <= LINGERING_LOOKS_BEFORE_REFUSAL / 2)
            return !has_as_many(lingering, id, limit);
    return true;
}

bool lingering_is_crowded(struct lingering *lingering, struct tenant_id id) {
    unsigned limit = 2 * lingering->core->undelivered_limit;
    if (has_as_many(lingering, id, limit))
        (void)lingering_look(lingering, id);
    return has_as_many(lingering, id, limit);
}
