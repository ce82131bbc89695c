/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/admin/admin_json.h"
#include "daemon/data/lingering.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/listener.h"
#include "daemon/loop/log.h"
#include "daemon/loop/peer.h"
#include "daemon/loop/rights.h"

/* A client that rests is looked at again after this time at the latest. */
#define ADMIN_REST_MAX_NS (100 * NS_PER_MS)

static void admin_pump(struct admin_client *client);

static void admin_on_closed(uv_handle_t *handle) {
    struct admin_client *client = handle->data;
    free(client->reply);
    free(client);
}

void admin_drop(struct admin_client *client) {
    if (uv_is_closing((uv_handle_t *)&client->pipe))
        return;
    list_remove(&client->link);
    list_remove(&client->resting_link);
    list_remove(&client->reloading.link);
    turn_leave(&client->turn);
    client->admin->n_clients--;
    /* libuv closes its descriptor of the socket on the loop: not the last one. */
    uv_os_fd_t fd;
    int last = uv_fileno((uv_handle_t *)&client->pipe, &fd) == 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    uv_close((uv_handle_t *)&client->pipe, admin_on_closed);
    lingering_leave(client->admin->terms.lingering, last, (struct tenant_id){.uid = client->uid});
}

static void admin_on_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    struct admin_client *client = handle->data;
    uv_os_fd_t fd;
    (void)suggested;

    buffer->base = client->line + client->line_size;
    buffer->len = sizeof client->line - client->line_size;
    /* No more than what was looked at: a descriptor may come along with the rest. No room is an error of the
     * read, which ends the client. */
    ssize_t n = uv_fileno(handle, &fd) == 0 ? rights_look(fd, buffer->len) : -EBADF;
    if (n != 0)
        buffer->len = n > 0 ? (size_t)n : 0;
    client->has_nothing = n == -EAGAIN;
}

static void admin_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    struct admin_client *client = stream->data;
    (void)buffer;

    if (n == UV_ENOBUFS && client->has_nothing)
        return;
    if (n < 0) {
        admin_drop(client);
        return;
    }
    client->line_size += (size_t)n;
    list_remove(&client->link);
    list_append(&client->admin->clients, &client->link);
    admin_pump(client);
}

static void admin_on_written(uv_write_t *write, int status) {
    struct admin_client *client = write->data;

    free(client->reply);
    client->reply = NULL;
    if (status < 0 || client->ending)
        admin_drop(client);
    else
        admin_pump(client);
}

/* Takes reply, which ends with a newline. */
static void admin_write(struct admin_client *client, char *reply) {
    if (reply == NULL) { /* no memory for an answer */
        admin_drop(client);
        return;
    }
    client->reply = reply;
    client->write.data = client;
    uv_buf_t buffer = uv_buf_init(reply, (unsigned)strlen(reply));
    uv_read_stop((uv_stream_t *)&client->pipe);
    if (uv_write(&client->write, (uv_stream_t *)&client->pipe, &buffer, 1, admin_on_written) < 0)
        admin_drop(client);
}

static void admin_on_reloaded(struct reload_waiter *waiter, const struct reload_outcome *outcome) {
    struct admin_client *client = container_of(waiter, struct admin_client, reloading);
    admin_write(client, admin_json_reloaded(&client->admin->terms, outcome));
}

/* Answers the line that ends at newline. A reload is answered when it is over. */
static void admin_answer_line(struct admin_client *client, const char *newline) {
    char *reply =
        admin_json_answer(&client->admin->terms, client->uid, client->line, (size_t)(newline - client->line));
    size_t used = (size_t)(newline - client->line) + 1;
    client->line_size -= used;
    memmove(client->line, client->line + used, client->line_size);
    if (reply != admin_json_later) {
        admin_write(client, reply);
        return;
    }
    client->reloading.done = admin_on_reloaded;
    reload_ask(client->admin->terms.reload, &client->reloading);
}

static void admin_on_timer(uv_timer_t *timer) {
    struct admin *admin = timer->data;
    /* A client whose time has not come rests again. */
    list_for_each_entry_safe(struct admin_client, client, &admin->resting, resting_link) {
        list_remove(&client->resting_link);
        turn_wait(&client->turn);
    }
}

