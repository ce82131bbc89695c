/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel between real processes, which are killed at random moments and have successors, or between
 * threads.
 *
 *     stress processes|threads wait|drop|fail [--elements N] [--deaths N] [--seed N]
 *
 * The parent plays the daemon. The producer sends N elements, and then leaves. Each consumer checks the order
 * and the contents of all that it receives, and notes in memory that outlives it what it holds: its successor
 * has to receive that once more. Now and then a consumer leaves, and comes again. Exit status 0: all elements
 * arrived, or were dropped by the policy that drops.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/core/receiver.h"
#include "client/core/sender.h"
#include "client/session/word_wait.h"
#include "tests/channel/pages.h"
#include "tests/random.h"

#define CONSUMERS   3u
#define SLOTS       8u
#define FRAME_WORDS 32u
#define HELD_MAX    4u
#define ASLEEP_MAX  2u /* elements that a sleeping consumer holds: all of them leave slots for the producer */
#define LIMIT_NS    (100 * NS_PER_S) /* of all */
#define STATUS_LEFT 3                /* of a child that left its place to come again */

/* A consumer's note about the element of a slot. */
enum note {
    NOTE_NONE,
    NOTE_HELD,
    NOTE_RELEASING, /* the call may have come to its end, or not */
};

struct notes {
    _Atomic uint64_t next; /* the sequence that is received next; 0: where the queue begins */
    _Atomic uint64_t last; /* the sequence that was received last */
    _Atomic uint64_t received, again, missed, joins;
    struct {
        _Atomic uint64_t note, sequence;
    } slots[SLOTS];
};

static struct {
    bool has_threads;
    enum proto_channel_policy policy;
    uint64_t elements, deaths, seed;
} options = {.policy = PROTO_CHANNEL_WAIT, .elements = 100000, .deaths = 300, .seed = 1};

static struct channel_pages pages;
static struct notes *notes; /* shared, by place; notes[0].next: the producer may end */
static pthread_mutex_t roll_lock = PTHREAD_MUTEX_INITIALIZER; /* of threads */
static uint64_t end_ns;

static _Noreturn void fail(unsigned place, const char *what, uint64_t number) {
    fprintf(stderr, "stress: place %u: %s (%" PRIu64 ")\n", place, what, number);
    _exit(1);
}

static void set_state(unsigned place, enum proto_channel_state state) {
    pthread_mutex_lock(&roll_lock);
    channel_pages_set(&pages, place, state);
    pthread_mutex_unlock(&roll_lock);
}

static void sleep_on(unsigned place, const struct channel_sleep *sleep) {
    int r = word_wait(sleep, end_ns);

    if (r < 0 && r != -EINTR)
        fail(place, r == -ETIMEDOUT ? "a sleeper is not woken" : "the wait fails", (uint64_t)-r);
}

/* The words of a frame follow from its sequence. */
static uint64_t frame_word(uint64_t sequence, unsigned i) {
    return sequence * UINT64_C(0x9e3779b97f4a7c15) + i;
}

/* --- the producer --- */

static uint32_t find_slot(struct sender *sender) {
    struct sender_loan loan;

    for (;;) {
        struct channel_sleep sleep;
        enum sender_result result = sender_find_slot(sender, &loan);
        if (result == SENDER_FULL && options.policy != PROTO_CHANNEL_FAIL) {
            sender_sleep_begin(sender, &sleep);
            result = sender_find_slot(sender, &loan);
            if (result == SENDER_FULL)
                sleep_on(0, &sleep);
            sender_sleep_end(sender);
        }
        if (result == SENDER_OK)
            return loan.slot;
        if (result != SENDER_FULL || clock_now_ns() > end_ns)
            fail(0, "no slot is found", result);
    }
}

static void *produce(void *argument) {
    struct sender *sender = malloc(sizeof *sender);
    struct channel_mapped mapped;

    (void)argument;
    channel_pages_map(&pages, PROTO_CHANNEL_PRODUCER, &mapped);
    if (sender == NULL || sender_init(sender, &mapped.view, mapped.producer) != SENDER_OK)
        fail(0, "a sender does not begin", 0);
    while (sender->head < options.elements || notes[0].next == 0) {
        uint32_t slot = find_slot(sender);
        uint64_t sequence = sender->head + 1, *frame = (uint64_t *)(void *)mapped.frames + slot * FRAME_WORDS;
        bool wakes;
        for (unsigned i = 0; i < FRAME_WORDS; i++)
            frame[i] = frame_word(sequence, i);
        if (sequence % 7 == 0) {
            sender_give_back(sender, slot, (struct channel_fence){0});
            slot = find_slot(sender);
            frame = (uint64_t *)(void *)mapped.frames + slot * FRAME_WORDS;
            for (unsigned i = 0; i < FRAME_WORDS; i++)
                frame[i] = frame_word(sequence, i);
        }
        struct sender_element element = {
            .size_bytes = FRAME_WORDS * 8, .metadata = &sequence, .metadata_bytes = 8};
        if (sender_send(sender, slot, &element, &wakes) != SENDER_OK)
            fail(0, "an element is not sent", sequence);
        if (wakes)
            word_wake(&mapped.producer->head);
    }
    free(sender);
    return NULL;
}

