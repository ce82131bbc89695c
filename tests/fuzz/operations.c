/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence of events that can happen to a daemon, from its clients, its workers, the kernel, the driver and
 * the clock, against the daemon's own code on a stage (stage.h). After each step every validator is called,
 * and the messages that clients read are decoded and compared with the ledger (ledger.h). At the end all
 * processes die, and nothing may be left: no session, no leased or quarantined byte, no descriptor.
 *
 * Input: steps. Each is a byte that chooses an action below, and the bytes that the action reads.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/admin/admin.h"
#include "daemon/core/core.h"
#include "daemon/data/client.h"
#include "tests/fuzz/scene.h"

#define STEPS_MAX   400u
#define TURNS_QUIET 64u

static void on_free(const void *memory) {
    ledger_free(&scene.ledger, memory);
}

static void send_hello(struct puppet *client, uint32_t flags) {
    struct proto_message hello = {.header = {.operation = PROTO_HELLO, .request = ++client->last_request},
                                  .hello = {.magic = PROTO_MAGIC,
                                            .version_min = PROTO_VERSION_MIN,
                                            .version_max = PROTO_VERSION_MAX,
                                            .flags = flags}};
    uint8_t packet[64];
    puppet_send(client, packet, proto_encode(&hello, packet), 0);
}

#define CONNECT_SILENT  1u /* without HELLO */
#define CONNECT_RECLAIM 2u
#define CONNECT_NARROW  4u /* the kernel takes few replies */
#define CONNECT_FOREIGN 8u
#define CONNECT_AGAIN   16u  /* a second connection of a process that has one */
#define CONNECT_NO_GPU  192u /* all of these, which are a user's number too */

