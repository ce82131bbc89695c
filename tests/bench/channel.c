/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a channel between two processes, with frames in host memory: a turn, there and back through two
 * channels, while both processes look for the next element all the time (awake), and while each sleeps until
 * it is woken (asleep); and the frames a second through one channel. Beside it, alternately in the same run,
 * the turn of a 64-byte packet over a SEQPACKET Unix socket.
 *
 *     channel_turns [--json FILE] [--rounds N] [--frames N] [--slots N] [--frame-bytes N] [--consumers N]
 *
 * --rounds     turns of each kind (20000)
 * --frames     frames of each measurement of frames a second (1000000)
 * --consumers  consumer places of each channel (1). One process sits in the first; the others are left
 *
 * Needs no daemon: the program makes the pages itself.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/core/receiver.h"
#include "client/core/sender.h"
#include "client/session/word_wait.h"
#include "tests/bench/statistics.h"
#include "tests/channel/pages.h"

#define PACKET_SIZE 64u
#define BATCH       200u
#define WAIT_NS     (50 * NS_PER_S)

/* An element tells the peer by its session what to do. A reply names the element that it replies to: a reply
 * that belonged to an earlier turn would make turns short. */
enum command {
    COMMAND_NOTHING,
    COMMAND_ECHO,
    COMMAND_SOCKET, /* echo BATCH packets of the socket */
    COMMAND_END,
};

static struct {
    FILE *json;
    uint64_t rounds, frames, slots, frame_bytes, consumers;
} options = {.rounds = 20000, .frames = 1000000, .slots = 16, .frame_bytes = 64, .consumers = 1};

/* Whether processes sleep where there is nothing to do; shared by both. */
static _Atomic int *is_asleep;

/* One process's ends: it sends into one channel, and receives from the other. */
struct ends {
    struct channel_mapped out, in;
    struct sender sender;
    struct receiver receiver;
};

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "channel_turns: %s\n", what);
    exit(1);
}