/* Has it wait for its user's budget. */
static void admin_rest(struct admin_client *client, uint64_t wait_ns) {
    struct admin *admin = client->admin;

    list_append(&admin->resting, &client->resting_link);
    if (uv_is_active((uv_handle_t *)&admin->timer))
        return; /* it goes off in between, and is set again then */
    uv_update_time(admin->terms.loop);
    uv_timer_start(&admin->timer, admin_on_timer,
                   (wait_ns < ADMIN_REST_MAX_NS ? wait_ns : ADMIN_REST_MAX_NS) / NS_PER_MS + 1, 0);
}

/* One answer a turn: the stats of a thousand sessions take some 7 ms to write (measured with 900 sessions,
 * release build), and workers are not to wait for those of every connection that asks. */
static void admin_serve(struct turn *turn) {
    struct admin_client *client = container_of(turn, struct admin_client, turn);
    struct admin *admin = client->admin;
    uid_t uid = client->uid;

    if (admin_is_operator(client->uid)) { /* an operator may be looking for the reason of a flood */
        admin_answer_line(client, memchr(client->line, '\n', client->line_size));
        return;
    }
    uint64_t begin_ns = clock_now_ns(), next_ns = admin_budget_next_ns(&admin->budget, uid, begin_ns);
    if (next_ns > begin_ns) {
        admin_rest(client, next_ns - begin_ns);
        return;
    }
    admin_answer_line(client, memchr(client->line, '\n', client->line_size));
    uint64_t now_ns = clock_now_ns();
    admin_budget_use(&admin->budget, uid, now_ns - begin_ns, now_ns);
}

/* Waits for a turn with the first whole line, or reads on. */
static void admin_pump(struct admin_client *client) {
    char *newline = memchr(client->line, '\n', client->line_size);

    if (uv_is_closing((uv_handle_t *)&client->pipe))
        return;
    if (newline == NULL) {
        if (client->line_size > ADMIN_LINE_MAX) {
            client->ending = true;
            admin_write(
                client,
                admin_json_error("too-long", "a request has at most 16384 bytes, and ends with a newline"));
        } else {
            int r = uv_read_start((uv_stream_t *)&client->pipe, admin_on_allocate, admin_on_read);
            if (r < 0 && r != UV_EALREADY) /* it is reading already when a line comes in pieces */
                admin_drop(client);
        }
        return;
    }
    uv_read_stop((uv_stream_t *)&client->pipe);
    turn_wait(&client->turn);
}

/* Takes an accepted socket. False: it is still the caller's. */
static bool admin_begin(struct admin *admin, int fd) {
    const struct admin_terms *terms = &admin->terms;
    struct peer peer;

    if (peer_identify(fd, &peer) < 0 || lingering_is_crowded(terms->lingering, peer_tenant(&peer)))
        return false;
    /* A user that has no number here may be any: it is not the daemon's own, whatever that is. */
    uid_t uid = peer_is_unmapped(&peer) ? (uid_t)-1 : peer.uid;
    if (descriptors_are_short(fd) && !admin_is_operator(uid)) {
        listener_complain(terms->admin_listener);
        return false;
    }
    if (admin->n_clients >= ADMIN_CLIENTS_MAX)
        admin_drop(list_first(&admin->clients, struct admin_client, link));
    struct admin_client *client = calloc(1, sizeof *client);
    if (client == NULL || turn_join(&client->turn, terms->scheduler, peer.uid, peer.pid, admin_serve) < 0) {
        free(client);
        return false;
    }
    list_init(&client->resting_link);
    list_init(&client->reloading.link);
    client->admin = admin;
    client->uid = uid;
    list_append(&admin->clients, &client->link);
    admin->n_clients++;
    uv_pipe_init(terms->loop, &client->pipe, 0);
    client->pipe.data = client;
    if (uv_pipe_open(&client->pipe, fd) < 0) {
        admin_drop(client);
        return false;
    }
    admin_pump(client);
    return true;
}

void admin_accept(struct admin *admin, int fd) {
    if (!admin_begin(admin, fd))
        rights_close(admin->terms.closer, fd);
}

void admin_init(struct admin *admin, const struct admin_terms *terms) {
    *admin = (struct admin){.terms = *terms};
    list_init(&admin->clients);
    list_init(&admin->resting);
}

void admin_start(struct admin *admin) {
    uv_timer_init(admin->terms.loop, &admin->timer);
    admin->timer.data = admin;
}

void admin_drop_all(struct admin *admin) {
    while (!list_is_empty(&admin->clients))
        admin_drop(list_first(&admin->clients, struct admin_client, link));
}
