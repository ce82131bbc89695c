/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the daemon's small objects, each alone: the listener, the worker and the peer.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/loop/closer.h"
#include "daemon/loop/listener.h"
#include "daemon/loop/peer.h"
#include "daemon/loop/rights.h"
#include "daemon/loop/scheduler.h"
#include "daemon/loop/worker.h"
#include "directory_fixture.h"
#include "gpu/gpu.h"
#include "unit.h"

static int open_fds(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* --- the listener */

static int connect_to(const char *path, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool exists(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0;
}

static void a_listener_leaves_nothing_behind(void **state) {
    struct listener listener;
    struct stat status;
    int before = open_fds();
    (void)state;

    assert_int_equal(listener_open(&listener, NULL, path_of("sock"), SOCK_SEQPACKET, 0640, ""), 0);
    assert_int_equal(lstat(path_of("sock"), &status), 0);
    assert_int_equal(status.st_mode & 07777, 0640);
    assert_true(fcntl(listener.fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(listener.fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(listener.lock_fd, F_GETFD) & FD_CLOEXEC);
    listener_close(&listener);
    assert_false(exists(path_of("sock")));
    assert_false(exists(path_of("sock.lock")));
    assert_int_equal(open_fds(), before);
    listener_close(&listener); /* does no harm */
}

static void a_second_daemon_is_refused(void **state) {
    struct listener first, second;
    int before = open_fds();
    (void)state;

    assert_int_equal(listener_open(&first, NULL, path_of("sock"), SOCK_STREAM, 0600, ""), 0);
    assert_int_equal(listener_open(&second, NULL, path_of("sock"), SOCK_STREAM, 0600, ""), -EADDRINUSE);
    _cleanup_(close_fdp) int client = connect_to(path_of("sock"), SOCK_STREAM); /* the first is unharmed */
    assert_true(client >= 0);
    /* one that was made without the lock (another program's, systemd's) is not taken away either */
    unlink(path_of("sock.lock"));
    assert_int_equal(listener_open(&second, NULL, path_of("sock"), SOCK_STREAM, 0600, ""), -EADDRINUSE);
    assert_true(exists(path_of("sock")));
    client = close_fd(client);
    listener_close(&first);
    unlink(path_of("sock.lock"));
    assert_int_equal(open_fds(), before);
}

static void a_stale_socket_is_replaced(void **state) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct listener listener;
    (void)state;

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path_of("sock"));
    int dead = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(dead, (struct sockaddr *)&address, sizeof address), 0);
    close(dead);
    close(open(path_of("sock.lock"), O_CREAT | O_RDWR | O_CLOEXEC, 0600)); /* as after a kill */
    assert_int_equal(listener_open(&listener, NULL, path_of("sock"), SOCK_SEQPACKET, 0600, ""), 0);
    _cleanup_(close_fdp) int client = connect_to(path_of("sock"), SOCK_SEQPACKET);
    assert_true(client >= 0);
    listener_close(&listener);
}

static void what_is_no_socket_is_not_removed(void **state) {
    struct listener listener;
    struct stat status;
    int before = open_fds();
    (void)state;

    close(open(path_of("sock"), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    assert_int_equal(listener_open(&listener, NULL, path_of("sock"), SOCK_SEQPACKET, 0600, ""), -EEXIST);
    assert_int_equal(lstat(path_of("sock"), &status), 0);
    assert_true(S_ISREG(status.st_mode));
    assert_int_equal(unlink(path_of("sock")), 0);
    unlink(path_of("sock.lock"));
    assert_int_equal(open_fds(), before);
    assert_int_equal(listener_open(&listener, NULL, path_of("none/sock"), SOCK_SEQPACKET, 0600, ""), -ENOENT);
    assert_int_equal(open_fds(), before);
}

/* Or the kernel cannot (before Linux 6.16). */
static bool refuses_descriptors(int fd) {
    int passes = 0;
    socklen_t size = sizeof passes;
    return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, &size) < 0 || !passes;
}

static void only_a_listening_unix_socket_of_the_kind_is_adopted(void **state) {
    struct listener listener, made;
    int pair[2], pipes[2], on = 1;
    (void)state;

    assert_int_equal(listener_open(&made, NULL, path_of("sock"), SOCK_SEQPACKET, 0600, ""), 0);
    assert_int_equal(listener_adopt(&listener, made.fd, SOCK_STREAM), -EINVAL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(listener_adopt(&listener, pair[0], SOCK_SEQPACKET), -EINVAL); /* does not listen */
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(listener_adopt(&listener, pipes[0], SOCK_SEQPACKET), -EINVAL);
    _cleanup_(close_fdp) int inet = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet >= 0)
        assert_int_equal(listener_adopt(&listener, inet, SOCK_STREAM), -EINVAL);
    close(pair[0]), close(pair[1]), close(pipes[0]), close(pipes[1]);

    assert_true(refuses_descriptors(made.fd));
    (void)setsockopt(made.fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof on);
    assert_int_equal(listener_adopt(&listener, fcntl(made.fd, F_DUPFD_CLOEXEC, 3), SOCK_SEQPACKET), 0);
    assert_string_equal(listener.path, path_of("sock"));
    assert_true(refuses_descriptors(listener.fd));
    listener_close(&listener);
    assert_true(exists(path_of("sock"))); /* it is not ours to remove */
    listener_close(&made);
}

/* The kernel's name of a socket has no NUL where the path fills it. */
static void an_adopted_path_may_fill_the_address(void **state) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct listener listener;
    (void)state;

    memset(address.sun_path, 'x', sizeof address.sun_path);
    memcpy(address.sun_path, directory, strlen(directory));
    address.sun_path[strlen(directory)] = '/';
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(listener_adopt(&listener, fd, SOCK_STREAM), 0);
    assert_int_equal(strlen(listener.path), sizeof address.sun_path - 1); /* cut, for messages */
    listener_close(&listener);
    char path[sizeof address.sun_path + 1] = "";
    memcpy(path, address.sun_path, sizeof address.sun_path);
    assert_int_equal(unlink(path), 0);
}

/* Lets the handles of the loop close. */
static void loop_end(uv_loop_t *loop) {
    WAIT_UNTIL(uv_run(loop, UV_RUN_NOWAIT) == 0);
    assert_int_equal(uv_loop_close(loop), 0);
}

/* A listener at work. */
struct door {
    struct closer *closer;
    uv_loop_t loop;
    struct scheduler scheduler;
    struct listener listener;
    int accepted; /* -1: none yet */
};

static void on_accept(struct listener *listener, int fd) {
    *(int *)listener->user = fd;
}

static void door_make(struct door *door) {
    door->accepted = -1;
    scheduler_init(&door->scheduler);
    assert_int_equal(uv_loop_init(&door->loop), 0);
    assert_int_equal(closer_new(&door->closer), 0);
    assert_int_equal(listener_open(&door->listener, NULL, path_of("sock"), SOCK_SEQPACKET, 0600, ""), 0);
}

static void door_open(struct door *door, bool (*make_room)(struct listener *listener)) {
    assert_int_equal(listener_start(&door->listener, &door->loop, &door->scheduler, door->closer, on_accept,
                                    make_room, &door->accepted),
                     0);
}

static bool door_has_turn(struct door *door) {
    uv_run(&door->loop, UV_RUN_NOWAIT);
    return !scheduler_is_idle(&door->scheduler);
}

/* One step of the daemon's loop. */
static void door_serve(struct door *door) {
    WAIT_UNTIL(door_has_turn(door));
    struct turn *turn = scheduler_next(&door->scheduler);
    assert_non_null(turn);
    turn->serve(turn);
    assert_true(scheduler_is_idle(&door->scheduler));
}

static void door_remove(struct door *door) {
    close(door->accepted);
    listener_close(&door->listener);
    loop_end(&door->loop);
    closer_free(door->closer);
}

static void accepted_sockets_are_close_on_exec_and_do_not_block(void **state) {
    struct door door;
    (void)state;

    door_make(&door);
    door_open(&door, NULL);
    _cleanup_(close_fdp) int client = connect_to(path_of("sock"), SOCK_SEQPACKET);
    assert_true(client >= 0);
    door_serve(&door);
    assert_true(door.accepted >= 0);
    assert_true(fcntl(door.accepted, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(door.accepted, F_GETFL) & O_NONBLOCK);
    door_remove(&door);
}

static unsigned too_many; /* for another to be let in */

static bool make_room(struct listener *listener) {
    (void)listener;
    return too_many > 0 && too_many-- > 0;
}

static void who_makes_room_and_who_is_let_in_take_a_turn_each(void **state) {
    struct door door;
    (void)state;

    door_make(&door);
    door_open(&door, make_room);
    _cleanup_(close_fdp) int client = connect_to(path_of("sock"), SOCK_SEQPACKET);
    assert_true(client >= 0);
    for (too_many = 2; too_many > 0;) {
        door_serve(&door);
        assert_int_equal(door.accepted, -1);
    }
    door_serve(&door);
    assert_true(door.accepted >= 0);
    door_remove(&door);
}

/* Opens descriptors until there are no more. Returns how many. */
static unsigned use_up(int *fds, unsigned size) {
    unsigned count = 0;
    while (count < size && (fds[count] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        count++;
    assert_true(count < size);
    assert_int_equal(errno, EMFILE);
    return count;
}

static void without_descriptors_clients_are_sent_away(void **state) {
    struct rlimit before, few;
    struct door door;
    int fds[256];
    (void)state;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = 64, .rlim_max = before.rlim_max};
    door_make(&door);
    _cleanup_(close_fdp) int early = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    _cleanup_(close_fdp) int late = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", door.listener.path);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);

    /* It begins when there is not even a spare one, */
    unsigned count = use_up(fds, 256);
    door_open(&door, NULL);
    assert_true(door.listener.spare_fd < 0);
    while (count > 0)
        close(fds[--count]);
    assert_int_equal(connect(early, (struct sockaddr *)&address, sizeof address), 0);
    door_serve(&door);
    assert_true(door.accepted >= 0);
    /* and is without any again: a client that comes now hears so at once, and the loop does not turn on it.
     */
    count = use_up(fds, 256);
    assert_int_equal(connect(late, (struct sockaddr *)&address, sizeof address), 0);
    door_serve(&door);
    while (count > 0)
        close(fds[--count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    struct pollfd hangup = {.fd = late, .events = POLLIN};
    assert_int_equal(poll(&hangup, 1, 0), 1);
    assert_true(hangup.revents & POLLHUP);
    door_remove(&door);
}

/* --- the worker */

static bool no_threads; /* pthread_create() fails */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
                          void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
                          void *argument) {
    return no_threads ? EAGAIN : __real_pthread_create(thread, attributes, main, argument);
}

struct test_job {
    struct worker_job job;
    unsigned number;
    int gate_fd; /* a byte opens it; -1: none */
    pthread_t ran_on;
    unsigned *order;
    unsigned *n_ran, *n_done;
    pthread_t loop_thread;
};

static void job_run(struct worker_job *job) {
    struct test_job *self = (struct test_job *)(void *)job;
    char byte;
    if (self->gate_fd >= 0 && read(self->gate_fd, &byte, 1) < 0)
        abort();
    self->ran_on = pthread_self();
    self->order[(*self->n_ran)++] = self->number; /* in order: no other thread writes it */
}

static void job_done(struct worker_job *job) {
    struct test_job *self = (struct test_job *)(void *)job;
    assert_true(pthread_equal(pthread_self(), self->loop_thread));
    assert_false(pthread_equal(self->ran_on, self->loop_thread));
    assert_int_equal(self->order[*self->n_done], self->number);
    (*self->n_done)++;
    free(self);
}

#define JOBS 20u

struct work {
    uv_loop_t loop;
    struct worker worker;
    unsigned order[JOBS], n_ran, n_done;
};

static void work_begin(struct work *work) {
    memset(work, 0, sizeof *work);
    assert_int_equal(uv_loop_init(&work->loop), 0);
    assert_int_equal(worker_start(&work->worker, &work->loop, "test"), 0);
}

static bool work_has_done(struct work *work, unsigned count) {
    uv_run(&work->loop, UV_RUN_NOWAIT);
    return work->n_done >= count;
}

static void work_submit(struct work *work, unsigned number, int gate_fd) {
    struct test_job *job = malloc(sizeof *job);
    assert_non_null(job);
    *job = (struct test_job){.job = {.run = job_run, .done = job_done},
                             .number = number,
                             .gate_fd = gate_fd,
                             .order = work->order,
                             .n_ran = &work->n_ran,
                             .n_done = &work->n_done,
                             .loop_thread = pthread_self()};
    worker_submit(&work->worker, &job->job);
}

static void jobs_run_in_order_and_are_done_on_the_loop(void **state) {
    struct work work;
    (void)state;

    work_begin(&work);
    for (unsigned i = 0; i < JOBS; i++)
        work_submit(&work, i, -1);
    WAIT_UNTIL(work_has_done(&work, JOBS));
    assert_int_equal(work.worker.pending, 0);
    worker_stop(&work.worker);
    loop_end(&work.loop);
}

static void stopping_finishes_the_jobs_at_hand(void **state) {
    struct work work;
    int gate[2];
    (void)state;

    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    work_begin(&work);
    for (unsigned i = 0; i < JOBS; i++)
        work_submit(&work, i, i == 0 ? gate[0] : -1);
    assert_int_equal(work.n_done, 0);
    assert_int_equal(write(gate[1], "x", 1), 1);
    worker_stop(&work.worker); /* the loop has not turned once */
    assert_int_equal(work.n_ran, JOBS);
    assert_int_equal(work.n_done, JOBS);
    loop_end(&work.loop);
    close(gate[0]), close(gate[1]);
}

static void a_worker_that_cannot_start_leaves_nothing_on_the_loop(void **state) {
    struct worker *worker = calloc(1, sizeof *worker);
    uv_loop_t loop;
    (void)state;

    assert_non_null(worker);
    assert_int_equal(uv_loop_init(&loop), 0);
    no_threads = true;
    assert_int_equal(worker_start(worker, &loop, "test"), -EAGAIN);
    no_threads = false;
    free(worker);
    assert_int_equal(uv_loop_close(&loop), 0); /* busy where a handle is left */
}

static void a_worker_that_stands_still_is_noticed(void **state) {
    struct work work;
    int gate[2];
    (void)state;

    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    work_begin(&work);
    assert_true(worker_is_alive(&work.worker)); /* idle, however often it is looked at */
    assert_true(worker_is_alive(&work.worker));
    work_submit(&work, 0, gate[0]);
    assert_true(worker_is_alive(&work.worker)); /* it may have begun this very moment */
    assert_false(worker_is_alive(&work.worker));
    worker_beat(&work.worker); /* what a long job reports */
    assert_true(worker_is_alive(&work.worker));
    assert_int_equal(write(gate[1], "x", 1), 1);
    WAIT_UNTIL(work_has_done(&work, 1));
    assert_true(worker_is_alive(&work.worker));
    worker_stop(&work.worker);
    loop_end(&work.loop);
    close(gate[0]), close(gate[1]);
}

/* --- the peer */

/* Gives this process a name, and checks the one that the daemon keeps. */
static void assert_process_is_named(const char *name, const char *kept) {
    struct peer peer = {.pid = getpid()};
    char before[16];

    assert_int_equal(prctl(PR_GET_NAME, before), 0);
    assert_int_equal(prctl(PR_SET_NAME, name), 0);
    peer_read_command(&peer);
    assert_int_equal(prctl(PR_SET_NAME, before), 0);
    assert_string_equal(peer.command, kept);
}

static void a_peer_is_who_the_kernel_says(void **state) {
    struct peer peer;
    int pair[2], pidfd = -1;
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(peer_identify(pair[0], &peer), 0);
    assert_int_equal(peer.pid, getpid());
    assert_int_equal(peer.uid, geteuid());
    assert_int_equal(peer.gid, getegid());
    assert_string_equal(peer.command, "?");
    peer_read_command(&peer);
    assert_int_equal(strncmp(peer.command, "test_daemon", 11), 0);
    assert_process_is_named("z\xc3\xa4hler", "z\xc3\xa4hler");
    assert_process_is_named("a\x1b[2J\xff!", "a\x1b[2J?!");              /* readers escape controls */
    assert_process_is_named("fourteen bytes\xc3\xa4", "fourteen bytes"); /* the kernel cuts it */
    assert_process_is_named("\xe8\xa8\x88\xe6\x95\xb8", "\xe8\xa8\x88\xe6\x95\xb8");
    assert_int_equal(peer_open_pidfd(pair[0], peer.pid, &pidfd), 0);
    assert_true(fcntl(pidfd, F_GETFD) & FD_CLOEXEC);
    struct pollfd alive = {.fd = pidfd, .events = POLLIN};
    assert_int_equal(poll(&alive, 1, 0), 0);
    close(pidfd), close(pair[0]), close(pair[1]);
}

static void a_dead_peers_pidfd_says_so(void **state) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct listener listener;
    struct peer peer;
    int status, pidfd = -1;
    (void)state;

    assert_int_equal(listener_open(&listener, NULL, path_of("sock"), SOCK_SEQPACKET, 0600, ""), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", listener.path);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        _exit(connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : 1);
    }
    TEST_REAP(child, &status);
    assert_int_equal(status, 0);
    int fd = accept4(listener.fd, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(peer_identify(fd, &peer), 0);
    assert_int_equal(peer.pid, child);
    peer_read_command(&peer);
    assert_string_equal(peer.command, "?");
    int r = peer_open_pidfd(fd, peer.pid, &pidfd);
    if (r == 0) {
        struct pollfd over = {.fd = pidfd, .events = POLLIN};
        assert_int_equal(poll(&over, 1, 0), 1);
        close(pidfd);
    } else {
        assert_int_equal(r, -ESRCH); /* kernels before 6.18 */
        assert_int_equal(pidfd, -1);
    }
    close(fd);
    listener_close(&listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listener_leaves_nothing_behind),
        cmocka_unit_test(a_second_daemon_is_refused),
        cmocka_unit_test(a_stale_socket_is_replaced),
        cmocka_unit_test(what_is_no_socket_is_not_removed),
        cmocka_unit_test(only_a_listening_unix_socket_of_the_kind_is_adopted),
        cmocka_unit_test(an_adopted_path_may_fill_the_address),
        cmocka_unit_test(accepted_sockets_are_close_on_exec_and_do_not_block),
        cmocka_unit_test(who_makes_room_and_who_is_let_in_take_a_turn_each),
        cmocka_unit_test(without_descriptors_clients_are_sent_away),
        cmocka_unit_test(jobs_run_in_order_and_are_done_on_the_loop),
        cmocka_unit_test(stopping_finishes_the_jobs_at_hand),
        cmocka_unit_test(a_worker_that_cannot_start_leaves_nothing_on_the_loop),
        cmocka_unit_test(a_worker_that_stands_still_is_noticed),
        cmocka_unit_test(a_peer_is_who_the_kernel_says),
        cmocka_unit_test(a_dead_peers_pidfd_says_so),
    };
    return cmocka_run_group_tests_name("the daemon's small objects", tests, make_directory, remove_directory);
}