static void pause_processor(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void sleep_on(const struct channel_sleep *sleep) {
    int r = word_wait(sleep, clock_now_ns() + WAIT_NS);
    if (r < 0 && r != -EINTR)
        fail("a sleeper is not woken");
}

static void open_ends(const struct channel_pages *out, const struct channel_pages *in, struct ends *ends) {
    bool wakes;

    channel_pages_map(out, PROTO_CHANNEL_PRODUCER, &ends->out);
    channel_pages_map(in, 1, &ends->in);
    if (sender_init(&ends->sender, &ends->out.view, ends->out.producer) != SENDER_OK ||
        receiver_init(&ends->receiver, &ends->in.view, 1, ends->in.consumer, &wakes) != RECEIVER_OK)
        fail("a channel does not begin");
}

/* The channel's frame is written before it is sent, and read after it was received. */
static void send_frame(struct ends *ends, enum command command, uint64_t replies_to) {
    struct sender *sender = &ends->sender;
    struct channel_sleep sleep;
    struct sender_loan loan;
    enum sender_result result;
    bool wakes;

    while ((result = sender_find_slot(sender, &loan)) == SENDER_FULL) {
        if (!*is_asleep) {
            pause_processor();
            continue;
        }
        sender_sleep_begin(sender, &sleep);
        result = sender_find_slot(sender, &loan);
        if (result == SENDER_FULL)
            sleep_on(&sleep);
        sender_sleep_end(sender);
        if (result != SENDER_FULL)
            break;
    }
    if (result != SENDER_OK)
        fail("no slot is found");
    memset(ends->out.frames + loan.slot * options.frame_bytes, (int)sender->head, options.frame_bytes);
    const struct sender_element element = {
        .size_bytes = options.frame_bytes,
        .metadata = &replies_to,
        .metadata_bytes = sizeof replies_to,
        .session = command,
    };
    if (sender_send(sender, loan.slot, &element, &wakes) != SENDER_OK)
        fail("a frame is not sent");
    if (wakes)
        word_wake(&ends->out.producer->head);
}

static enum command receive_frame(struct ends *ends, uint64_t *ret_sequence, uint64_t *ret_replies_to) {
    struct receiver *receiver = &ends->receiver;
    struct receiver_element element;
    struct channel_sleep sleep;
    enum receiver_result result;
    bool wakes;

    while ((result = receiver_next(receiver, &element, &wakes)) == RECEIVER_EMPTY) {
        if (!*is_asleep) {
            pause_processor();
            continue;
        }
        receiver_sleep_begin(receiver, &sleep);
        result = receiver_next(receiver, &element, &wakes);
        if (result == RECEIVER_EMPTY)
            sleep_on(&sleep);
        receiver_sleep_end(receiver);
        if (result != RECEIVER_EMPTY)
            break;
    }
    if (result != RECEIVER_OK)
        fail("no frame is received");
    const char *frame = ends->in.frames + element.slot * options.frame_bytes;
    if (frame[0] != (char)(element.sequence - 1) || frame[options.frame_bytes - 1] != frame[0])
        fail("a frame has not what was sent");
    enum command command = (enum command)element.session;
    *ret_sequence = element.sequence;
    memcpy(ret_replies_to, element.metadata, sizeof *ret_replies_to);
    if (receiver_release(receiver, element.slot, (struct channel_fence){0}, &wakes) != RECEIVER_OK)
        fail("a frame is not released");
    if (wakes)
        word_wake(&ends->in.consumer->releases);
    return command;
}

/* --- the peer --- */

static void serve(struct ends *ends, int socket) {
    char packet[PACKET_SIZE];
    uint64_t sequence, replies_to;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (enum command command; (command = receive_frame(ends, &sequence, &replies_to)) != COMMAND_END;) {
        for (unsigned i = 0; command == COMMAND_SOCKET && i < BATCH; i++)
            if (recv(socket, packet, sizeof packet, 0) != (ssize_t)sizeof packet ||
                send(socket, packet, sizeof packet, MSG_NOSIGNAL) != (ssize_t)sizeof packet)
                fail("the socket");
        if (command == COMMAND_ECHO)
            send_frame(ends, COMMAND_NOTHING, sequence);
    }
    _exit(0);
}

/* --- measurements --- */

/* Sends a frame, and waits for the reply to it. */
static void turn(struct ends *ends) {
    uint64_t sequence, replies_to;

    send_frame(ends, COMMAND_ECHO, 0);
    receive_frame(ends, &sequence, &replies_to);
    if (replies_to != ends->sender.head)
        fail("a reply belongs to another turn");
}

static void measure_turns(struct ends *ends, int asleep, struct samples *turns) {
    *is_asleep = asleep;
    for (unsigned i = 0; i < BATCH; i++) {
        uint64_t start_ns = clock_now_ns();
        turn(ends);
        samples_add(turns, clock_now_ns() - start_ns);
    }
}

static void measure_socket(struct ends *ends, int socket, struct samples *turns) {
    char packet[PACKET_SIZE] = {0};

    send_frame(ends, COMMAND_SOCKET, 0);
    for (unsigned i = 0; i < BATCH; i++) {
        uint64_t start_ns = clock_now_ns();
        if (send(socket, packet, sizeof packet, MSG_NOSIGNAL) < 0 ||
            recv(socket, packet, sizeof packet, 0) <= 0)
            fail("the socket");
        samples_add(turns, clock_now_ns() - start_ns);
    }
}

/* Frames a second, until the last one has come. */
static double measure_frames(struct ends *ends, int asleep) {
    *is_asleep = asleep;
    uint64_t start_ns = clock_now_ns();
    for (uint64_t i = 1; i < options.frames; i++)
        send_frame(ends, COMMAND_NOTHING, 0);
    turn(ends);
    return (double)options.frames * (double)NS_PER_S / (double)(clock_now_ns() - start_ns);
}

static void make_channel(struct channel_pages *pages) {
    const struct proto_channel_capacities capacities = {.slot_bytes = options.frame_bytes,
                                                        .n_slots = options.slots,
                                                        .metadata_bytes = sizeof(uint64_t),
                                                        .n_consumers = options.consumers,
                                                        .policy = PROTO_CHANNEL_WAIT};

    if (!proto_channel_are_valid(&capacities))
        fail("the channel is beyond the limits");
    channel_pages_make(pages, &capacities, false);
    channel_pages_set(pages, PROTO_CHANNEL_PRODUCER, PROTO_CHANNEL_TAKEN);
    for (unsigned place = 1; place <= options.consumers; place++)
        channel_pages_set(pages, place, place == 1 ? PROTO_CHANNEL_TAKEN : PROTO_CHANNEL_LEFT);
}

static void report(struct samples *const *all, unsigned n_all, double awake, double asleep) {
    printf("%-24s %10s %10s\n", "", "p50 ns", "p99 ns");
    for (unsigned i = 0; i < n_all; i++) {
        samples_sort(all[i]);
        printf("%-24s %10llu %10llu\n", all[i]->name, (unsigned long long)samples_quantile(all[i], 0.5),
               (unsigned long long)samples_quantile(all[i], 0.99));
    }
    printf("frames of %llu bytes a second: %.2f M awake, %.2f M asleep\n",
           (unsigned long long)options.frame_bytes, awake / 1e6, asleep / 1e6);
    if (options.json == NULL)
        return;
    fputs("{\n  \"times\": {\n", options.json);
    for (unsigned i = 0; i < n_all; i++)
        samples_print_json(all[i], options.json, i + 1 == n_all);
    fprintf(options.json, "  },\n  \"frame_bytes\": %llu,\n  \"frames_per_s_awake\": %.0f,\n",
            (unsigned long long)options.frame_bytes, awake);
    fprintf(options.json, "  \"frames_per_s_asleep\": %.0f\n}\n", asleep);
    fclose(options.json);
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {{"json", required_argument, NULL, 'j'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"frames", required_argument, NULL, 'f'},
                                          {"slots", required_argument, NULL, 's'},
                                          {"frame-bytes", required_argument, NULL, 'b'},
                                          {"consumers", required_argument, NULL, 'c'},
                                          {0}};

    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        uint64_t *number = c == 'r'   ? &options.rounds
                           : c == 'f' ? &options.frames
                           : c == 's' ? &options.slots
                           : c == 'b' ? &options.frame_bytes
                                      : &options.consumers;
        if (c == '?')
            exit(2);
        if (c == 'j')
            options.json = fopen(optarg, "we");
        else
            *number = strtoull(optarg, NULL, 10);
    }
    if (options.rounds == 0 || options.frames == 0)
        exit(2);
}