/* --- a consumer --- */

struct consumer {
    unsigned place;
    uint64_t random_state;
    struct channel_mapped mapped;
    struct receiver receiver;
    unsigned n_held;
    struct receiver_element held[SLOTS];
};

static void check_frame(const struct consumer *consumer, const struct receiver_element *element) {
    const uint64_t *frame =
        (const uint64_t *)(const void *)consumer->mapped.frames + element->slot * FRAME_WORDS;
    uint64_t sequence;

    for (unsigned i = 0; i < FRAME_WORDS; i++)
        if (frame[i] != frame_word(element->sequence, i))
            fail(consumer->place, "a frame has not what was sent", element->sequence);
    memcpy(&sequence, element->metadata, sizeof sequence);
    if (element->size_bytes != FRAME_WORDS * 8 || element->metadata_bytes != 8 ||
        sequence != element->sequence)
        fail(consumer->place, "an element has not what was sent", element->sequence);
}

static void wake_producer(const struct consumer *consumer, bool wakes) {
    if (wakes)
        word_wake(&consumer->mapped.consumer->releases);
}

/* The process before died after it had received, and before it noted that. */
static void take_over(struct consumer *consumer) {
    struct notes *noted = &notes[consumer->place];
    bool wakes;

    if (receiver_init(&consumer->receiver, &consumer->mapped.view, consumer->place, consumer->mapped.consumer,
                      &wakes) != RECEIVER_OK)
        fail(consumer->place, "a receiver does not begin", 0);
    wake_producer(consumer, wakes);
    uint64_t received = consumer->receiver.received;
    if (!consumer->receiver.is_admitted || received <= noted->next)
        return;
    if (noted->next > 0 && options.policy != PROTO_CHANNEL_DROP_OLDEST && received != noted->next + 1)
        fail(consumer->place, "more was received than one call receives", received);
    if (noted->next == 0 && received == consumer->receiver.begins)
        return;
    uint32_t n_again = consumer->receiver.n_again;
    if (n_again == 0 || consumer->receiver.slots[consumer->receiver.again[n_again - 1]] != received - 1)
        fail(consumer->place, "what was received is not received once more", received - 1);
    uint32_t slot = consumer->receiver.again[n_again - 1];
    noted->slots[slot].sequence = received - 1;
    noted->slots[slot].note = NOTE_HELD;
    noted->next = received;
    noted->last = received - 1;
}

static void note_received(struct consumer *consumer, const struct receiver_element *element) {
    struct notes *noted = &notes[consumer->place];

    if (element->is_again) {
        if (noted->slots[element->slot].note == NOTE_NONE ||
            noted->slots[element->slot].sequence != element->sequence)
            fail(consumer->place, "an element that was released is received once more", element->sequence);
        noted->slots[element->slot].note = NOTE_HELD;
        noted->again++;
        return;
    }
    for (unsigned slot = 0; slot < SLOTS; slot++) { /* what is received once more comes first */
        bool is_held = false;
        for (unsigned i = 0; i < consumer->n_held; i++)
            is_held |= consumer->held[i].slot == slot;
        if (noted->slots[slot].note == NOTE_HELD && !is_held)
            fail(consumer->place, "an element that was held is not received once more",
                 noted->slots[slot].sequence);
        if (!is_held)
            noted->slots[slot].note = NOTE_NONE;
    }
    if (noted->next != 0 && element->sequence != noted->next + element->missed)
        fail(consumer->place, "an element is out of order", element->sequence);
    if (element->missed > 0 && options.policy != PROTO_CHANNEL_DROP_OLDEST)
        fail(consumer->place, "an element is missed", element->sequence);
    noted->slots[element->slot].sequence = element->sequence;
    noted->slots[element->slot].note = NOTE_HELD;
    noted->next = element->sequence + 1;
    noted->last = element->sequence;
    noted->missed += element->missed;
    noted->received++;
}

