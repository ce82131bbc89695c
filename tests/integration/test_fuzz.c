/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nonsense on both sockets: random and mutated packets, with descriptors attached, and random and mutated
 * lines, while a well-behaved client acquires, uses, checks and releases all the time and never sees an
 * error.
 *
 *   GPUPOOL_TEST_SEED          the same nonsense again (the seed is printed)
 *   GPUPOOL_TEST_FUZZ_PACKETS  10000, of each kind
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/packet.h"
#include "proto/proto.h"
#include "tests/integration/puppet.h"
#include "tests/raw_client.h"

#define PACKETS           10000u
#define PACKETS_A_PROCESS 250u /* what a nonsense process holds comes back when it ends */
#define POOL_MIB          64u
#define DEFAULT_SEED      5u
#define JUNK_MAX          (PROTO_PACKET_MAX + 1024u)

static uint64_t seed;

static int connect_to(const char *path, int type) {
    return raw_client_connect(path, type, TEST_WAIT_NS);
}

/* --- packets --- */

static size_t encode_hello(uint8_t *packet) {
    struct proto_message hello = {.hello = {.magic = PROTO_MAGIC,
                                            .version_min = PROTO_VERSION_MIN,
                                            .version_max = PROTO_VERSION_MAX,
                                            .flags = PROTO_HELLO_RECLAIM}};
    return raw_client_encode(&hello, PROTO_HELLO, 1, packet);
}

/* One of a few names. */
static void make_text(uint64_t *random, char text[static PROTO_NAME_TEXT_SIZE]) {
    memset(text, 'x', 1 + test_random(random) % 3);
}

