/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_NAMES_FIXTURE_H
#define TESTS_UNIT_NAMES_FIXTURE_H
/* Publishing and opening names, for tests of the core. Each helper that changes the core checks its invariants. */
#include <string.h>

#include "core_fixture.h"
#include "daemon/core/name.h"

/* An edition that a test publishes: see publish(). */
struct wish {
    const char *name;
    struct lease *leases[4];
    unsigned count;
    uint32_t flags;
    uint64_t layout;
    uint32_t directory_bytes;
    bool has_fence; /* in the session's slot, of word 1, for each buffer */
    uint64_t fence_value;
};

static inline struct proto_publish publish_of(const struct session *session, const struct wish *wish) {
    struct proto_publish publish = {.flags = wish->flags,
                                    .count = wish->count,
                                    .directory_bytes = wish->directory_bytes,
                                    .layout = wish->layout};

    snprintf(publish.name, sizeof publish.name, "%s", wish->name);
    for (unsigned i = 0; i < wish->count; i++) {
        publish.buffers[i] = (struct proto_publish_buffer){
            .lease = wish->leases[i]->id,
            .generation = wish->leases[i]->generation,
            .size_bytes = wish->leases[i]->block->size_bytes,
        };
        if (wish->has_fence) {
            publish.buffers[i].has_fence = 1;
            publish.buffers[i].fence =
                (struct proto_board_fence){session->board_slot - 1, 1, wish->fence_value};
        }
    }
    return publish;
}

/* Returns what core_publish() does. *ret_generation may be NULL. */
static inline int publish_message(struct session *session, const struct proto_publish *publish,
                                  uint64_t *ret_generation) {
    static uint32_t next_token;
    struct proto_token tokens[2 * PROTO_NAME_BUFFERS_MAX] = {0};
    uint64_t generation = 0;

    for (unsigned i = 0; i < 2 * publish->count; i++) {
        next_token++;
        memcpy(tokens[i].bytes, &next_token, sizeof next_token);
    }
    int r = core_publish(session, publish, tokens, 0, &generation);
    assert_true(core_is_valid(session->core));
    assert_true((r == 0) == (generation != 0));
    if (ret_generation != NULL)
        *ret_generation = generation;
    return r;
}

static inline int publish(struct session *session, const struct wish *wish, uint64_t *ret_generation) {
    const struct proto_publish message = publish_of(session, wish);
    return publish_message(session, &message, ret_generation);
}

/* Publishes a lease, which has to succeed. Returns the generation. */
static inline uint64_t publish_one(struct session *session, const char *name, struct lease *lease,
                                   uint32_t flags) {
    const struct wish wish = {.name = name, .leases = {lease}, .count = 1, .flags = flags};
    uint64_t generation;

    assert_int_equal(publish(session, &wish, &generation), 0);
    return generation;
}

/* Returns what core_unpublish() does. */
static inline int unpublish(struct session *session, const char *name, uint64_t generation, uint32_t flags) {
    struct proto_unpublish message = {.generation = generation, .flags = flags};

    snprintf(message.name, sizeof message.name, "%s", name);
    int r = core_unpublish(session, &message, 0);
    assert_true(core_is_valid(session->core));
    return r;
}

/* Returns what core_open_name() does. */
static inline int try_open(struct session *session, uint64_t request, const char *name, uint64_t generation,
                           uint32_t flags, uint64_t timeout_ns, uint64_t now_ns) {
    struct proto_open_name message = {.generation = generation, .timeout_ns = timeout_ns, .flags = flags};

    snprintf(message.name, sizeof message.name, "%s", name);
    int r = core_open_name(session, request, &message, now_ns);
    assert_true(core_is_valid(session->core));
    return r;
}

/* A request without a deadline, which is entered. */
static inline void open_name(struct session *session, uint64_t request, const char *name, uint64_t generation,
                             uint32_t flags) {
    assert_int_equal(try_open(session, request, name, generation, flags, NS_FOREVER, 0), 0);
}

static inline struct name_answer expect_name_answer(struct core *core, const struct session *session,
                                                    uint64_t request) {
    struct name_answer answer = {0};

    assert_true(core_next_name_answer(core, &answer));
    assert_true(core_is_valid(core));
    assert_ptr_equal(answer.session, session);
    assert_int_equal(answer.request, request);
    return answer;
}

/* The next answer is that the generation is there. */
static inline struct proto_named expect_there(struct core *core, const struct session *session,
                                              uint64_t request, uint64_t generation) {
    struct name_answer answer = expect_name_answer(core, session, request);

    assert_int_equal(answer.error, 0);
    assert_int_equal(answer.named.state, PROTO_NAME_THERE);
    assert_int_equal(answer.named.generation, generation);
    return answer.named;
}

/* The next answer is a state other than THERE, which says nothing else. */
static inline void expect_state(struct core *core, const struct session *session, uint64_t request,
                                enum proto_name_state state) {
    const struct name_answer answer = expect_name_answer(core, session, request);
    const struct proto_named expected = {.state = state};

    assert_int_equal(answer.error, 0);
    assert_memory_equal(&answer.named, &expected, sizeof expected);
}

/* The next answer is this refusal. Returns its text, which lives until the next refusal. */
static inline const char *expect_name_refused(struct core *core, const struct session *session,
                                              uint64_t request, enum proto_error error) {
    static struct name_answer answer;

    answer = expect_name_answer(core, session, request);
    assert_int_equal(answer.error, error);
    assert_int_equal(answer.failure.error, error);
    assert_true(answer.failure.text_length > 0);
    return answer.failure.text;
}

/* The next answer is that the session has the place of a channel. */
static inline void expect_place_got(struct core *core, const struct session *session, uint64_t request,
                                 uint32_t place) {
    const struct name_answer answer = expect_name_answer(core, session, request);

    assert_int_equal(answer.error, 0);
    assert_true(answer.is_of_channel);
    assert_int_equal(answer.channel.place, place);
}

static inline void expect_no_name_answer(struct core *core) {
    struct name_answer answer;
    assert_false(core_next_name_answer(core, &answer));
}

/* Opens a name that is there, without waiting. */
static inline struct proto_named open_now(struct session *session, const char *name, uint64_t generation) {
    assert_int_equal(try_open(session, 900, name, 0, 0, 0, 0), 0);
    return expect_there(session->core, session, 900, generation);
}

/* Nothing is published under the name. */
static inline void expect_nothing(struct session *session, const char *name) {
    assert_int_equal(try_open(session, 901, name, 0, 0, 0, 0), 0);
    expect_name_refused(session->core, session, 901, PROTO_E_NO_NAME);
}

static inline int write_directory(struct session *session, uint32_t offset_bytes, const void *bytes,
                                  uint32_t n_bytes) {
    static struct proto_directory_part part;

    part = (struct proto_directory_part){.offset_bytes = offset_bytes, .n_bytes = n_bytes};
    memcpy(part.bytes, bytes, n_bytes);
    int r = core_write_directory(session, &part);
    assert_true(core_is_valid(session->core));
    return r;
}

static inline int attach_to(struct session *session, const struct proto_token *token,
                            struct lease **ret_lease) {
    int r = core_attach(session, token, ret_lease);
    assert_true(core_is_valid(session->core));
    return r;
}

#endif