static void release(struct consumer *consumer) {
    unsigned i = (unsigned)(random_next(&consumer->random_state) >> 33) % consumer->n_held;
    struct receiver_element element = consumer->held[i];
    struct notes *noted = &notes[consumer->place];
    bool wakes;

    check_frame(consumer, &element);
    noted->slots[element.slot].note = NOTE_RELEASING;
    if (receiver_release(&consumer->receiver, element.slot, (struct channel_fence){0}, &wakes) != RECEIVER_OK)
        fail(consumer->place, "an element is not released", element.sequence);
    noted->slots[element.slot].note = NOTE_NONE;
    consumer->held[i] = consumer->held[--consumer->n_held];
    wake_producer(consumer, wakes);
}

static enum receiver_result receive(struct consumer *consumer) {
    struct receiver_element element;
    bool wakes;
    enum receiver_result result = receiver_next(&consumer->receiver, &element, &wakes);

    wake_producer(consumer, wakes);
    if (result == RECEIVER_PROTOCOL)
        fail(consumer->place, "the pages are taken for broken ones", 0);
    if (result != RECEIVER_OK)
        return result;
    note_received(consumer, &element);
    check_frame(consumer, &element);
    consumer->held[consumer->n_held++] = element;
    return result;
}

/* Returns whether the process comes again. */
static bool consume(struct consumer *consumer) {
    channel_pages_map(&pages, consumer->place, &consumer->mapped);
    take_over(consumer);
    for (uint64_t n = 0;; n++) {
        struct channel_sleep sleep;
        uint64_t drawn = random_next(&consumer->random_state) >> 33;
        if (drawn % 20000 == 0)
            break;
        if (consumer->n_held >= HELD_MAX || (consumer->n_held > 0 && drawn % 2 == 0)) {
            release(consumer);
            continue;
        }
        enum receiver_result result = receive(consumer);
        if (result == RECEIVER_OK || result == RECEIVER_OVERRUN)
            continue;
        while (consumer->n_held > (result == RECEIVER_ENDED ? 0 : ASLEEP_MAX))
            release(consumer);
        if (result == RECEIVER_ENDED)
            return false;
        receiver_sleep_begin(&consumer->receiver, &sleep);
        result = receive(consumer);
        if (result == RECEIVER_EMPTY)
            sleep_on(consumer->place, &sleep);
        receiver_sleep_end(&consumer->receiver);
    }
    while (consumer->receiver.next_again < consumer->receiver.n_again)
        receive(consumer);
    while (consumer->n_held > 0)
        release(consumer);
    return true;
}

/* --- places as threads, and as processes --- */

static struct consumer *consumer_new(unsigned place, uint64_t seed) {
    struct consumer *consumer = calloc(1, sizeof *consumer);

    if (consumer == NULL)
        fail(place, "there is no memory", 0);
    consumer->place = place;
    consumer->random_state = random_seed(seed);
    return consumer;
}

/* A process has left: the next one has a new queue. */
static void leave(unsigned place) {
    notes[place].next = 0;
    for (unsigned slot = 0; slot < SLOTS; slot++)
        notes[place].slots[slot].note = NOTE_NONE;
    set_state(place, PROTO_CHANNEL_LEFT);
}

static void *consume_as_thread(void *argument) {
    unsigned place = (unsigned)(uintptr_t)argument;

    for (uint64_t n = 0, again = 1; again != 0; n++) {
        struct consumer *consumer = consumer_new(place, options.seed + n * PROTO_CHANNEL_PLACES + place);
        set_state(place, PROTO_CHANNEL_TAKEN);
        notes[place].joins++;
        again = consume(consumer);
        if (again != 0)
            leave(place);
        free(consumer);
    }
    return NULL;
}

static void run_threads(void) {
    pthread_t threads[CONSUMERS + 1];

    set_state(PROTO_CHANNEL_PRODUCER, PROTO_CHANNEL_TAKEN);
    for (unsigned place = 0; place <= CONSUMERS; place++)
        if (pthread_create(&threads[place], NULL, place == 0 ? produce : consume_as_thread,
                           (void *)(uintptr_t)place) != 0)
            fail(place, "a thread does not begin", 0);
    pthread_join(threads[0], NULL);
    set_state(PROTO_CHANNEL_PRODUCER, PROTO_CHANNEL_LEFT);
    for (unsigned place = 1; place <= CONSUMERS; place++)
        pthread_join(threads[place], NULL);
}

static pid_t start(unsigned place, uint64_t seed) {
    set_state(place, PROTO_CHANNEL_TAKEN);
    notes[place].joins++;
    pid_t pid = fork();
    if (pid < 0)
        fail(place, "a process does not begin", (uint64_t)errno);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (place == PROTO_CHANNEL_PRODUCER) {
        produce(NULL);
        _exit(0);
    }
    _exit(consume(consumer_new(place, seed)) ? STATUS_LEFT : 0);
}