/* A packet that the daemon would take, about leases and pools that may or may not be there. */
static size_t make_valid(uint64_t *random, uint8_t *packet) {
#define FROM_CLIENT(name) PROTO_##name,
#define FROM_DAEMON(name)
#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type) FROM_##sender(name)
    static const uint8_t operations[] = {
        PROTO_ACQUIRE, PROTO_ACQUIRE, PROTO_RELEASE, /* more often */
#include "proto/messages.def"
    };
    struct proto_message message = {0};
    unsigned operation = operations[test_random(random) % sizeof operations];
    uint64_t request = 1 + test_random(random) % 1000, lease = 1 + test_random(random) % 32;

    switch (operation) {
    case PROTO_HELLO:
        return encode_hello(packet);
    case PROTO_ACQUIRE:
        message.acquire = (struct proto_acquire){.pool = (uint32_t)(1 + test_random(random) % 3),
                                                 .size_bytes = 1 + test_random(random) % MIB,
                                                 .timeout_ns = test_random(random) % 3 == 0 ? NS_FOREVER : 0};
        if (test_random(random) % 2 == 0)
            message.acquire.flags = PROTO_ACQUIRE_NO_RECLAIM;
        if (test_random(random) % 2 == 0)
            message.acquire.least_bytes = 1 + test_random(random) % message.acquire.size_bytes;
        break;
    case PROTO_MERGE:
        message.merge = (struct proto_merge){lease, 1 + test_random(random) % 1000,
                                             1 + test_random(random) % 32, 1 + test_random(random) % 1000};
        if (test_random(random) % 2 == 0)
            request = 0;
        break;
    case PROTO_IDLE:
        message.idle = (struct proto_idle){.pool = (uint32_t)(1 + test_random(random) % 3),
                                           .flags = test_random(random) % 2 == 0 ? PROTO_IDLE_BUSY : 0};
        if (test_random(random) % 2 == 0)
            message.idle.size_bytes = 1 + test_random(random) % (POOL_MIB * MIB);
        break;
    case PROTO_CLOSED:
        message.closed =
            (struct proto_closed){.segment = 1 + test_random(random) % 8, .time_ns = test_random(random)};
        break;
    case PROTO_ACQUIRE_SEGMENTS:
        message.acquire_segments =
            (struct proto_acquire_segments){.pool = (uint32_t)(1 + test_random(random) % 3),
                                            .segment_bytes = (1 + test_random(random) % 2) * 2 * MIB,
                                            .count = (uint32_t)(1 + test_random(random) % 8),
                                            .timeout_ns = test_random(random) % 3 == 0 ? NS_FOREVER : 0};
        if (test_random(random) % 2 == 0)
            message.acquire_segments.flags = PROTO_ACQUIRE_NO_RECLAIM;
        break;
    case PROTO_ASK_HOLDERS:
        message.ask_holders =
            (struct proto_lease_name){.lease = lease, .generation = 1 + test_random(random) % 1000};
        break;
    case PROTO_OFFER:
        message.offer.pool = (uint32_t)(1 + test_random(random) % 3);
        message.offer.count = (uint32_t)(1 + test_random(random) % 4);
        for (uint32_t i = 0; i < message.offer.count; i++)
            message.offer.ids[i] = 1 + test_random(random) % 8;
        break;
    case PROTO_ASK_PARTS:
    case PROTO_DESCRIBE:
        message.describe = (struct proto_part_name){lease, 1 + test_random(random) % 1000,
                                                    (uint32_t)(test_random(random) % 4), 0};
        break;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        message.release =
            (struct proto_release){.lease = lease, .generation = 1 + test_random(random) % 1000};
        if (operation == PROTO_SPLIT || test_random(random) % 2 == 0)
            message.release.offset_bytes = 512, message.release.size_bytes = 1024;
        if (operation == PROTO_RELEASE &&
            test_random(random) % 2 == 0) { /* words stay 0: some never arrive */
            message.release.fence = (uint32_t)(1 + test_random(random) % PROTO_PAGE_FENCES);
            message.release.fence_value = test_random(random) % 3;
        }
        if (operation == PROTO_RELEASE && message.release.size_bytes == 0 && test_random(random) % 2 == 0) {
            message.release.board_word = (uint32_t)(1 + test_random(random) % PROTO_BOARD_WORDS);
            message.release.board_value = test_random(random);
        }
        break;
    case PROTO_SHARE:
        message.share = (struct proto_share){.lease = lease,
                                             .generation = 1 + test_random(random) % 1000,
                                             .size_bytes = test_random(random) % 5000};
        break;
    case PROTO_SEND: /* what a nonsense process sends is over before the next one ends */
        message.send = (struct proto_send){.share = {.lease = lease,
                                                     .generation = 1 + test_random(random) % 1000,
                                                     .part_bytes = test_random(random) % 4 * 512,
                                                     .size_bytes = test_random(random) % 5000},
                                           .lifetime_ns = 1 + test_random(random) % (20 * NS_PER_MS),
                                           .takers = (uint32_t)(1 + test_random(random) % 3)};
        break;
    case PROTO_QUERY:
        message.query =
            (struct proto_lease_name){.lease = lease, .generation = 1 + test_random(random) % 1000};
        break;
    case PROTO_ATTACH:
        memset(message.attach.bytes, 7, sizeof message.attach.bytes);
        break;
    case PROTO_CANCEL:
        message.cancel.request = 1 + test_random(random) % 1000;
        request = 0;
        break;
    case PROTO_RECLAIMED:
        message.reclaimed =
            (struct proto_reclaimed){.pool = (uint32_t)(1 + test_random(random) % 2),
                                     .outcome = (uint32_t)(1 + test_random(random) % PROTO_RECLAIM_PENDING),
                                     .asked = test_random(random) % 2,
                                     .kept_bytes = test_random(random) % 5000};
        request = 0;
        break;
    case PROTO_NAME:
        memset(message.name.name, 'x', 1 + test_random(random) % (PROTO_PROCESS_NAME_SIZE - 1));
        request = 0;
        break;
    case PROTO_WRITE_DIRECTORY:
        message.write_directory.n_bytes = (uint32_t)(1 + test_random(random) % 500);
        break;
    case PROTO_PUBLISH: /* mostly no lease of its own; without KEEP it ends with its session */
        make_text(random, message.publish.name);
        message.publish.flags = (uint32_t)(test_random(random) % 2) * PROTO_PUBLISH_LIVE;
        message.publish.count = (uint32_t)(1 + test_random(random) % 3);
        for (uint32_t i = 0; i < message.publish.count; i++)
            message.publish.buffers[i] =
                (struct proto_publish_buffer){lease, 1 + test_random(random) % 1000, 512, {0}, 0, 0};
        break;
    case PROTO_UNPUBLISH:
        make_text(random, message.unpublish.name);
        message.unpublish.flags = (uint32_t)(test_random(random) % 2);
        break;
    case PROTO_OPEN_NAME:
        make_text(random, message.open_name.name);
        message.open_name.flags = (uint32_t)(test_random(random) % 3);
        message.open_name.generation = test_random(random) % 3;
        message.open_name.timeout_ns = test_random(random) % 3 == 0 ? NS_FOREVER : 0;
        break;
    case PROTO_READ_DIRECTORY:
        make_text(random, message.read_directory.name);
        message.read_directory.generation = test_random(random) % 1000;
        break;
    case PROTO_LIST_NAMES:
        message.list_names.after = test_random(random) % 8;
        break;
    case PROTO_MAKE_CHANNEL: /* mostly of no lease of its own */
        make_text(random, message.make_channel.name);
        message.make_channel.lease = test_random(random) % 8;
        message.make_channel.generation = test_random(random) % 64;
        message.make_channel.slot_bytes = 512;
        message.make_channel.n_slots = 2 + test_random(random) % 3;
        message.make_channel.n_consumers = 1 + test_random(random) % 3;
        message.make_channel.policy = 1 + test_random(random) % 3;
        break;
    case PROTO_JOIN_CHANNEL:
        make_text(random, message.join_channel.name);
        message.join_channel.place = (uint32_t)(test_random(random) % 4);
        message.join_channel.timeout_ns = test_random(random) % 3 == 0 ? NS_FOREVER : 0;
        break;
    case PROTO_LEAVE_CHANNEL:
    case PROTO_ASK_CHANNEL_MEMORY:
        message.leave_channel.channel = test_random(random) % 64;
        message.leave_channel.page = (uint32_t)(test_random(random) % 4);
        break;
    case PROTO_OPENED:
        message.opened.segment = 1 + test_random(random) % 8;
        request = 0;
        break;
    default:
        break;
    }
    return raw_client_encode(&message, operation, request, packet);
}

