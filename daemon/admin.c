/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/admin_json.h"
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/peer.h"

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
    turn_leave(&client->turn);
    client->daemon->n_admin_clients--;
    uv_close((uv_handle_t *)&client->pipe, admin_on_closed);
}

static void admin_on_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    struct admin_client *client = handle->data;
    (void)suggested;
    buffer->base = client->line + client->line_size;
    buffer->len = sizeof client->line - client->line_size;
}

static void admin_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    struct admin_client *client = stream->data;
    (void)buffer;

    if (n < 0) {
        admin_drop(client);
        return;
    }
    client->line_size += (size_t)n;
    list_remove(&client->link);
    list_append(&client->daemon->admin_clients, &client->link);
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

/* Answers the line that ends at newline. */
static void admin_answer_line(struct admin_client *client, const char *newline) {
    char *reply =
        admin_json_answer(client->daemon, client->uid, client->line, (size_t)(newline - client->line));
    size_t used = (size_t)(newline - client->line) + 1;
    client->line_size -= used;
    memmove(client->line, client->line + used, client->line_size);
    admin_write(client, reply);
}

/* One answer a turn: the stats of a thousand sessions take some 7 ms to write (measured with 900 sessions,
 * release build), and workers are not to wait for those of every connection that asks. */
static void admin_serve(struct turn *turn) {
    struct admin_client *client = container_of(turn, struct admin_client, turn);
    admin_answer_line(client, memchr(client->line, '\n', client->line_size));
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

void admin_accept(struct daemon *daemon, int accepted_fd) {
    _cleanup_(close_fdp) int fd = accepted_fd;
    struct peer peer;

    if (peer_identify(fd, &peer) < 0)
        return;
    if (daemon->n_admin_clients >= ADMIN_CLIENTS_MAX)
        admin_drop(container_of(daemon->admin_clients.next, struct admin_client, link));
    struct admin_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return;
    if (turn_join(&client->turn, &daemon->turns, peer.uid, peer.pid, admin_serve) < 0) {
        free(client);
        return;
    }
    client->daemon = daemon;
    client->uid = peer.uid;
    list_append(&daemon->admin_clients, &client->link);
    daemon->n_admin_clients++;
    uv_pipe_init(&daemon->loop, &client->pipe, 0);
    client->pipe.data = client;
    if (uv_pipe_open(&client->pipe, fd) < 0) {
        admin_drop(client);
        return;
    }
    take_fd(&fd);
    admin_pump(client);
}
