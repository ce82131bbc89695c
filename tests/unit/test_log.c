/* SPDX-License-Identifier: Apache-2.0 */
/* The log, whose reader may be slow: a pipe, the journal's socket, a file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/log.h"
#include "unit.h"

#define MESSAGES 20000u /* more than a pipe or a socket has room for */

/* Plays in a child process whose stderr is the descriptor. Returns its exit status. */
static int in_child(int fd, void (*play)(void)) {
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        dup2(fd, STDERR_FILENO);
        play();
        _exit(0);
    }
    TEST_REAP(pid, &status);
    return status;
}

static void write_many(void) {
    for (unsigned i = 0; i < MESSAGES; i++)
        log_warning("message %u", i);
}

static void empty(int fd) {
    char bytes[65536];
    while (read(fd, bytes, sizeof bytes) > 0) {
    }
}

static int reading_end;

static void write_many_and_one_that_has_room(void) {
    write_many();
    empty(reading_end);
    log_warning("the last");
}

/* "2026-03-01T09:30:00.250+05:30 ". Returns what comes behind it. */
static const char *after_time(const char *line, struct tm *ret_local, int *ret_ms) {
    static const char digits[] = "dddd-dd-ddTdd:dd:dd.ddd+dd:dd ";

    for (size_t i = 0; digits[i] != '\0'; i++)
        assert_true(digits[i] == 'd' ? line[i] >= '0' && line[i] <= '9'
                                     : line[i] == digits[i] || (digits[i] == '+' && line[i] == '-'));
    char *end = strptime(line, "%Y-%m-%dT%H:%M:%S", ret_local);
    assert_non_null(end);
    *ret_ms = atoi(end + 1);
    assert_non_null(strptime(end + 4, "%z", ret_local));
    return line + sizeof digits - 1;
}