static size_t mutate(uint64_t *random, uint8_t *packet, size_t size) {
    static const uint64_t extremes[] = {0,         1,          0x7fffffff,     0x80000000,        0xffffffff,
                                        INT64_MAX, UINT64_MAX, PROTO_SIZE_MAX, PROTO_SIZE_MAX + 1};
    for (unsigned n = 1 + (unsigned)(test_random(random) % 4); n > 0; n--) {
        uint64_t choice = test_random(random) % 8;
        size_t at = test_random(random) % size;
        if (choice < 3) {
            packet[at] ^= (uint8_t)(1u << test_random(random) % 8);
        } else if (choice < 5) {
            uint64_t value = extremes[test_random(random) % (sizeof extremes / sizeof *extremes)];
            size_t bytes = size - at < sizeof value ? size - at : sizeof value;
            memcpy(packet + at, &value, bytes);
        } else if (choice == 5) {
            size = at > 0 ? at : 1; /* cut */
        } else if (choice == 6 && size + 64 <= JUNK_MAX) {
            for (unsigned i = 0; i < 64; i++) /* longer, and sometimes it says so */
                packet[size++] = (uint8_t)test_random(random);
            if (test_random(random) % 2 == 0 && size >= sizeof(struct proto_header)) {
                uint32_t length = (uint32_t)size;
                memcpy(packet + offsetof(struct proto_header, length), &length, sizeof length);
            }
        } else {
            packet[at] = (uint8_t)test_random(random);
        }
    }
    return size;
}