static void connect_client(struct input *input) {
    struct puppet *client = scene_choose_client(input);
    unsigned number = input_below(input, PROCESSES), flags = input_below(input, 256);
    struct stage_process *process = &scene.stage->processes[number];

    puppet_disconnect(client);
    if (process->pid == 0 || (process->dead && (!process->listed || process->foreign))) {
        process = stage_begin_process(scene.stage, number, STAGE_UID + flags / 32 % USERS);
        process->foreign = (flags & CONNECT_FOREIGN) != 0;
    } else if (process->dead || (flags & CONNECT_AGAIN) == 0) {
        return;
    }
    *client = (struct puppet){.fd = -1, .number = ++scene.connections, .process = number};
    client->fd = stage_connect(scene.stage, process);
    if ((flags & CONNECT_NARROW) != 0 && !list_is_empty(&scene.stage->daemon->clients.all)) {
        const struct client *newest =
            container_of(scene.stage->daemon->clients.all.previous, struct client, link);
        int bytes = 1; /* the kernel makes its minimum of it */
        setsockopt(newest->connection.fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    if ((flags & CONNECT_SILENT) == 0) {
        send_hello(client, ((flags & CONNECT_RECLAIM) != 0 ? PROTO_HELLO_RECLAIM : 0) |
                               ((flags & CONNECT_NO_GPU) == CONNECT_NO_GPU ? PROTO_HELLO_NO_GPU : 0));
        stage_turn(scene.stage);
        (void)puppet_read_reply(client);
    }
}

/* The process is over, and so is what it did on the GPU: what it had may be anybody's. Of one that the daemon
 * does not see it cannot know: that is never anybody's. */
static void note_end(unsigned number) {
    const struct stage_process *process = &scene.stage->processes[number];
    if (process->pid != 0 && process->dead && !process->listed && !process->foreign)
        ledger_leave_process(&scene.ledger, number);
}

static void kill_process(struct input *input) {
    unsigned number = input_below(input, PROCESSES);
    bool keep_sockets = input_below(input, 4) == 0; /* a forked child has them */

    for (unsigned i = 0; i < CLIENTS && !keep_sockets; i++)
        if (scene.clients[i].process == number)
            puppet_disconnect(&scene.clients[i]);
    stage_kill(&scene.stage->processes[number]);
    ledger_end_process(&scene.ledger, number);
    note_end(number);
}

static void unlist_process(struct input *input) {
    unsigned number = input_below(input, PROCESSES);
    stage_unlist(&scene.stage->processes[number]);
    note_end(number);
}

static void write_word(struct input *input) {
    struct puppet *client = scene_choose_client(input);
    unsigned word = input_below(input, 8) == 7 ? (unsigned)(input_edgy(input) % PROTO_PAGE_FENCES)
                                               : input_below(input, 4);
    uint64_t value = input_below(input, 4) == 3 ? input_edgy(input) : input_number(input, 1) % 8;

    if (client->page != NULL)
        atomic_store(&client->page->fences[word], value);
}

/* Counters are the client's word; the stats have to bear whatever it is. */
static void write_counters(struct input *input) {
    struct puppet *client = scene_choose_client(input);
    unsigned line = input_below(input, 4);

    if (client->page == NULL)
        return;
    struct proto_counters *counters = &client->page->counters[line];
    atomic_store(&counters->pool,
                 (uint32_t)(input_below(input, 4) == 3 ? input_edgy(input) : input_below(input, 3)));
    atomic_store(&counters->hits, input_edgy(input));
    atomic_store(&counters->taken_bytes, input_edgy(input));
    atomic_store(&counters->given_bytes, input_edgy(input));
}

static void pass_time(struct input *input) {
    static const uint64_t times[] = {NS_PER_MS, 10 * NS_PER_MS, 100 * NS_PER_MS, NS_PER_S, 11 * NS_PER_S};
    stage_pass(scene.stage, times[input_below(input, sizeof times / sizeof *times)]);
}

static void configure_pool(struct input *input) {
    struct core *core = scene.stage->daemon->core;
    struct pool *pool = core->pools[input_below(input, 2) % core->n_pools];
    struct pool_sizes sizes;

    sizes.limit_bytes = input_below(input, 24) * MIB;
    sizes.step_bytes = (1 + input_below(input, 8)) * MIB;
    sizes.reserve_bytes = input_below(input, 8) * MIB;
    sizes.low_water_bytes = input_below(input, 8) * MIB;
    core_pool_configure(pool, &sizes, scene.stage->now_ns);
    stage_turn(scene.stage);
}

static void connect_admin(struct input *input) {
    int *fd = &scene.admins[input_below(input, ADMINS)];
    struct stage_process administrator = {.uid =
                                              input_below(input, 2) == 0 ? getuid() : getuid() + STAGE_UID};
    *fd = close_fd(*fd);
    *fd = stage_connect_admin(scene.stage, &administrator);
}

static void talk_to_admin(struct input *input) {
    static const char *const lines[] = {"{\"command\":\"stats\"}\n", "{\"command\":\"trim\"}\n",
                                        "{\"command\":\"trim\",\"pool\":1}\n", "{\"command\":\"sessions\"}"};
    int fd = scene.admins[input_below(input, ADMINS)];
    unsigned choice = input_below(input, 8);
    size_t size = choice < 4 ? strlen(lines[choice]) : input_number(input, 1);
    const void *bytes = choice < 4 ? (const void *)lines[choice] : input_bytes(input, &size);

    if (fd >= 0 && size > 0)
        (void)send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Until a line's end, so that answers are seen to be lines. */
static void hear_admin(struct input *input) {
    int *fd = &scene.admins[input_below(input, ADMINS)];
    char bytes[16384];
    ssize_t n = 1;

    if (input_below(input, 4) == 0)
        *fd = close_fd(*fd);
    for (unsigned i = 0; i < 16 && *fd >= 0 && n > 0; i++) {
        n = recv(*fd, bytes, sizeof bytes, MSG_DONTWAIT);
        MUST(n <= 0 || memchr(bytes, '\0', (size_t)n) == NULL);
        stage_turn(scene.stage);
    }
}

static void hear_client(struct input *input) {
    struct puppet *client = scene_choose_client(input);
    for (unsigned n = 1 + input_below(input, 16); n > 0 && puppet_read_reply(client); n--)
        stage_turn(scene.stage);
}

/* A client behaves well: it reads its messages, and confirms descriptors. */
static void behave(struct input *input) {
    struct puppet *client = scene_choose_client(input);

    for (unsigned n = 0; n < 8; n++) {
        stage_turn(scene.stage);
        while (puppet_read_reply(client)) {
        }
        if (client->unopened == 0 || client->fd < 0)
            return;
        struct proto_message opened = {.header = {.operation = PROTO_OPENED}, .opened = {client->unopened}};
        uint8_t packet[64];
        puppet_send(client, packet, proto_encode(&opened, packet), 0);
    }
}

static void run_jobs(struct input *input) {
    unsigned worker = input_below(input, 4);
    if (worker == 3)
        for (unsigned n = 0; n < TURNS_QUIET && stage_run_any_job(scene.stage); n++) {
        }
    else
        (void)stage_run_job(scene.stage, worker);
}

/* A lost device stays lost, so that is rarer than the rest. */
static void fail(struct input *input) {
    unsigned what = input_below(input, 8);
    if (what == 7)
        scene.stage->device_lost = true;
    else if (what % 2 == 0)
        scene.stage->driver_fails = true;
    else
        scene.stage->process_list_fails = !scene.stage->process_list_fails;
}

static void step(struct input *input) {
    switch (input_below(input, 24)) {
    case 0:
    case 1:
        connect_client(input);
        break;
    case 2:
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
        puppet_send_request(input);
        break;
    case 8:
        puppet_send_bytes(input);
        break;
    case 9:
        hear_client(input);
        break;
    case 10:
    case 11:
        behave(input);
        break;
    case 12:
    case 13:
        run_jobs(input);
        break;
    case 14:
        puppet_disconnect(scene_choose_client(input));
        break;
    case 15:
        kill_process(input);
        break;
    case 16:
        unlist_process(input);
        break;
    case 17:
        pass_time(input);
        break;
    case 18:
        write_word(input);
        break;
    case 19:
        fail(input);
        break;
    case 20:
        configure_pool(input);
        break;
    case 21:
        connect_admin(input);
        break;
    case 22:
        talk_to_admin(input);
        break;
    default:
        if (input_below(input, 4) == 0)
            write_counters(input);
        else
            hear_admin(input);
        break;
    }
    stage_turn(scene.stage);
    stage_check(scene.stage);
}

/* The daemon cannot learn of the end of a process whose PID namespace it does not see: an operator says so.
 */
static void force_foreign(const struct daemon *daemon) {
    list_for_each_entry_safe(struct client, client, &daemon->clients.all, link) {
        if (client->state == CLIENT_LOST && client->peer.pid == 0)
            client_force(client);
    }
}

/* All clients and processes leave. Memory that is still charged then would be lost for good. */
static void end_scene(void) {
    struct stage *stage = scene.stage;
    struct daemon *daemon = stage->daemon;

    stage->driver_fails = stage->process_list_fails = false;
    for (unsigned i = 0; i < CLIENTS; i++)
        puppet_disconnect(&scene.clients[i]);
    for (unsigned i = 0; i < ADMINS; i++)
        scene.admins[i] = close_fd(scene.admins[i]);
    for (unsigned i = 0; i < STAGE_PROCESSES; i++) {
        stage_kill(&stage->processes[i]);
        stage_unlist(&stage->processes[i]);
        ledger_leave_process(&scene.ledger, i);
    }
    core_unpublish_all(daemon->core, stage->now_ns);
    for (unsigned n = 0; n < TURNS_QUIET; n++) {
        stage_turn(stage);
        while (stage_run_any_job(stage)) {
        }
        stage_pass(stage, 50 * NS_PER_MS);
        force_foreign(daemon);
        if (daemon->clients.n_clients == 0 && daemon->core->n_sessions == 0 && daemon->admin.n_clients == 0 &&
            n > 4)
            break;
    }
    stage_check(stage);
    MUST(daemon->clients.n_clients == 0 && daemon->core->n_sessions == 0 && daemon->admin.n_clients == 0);
    for (unsigned i = 0; i < daemon->core->n_pools; i++) {
        const struct pool *pool = daemon->core->pools[i];
        MUST(pool->n_leases == 0 && pool->waiters.count == 0);
        MUST(pool->leased_bytes == 0 && pool->fenced_bytes == 0 && pool->quarantined_bytes == 0);
    }
}

/* The lowest descriptor that is free: one that stays open makes it higher. */
static int lowest_descriptor(void) {
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    close_fd(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    int descriptor = lowest_descriptor();

    memset(&scene, 0, sizeof scene);
    for (unsigned i = 0; i < CLIENTS; i++)
        scene.clients[i].fd = -1;
    for (unsigned i = 0; i < ADMINS; i++)
        scene.admins[i] = -1;
    scene.stage = stage_new(NULL);
    scene.stage->on_free = on_free;
    for (unsigned n = 0; n < STEPS_MAX && input.left > 0; n++)
        step(&input);
    end_scene();
    stage_free(scene.stage);
    MUST(lowest_descriptor() == descriptor);
    return 0;
}
