/* SPDX-License-Identifier: Apache-2.0 */
/* The puppet's own side: a client process that does what it is told. Everything it finds wrong it says in an
 * answer. */
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/pair.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"

#define COMMAND_FD 3 /* what test_spawn() gives */

static struct gpupool_client *clients[PUPPET_CLIENTS];
static struct gpupool_buffer buffers[PUPPET_BUFFERS];
static void *stream;
static int stream_device;

uint64_t test_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* --- contents --- */

static uint64_t pattern_word(uint64_t seed, uint64_t index) {
    return seed == 0 ? 0 : (seed + index) * UINT64_C(0x9e3779b97f4a7c15);
}

static void pattern_write(uint64_t seed, void *memory, uint64_t size) {
    for (uint64_t offset = 0; offset < size; offset += sizeof(uint64_t)) {
        uint64_t word = pattern_word(seed, offset / sizeof word);
        memcpy((char *)memory + offset, &word, size - offset < sizeof word ? size - offset : sizeof word);
    }
}

static bool pattern_is_there(uint64_t seed, const void *memory, uint64_t size) {
    for (uint64_t offset = 0; offset < size; offset += sizeof(uint64_t)) {
        uint64_t word = pattern_word(seed, offset / sizeof word);
        if (memcmp((const char *)memory + offset, &word,
                   size - offset < sizeof word ? size - offset : sizeof word) != 0)
            return false;
    }
    return true;
}

int puppet_write_pattern(struct gpupool_client *client, const struct gpupool_buffer *buffer, uint64_t seed,
                         void *on_stream) {
    if (buffer->kind == GPUPOOL_POOL_HOST) {
        pattern_write(seed, buffer->data, buffer->size_bytes);
        return 0;
    }
    _cleanup_(freep) void *memory = malloc(buffer->size_bytes);
    if (memory == NULL)
        return GPUPOOL_E_NO_MEMORY;
    pattern_write(seed, memory, buffer->size_bytes);
    int r = gpupool_copy(client, buffer->device, buffer->data, memory, buffer->size_bytes, on_stream);
    return r < 0 ? r : gpupool_stream_synchronize(client, buffer->device, on_stream);
}

int puppet_read_pattern(struct gpupool_client *client, const struct gpupool_buffer *buffer, uint64_t seed,
                        void *on_stream) {
    if (buffer->kind == GPUPOOL_POOL_HOST)
        return pattern_is_there(seed, buffer->data, buffer->size_bytes) ? 0 : 1;
    _cleanup_(freep) void *memory = malloc(buffer->size_bytes);
    if (memory == NULL)
        return GPUPOOL_E_NO_MEMORY;
    int r = gpupool_copy(client, buffer->device, memory, buffer->data, buffer->size_bytes, on_stream);
    if (r == 0)
        r = gpupool_stream_synchronize(client, buffer->device, on_stream);
    if (r < 0)
        return r;
    return pattern_is_there(seed, memory, buffer->size_bytes) ? 0 : 1;
}

/* --- commands --- */

static int find_pool(struct gpupool_client *client, const struct puppet_command *command,
                     uint32_t *ret_pool) {
    if (command->pool != 0) {
        *ret_pool = command->pool;
        return 0;
    }
    return command->kind == GPUPOOL_POOL_HOST ? gpupool_host_pool(client, -1, ret_pool)
                                              : gpupool_device_pool(client, command->device, ret_pool);
}

static int do_open(const struct puppet_command *command) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    options.socket = command->text[0] != '\0' ? command->text : NULL;
    options.flags = command->flags;
    return gpupool_open(&options, &clients[command->client]);
}

static int do_acquire(const struct puppet_command *command) {
    struct gpupool_client *client = clients[command->client];
    uint32_t pool;
    int r = find_pool(client, command, &pool);
    return r < 0 ? r
                 : gpupool_acquire(client, pool, command->size, stream, command->timeout_ns, command->flags,
                                   &buffers[command->slot]);
}

/* Waits for the default stream, so that what is released goes back at once and the daemon's numbers are what
 * the test expects of them; not for a stream that PUPPET_STREAM made, whose memory goes behind fences. */
static int settle(struct gpupool_client *client, const struct gpupool_buffer *buffer, void **ret_stream) {
    *ret_stream = stream != NULL ? stream : GPUPOOL_NO_STREAM;
    return stream != NULL || buffer->kind != GPUPOOL_POOL_DEVICE
               ? 0
               : gpupool_stream_synchronize(client, buffer->device, stream);
}

static int give_back(struct gpupool_client *client, struct gpupool_buffer *buffer) {
    void *on_stream;
    int r = settle(client, buffer, &on_stream);
    return r < 0 ? r : gpupool_release(client, buffer, on_stream);
}

static int shrink(struct gpupool_client *client, struct gpupool_buffer *buffer, uint64_t size) {
    void *on_stream;
    int r = settle(client, buffer, &on_stream);
    return r < 0 ? r : gpupool_shrink(client, buffer, size, on_stream);
}

