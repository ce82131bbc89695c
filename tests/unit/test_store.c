/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of the store (daemon/loop/store.h), with a service manager that only listens. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/notifier.h"
#include "daemon/loop/store.h"
#include "tests/unit/directory_fixture.h"
#include "tests/unit/unit.h"

/* Above the numbers that a manager passes. */
#define OWN_FDS 500

static struct notifier notifier; /* is never started: messages are sent at once */
static struct store store;
static int manager = -1;

static int listen_as_manager(void **state) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (make_directory(state) < 0)
        return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of("notify"));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    manager = fcntl(fd, F_DUPFD_CLOEXEC, OWN_FDS);
    close_fd(fd);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    return bind(manager, (struct sockaddr *)&address, sizeof address);
}

static int leave_as_manager(void **state) {
    manager = close_fd(manager);
    unlink(path_of("notify"));
    return remove_directory(state);
}

/* The next message's text; "": there is none. Its descriptor is closed. */
static const char *heard(void) {
    static char text[256];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {text, sizeof text - 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

    ssize_t n = recvmsg(manager, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    text[n > 0 ? n : 0] = '\0';
    if (n > 0 && message.msg_controllen > 0 && control.header.cmsg_type == SCM_RIGHTS)
        close_fd(*(int *)CMSG_DATA(&control.header));
    return text;
}

/* Passes descriptors of these names, as systemd does, and opens the store with room for `limit`. */
static void pass(const char *const *names, size_t n, unsigned limit) {
    char text[32];
    _cleanup_(freep) char *list = calloc(n + 1, 8);

    for (size_t i = 0; i < n; i++) {
        int fd = memfd_create("passed", MFD_CLOEXEC), wanted = SD_LISTEN_FDS_START + (int)i;
        assert_true(fd >= 0);
        assert_int_equal(dup2(fd, wanted), wanted);
        if (fd != wanted)
            close_fd(fd);
        sprintf(list + strlen(list), "%s%s", i > 0 ? ":" : "", names[i]);
    }
    snprintf(text, sizeof text, "%d", (int)getpid());
    setenv("LISTEN_PID", text, 1);
    snprintf(text, sizeof text, "%zu", n);
    setenv("LISTEN_FDS", text, 1);
    setenv("LISTEN_FDNAMES", list, 1);
    snprintf(text, sizeof text, "%u", limit);
    setenv("FDSTORE", text, 1);
    assert_int_equal(store_open(&store, &notifier, false), 0);
}

static bool is_open(int fd) {
    return fcntl(fd, F_GETFD) >= 0;
}

static void of_equal_names_the_lowest_number_is_taken_first(void **state) {
    static const char *const names[] = {"odd", "SB", "odd", "data", "odd", "LA"};
    (void)state;

    pass(names, ARRAY_LENGTH(names), 100);
    for (int fd = 3; fd <= 7; fd += 2) {
        assert_int_equal(store_take(&store, "odd"), fd);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    assert_int_equal(store_take(&store, "odd"), -1);
    assert_int_equal(store_take(&store, "data"), 6);
    for (int fd = 3; fd <= 7; fd++)
        assert_true(fd == 4 || close(fd) == 0);
    store_close(&store);
    assert_false(is_open(4) || is_open(8)); /* those were not taken */
}

static void each_name_is_found_whatever_its_place(void **state) {
    static char texts[400][5];
    const char *names[400];
    (void)state;

    for (unsigned i = 0; i < ARRAY_LENGTH(names); i++) {
        snprintf(texts[i], sizeof texts[i], "%c%c%c", "SCDP"[i % 4], 'B' + (char)(i % 20),
                 'A' + (char)(i / 20));
        names[i] = texts[i];
    }
    pass(names, ARRAY_LENGTH(names), 1000);
    assert_int_equal(store.count, ARRAY_LENGTH(names));
    for (unsigned i = 0; i < ARRAY_LENGTH(names); i++) {
        unsigned any = i * 77 % ARRAY_LENGTH(names);
        assert_int_equal(store_take(&store, names[any]), 3 + (int)any);
        assert_int_equal(store_take(&store, names[any]), -1);
        close_fd(3 + (int)any);
    }
    assert_int_equal(store_take(&store, "A"), -1);
    assert_int_equal(store_take(&store, "ZZZ"), -1);
    store_close(&store);
}

static void the_only_one_of_a_kind_is_found(void **state) {
    static const char *const names[] = {"E!", "SA", "EB", "Eodd!"};
    char name[STORE_NAME_SIZE];
    (void)state;

    pass(names, ARRAY_LENGTH(names), 100);
    assert_int_equal(store_take_kind(&store, STORE_ESTATE, name), 5); /* the others are no names of slots */
    assert_string_equal(name, "EB");
    assert_int_equal(store_take_kind(&store, STORE_ESTATE, name), -1);
    close_fd(5);
    store_close(&store);
}

static void what_nothing_took_is_closed_and_removed(void **state) {
    static const char *const names[] = {"SA", "odd", "SB"};
    (void)state;

    pass(names, ARRAY_LENGTH(names), 100);
    assert_int_equal(store_take(&store, "SB"), 5);
    store_settle(&store);
    assert_string_equal(heard(), "FDSTOREREMOVE=1\nFDNAME=SA");
    assert_string_equal(heard(), "FDSTOREREMOVE=1\nFDNAME=odd");
    assert_string_equal(heard(), "");
    assert_false(is_open(3) || is_open(4));
    assert_int_equal(store.count, 1);
    close_fd(5);
    store_close(&store);
}

static void a_full_store_takes_no_more_until_something_leaves(void **state) {
    static const char *const names[] = {"SA"};
    char second[STORE_NAME_SIZE], third[STORE_NAME_SIZE];
    (void)state;

    pass(names, ARRAY_LENGTH(names), 2);
    store_put(&store, STORE_PAGE, 3, second);
    assert_string_equal(second, "PB");
    assert_string_equal(heard(), "FDSTORE=1\nFDPOLL=0\nFDNAME=PB");
    store_put(&store, STORE_PAGE, 3, third);
    assert_string_equal(third, "");
    assert_true(store.complained);
    store_leave(&store, second);
    assert_string_equal(second, "");
    assert_string_equal(heard(), "");
    store_remove_leaving(&store);
    assert_string_equal(heard(), "FDSTOREREMOVE=1\nFDNAME=PB");
    store_put(&store, STORE_PAGE, 3, third);
    assert_string_equal(third, "PC");
    (void)heard();
    store_close(&store);
}

static void sessions_have_up_to_one_half_of_the_store(void **state) {
    (void)state;
    assert_int_equal(descriptors_share_store(0, 1024), 0);
    assert_int_equal(descriptors_share_store(16, 1024), 0);
    assert_int_equal(descriptors_share_store(17, 1024), 0);
    assert_int_equal(descriptors_share_store(176, 1024), 149 - 74); /* a 16th and 16 are the daemon's own */
    assert_int_equal(descriptors_share_store(176, 1), 149 - 4);
    assert_int_equal(descriptors_share_store(STORE_SLOTS, UINT32_MAX), (STORE_SLOTS - 1516) / 2);
    assert_int_equal(descriptors_share_stored_pages(149 - 74), 9);
    assert_int_equal(descriptors_share_stored_pages(0), 0);
}

static void segments_leave_others_room(void **state) {
    static const char *const names[] = {"SA", "PB"};
    char name[STORE_NAME_SIZE], last[STORE_NAME_SIZE];
    (void)state;

    pass(names, ARRAY_LENGTH(names), 6);
    store_bound_segments(&store, 3);
    assert_int_equal(store.n_segments, 1);
    for (unsigned i = 0; i < 2; i++) {
        store_put(&store, STORE_SEGMENT, 3, last);
        assert_string_not_equal(last, "");
    }
    store_put(&store, STORE_SEGMENT, 3, name);
    assert_string_equal(name, "");
    assert_true(store.complained_of_segments && !store.complained);
    store_put(&store, STORE_SOCKET, 3, name);
    assert_string_not_equal(name, "");
    store_remove(&store, last);
    assert_int_equal(store.n_segments, 2);
    store_put(&store, STORE_SEGMENT, 3, last);
    assert_string_not_equal(last, "");
    store_bound_segments(&store, 4);
    assert_false(store.complained_of_segments); /* it may be said again */
    store_put(&store, STORE_SEGMENT, 3, last);
    assert_string_not_equal(last, "");
    store_put(&store, STORE_SOCKET, 3, name);
    assert_string_equal(name, ""); /* all six are taken */
    while (heard()[0] != '\0')
        continue;
    store_close(&store);
}

/* --- with a notifier that runs --- */

struct blockade {
    struct worker_job job;
    sem_t end;
};

static void blockade_run(struct worker_job *job) {
    struct blockade *blockade = container_of(job, struct blockade, job);
    while (sem_wait(&blockade->end) < 0)
        continue;
}

static void blockade_done(struct worker_job *job) {
    (void)job;
}

static void a_removal_comes_after_what_it_removes(void **state) {
    static const char *const names[] = {"SA"};
    struct blockade blockade = {.job = {.run = blockade_run, .done = blockade_done}};
    char name[STORE_NAME_SIZE], stored[64];
    unsigned n_heard = 0;
    uv_loop_t loop;
    (void)state;

    pass(names, ARRAY_LENGTH(names), 1000);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(notifier_start(&notifier, &loop), 0);
    assert_int_equal(sem_init(&blockade.end, 0, 0), 0);
    worker_submit(&notifier.worker, &blockade.job);
    do /* until the manager's queue is full, and one waits behind the blockade */
        store_put(&store, STORE_PAGE, 3, name);
    while (notifier.worker.pending == 1);
    snprintf(stored, sizeof stored, "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
    while (heard()[0] != '\0')
        continue;
    store_remove(&store, name);
    assert_string_equal(heard(), ""); /* although the queue has room */
    sem_post(&blockade.end);
    for (const char *text; n_heard < 2;) {
        struct pollfd ready = {.fd = manager, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, (int)(TEST_WAIT_NS / NS_PER_MS)), 1);
        text = heard();
        assert_true(strcmp(text, stored) == 0 ? n_heard == 0
                                              : n_heard == 1 && strstr(text, "FDSTOREREMOVE=1") == text);
        n_heard++;
    }
    while (notifier.worker.pending > 0)
        uv_run(&loop, UV_RUN_ONCE);
    size_t slot = store_slot(name);
    assert_int_not_equal(store.kinds[slot], 0); /* its removal was on its way */
    store_put(&store, STORE_PAGE, 3, name);
    assert_int_equal(store.kinds[slot], 0);
    (void)heard();
    worker_stop(&notifier.worker);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    sem_destroy(&blockade.end);
    store_close(&store);
    notifier = (struct notifier){0};
}

/* --- a manager that goes --- */

static void without_a_manager_names_are_given_and_nothing_is_sent(void **state) {
    static const char *const names[] = {"SA"};
    char first[STORE_NAME_SIZE], second[STORE_NAME_SIZE], again[STORE_NAME_SIZE];
    (void)state;

    pass(names, ARRAY_LENGTH(names), 10);
    store_put(&store, STORE_PAGE, 3, first);
    assert_string_not_equal(heard(), "");
    store_lose_manager(&store);
    store_put(&store, STORE_PAGE, 3, second);
    assert_string_equal(second, "PC");
    store_remove(&store, first);
    store_leave(&store, first);
    assert_int_equal(store.count, 2);
    assert_true(store_name(&store, store_slot(second), again));
    assert_string_equal(again, second);
    assert_false(store_name(&store, 1, again)); /* the first one's */
    assert_string_equal(heard(), "");
    store_begin_move(&store, 5);
    assert_int_equal(store.limit, 5);
    store_put(&store, STORE_PAGE, 3, first);
    assert_string_equal(heard(), "FDSTORE=1\nFDPOLL=0\nFDNAME=PD");
    store_note_held(&store);
    store_close(&store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_equal_names_the_lowest_number_is_taken_first),
        cmocka_unit_test(each_name_is_found_whatever_its_place),
        cmocka_unit_test(the_only_one_of_a_kind_is_found),
        cmocka_unit_test(what_nothing_took_is_closed_and_removed),
        cmocka_unit_test(a_full_store_takes_no_more_until_something_leaves),
        cmocka_unit_test(sessions_have_up_to_one_half_of_the_store),
        cmocka_unit_test(segments_leave_others_room),
        cmocka_unit_test(a_removal_comes_after_what_it_removes),
        cmocka_unit_test(without_a_manager_names_are_given_and_nothing_is_sent),
    };
    return cmocka_run_group_tests(tests, listen_as_manager, leave_as_manager);
}
