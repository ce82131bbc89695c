/* SPDX-License-Identifier: Apache-2.0 */
/* The test's side of a puppet: starts it, tells it what to do, and hears how it went. */
#include "tests/integration/puppet.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

/* This program's file. /proc/self/exe itself would be everybody's name in the daemon's messages. */
static const char *own_program(void) {
    static char path[4096];
    if (path[0] == '\0') {
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
        assert_true(n > 0);
    }
    return path;
}

static void start(struct puppet *puppet, const struct test_daemon *daemon, const char *const *environment,
                  const char *role, const char *argument) {
    const char *argv[] = {own_program(), "--puppet", role, argument, NULL};
    const char *variables[32];
    char socket_variable[TEST_PATH_SIZE + sizeof "GPUPOOL_SOCKET="];
    unsigned n = 0;
    int pair[2];

    snprintf(socket_variable, sizeof socket_variable, "GPUPOOL_SOCKET=%s",
             daemon != NULL ? daemon->socket : "");
    variables[n++] = socket_variable;
    variables[n++] = "GPUPOOL_SIM_LATENCY=0";
    variables[n++] = "GPUPOOL_SIM_FAIL=";
    variables[n++] = "GPUPOOL_SIM_HANG=";
    for (; environment != NULL && *environment != NULL; environment++) {
        assert_true(n + 1 < sizeof variables / sizeof *variables);
        variables[n++] = *environment;
    }
    variables[n] = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    *puppet = (struct puppet){.fd = pair[0]};
    puppet->pid = test_spawn(argv, variables, pair[1], NULL);
    close(pair[1]);
}

void puppet_start_role_as(struct puppet *puppet, const struct test_daemon *daemon,
                          const char *const *environment, const char *role, const char *argument) {
    start(puppet, daemon, environment, role, argument);
}

void puppet_start_role(struct puppet *puppet, const struct test_daemon *daemon, const char *role,
                       const char *argument) {
    puppet_start_role_as(puppet, daemon, NULL, role, argument);
}

void puppet_start_as(struct puppet *puppet, const struct test_daemon *daemon, const char *const *environment,
                     uid_t uid) {
    char text[16];
    snprintf(text, sizeof text, "%u", (unsigned)uid);
    start(puppet, daemon, environment, "puppet", text);
}

void puppet_start(struct puppet *puppet, const struct test_daemon *daemon) {
    puppet_start_as(puppet, daemon, NULL, 0);
}

void puppet_connect_as(struct puppet *puppet, const struct test_daemon *daemon,
                       const char *const *environment, uid_t uid) {
    puppet_start_as(puppet, daemon, environment, uid);
    PUPPET_MUST(puppet, puppet_open(puppet, ""));
}

void puppet_connect(struct puppet *puppet, const struct test_daemon *daemon) {
    puppet_connect_as(puppet, daemon, NULL, 0);
}

void puppet_quit(struct puppet *puppet) {
    puppet_send(puppet, &(struct puppet_command){.verb = PUPPET_QUIT});
    puppet->fd = close_fd(puppet->fd);
    int status = test_wait(puppet->pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("a puppet ended with status 0x%x", (unsigned)status);
    puppet->pid = 0;
}

void puppet_kill(struct puppet *puppet) {
    assert_int_equal(kill(puppet->pid, SIGKILL), 0);
    test_wait(puppet->pid);
    puppet->fd = close_fd(puppet->fd);
    puppet->pid = 0;
}

void puppet_send(struct puppet *puppet, const struct puppet_command *command) {
    ssize_t n = send(puppet->fd, command, sizeof *command, MSG_NOSIGNAL);
    if (n != (ssize_t)sizeof *command)
        fail_msg("puppet %d is gone", (int)puppet->pid);
}

static bool has_answered(const struct puppet *puppet, int timeout_ms) {
    struct pollfd poll_fd = {.fd = puppet->fd, .events = POLLIN};
    return poll(&poll_fd, 1, timeout_ms) > 0;
}

bool puppet_has_answered(const struct puppet *puppet) {
    return has_answered(puppet, 0);
}

int puppet_receive(struct puppet *puppet) {
    if (!has_answered(puppet, (int)(TEST_WAIT_NS / NS_PER_MS)))
        fail_msg("puppet %d does not answer", (int)puppet->pid);
    if (recv(puppet->fd, &puppet->answer, sizeof puppet->answer, 0) != (ssize_t)sizeof puppet->answer)
        fail_msg("puppet %d is gone", (int)puppet->pid);
    return puppet->answer.result;
}

int puppet_call(struct puppet *puppet, const struct puppet_command *command) {
    puppet_send(puppet, command);
    return puppet_receive(puppet);
}

int puppet_open(struct puppet *puppet, const char *socket) {
    struct puppet_command command = {
        .verb = PUPPET_OPEN, .client = puppet->client, .flags = GPUPOOL_OPEN_NO_CACHE};
    snprintf(command.text, sizeof command.text, "%s", socket);
    return puppet_call(puppet, &command);
}

int puppet_acquire(struct puppet *puppet, unsigned slot, unsigned kind, uint64_t size, uint64_t timeout_ns,
                   unsigned flags) {
    return puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_ACQUIRE,
                                                        .client = puppet->client,
                                                        .slot = slot,
                                                        .kind = kind,
                                                        .size = size,
                                                        .timeout_ns = timeout_ns,
                                                        .flags = flags});
}