static bool is_told_to_stop(void) {
    struct pollfd poll_fd = {.fd = COMMAND_FD, .events = POLLIN};
    return poll(&poll_fd, 1, 0) != 0;
}

/* One round. Returns 0, the library's error, or 1 when the contents are not what was written. */
static int do_round(struct gpupool_client *client, uint32_t pool, uint64_t size, uint64_t seed) {
    struct gpupool_buffer buffer;
    int r = gpupool_acquire(client, pool, size, stream, GPUPOOL_FOREVER, 0, &buffer);
    if (r == 0)
        r = puppet_write_pattern(client, &buffer, seed, stream);
    if (r == 0)
        r = puppet_read_pattern(client, &buffer, seed, stream);
    if (r == 0)
        r = give_back(client, &buffer);
    return r;
}

static int do_rounds(const struct puppet_command *command, uint64_t *ret_rounds) {
    struct gpupool_client *client = clients[command->client];
    bool until_told = command->verb == PUPPET_ROUNDS_ON;
    uint64_t state = command->seed, rounds = 0;
    uint32_t pool;
    int r = find_pool(client, command, &pool);

    while (r == 0 && (until_told ? !is_told_to_stop() : rounds < command->number)) {
        uint64_t size = test_random(&state) % command->size + 1;
        r = do_round(client, pool, size, test_random(&state) | 1);
        if (r == 0)
            rounds++;
    }
    if (until_told) { /* takes the PUPPET_STOP off the line */
        struct puppet_command stop;
        if (recv(COMMAND_FD, &stop, sizeof stop, 0) != (ssize_t)sizeof stop || stop.verb != PUPPET_STOP)
            _exit(99);
    }
    *ret_rounds = rounds;
    return r;
}

/* In a forked child: every call that talks to the daemon or hands out memory has to be refused. */
static int try_calls(struct gpupool_client *client) {
    struct gpupool_buffer buffer = buffers[0], fresh;
    struct gpupool_buffer_info info;
    struct gpupool_token token = {{0}};
    void *made;
    size_t count;
    uint32_t pool;
    const int results[] = {
        gpupool_pools(client, NULL, 0, &count),
        gpupool_host_pool(client, -1, &pool),
        gpupool_device_pool(client, 0, &pool),
        gpupool_acquire(client, 1, 1, NULL, GPUPOOL_NOW, 0, &fresh),
        gpupool_prepare(client, 1, 1),
        gpupool_release(client, &buffer, NULL),
        gpupool_shrink(client, &buffer, 1, NULL),
        gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token),
        gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &fresh),
        gpupool_query(client, &buffer, &info),
        gpupool_sleep(client, &buffer, GPUPOOL_KEEP_NOTHING, NULL),
        gpupool_wake(client, &buffer, NULL, GPUPOOL_NOW, 0),
        gpupool_stream_create(client, 0, &made),
        gpupool_stream_synchronize(client, 0, NULL),
    };
    int wrong = 0;
    for (unsigned i = 0; i < sizeof results / sizeof *results; i++)
        wrong += results[i] != GPUPOOL_E_FORKED;
    gpupool_close(client); /* frees memory, says nothing */
    return wrong;
}

static int do_fork_try(struct gpupool_client *client, uint64_t *ret_wrong) {
    int status;
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        _exit(try_calls(client));
    int error = test_reap(pid, &status);
    if (error != 0)
        return -error;
    *ret_wrong = WIFEXITED(status) ? (uint64_t)WEXITSTATUS(status) : 1000;
    return 0;
}

static int do_fork_hold(uint64_t *ret_pid) {
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        close(COMMAND_FD); /* so that the test sees its puppet's end */
        for (;;)
            pause();
    }
    *ret_pid = (uint64_t)pid;
    return 0;
}

/* Finds the library's socket by whom it is connected to. */
static int do_cut(struct gpupool_client *client) {
    for (int fd = COMMAND_FD + 1; fd < 1024; fd++) {
        struct sockaddr_un address = {0};
        socklen_t size = sizeof address;
        if (getpeername(fd, (struct sockaddr *)&address, &size) == 0 && address.sun_family == AF_UNIX &&
            strcmp(address.sun_path, gpupool_socket_path(client)) == 0)
            return shutdown(fd, SHUT_RDWR) == 0 ? 0 : -errno;
    }
    return GPUPOOL_E_INVALID;
}