/* Sends a packet, some with descriptors. Returns false when the daemon has closed the connection. */
static bool send_packet(int fd, const uint8_t *packet, size_t size, unsigned n_fds) {
    const int fds[3] = {0, 1, 2};

    ssize_t n = send_with_fds(fd, packet, size, fds, n_fds, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && n_fds > 0 &&
        errno == EPERM) /* a kernel that refuses descriptors at the door (SO_PASSRIGHTS) */
        return send_packet(fd, packet, size, 0);
    return n >= 0 || errno == EAGAIN; /* a full line: the daemon has stopped reading, as it may */
}

/* Asks a plain question behind the nonsense and reads until its answer comes, so that the nonsense has been
 * dealt with. Returns 1, 0 when the daemon has closed the connection instead, or -1 when it did neither. */
static int settle(int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};

    if (!send_packet(fd, packet, raw_client_encode(&message, PROTO_LIST_POOLS, UINT64_MAX, packet), 0))
        return 0;
    for (;;) {
        /* no room for descriptors: the kernel drops those that come along */
        ssize_t n = recv(fd, packet, sizeof packet, 0);
        if (n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE)))
            return 0;
        if (n < 0 || proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &message, NULL) < 0)
            return -1;
        if (message.header.request == UINT64_MAX && message.header.operation == PROTO_POOLS)
            return 1;
        bool is_of_several = message.header.operation == PROTO_LEASES;
        if ((is_of_several || message.header.operation == PROTO_LEASE) && proto_message_fds(&message) > 0) {
            message.opened.segment =
                is_of_several ? message.leases.leases[0].segment : message.lease.description.id;
            send_packet(fd, packet, raw_client_encode(&message, PROTO_OPENED, 0, packet), 0);
        }
    }
}

/* Opens a connection, in most cases with a proper greeting. -1: there is no daemon any more. */
static int begin_connection(uint64_t *random) {
    uint8_t packet[PROTO_PACKET_MAX];
    int fd = connect_to(getenv("GPUPOOL_SOCKET"), SOCK_SEQPACKET);
    if (fd >= 0 && test_random(random) % 8 != 0)
        send_packet(fd, packet, encode_hello(packet), 0);
    return fd;
}

static size_t make_packet(uint64_t *random, uint8_t *packet) {
    if (test_random(random) % 8 != 0) {
        size_t size = make_valid(random, packet);
        return test_random(random) % 4 != 0 ? mutate(random, packet, size) : size;
    }
    size_t size = 1 + test_random(random) % (test_random(random) % 2 == 0 ? 64 : JUNK_MAX);
    for (size_t i = 0; i < size; i++)
        packet[i] = (uint8_t)test_random(random);
    return size;
}

/* A process full of nonsense: argument is "seed:packets". $GPUPOOL_SOCKET says where. */
static int play_nonsense(int control, const char *argument) {
    static uint8_t packet[JUNK_MAX];
    unsigned long long start;
    unsigned packets;
    bool deaf = false;
    int fd = -1;

    (void)control;
    if (sscanf(argument, "%llu:%u", &start, &packets) != 2)
        return 90;
    uint64_t random = start;
    for (unsigned i = 0; i < packets; i++) {
        if (fd < 0 || (deaf && test_random(&random) % 32 == 0)) {
            close_fd(fd);
            fd = begin_connection(&random);
            deaf = test_random(&random) % 16 == 0; /* never reads what it is answered */
            if (fd < 0)
                return 1;
        }
        size_t size = make_packet(&random, packet);
        unsigned n_fds = test_random(&random) % 8 == 0 ? 1 + (unsigned)(test_random(&random) % 3) : 0;
        int open = send_packet(fd, packet, size, n_fds);
        if (open == 1 && !deaf)
            open = settle(fd);
        if (open < 0)
            return 2;
        if (open == 0)
            fd = close_fd(fd);
    }
    close_fd(fd);
    return 0;
}

/* --- lines --- */