/* A reader that reads nothing until the end hears how much is missing. */
static void nobody_waits_for_the_reader_of(int read_fd, int write_fd) {
    char text[4096];
    unsigned n_lost = 0;

    reading_end = read_fd;
    assert_int_equal(fcntl(read_fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(in_child(write_fd, write_many_and_one_that_has_room), 0);
    ssize_t n = read(read_fd, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    const char *lost = strstr(text, "gpupoold: warning: nobody");
    assert_non_null(lost);
    assert_int_equal(
        sscanf(lost, "gpupoold: warning: nobody read the log: it lacks %u messages here", &n_lost), 1);
    assert_true(n_lost > 0 && n_lost < MESSAGES);
    assert_non_null(strstr(text, "gpupoold: warning: the last\n"));
}

static void no_message_waits_for_the_reader_of_a_pipe(void **state) {
    int pipes[2];

    (void)state;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    nobody_waits_for_the_reader_of(pipes[0], pipes[1]);
    close(pipes[0]), close(pipes[1]);
}

static void no_message_waits_for_the_reader_of_a_socket(void **state) {
    int pair[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    nobody_waits_for_the_reader_of(pair[0], pair[1]);
    close(pair[0]), close(pair[1]);
}

static void a_file_gets_every_message(void **state) {
    char path[] = "/tmp/gpupool-log-XXXXXX", line[256];
    unsigned lines = 0;

    (void)state;
    _cleanup_(close_fdp) int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(in_child(fd, write_many), 0);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    assert_non_null(file);
    unlink(path);
    while (fgets(line, sizeof line, file) != NULL) {
        char expected[64];
        snprintf(expected, sizeof expected, "gpupoold: warning: message %u\n", lines++);
        struct tm local = {0};
        int ms;
        assert_string_equal(after_time(line, &local, &ms), expected);
    }
    assert_int_equal(lines, MESSAGES);
}

static void write_a_name(void) {
    log_warning("pid 7 (%s) waits", "z\xc3\xa4hler\n\x1b[2J\xff\xc2\x9b\xe2\x80\xae");
}

static void names_do_not_steer_the_readers_terminal(void **state) {
    char text[256];
    int pipes[2];

    (void)state;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(in_child(pipes[1], write_a_name), 0);
    ssize_t n = read(pipes[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    struct tm local = {0};
    int ms;
    assert_string_equal(after_time(text, &local, &ms), "gpupoold: warning: pid 7 (z\xc3\xa4hler??[2J?"
                              "??"
                              "???"
                              ") waits\n");
    close(pipes[0]), close(pipes[1]);
}

/* The reader has gone: the daemon goes on. */
static void a_log_without_a_reader_is_no_error(void **state) {
    int pair[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[0]);
    assert_int_equal(in_child(pair[1], write_many), 0);
    close(pair[1]);
}

static void write_one(void) {
    log_warning("words");
}

/* Reads one message back from a file. journal makes the value of JOURNAL_STREAM; NULL: it is not set. */
static void line_in_file(char *line, int size, const char *(*journal)(const struct stat *file)) {
    char path[] = "/tmp/gpupool-log-XXXXXX";
    struct stat status;

    _cleanup_(close_fdp) int fd = mkstemp(path);
    assert_true(fd >= 0 && fstat(fd, &status) == 0);
    if (journal != NULL)
        setenv("JOURNAL_STREAM", journal(&status), 1);
    assert_int_equal(in_child(fd, write_one), 0);
    unsetenv("JOURNAL_STREAM");
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    unlink(path);
    assert_non_null(fgets(line, size, file));
}

static const char *this_file(const struct stat *file) {
    static char text[64];
    snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)file->st_dev,
             (unsigned long long)file->st_ino);
    return text;
}

static const char *another_file(const struct stat *file) {
    static char text[64];
    snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)file->st_dev,
             (unsigned long long)file->st_ino + 1);
    return text;
}

static void the_journal_gets_priorities_and_no_time(void **state) {
    char line[256];

    (void)state;
    line_in_file(line, sizeof line, this_file);
    assert_string_equal(line, "<4>words\n");
}

/* A service's child whose stderr is a file has JOURNAL_STREAM of the service. */
static void a_file_beside_the_journal_gets_the_time(void **state) {
    struct tm local = {0};
    char line[256];
    int ms;

    (void)state;
    line_in_file(line, sizeof line, another_file);
    assert_string_equal(after_time(line, &local, &ms), "gpupoold: warning: words\n");
}

static void the_time_is_that_of_the_local_zone(void **state) {
    static const struct {
        const char *zone;
        long offset_s;
    } zones[] = {{"UTC0", 0}, {"HERE-5:30", 19800}, {"THERE3:30", -12600}};
    char line[256];

    (void)state;
    for (size_t i = 0; i < sizeof zones / sizeof *zones; i++) {
        struct timespec before, after;
        struct tm local = {0};
        int ms;

        setenv("TZ", zones[i].zone, 1);
        tzset(); /* the child's localtime_r() does not look again */
        clock_gettime(CLOCK_REALTIME, &before);
        line_in_file(line, sizeof line, NULL);
        clock_gettime(CLOCK_REALTIME, &after);
        assert_string_equal(after_time(line, &local, &ms), "gpupoold: warning: words\n");
        assert_int_equal(local.tm_gmtoff, zones[i].offset_s);
        long long said_ms = (timegm(&local) - zones[i].offset_s) * 1000LL + ms;
        assert_true(said_ms >= before.tv_sec * 1000LL + before.tv_nsec / 1000000);
        assert_true(said_ms <= after.tv_sec * 1000LL + after.tv_nsec / 1000000);
    }
    unsetenv("TZ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_message_waits_for_the_reader_of_a_pipe),
        cmocka_unit_test(no_message_waits_for_the_reader_of_a_socket),
        cmocka_unit_test(a_file_gets_every_message),
        cmocka_unit_test(names_do_not_steer_the_readers_terminal),
        cmocka_unit_test(a_log_without_a_reader_is_no_error),
        cmocka_unit_test(the_journal_gets_priorities_and_no_time),
        cmocka_unit_test(a_file_beside_the_journal_gets_the_time),
        cmocka_unit_test(the_time_is_that_of_the_local_zone),
    };
    unsetenv("JOURNAL_STREAM");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