/* A process has ended. Returns its successor, or 0. */
static pid_t settle(unsigned place, int status, uint64_t seed) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        set_state(place, PROTO_CHANNEL_DYING);
        set_state(place, PROTO_CHANNEL_VACANT);
        return start(place, seed);
    }
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != STATUS_LEFT))
        fail(place, "a process fails", (uint64_t)status);
    leave(place);
    return WEXITSTATUS(status) == STATUS_LEFT ? start(place, seed) : 0;
}

static void run_processes(_Atomic uint64_t *stop) {
    pid_t pids[CONSUMERS + 1];
    uint64_t random_state = random_seed(options.seed), n_deaths = 0, n_left = CONSUMERS + 1;

    for (unsigned place = 0; place <= CONSUMERS; place++)
        pids[place] = start(place, random_next(&random_state));
    while (n_left > 0) {
        int status;
        nanosleep(&(struct timespec){.tv_nsec = (long)(random_next(&random_state) % (2 * NS_PER_MS))}, NULL);
        unsigned victim = (unsigned)(random_next(&random_state) >> 33) % (CONSUMERS + 1);
        if (n_deaths < options.deaths && pids[victim] > 0) {
            kill(pids[victim], SIGKILL);
            n_deaths++;
        }
        if (n_deaths == options.deaths)
            *stop = 1;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
            for (unsigned place = 0; place <= CONSUMERS; place++)
                if (pids[place] == pid) {
                    pids[place] = settle(place, status, random_next(&random_state));
                    n_left -= pids[place] == 0;
                    break;
                }
        if (clock_now_ns() > end_ns)
            fail(0, "the processes do not end", n_left);
    }
}

/* --- */

static void check_end(const struct proto_channel_producer *page) {
    static const char *const policies[] = {"", "wait", "drop", "fail"};
    uint64_t head = page->head;

    printf("%s, %s: %" PRIu64 " elements sent\n", options.has_threads ? "threads" : "processes",
           policies[options.policy], head);
    for (unsigned place = 1; place <= CONSUMERS; place++) {
        const struct proto_channel_queue *queue = &page->queues[place - 1];
        bool has_queue = queue->number == proto_channel_queue_of(pages.roll->places[place].state);
        printf("place %u: %" PRIu64 " received, %" PRIu64 " once more, %" PRIu64 " missed, %" PRIu64
               " processes\n",
               place, notes[place].received, notes[place].again, notes[place].missed, notes[place].joins);
        /* A queue that was admitted behind the last element, or not at all, is empty. */
        if (has_queue && queue->begins <= head && notes[place].last != head)
            fail(place, "the last element is not received", notes[place].last);
    }
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {{"elements", required_argument, NULL, 'e'},
                                          {"deaths", required_argument, NULL, 'd'},
                                          {"seed", required_argument, NULL, 's'},
                                          {0}};
    static const char *const policies[] = {"wait", "drop", "fail"};
    bool has_policy = false;

    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        uint64_t *number = c == 'e' ? &options.elements : c == 'd' ? &options.deaths : &options.seed;
        if (c == '?')
            exit(2);
        *number = strtoull(optarg, NULL, 10);
    }
    for (unsigned i = 0; optind + 1 < argc && i < 3; i++)
        if (strcmp(argv[optind + 1], policies[i]) == 0) {
            options.policy = PROTO_CHANNEL_WAIT + i;
            has_policy = true;
        }
    if (!has_policy || (strcmp(argv[optind], "processes") != 0 && strcmp(argv[optind], "threads") != 0)) {
        fputs("stress processes|threads wait|drop|fail [--elements N] [--deaths N] [--seed N]\n", stderr);
        exit(2);
    }
    options.has_threads = strcmp(argv[optind], "threads") == 0;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    const struct proto_channel_capacities capacities = {.slot_bytes = FRAME_WORDS * 8,
                                                        .n_slots = SLOTS,
                                                        .metadata_bytes = 8,
                                                        .n_consumers = CONSUMERS,
                                                        .policy = options.policy};
    notes = mmap(NULL, (CONSUMERS + 1) * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    if (notes == MAP_FAILED) {
        perror("stress: mmap");
        return 1;
    }
    end_ns = clock_now_ns() + LIMIT_NS;
    channel_pages_make(&pages, &capacities, options.has_threads);
    for (unsigned place = 1; place <= CONSUMERS; place++)
        notes[place].next = 1;
    struct channel_mapped mapped;
    if (options.has_threads) {
        notes[0].next = 1;
        run_threads();
    } else
        run_processes(&notes[0].next);
    channel_pages_map(&pages, PROTO_CHANNEL_PRODUCER, &mapped);
    check_end(mapped.producer);
    return 0;
}
