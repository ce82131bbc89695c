/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that are published under a name, and opened by other processes.
 */
#include <gpupool/names.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "tests/integration/gate.h"
#include "tests/integration/passed_buffers.h"

static void expect_nothing_leased(void) {
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0 && daemon_sum(&daemon_, "quarantined_bytes") == 0);
}

/* Publishes one buffer of bytes, and releases it. */
static uint64_t publish_bytes(struct gpupool_client *client, const char *name, unsigned kind, int byte,
                              uint32_t flags, void *stream) {
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    struct gpupool_buffer buffer = acquire(client, kind, SIZE, stream);
    uint64_t generation;

    publication.flags = flags;
    publication.directory = "where it lies";
    publication.directory_bytes = sizeof "where it lies";
    MUST(gpupool_set(client, 0, buffer.data, byte, SIZE, stream));
    MUST(gpupool_publish(client, name, &buffer, 1, stream, &publication, &generation));
    MUST(gpupool_release(client, &buffer, stream));
    return generation;
}

static void a_name_is_opened_with_all_that_was_published(void **state) {
    enum { N = 5, DIRECTORY = 40000 };
    void *stream, *other;
    struct gpupool_client *publisher = open_cached_with_stream(&stream),
                          *reader = open_cached_with_stream(&other);
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    static uint8_t directory[DIRECTORY];
    struct gpupool_buffer buffers[N];
    struct gpupool_name *name;
    uint64_t generation;
    size_t count, bytes;
    struct gate gate;

    (void)state;
    gate_init(&gate, publisher);
    gate_close(&gate);
    for (unsigned i = 0; i < DIRECTORY; i++)
        directory[i] = (uint8_t)(i * 7 + i / 256);
    for (unsigned i = 0; i < N; i++) {
        buffers[i] = acquire(publisher, kinds[i % 2], SIZE, gate.stream);
        MUST(gpupool_set(publisher, 0, buffers[i].data, (int)i + 1, SIZE, gate.stream));
    }
    publication.directory = directory;
    publication.directory_bytes = DIRECTORY;
    MUST(gpupool_publish(publisher, "weights/one", buffers, N, gate.stream, &publication, &generation));
    MUST(gpupool_open_name(reader, "weights/one", 0, 0, other, GPUPOOL_NOW, &name));
    assert_false(gate_was_passed(&gate)); /* nothing has waited for the publisher's work */
    gate_open(&gate);
    assert_int_equal(gpupool_name_generation(name), generation);
    assert_int_equal(gpupool_name_flags(name), 0);
    assert_memory_equal(gpupool_name_directory(name, &bytes), directory, DIRECTORY);
    assert_int_equal(bytes, DIRECTORY);
    const struct gpupool_buffer *opened = gpupool_name_buffers(name, &count);
    assert_int_equal(count, N);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(opened[i].size_bytes, SIZE);
        assert_int_equal(opened[i].kind, kinds[i % 2]);
        expect_bytes(reader, &opened[i], (int)i + 1, other);
        assert_int_equal(gpupool_reuse(publisher, &buffers[i], gate.stream), GPUPOOL_E_SHARED);
        MUST(gpupool_release(publisher, &buffers[i], gate.stream));
    }
    MUST(gpupool_close_name(reader, name, other));
    gate_deinit(&gate);
    close_with_stream(publisher, stream); /* and with it goes the name */
    assert_int_equal(gpupool_open_name(reader, "weights/one", 0, 0, other, GPUPOOL_NOW, &name),
                     GPUPOOL_E_NO_NAME);
    close_with_stream(reader, other);
    expect_nothing_leased();
}