void puppet_send_acquire(struct puppet *puppet, unsigned slot, unsigned kind, uint64_t size,
                         uint64_t timeout_ns) {
    puppet_send(puppet, &(struct puppet_command){.verb = PUPPET_ACQUIRE,
                                                 .client = puppet->client,
                                                 .slot = slot,
                                                 .kind = kind,
                                                 .size = size,
                                                 .timeout_ns = timeout_ns});
}

int puppet_do(struct puppet *puppet, enum puppet_verb verb, unsigned slot) {
    return puppet_call(puppet,
                       &(struct puppet_command){.verb = verb, .client = puppet->client, .slot = slot});
}

int puppet_release(struct puppet *puppet, unsigned slot) {
    return puppet_do(puppet, PUPPET_RELEASE, slot);
}

int puppet_query(struct puppet *puppet, unsigned slot) {
    return puppet_do(puppet, PUPPET_QUERY, slot);
}

int puppet_sleep(struct puppet *puppet, unsigned slot, enum gpupool_keep keep) {
    return puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_SLEEP, .slot = slot, .flags = keep});
}

int puppet_wake(struct puppet *puppet, unsigned slot, uint64_t timeout_ns) {
    return puppet_call(puppet,
                       &(struct puppet_command){.verb = PUPPET_WAKE, .slot = slot, .timeout_ns = timeout_ns});
}

int puppet_share(struct puppet *puppet, unsigned slot, struct gpupool_token *ret_token) {
    int r = puppet_do(puppet, PUPPET_SHARE, slot);
    if (r == 0)
        *ret_token = puppet->answer.token;
    return r;
}

int puppet_attach(struct puppet *puppet, unsigned slot, const struct gpupool_token *token) {
    return puppet_call(puppet,
                       &(struct puppet_command){
                           .verb = PUPPET_ATTACH, .client = puppet->client, .slot = slot, .token = *token});
}

int puppet_fill(struct puppet *puppet, unsigned slot, uint64_t seed) {
    return puppet_call(
        puppet,
        &(struct puppet_command){.verb = PUPPET_FILL, .client = puppet->client, .slot = slot, .seed = seed});
}

int puppet_check(struct puppet *puppet, unsigned slot, uint64_t seed) {
    return puppet_call(
        puppet,
        &(struct puppet_command){.verb = PUPPET_CHECK, .client = puppet->client, .slot = slot, .seed = seed});
}

unsigned puppet_kinds(unsigned kinds[static 2]) {
    unsigned count = 0;
    kinds[count++] = GPUPOOL_POOL_HOST;
    if (test_has_device())
        kinds[count++] = GPUPOOL_POOL_DEVICE;
    return count;
}

void for_each_kind(void (*test)(unsigned kind)) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    for (unsigned i = 0; i < count; i++)
        test(kinds[i]);
}

const char *puppet_kind_name(unsigned kind) {
    return kind == GPUPOOL_POOL_HOST ? "host" : "device";
}
