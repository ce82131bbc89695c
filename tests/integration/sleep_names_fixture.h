/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_SLEEP_NAMES_FIXTURE_H
#define TESTS_INTEGRATION_SLEEP_NAMES_FIXTURE_H
/*
 * The fixture of the tests of names that sleep and change: sets of buffers that a publisher writes, readers in the
 * test's own process, and a reader that is a process of its own. To be included once, by a test program.
 */
#include <gpupool/names.h>
#include <stdio.h>
#include <sys/socket.h>

#include "tests/integration/sleep_fixture.h"

#define NAME   "weights"
#define SET    2u
#define LAYOUT "where the tensors lie"

#define SAYS(part)                                                                                           \
    do {                                                                                                     \
        if (strstr(gpupool_error_text(), (part)) == NULL)                                                    \
            fail_msg("the text has no '%s': %s", (part), gpupool_error_text());                              \
    } while (0)

/* Buffers of a publisher, and what they hold. */
struct set {
    struct gpupool_buffer buffers[SET];
    uint64_t sizes[SET];
    uint64_t generation;
};

/* One in four segments, one in one. */
#define SET_OF_TWO ((struct set){.sizes = {SLEEPER_BYTES, MIB}})
#define SET_ROOM   (SLEEPER_ROOM + SEGMENT_BYTES)

static inline void set_acquire(struct gpupool_client *client, struct set *set) {
    for (unsigned i = 0; i < SET; i++)
        set->buffers[i] = acquire_sleeper(client, set->sizes[i]);
}

static inline void set_write(struct gpupool_client *client, const struct set *set, uint64_t seed) {
    for (unsigned i = 0; i < SET; i++)
        MUST(puppet_write_pattern(client, &set->buffers[i], SET * seed + i, NULL));
}

static inline void set_publish(struct gpupool_client *client, struct set *set, uint32_t flags) {
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;

    publication.flags = flags;
    publication.directory = LAYOUT;
    publication.directory_bytes = sizeof LAYOUT;
    MUST(gpupool_publish(client, NAME, set->buffers, SET, NULL, &publication, &set->generation));
}

static inline void set_release(struct gpupool_client *client, struct set *set) {
    for (unsigned i = 0; i < SET; i++)
        MUST(gpupool_release(client, &set->buffers[i], NULL));
}

/* Publishes a set of its own, which it releases. Returns the generation. */
static inline uint64_t publish_seed(struct gpupool_client *client, uint64_t seed, uint32_t flags) {
    struct set set = SET_OF_TWO;

    set_acquire(client, &set);
    set_write(client, &set, seed);
    set_publish(client, &set, flags);
    set_release(client, &set);
    return set.generation;
}

static inline struct gpupool_name *open_set(struct gpupool_client *client, uint32_t flags) {
    struct gpupool_name *name = NULL;

    MUST(gpupool_open_name(client, NAME, 0, flags | GPUPOOL_NAME_CAN_SLEEP, NULL, TEST_WAIT_NS, &name));
    return name;
}

/* Where a name's buffers lie. */
struct places {
    const void *data[SET];
};

static inline struct places places_of(const struct gpupool_name *name) {
    const struct gpupool_buffer *buffers = gpupool_name_buffers(name, NULL);
    return (struct places){{buffers[0].data, buffers[1].data}};
}

/* 0, or 1: a buffer has other contents. */
static inline int read_seed(struct gpupool_client *client, const struct gpupool_name *name, uint64_t seed) {
    for (unsigned i = 0; i < SET; i++) {
        int r = puppet_read_pattern(client, &gpupool_name_buffers(name, NULL)[i], SET * seed + i, NULL);
        if (r != 0)
            return r;
    }
    return 0;
}

static inline void expect_awake(struct gpupool_client *client, const struct gpupool_name *name,
                                const struct places *places, uint64_t seed) {
    const struct places now = places_of(name);

    assert_memory_equal(&now, places, sizeof now);
    MUST(read_seed(client, name, seed));
}

static inline void expect_asleep(const struct gpupool_name *name, const struct places *places) {
    const struct places now = places_of(name);

    assert_memory_equal(&now, places, sizeof now);
    for (unsigned i = 0; i < SET; i++)
        assert_false(is_mapped(&gpupool_name_buffers(name, NULL)[i]));
}

/* --- a reader that is a process --- */

enum order {
    ORDER_OPEN,
    ORDER_SLEEP,
    ORDER_WAKE, /* number: the generation */
    ORDER_READ, /* number: the seed */
    ORDER_CLOSE
};

struct order_message {
    enum order order;
    uint64_t number;
};

struct order_answer {
    int result;
    uint64_t generation;
    char text[512];
};

static inline int obey(struct gpupool_client *client, struct gpupool_name **name,
                       const struct order_message *message) {
    switch (message->order) {
    case ORDER_OPEN:
        return gpupool_open_name(client, NAME, 0, GPUPOOL_NAME_CAN_SLEEP, NULL, TEST_WAIT_NS, name);
    case ORDER_SLEEP:
        return gpupool_sleep_name(client, *name, NULL);
    case ORDER_WAKE:
        return gpupool_wake_name(client, *name, message->number, NULL, TEST_WAIT_NS);
    case ORDER_READ:
        return read_seed(client, *name, message->number);
    case ORDER_CLOSE: {
        int r = gpupool_close_name(client, *name, NULL);
        if (r == 0)
            *name = NULL;
        return r;
    }
    }
    return 1;
}

/* The role: obeys until its socket ends. argument: flags of gpupool_open(). */
static inline int read_names(int fd, const char *argument) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;
    struct gpupool_name *name = NULL;
    struct order_message message;

    options.flags = (uint32_t)strtoul(argument, NULL, 10);
    if (gpupool_open(&options, &client) < 0)
        return 1;
    while (recv(fd, &message, sizeof message, MSG_TRUNC) == sizeof message) { /* puppet_quit() sends more */
        struct order_answer answer = {.result = obey(client, &name, &message)};
        if (answer.result < 0)
            snprintf(answer.text, sizeof answer.text, "%s", gpupool_error_text());
        else if (name != NULL)
            answer.generation = gpupool_name_generation(name);
        if (send(fd, &answer, sizeof answer, 0) != sizeof answer)
            return 1;
    }
    gpupool_close(client);
    (void)gpupool_close_name(NULL, name, GPUPOOL_NO_STREAM);
    return 0;
}

#define READER_ROLE                                                                                          \
    { "reader", read_names }

static inline void give_order(struct puppet *reader, enum order order, uint64_t number) {
    const struct order_message message = {order, number};
    assert_int_equal(send(reader->fd, &message, sizeof message, 0), sizeof message);
}

static inline struct order_answer take_answer(struct puppet *reader) {
    struct order_answer answer;

    assert_int_equal(recv(reader->fd, &answer, sizeof answer, MSG_WAITALL), sizeof answer);
    return answer;
}

static inline struct order_answer order(struct puppet *reader, enum order order, uint64_t number) {
    give_order(reader, order, number);
    return take_answer(reader);
}

#define ORDER_MUST(reader, what, number)                                                                     \
    do {                                                                                                     \
        const struct order_answer answer_ = order((reader), (what), (number));                               \
        if (answer_.result != 0)                                                                             \
            fail_msg("%s: %d: %s", #what, answer_.result, answer_.text);                                     \
    } while (0)

#endif