static void what_is_kept_outlives_its_publisher(void **state) {
    void *stream;
    struct gpupool_name *name;

    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct gpupool_client *client = open_cached_with_stream(&stream);
        uint64_t generation = publish_bytes(client, "kept", kinds[kind], 9, GPUPOOL_NAME_KEEP, stream);
        close_with_stream(client, stream);
        WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 0);
        assert_true(daemon_sum(&daemon_, "leased_bytes") >= SIZE);
        client = open_cached_with_stream(&stream);
        MUST(gpupool_open_name(client, "kept", generation, 0, stream, GPUPOOL_NOW, &name));
        assert_int_equal(gpupool_name_flags(name), GPUPOOL_NAME_KEEP);
        expect_bytes(client, gpupool_name_buffers(name, NULL), 9, stream);
        MUST(gpupool_unpublish(client, "kept", generation));
        assert_int_equal(gpupool_unpublish(client, "kept", 0), GPUPOOL_E_NO_NAME);
        expect_bytes(client, gpupool_name_buffers(name, NULL), 9,
                     stream); /* an open name keeps its buffers */
        MUST(gpupool_close_name(client, name, stream));
        close_with_stream(client, stream);
        expect_nothing_leased();
    }
}

static void readers_of_a_former_generation_keep_theirs(void **state) {
    void *stream;
    struct gpupool_client *client = open_cached_with_stream(&stream);
    struct gpupool_name *names[2];
    uint64_t generations[2], seen;

    (void)state;
    generations[0] = publish_bytes(client, "new", GPUPOOL_POOL_DEVICE, 1, 0, stream);
    MUST(gpupool_open_name(client, "new", 0, 0, stream, GPUPOOL_NOW, &names[0]));
    assert_int_equal(gpupool_open_name(client, "new", generations[0] + 1, 0, stream, GPUPOOL_NOW, &names[1]),
                     GPUPOOL_E_NO_NAME);
    assert_int_equal(gpupool_watch_name(client, "new", generations[0], GPUPOOL_NOW, &seen),
                     GPUPOOL_E_NO_NAME);
    generations[1] = publish_bytes(client, "new", GPUPOOL_POOL_DEVICE, 2, GPUPOOL_NAME_SAME_LAYOUT, stream);
    assert_true(generations[1] > generations[0]);
    MUST(gpupool_watch_name(client, "new", generations[0], GPUPOOL_NOW, &seen));
    assert_int_equal(seen, generations[1]);
    MUST(gpupool_open_name(client, "new", generations[0] + 1, 0, stream, GPUPOOL_NOW, &names[1]));
    assert_int_equal(gpupool_name_layout(names[0]), gpupool_name_layout(names[1]));
    expect_bytes(client, gpupool_name_buffers(names[0], NULL), 1, stream);
    expect_bytes(client, gpupool_name_buffers(names[1], NULL), 2, stream);
    for (unsigned i = 0; i < 2; i++)
        MUST(gpupool_close_name(client, names[i], stream));
    MUST(gpupool_unpublish(client, "new", 0));
    MUST(gpupool_watch_name(client, "new", generations[1], GPUPOOL_NOW, &seen));
    assert_int_equal(seen, 0);
    close_with_stream(client, stream);
    expect_nothing_leased();
}

static void another_layout_is_refused_where_the_same_is_asked(void **state) {
    void *stream;
    struct gpupool_client *client = open_cached_with_stream(&stream);
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, SIZE, stream);
    size_t count;

    (void)state;
    publication.flags = GPUPOOL_NAME_SAME_LAYOUT;
    assert_int_equal(gpupool_publish(client, "same", &buffer, 1, stream, &publication, NULL),
                     GPUPOOL_E_INVALID); /* nothing is there that it could be equal to */
    MUST(gpupool_publish(client, "same", &buffer, 1, stream, NULL, NULL));
    MUST(gpupool_publish(client, "same", &buffer, 1, stream, &publication, NULL));
    publication.directory = "x";
    publication.directory_bytes = 1;
    assert_int_equal(gpupool_publish(client, "same", &buffer, 1, stream, &publication, NULL),
                     GPUPOOL_E_INVALID);
    MUST(gpupool_names(client, NULL, 0, &count));
    assert_int_equal(count, 1);
    MUST(gpupool_release(client, &buffer, stream));
    close_with_stream(client, stream);
    expect_nothing_leased();
}