int main(int argc, char **argv) {
    static struct ends ends;
    struct channel_pages there, back;
    struct samples socket_turns, awake_turns, asleep_turns;
    int sockets[2];

    parse(argc, argv);
    is_asleep = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (is_asleep == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        fail("no memory or no socket");
    make_channel(&there);
    make_channel(&back);
    pid_t peer = fork();
    if (peer < 0)
        fail("no process");
    if (peer == 0) {
        open_ends(&back, &there, &ends);
        serve(&ends, sockets[1]);
    }
    close(sockets[1]);
    open_ends(&there, &back, &ends);
    samples_init(&socket_turns, "socket_turn", options.rounds + BATCH);
    samples_init(&awake_turns, "channel_turn_awake", options.rounds + BATCH);
    samples_init(&asleep_turns, "channel_turn_asleep", options.rounds + BATCH);
    for (uint64_t i = 0; i < options.rounds; i += BATCH) {
        measure_socket(&ends, sockets[0], &socket_turns);
        measure_turns(&ends, 0, &awake_turns);
        measure_turns(&ends, 1, &asleep_turns);
    }
    double awake = measure_frames(&ends, 0), asleep = measure_frames(&ends, 1);
    *is_asleep = 0;
    send_frame(&ends, COMMAND_END, 0);
    if (waitpid(peer, NULL, 0) != peer)
        fail("the peer does not end");
    struct samples *all[] = {&socket_turns, &awake_turns, &asleep_turns};
    report(all, 3, awake, asleep);
    return 0;
}