/* Clears what it got also where it did not get all. */
static int do_pair(struct gpupool_client *client, const struct puppet_command *command,
                   struct puppet_answer *answer) {
    struct gpupool_pair pair;
    void *memory;

    int r = gpupool_pair_init(&pair, client, command->device, command->flags);
    if (r < 0)
        return r;
    for (uint64_t size_bytes = command->size / 4; r == 0 && size_bytes <= command->size; size_bytes *= 2) {
        r = gpupool_pair_host(&pair, size_bytes, &memory, stream);
        if (r == 0)
            r = gpupool_pair_device(&pair, size_bytes, &memory, stream);
        if (r == 0)
            r = gpupool_pair_copy_to_device(&pair, size_bytes, stream);
    }
    if (r < 0) /* before the next call takes the text away */
        snprintf(answer->text, sizeof answer->text, "%s", gpupool_error_text());
    int r_clear = gpupool_pair_clear(&pair, stream);
    return r < 0 ? r : r_clear;
}

static int do_pools(struct gpupool_client *client, struct puppet_answer *answer) {
    size_t count = 0;
    int r = gpupool_pools(client, answer->pools, PUPPET_POOLS, &count);
    answer->number = count;
    return r;
}

static void drop_stream(void) {
    if (stream != NULL)
        gpupool_stream_destroy(clients[0], stream_device, stream);
    stream = NULL;
}

static int carry_out(const struct puppet_command *command, struct puppet_answer *answer) {
    struct gpupool_client *client = clients[command->client];
    struct gpupool_buffer *buffer = &buffers[command->slot];

    switch ((enum puppet_verb)command->verb) {
    case PUPPET_OPEN:
        return do_open(command);
    case PUPPET_CLOSE: /* its streams first: they need it */
        if (command->client == 0)
            drop_stream();
        gpupool_close(client);
        clients[command->client] = NULL;
        return 0;
    case PUPPET_POOL_LIST:
        return do_pools(client, answer);
    case PUPPET_ACQUIRE:
        return do_acquire(command);
    case PUPPET_RELEASE:
        return give_back(client, buffer);
    case PUPPET_SHRINK:
        return shrink(client, buffer, command->size);
    case PUPPET_SHARE:
        return gpupool_share(client, buffer, GPUPOOL_NO_STREAM, &answer->token);
    case PUPPET_ATTACH:
        return gpupool_attach(client, &command->token, GPUPOOL_NO_STREAM, 0, buffer);
    case PUPPET_QUERY:
        return gpupool_query(client, buffer, &answer->info);
    case PUPPET_COPY:
        buffers[command->other] = *buffer;
        return 0;
    case PUPPET_FILL:
        return puppet_write_pattern(client, buffer, command->seed, stream);
    case PUPPET_CHECK:
        return puppet_read_pattern(client, buffer, command->seed, stream);
    case PUPPET_ROUNDS:
    case PUPPET_ROUNDS_ON:
        return do_rounds(command, &answer->number);
    case PUPPET_FORK_TRY:
        return do_fork_try(client, &answer->number);
    case PUPPET_FORK_HOLD:
        return do_fork_hold(&answer->number);
    case PUPPET_CUT:
        return do_cut(client);
    case PUPPET_GPU_KIND:
        answer->number = gpupool_gpu_kind(client);
        return 0;
    case PUPPET_SOCKET_PATH:
        snprintf(answer->text, sizeof answer->text, "%s", gpupool_socket_path(client));
        return 0;
    case PUPPET_SLEEP:
        return gpupool_sleep(client, buffer, (enum gpupool_keep)command->flags, stream);
    case PUPPET_WAKE:
        return gpupool_wake(client, buffer, stream, command->timeout_ns, command->flags);
    case PUPPET_PAIR:
        return do_pair(client, command, answer);
    case PUPPET_STREAM:
        stream_device = command->device;
        return gpupool_stream_create(client, stream_device, &stream);
    case PUPPET_STOP:
    case PUPPET_QUIT:
        break;
    }
    return GPUPOOL_E_INVALID;
}

static int run_puppet(const char *uid_text) {
    uid_t uid = (uid_t)strtoul(uid_text, NULL, 10);
    struct puppet_command command;

    if (uid != 0) {
        if (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
            return 98;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing the user undid it */
    }
    for (;;) {
        ssize_t n = recv(COMMAND_FD, &command, sizeof command, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof command || command.verb == PUPPET_QUIT)
            break;
        struct puppet_answer answer = {0};
        answer.result = carry_out(&command, &answer);
        answer.buffer = buffers[command.slot];
        if (answer.result < 0 && answer.text[0] == '\0')
            snprintf(answer.text, sizeof answer.text, "%s", gpupool_error_text());
        if (send(COMMAND_FD, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer)
            return 97;
    }
    drop_stream();
    for (unsigned i = 0; i < PUPPET_CLIENTS; i++)
        gpupool_close(clients[i]);
    return 0;
}

int puppet_main(int argc, char **argv, const struct puppet_role *roles) {
    if (argc != 4 || strcmp(argv[1], "--puppet") != 0)
        return -1;
    if (strcmp(argv[2], "puppet") == 0)
        return run_puppet(argv[3]);
    for (; roles != NULL && roles->name != NULL; roles++)
        if (strcmp(roles->name, argv[2]) == 0)
            return roles->run(COMMAND_FD, argv[3]);
    return 96;
}