static void live_contents_can_be_written_by_readers_that_ask(void **state) {
    void *stream;
    struct gpupool_client *client = open_cached_with_stream(&stream);
    struct gpupool_name *name, *other;

    (void)state;
    publish_bytes(client, "fixed", GPUPOOL_POOL_DEVICE, 1, 0, stream);
    publish_bytes(client, "live", GPUPOOL_POOL_DEVICE, 1, GPUPOOL_NAME_LIVE, stream);
    assert_int_equal(gpupool_open_name(client, "fixed", 0, GPUPOOL_NAME_WRITE, stream, GPUPOOL_NOW, &name),
                     GPUPOOL_E_INVALID);
    MUST(gpupool_open_name(client, "live", 0, GPUPOOL_NAME_WRITE, stream, GPUPOOL_NOW, &name));
    MUST(gpupool_set(client, 0, gpupool_name_buffers(name, NULL)->data, 5, SIZE, stream));
    MUST(gpupool_open_name(client, "live", 0, 0, stream, GPUPOOL_NOW, &other));
    expect_bytes(client, gpupool_name_buffers(other, NULL), 5, stream);
    MUST(gpupool_close_name(client, name, stream));
    MUST(gpupool_close_name(client, other, stream));
    MUST(gpupool_open_name(client, "fixed", 0, 0, stream, GPUPOOL_NOW, &name));
    if (test_exports_vmm()) /* it is mapped for reading alone */
        assert_int_equal(
            gpupool_set(client, 0, gpupool_name_buffers(name, NULL)->data, 5, SIZE, stream), GPUPOOL_E_DRIVER);
    MUST(gpupool_close_name(client, name, stream));
    close_with_stream(client, stream);
    expect_nothing_leased();
}

static void names_are_listed(void **state) {
    enum { N = 150 };
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, SIZE, NULL);
    static struct gpupool_name_info infos[N + 1];
    size_t count;
    char text[32];

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        snprintf(text, sizeof text, "name/%u", i);
        MUST(gpupool_publish(client, text, &buffer, 1, GPUPOOL_NO_STREAM, NULL, NULL));
    }
    MUST(gpupool_names(client, infos, N + 1, &count));
    assert_int_equal(count, N);
    for (unsigned i = 0; i < N; i++) {
        snprintf(text, sizeof text, "name/%u", i);
        assert_string_equal(infos[i].name, text);
        assert_int_equal(infos[i].bytes, SIZE);
        assert_int_equal(infos[i].buffers, 1);
        assert_int_equal(infos[i].session, client->session.id);
    }
    MUST(gpupool_names(client, infos, 2, &count));
    assert_int_equal(count, N);
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    close_cached(client);
}

static void wrong_arguments_are_refused(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, SIZE, NULL), stale = buffer;
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    char name[GPUPOOL_NAME_TEXT_SIZE + 1] = {0};
    struct gpupool_name *opened;
    size_t count;
    int builds;

    (void)state;
    memset(name, 'n', GPUPOOL_NAME_TEXT_SIZE);
    for (unsigned i = 0; i < 4; i++) {
        const char *const bad[] = {NULL, "", "a\nb", name};
        assert_int_equal(gpupool_publish(client, bad[i], &buffer, 1, NULL, NULL, NULL), GPUPOOL_E_INVALID);
        assert_int_equal(gpupool_open_name(client, bad[i], 0, 0, NULL, 0, &opened), GPUPOOL_E_INVALID);
        assert_int_equal(gpupool_unpublish(client, bad[i], 0), GPUPOOL_E_INVALID);
    }
    name[GPUPOOL_NAME_TEXT_SIZE - 1] = '\0';
    assert_int_equal(gpupool_publish(client, name, NULL, 1, NULL, NULL, NULL), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_publish(client, name, &buffer, 0, NULL, NULL, NULL), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_publish(client, name, &buffer, 65, NULL, NULL, NULL), GPUPOOL_E_INVALID);
    publication.flags = 64;
    assert_int_equal(gpupool_publish(client, name, &buffer, 1, NULL, &publication, NULL), GPUPOOL_E_INVALID);
    publication.flags = 0;
    publication.directory_bytes = 1;
    assert_int_equal(gpupool_publish(client, name, &buffer, 1, NULL, &publication, NULL), GPUPOOL_E_INVALID);
    publication.directory = &publication;
    publication.directory_bytes = GPUPOOL_NAME_DIRECTORY_MAX + 1;
    assert_int_equal(gpupool_publish(client, name, &buffer, 1, NULL, &publication, NULL), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "into a buffer of the set"));
    assert_int_equal(gpupool_open_name(client, name, 0, 1, NULL, 0, &opened), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_open_name(client, name, 0, 0, NULL, 0, NULL), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_open_or_build(client, name, 0, NULL, 0, NULL, &builds), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_names(client, NULL, 1, &count), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_abandon_name(client, name), GPUPOOL_E_NO_NAME);
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_int_equal(gpupool_publish(client, name, &stale, 1, NULL, NULL, NULL), GPUPOOL_E_STALE);
    MUST(gpupool_close_name(client, NULL, NULL));
    close_cached(client);
}

