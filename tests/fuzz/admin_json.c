/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the administrative socket, against a daemon that has something to tell: a session with leases in
 * both pools, one in quarantine, memory behind a fence, a buffer that a name keeps. Each answer has to be one line that the tool's reader
 * takes for a reply; the reader is another piece of code than the daemon's writer. A user that may only read
 * changes nothing.
 *
 * Input: lines, each asked as root and as a user.
 */
#include <unistd.h>

#include "base/cleanup.h"
#include "client/ctl/json.h"
#include "daemon/admin/admin.h"
#include "daemon/admin/admin_json.h"
#include "daemon/core/core.h"
#include "daemon/data/client.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/stage.h"

/* A user that is neither root nor the daemon's own. */
#define STRANGER (getuid() + STAGE_UID)

static struct stage *stage;
static int sockets[2]; /* the sessions' ends */

static void acquire(struct session *session, uint32_t pool, uint64_t size_bytes) {
    const struct proto_acquire acquire = {.pool = pool, .size_bytes = size_bytes, .timeout_ns = UINT64_MAX};
    MUST(core_acquire(session, 1, &acquire, stage->now_ns) == 0);
    stage_turn(stage);
    while (stage_run_any_job(stage)) {
    }
    stage_turn(stage);
}

/* A session that is open, without the wire. */
static struct session *open_session(unsigned number, uid_t uid) {
    int fd = stage_connect(stage, stage_begin_process(stage, number, uid));
    struct proto_message hello = {
        .header = {.operation = PROTO_HELLO, .request = 1},
        .hello = {.magic = PROTO_MAGIC, .version_min = PROTO_VERSION_MIN, .version_max = PROTO_VERSION_MAX}};
    uint8_t packet[PROTO_PACKET_MAX];
    size_t size = proto_encode(&hello, packet);
    MUST(write(fd, packet, size) == (ssize_t)size);
    stage_turn(stage);
    const struct client *client = container_of(stage->daemon->clients.all.previous, struct client, link);
    MUST(client->session != NULL);
    sockets[number] = fd;
    return client->session;
}

/* The session publishes its newest lease, which it keeps. */
static void publish(struct session *session, const char *text) {
    const struct lease *lease = container_of(session->leases.previous, struct lease, session_link);
    const struct proto_token tokens[2] = {{{1}}, {{2}}};
    struct proto_publish publish = {.flags = PROTO_PUBLISH_KEEP, .count = 1};
    uint64_t generation;

    snprintf(publish.name, sizeof publish.name, "%s", text);
    publish.buffers[0] = (struct proto_publish_buffer){
        .lease = lease->id, .generation = lease->generation, .size_bytes = lease->block->size_bytes};
    MUST(core_publish(session, &publish, tokens, stage->now_ns, &generation) == 0);
}

static void set_stage(void) {
    static const char *const settings[] = {"daemon.sessions_limit=4", NULL};

    stage = stage_new(settings);
    while (stage_run_any_job(stage)) {
    }
    struct session *user = open_session(0, STAGE_UID), *gone = open_session(1, STAGE_UID + 1);
    acquire(user, 1, 1000);
    acquire(user, 2, 5000);
    acquire(gone, 1, 5000);
    MUST(user->n_leases == 2 && gone->n_leases == 1);
    publish(user, "kept");
    core_session_lose(gone, stage->now_ns, "it is not known whether \"its\" process has ended");
    stage_check(stage);
}

/* The part of the core that a command for readers must leave alone. */
static uint64_t fingerprint(void) {
    uint64_t sum = stage->daemon->core->n_sessions;
    for (unsigned i = 0; i < stage->daemon->core->n_pools; i++) {
        const struct pool *pool = stage->daemon->core->pools[i];
        sum = sum * 31 + pool->reserved_bytes;
        sum = sum * 31 + pool->leased_bytes;
        sum = sum * 31 + pool->limit_bytes;
        sum = sum * 31 + pool->n_segments;
    }
    return sum;
}

static void check_reply(char *reply) {
    static const char *const commands[] = {
        "stats",   "pools",          "sessions",           "trim",    "quota",  "ping",
        "parcels", "parcels-revoke", "quarantine-release", "config",  "reload", "names",
        "leases",  "sharing",        "unpublish",          "channels"};
    size_t length = strlen(reply);
    bool read = false;

    MUST(length > 1 && reply[length - 1] == '\n' && strchr(reply, '\n') == reply + length - 1);
    reply[--length] = '\0';
    for (unsigned i = 0; !read && i < sizeof commands / sizeof *commands; i++) {
        struct reply *parsed = NULL;
        char *reason = NULL;
        if (reply_read(reply, length, commands[i], &parsed, &reason) == 0) {
            read = true;
            MUST(parsed->error_code == NULL || parsed->error_message != NULL);
            reply_free(parsed);
        } else {
            free(reason);
        }
    }
    MUST(read);
}

static void ask(uid_t uid, const uint8_t *line, size_t size) {
    uint64_t before = fingerprint();
    char *copy = malloc(size > 0 ? size : 1);

    MUST(copy != NULL);
    memcpy(copy, line, size);
    char *reply = admin_json_answer(&stage->daemon->admin.terms, uid, copy, size);
    MUST(reply != NULL && reply != admin_json_later); /* there is no configuration to read again */
    MUST(uid == 0 || fingerprint() == before);
    check_reply(reply);
    free(reply);
    free(copy);
    stage_turn(stage);
    while (stage_run_any_job(stage)) {
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    set_stage();
    while (size > 0) {
        const uint8_t *newline = memchr(data, '\n', size);
        size_t length = newline != NULL ? (size_t)(newline - data) : size;
        if (length <= ADMIN_LINE_MAX) {
            ask(STRANGER, data, length);
            ask(0, data, length);
        }
        length += newline != NULL;
        data += length;
        size -= length;
    }
    stage_check(stage);
    stage_free(stage);
    close_fd(sockets[0]);
    close_fd(sockets[1]);
    return 0;
}