static size_t make_line(uint64_t *random, char *line, size_t capacity) {
    static const char *const lines[] = {
        "{\"command\":\"stats\"}",           "{\"command\":\"ping\"}",
        "{\"command\":\"pools\"}",           "{\"command\":\"sessions\"}",
        "{\"command\":\"trim\",\"pool\":1}", "{\"command\":\"trim\"}",
        "{\"command\":\"st\\u0061ts\"}",     "{\"command\":\"trim\",\"pool\":1e400}"};
    size_t size = 0;

    if (test_random(random) % 8 == 0) {
        size = test_random(random) % (test_random(random) % 16 == 0 ? 17000 : 200);
        for (size_t i = 0; i < size; i++)
            line[i] = (char)test_random(random);
    } else {
        size = (size_t)snprintf(line, capacity, "%s",
                                lines[test_random(random) % (sizeof lines / sizeof *lines)]);
        for (uint64_t n = test_random(random) % 4; n > 0 && size > 0; n--) {
            size_t at = test_random(random) % size;
            if (test_random(random) % 4 == 0)
                size = at;
            else if (test_random(random) % 4 == 0)
                line[at] = "{}[]\",:\\0 \x7f\xc3"[test_random(random) % 12];
            else
                line[at] = (char)test_random(random);
        }
    }
    line[size++] = '\n';
    return size;
}

/* Reads one line of an answer, which has to be JSON. Returns false at the end of the connection. */
static bool read_answer(FILE *file) {
    _cleanup_(freep) char *line = NULL;
    size_t capacity = 0;

    errno = 0;
    if (getline(&line, &capacity, file) <= 0) {
        assert_true(feof(file) || errno == ECONNRESET);
        return false;
    }
    cJSON *answer = cJSON_Parse(line);
    if (answer == NULL)
        fail_msg("no JSON: %s", line);
    cJSON_Delete(answer);
    return true;
}

static void talk_nonsense_to_admin(struct test_daemon *daemon, unsigned lines) {
    static char line[20000];
    uint64_t random = seed;
    FILE *file = NULL;

    for (unsigned i = 0; i < lines; i++) {
        if (file == NULL) {
            int fd = connect_to(daemon->admin_socket, SOCK_STREAM);
            assert_true(fd >= 0);
            file = fdopen(fd, "r+e");
            assert_non_null(file);
        }
        size_t size = make_line(&random, line, sizeof line);
        unsigned questions = 0;
        for (size_t j = 0; j < size; j++)
            questions += line[j] == '\n';
        bool open = send(fileno(file), line, size, MSG_NOSIGNAL) == (ssize_t)size;
        for (; open && questions > 0; questions--)
            open = read_answer(file);
        if (!open || test_random(&random) % 64 == 0) {
            fclose(file);
            file = NULL;
        }
    }
    if (file != NULL)
        fclose(file);
}

/* --- the tests --- */

struct scene {
    struct test_daemon daemon;
    char config[TEST_CONFIG_SIZE];
    struct puppet good[2];
    unsigned n_good, kinds[2], descriptors, threads;
};

/* One client is killed before anything is counted: NVML keeps descriptors of its own from the first question
 * on. */
static void warm_up(struct scene *scene) {
    struct puppet victim;

    puppet_connect(&victim, &scene->daemon);
    for (unsigned i = 0; i < scene->n_good; i++)
        PUPPET_MUST(&victim, puppet_acquire(&victim, i, scene->kinds[i], MIB, GPUPOOL_FOREVER, 0));
    puppet_kill(&victim);
    WAIT_UNTIL(daemon_number(&scene->daemon, "sessions") == 0);
}