/* --- builders --- */

/* Requests of the test's user that wait. */
static uint64_t waiting(void) {
    cJSON *reply = daemon_ask(&daemon_, "{\"command\":\"quota\"}");
    const cJSON *user = cJSON_GetArrayItem(cJSON_GetObjectItem(reply, "quotas"), 0);
    uint64_t n = user == NULL ? 0 : (uint64_t)cJSON_GetObjectItem(user, "waiting")->valuedouble;

    cJSON_Delete(reply);
    return n;
}

struct asker {
    const char *name;
    struct gpupool_client *client;
    struct gpupool_name *opened;
    int builds, error;
    pthread_t thread;
};

static void *ask_to_build(void *argument) {
    struct asker *asker = argument;

    asker->error = gpupool_open_or_build(asker->client, asker->name, 0, GPUPOOL_NO_STREAM, TEST_WAIT_NS,
                                         &asker->opened, &asker->builds);
    return NULL;
}

static void begin_to_ask(struct asker *asker, const char *name, struct gpupool_client *client) {
    *asker = (struct asker){.name = name, .client = client};
    assert_int_equal(pthread_create(&asker->thread, NULL, ask_to_build, asker), 0);
}

static void end_to_ask(struct asker *asker) {
    assert_int_equal(pthread_join(asker->thread, NULL), 0);
    assert_int_equal(asker->error, 0);
}

static void one_builds_and_the_others_wait(void **state) {
    struct gpupool_client *builder = open_cached(), *others = open_cached();
    struct gpupool_name *name;
    struct asker askers[3];
    int builds;

    (void)state;
    MUST(gpupool_open_or_build(builder, "built", 0, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &name, &builds));
    assert_true(builds && name == NULL);
    for (unsigned i = 0; i < 3; i++)
        begin_to_ask(&askers[i], "built", others);
    assert_int_equal(gpupool_open_name(others, "built", 0, 0, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &name),
                     GPUPOOL_E_NO_NAME);
    assert_non_null(strstr(gpupool_error_text(), "is to build it"));
    publish_bytes(builder, "built", GPUPOOL_POOL_HOST, 6, 0, NULL);
    for (unsigned i = 0; i < 3; i++) {
        end_to_ask(&askers[i]);
        assert_false(askers[i].builds);
        assert_int_equal(*(uint8_t *)gpupool_name_buffers(askers[i].opened, NULL)->data, 6);
        MUST(gpupool_close_name(others, askers[i].opened, GPUPOOL_NO_STREAM));
    }
    assert_int_equal(gpupool_abandon_name(builder, "built"), GPUPOOL_E_NO_NAME);
    gpupool_close(builder);
    close_cached(others);
}

static void the_next_builds_where_a_builder_gives_up(void **state) {
    struct gpupool_client *builder = open_cached(), *other = open_cached();
    struct gpupool_name *name;
    struct asker asker;
    int builds;

    (void)state;
    for (unsigned leaves = 0; leaves < 2; leaves++) {
        MUST(gpupool_open_or_build(builder, "given up", 0, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &name, &builds));
        assert_true(builds);
        begin_to_ask(&asker, "given up", other);
        WAIT_UNTIL(waiting() == 1);
        if (leaves)
            gpupool_close(builder);
        else
            MUST(gpupool_abandon_name(builder, "given up"));
        end_to_ask(&asker);
        assert_true(asker.builds);
        MUST(gpupool_abandon_name(other, "given up"));
    }
    close_cached(other);
}

/* --- ends --- */

/* Builds, or publishes behind work that never ends, and waits to be killed. argument: which. */
static int build_or_publish(int fd, const char *argument) {
    struct gpupool_client *client = NULL;
    struct gpupool_name *name;
    struct gate gate;
    char byte;
    int builds;

    MUST(gpupool_open(NULL, &client));
    if (strcmp(argument, "build") == 0) {
        MUST(gpupool_open_or_build(client, "died", 0, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &name, &builds));
    } else {
        gate_init(&gate, client);
        publish_bytes(client, "done", GPUPOOL_POOL_DEVICE, 3, GPUPOOL_NAME_KEEP, gate.stream);
        publish_bytes(client, "gone", GPUPOOL_POOL_DEVICE, 3, 0, gate.stream);
        MUST(gpupool_stream_synchronize(client, 0, gate.stream));
        gate_close(&gate);
        publish_bytes(client, "stuck", GPUPOOL_POOL_DEVICE, 4, GPUPOOL_NAME_KEEP, gate.stream);
    }
    if (send(fd, "", 1, 0) != 1)
        return 1;
    return recv(fd, &byte, 1, 0) == 1 ? 0 : 1;
}

static void start_role(struct puppet *worker, const char *argument) {
    char byte;

    puppet_start_role(worker, &daemon_, "build", argument);
    assert_int_equal(recv(worker->fd, &byte, 1, 0), 1);
}

static void the_next_builds_where_a_builder_dies(void **state) {
    struct gpupool_client *client = open_cached();
    struct puppet worker;
    struct asker asker;

    (void)state;
    start_role(&worker, "build");
    begin_to_ask(&asker, "died", client);
    WAIT_UNTIL(waiting() == 1);
    puppet_kill(&worker);
    end_to_ask(&asker);
    assert_true(asker.builds);
    close_cached(client);
}

/* A kept edition stays once its fences are ready. One whose fences were not ready when its publisher died cannot be opened. */
static void a_publisher_that_dies_leaves_what_was_done(void **state) {
    struct gpupool_name *name;
    struct puppet worker;
    uint64_t seen;
    void *stream;

    (void)state;
    start_role(&worker, "publish");
    struct gpupool_client *client = open_cached_with_stream(&stream);
    MUST(gpupool_watch_name(client, "stuck", 0, GPUPOOL_NOW, &seen));
    puppet_kill(&worker);
    uint64_t gone;
    MUST(gpupool_watch_name(client, "stuck", seen, TEST_WAIT_NS, &gone));
    assert_int_equal(gone, 0);
    assert_int_equal(gpupool_open_name(client, "gone", 0, 0, stream, GPUPOOL_NOW, &name), GPUPOOL_E_NO_NAME);
    MUST(gpupool_open_name(client, "done", 0, 0, stream, GPUPOOL_NOW, &name));
    expect_bytes(client, gpupool_name_buffers(name, NULL), 3, stream);
    MUST(gpupool_unpublish(client, "done", 0));
    MUST(gpupool_close_name(client, name, stream));
    close_with_stream(client, stream);
    expect_nothing_leased();
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"build", build_or_publish}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_opened_with_all_that_was_published),
        cmocka_unit_test(what_is_kept_outlives_its_publisher),
        cmocka_unit_test(readers_of_a_former_generation_keep_theirs),
        cmocka_unit_test(another_layout_is_refused_where_the_same_is_asked),
        cmocka_unit_test(live_contents_can_be_written_by_readers_that_ask),
        cmocka_unit_test(names_are_listed),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(one_builds_and_the_others_wait),
        cmocka_unit_test(the_next_builds_where_a_builder_gives_up),
        cmocka_unit_test(the_next_builds_where_a_builder_dies),
        cmocka_unit_test(a_publisher_that_dies_leaves_what_was_done),
    };
    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