static void scene_begin(struct scene *scene) {
    daemon_start(&scene->daemon,
                 &(struct daemon_options){.config = test_config(scene->config, POOL_MIB, POOL_MIB)});
    scene->n_good = puppet_kinds(scene->kinds);
    warm_up(scene);
    for (unsigned i = 0; i < scene->n_good; i++) {
        struct puppet_command rounds = {
            .verb = PUPPET_ROUNDS, .kind = scene->kinds[i], .size = 256 * KIB, .seed = 9, .number = 3};
        puppet_connect(&scene->good[i], &scene->daemon);
        PUPPET_MUST(&scene->good[i], puppet_call(&scene->good[i], &rounds));
    }
    scene->descriptors = daemon_descriptors_at_rest(&scene->daemon);
    scene->threads = daemon_threads(&scene->daemon);
    for (unsigned i = 0; i < scene->n_good; i++)
        puppet_send(&scene->good[i],
                    &(struct puppet_command){
                        .verb = PUPPET_ROUNDS_ON, .kind = scene->kinds[i], .size = 256 * KIB, .seed = 11});
}

/* Ends all parcels, and asks for a trim each time: a session may have ended, or a pool have grown
 * ahead of demand, after the last.
 */
static bool trimmed(struct test_daemon *daemon) {
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"parcels-revoke\"}"));
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"trim\"}"));
    return daemon_sum(daemon, "reserved_bytes") == 0;
}

static void scene_end(struct scene *scene) {
    struct test_daemon *daemon = &scene->daemon;

    for (unsigned i = 0; i < scene->n_good; i++) {
        if (puppet_has_answered(&scene->good[i]))
            PUPPET_MUST(&scene->good[i], puppet_receive(&scene->good[i]));
        puppet_send(&scene->good[i], &(struct puppet_command){.verb = PUPPET_STOP});
        PUPPET_MUST(&scene->good[i], puppet_receive(&scene->good[i]));
        print_message("%s: %llu rounds meanwhile\n", puppet_kind_name(scene->kinds[i]),
                      (unsigned long long)scene->good[i].answer.number);
        assert_true(scene->good[i].answer.number > 0);
    }
    WAIT_UNTIL(daemon_number(daemon, "sessions") == scene->n_good);
    WAIT_UNTIL(daemon_sum(daemon, "leases") == 0 && daemon_sum(daemon, "quarantined_bytes") == 0);
    assert_int_equal(daemon_sum(daemon, "waiters"), 0);
    /* what the pools grew by has its descriptors; without that there are those of before */
    for (unsigned i = 0; i < scene->n_good; i++)
        puppet_quit(&scene->good[i]);
    WAIT_UNTIL(trimmed(daemon));
    WAIT_UNTIL(daemon_descriptors(daemon) <= scene->descriptors);
    assert_int_equal(daemon_threads(daemon), scene->threads);
    daemon_stop(daemon);
}

static void nonsense_packets_disturb_nobody(void **state) {
    unsigned packets = test_number("GPUPOOL_TEST_FUZZ_PACKETS", PACKETS);
    struct scene scene;
    uint64_t random = seed;

    (void)state;
    scene_begin(&scene);
    for (unsigned sent = 0; sent < packets; sent += PACKETS_A_PROCESS) {
        struct puppet process;
        char argument[64];
        snprintf(argument, sizeof argument, "%llu:%u", (unsigned long long)test_random(&random),
                 PACKETS_A_PROCESS);
        puppet_start_role(&process, &scene.daemon, "nonsense", argument);
        int status = test_wait(process.pid);
        close_fd(process.fd);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("packets %s: status 0x%x", argument, (unsigned)status);
    }
    scene_end(&scene);
}

static void nonsense_lines_disturb_nobody(void **state) {
    struct scene scene;

    (void)state;
    scene_begin(&scene);
    talk_nonsense_to_admin(&scene.daemon, test_number("GPUPOOL_TEST_FUZZ_PACKETS", PACKETS));
    scene_end(&scene);
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"nonsense", play_nonsense}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nonsense_packets_disturb_nobody),
        cmocka_unit_test(nonsense_lines_disturb_nobody),
    };
    int status = puppet_main(argc, argv, roles);
    if (status >= 0)
        return status;
    seed = test_number("GPUPOOL_TEST_SEED", DEFAULT_SEED);
    print_message("seed %llu\n", (unsigned long long)seed);
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
