/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the processes that are suspected of holding a dead process's descriptors: processes made up in a
 * directory that looks like /proc, and at last a real one. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/death/holders.h"
#include "unit.h"

#define FILES      "/dev/nvidia"
#define DEAD_UID   1000u
#define DEAD_START 500u
#define CHILD      4000
#define OWN_MAP    "         0          0 4294967295\n"
#define NO_RIGHTS  "Name:\tgpupoold\nUid:\t990\t990\t990\t990\nCapEff:\t0000000000000000\n"
#define MAY_SEE_ALL                                                                                          \
    "Name:\tgpupoold\nUid:\t0\t0\t0\t0\nCapEff:\t0000000000080000\n" /* CAP_SYS_PTRACE alone */
#define KERNEL_FLAGS 0x00200000u

static char proc[] = "/tmp/gpupool-test-proc-XXXXXX";

/* --- a /proc --- */

static char *in_proc(char path[256], pid_t pid, const char *name) {
    snprintf(path, 256, "%s/%d/%s", proc, (int)pid, name);
    return path;
}

static void write_at(const char *path, const char *text) {
    _cleanup_(fclosep) FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
}

static void write_of(pid_t pid, const char *name, const char *text) {
    char path[256];
    write_at(in_proc(path, pid, name), text);
}

static void set_stat_below(pid_t pid, pid_t parent, const char *name, char state, unsigned flags,
                           long threads, unsigned long start) {
    char text[512];
    snprintf(text, sizeof text, "%d (%s) %c %d 1 1 0 -1 %u 0 0 0 0 0 0 0 0 20 0 %ld 0 %lu 1 2 3\n", (int)pid,
             name, state, (int)parent, flags, threads, start);
    write_of(pid, "stat", text);
}

static void set_stat(pid_t pid, const char *name, char state, unsigned flags, long threads,
                     unsigned long start) {
    set_stat_below(pid, 1, name, state, flags, threads, start);
}

static void set_uids(pid_t pid, unsigned real, unsigned effective, unsigned saved, unsigned fs) {
    char text[128];
    snprintf(text, sizeof text, "Name:\tx\nUid:\t%u\t%u\t%u\t%u\n", real, effective, saved, fs);
    write_of(pid, "status", text);
}

/* An ordinary process of the dead one's user that holds nothing. */
static void add_process(pid_t pid, unsigned long start) {
    char path[256];

    snprintf(path, sizeof path, "%s/%d", proc, (int)pid);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(mkdir(in_proc(path, pid, "fd"), 0755), 0);
    set_stat(pid, "worker", 'S', 0, 1, start);
    set_uids(pid, DEAD_UID, DEAD_UID, DEAD_UID, DEAD_UID);
    write_of(pid, "uid_map", OWN_MAP);
    write_of(pid, "maps", "00400000-00401000 r-xp 00000000 00:1f 77 /usr/bin/worker\n");
}

static void add_link(const char *path, const char *target) {
    assert_int_equal(symlink(target, path), 0);
}

static void hold(pid_t pid, const char *target) {
    char path[256];
    add_link(in_proc(path, pid, "fd/7"), target);
}

/* Hides the descriptors of a process, from root too: a file takes the directory's place. */
static void hide(pid_t pid) {
    char path[256];
    assert_int_equal(rmdir(in_proc(path, pid, "fd")), 0);
    write_at(path, "");
}

static int make_proc(void **state) {
    char path[256], self[16];
    (void)state;

    strcpy(proc + sizeof proc - 7, "XXXXXX");
    if (mkdtemp(proc) == NULL)
        return -1;
    add_process(getpid(), 100);
    write_of(getpid(), "status", NO_RIGHTS);
    write_of(getpid(), "mountinfo", "25 1 0:23 / /proc rw,nosuid - proc proc rw\n");
    snprintf(path, sizeof path, "%s/self", proc);
    snprintf(self, sizeof self, "%d", (int)getpid());
    add_link(path, self);
    return 0;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static int remove_proc(void **state) {
    (void)state;
    return nftw(proc, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* --- looking --- */

static struct holders_subject look_for(unsigned long start, uid_t uid) {
    struct holders_subject subject = {.token = 1, .origin = {.start_ticks = start}, .uid = uid};
    holders_look(proc, FILES, NULL, 0, &subject, 1);
    return subject;
}

static enum death_holders look(void) {
    return look_for(DEAD_START, DEAD_UID).holders;
}

static void nobody_holds_anything(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    hold(CHILD, "/dev/null");
    assert_int_equal(look(), HOLDERS_NONE);
}

static void an_open_file_of_the_driver_is_held(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    hold(CHILD, "/dev/nvidia-uvm");
    struct holders_subject subject = look_for(DEAD_START, DEAD_UID);
    assert_int_equal(subject.holders, HOLDERS_SOME);
    assert_int_equal(subject.holder, CHILD);
    assert_string_equal(subject.holder_name, "?"); /* it ended meanwhile */
    assert_string_equal(subject.holder_path, "/dev/nvidia-uvm");
    assert_int_equal(subject.token, 1);
}

static void the_holder_is_named_as_ps_shows_it(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    write_of(CHILD, "comm", "z\xc3\xa4hler \xff\n");
    hold(CHILD, "/dev/nvidia-uvm (deleted)");
    struct holders_subject subject = look_for(DEAD_START, DEAD_UID);
    assert_string_equal(subject.holder_name, "z\xc3\xa4hler ?");
    assert_string_equal(subject.holder_path, "/dev/nvidia-uvm");
}

static void a_mapped_file_of_the_driver_is_held(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    write_of(CHILD, "maps",
             "00400000-00401000 r-xp 00000000 00:1f 77 /usr/bin/worker\n"
             "7f0000000000-7f0000010000 rw-s 00000000 00:06 90 /dev/nvidia0 (deleted)\n");
    struct holders_subject subject = look_for(DEAD_START, DEAD_UID);
    assert_int_equal(subject.holders, HOLDERS_SOME);
    assert_string_equal(subject.holder_path, "/dev/nvidia0");
}

static void who_is_older_inherited_nothing(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START - 1);
    hold(CHILD, "/dev/nvidia0");
    assert_int_equal(look(), HOLDERS_NONE);
    set_stat(CHILD, "worker", 'S', 0, 1, DEAD_START); /* in the same tick: it may */
    assert_int_equal(look(), HOLDERS_SOME);
}

static void everybody_is_suspected_where_the_start_is_not_known(void **state) {
    (void)state;
    add_process(CHILD, 1);
    hold(CHILD, "/dev/nvidia0");
    assert_int_equal(look_for(0, DEAD_UID).holders, HOLDERS_SOME);
}

static void who_has_a_better_reason_is_not_suspected(void **state) {
    struct holders_subject subject = {.origin = {.start_ticks = 1}, .uid = DEAD_UID};
    const pid_t exempt[] = {7, CHILD, CHILD + 3};
    (void)state;

    hold(getpid(), "/dev/nvidia0"); /* the daemon itself */
    add_process(CHILD, DEAD_START + 1);
    hold(CHILD, "/dev/nvidia0");
    holders_look(proc, FILES, exempt, 3, &subject, 1);
    assert_int_equal(subject.holders, HOLDERS_NONE);
    holders_look(proc, FILES, exempt, 1, &subject, 1);
    assert_int_equal(subject.holders, HOLDERS_SOME);
}

static void kernel_threads_hold_nothing(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    hide(CHILD);
    set_stat(CHILD, "nv_queue", 'S', KERNEL_FLAGS, 1, DEAD_START + 1);
    assert_int_equal(look(), HOLDERS_NONE);
}

static void a_name_cannot_pose_as_numbers(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    hold(CHILD, "/dev/nvidia0");
    set_stat(CHILD, "x) S 1 1 1 0 -1 2097152 0 0", 'S', 0, 1, DEAD_START + 1);
    assert_int_equal(look(), HOLDERS_SOME);
}

/* --- what may not be looked into --- */

static void who_may_not_be_looked_into_is_suspected(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    hide(CHILD);
    struct holders_subject subject = look_for(DEAD_START, DEAD_UID);
    assert_int_equal(subject.holders, HOLDERS_HIDDEN);
    assert_int_equal(subject.holder, CHILD);
}

static void nobody_changes_users_without_privilege(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    hide(CHILD);
    set_uids(CHILD, 7, 7, 7, 7);
    assert_int_equal(look(), HOLDERS_NONE);
    assert_int_equal(look_for(DEAD_START, 0).holders, HOLDERS_HIDDEN); /* root does */
    for (unsigned i = 0; i < 4; i++) {                                 /* any of its uids will do */
        set_uids(CHILD, i == 0 ? DEAD_UID : 7, i == 1 ? DEAD_UID : 7, i == 2 ? DEAD_UID : 7,
                 i == 3 ? DEAD_UID : 7);
        assert_int_equal(look(), HOLDERS_HIDDEN);
    }
    set_uids(CHILD, 7, 7, 7, 7);
    write_of(CHILD, "uid_map", "         0     100000      65536\n"); /* users of its own */
    assert_int_equal(look(), HOLDERS_HIDDEN);
}

static void what_cannot_be_read_is_feared(void **state) {
    char path[256];
    (void)state;

    add_process(CHILD, DEAD_START + 1);
    hide(CHILD);
    set_uids(CHILD, 7, 7, 7, 7);
    write_of(CHILD, "status", "nonsense");
    assert_int_equal(look(), HOLDERS_HIDDEN);
    assert_int_equal(unlink(in_proc(path, CHILD, "status")), 0);
    assert_int_equal(look(), HOLDERS_HIDDEN);
    set_uids(CHILD, 7, 7, 7, 7);
    assert_int_equal(unlink(in_proc(path, CHILD, "uid_map")), 0);
    assert_int_equal(look(), HOLDERS_HIDDEN);
    write_of(CHILD, "uid_map", OWN_MAP);
    write_of(CHILD, "stat", "nonsense"); /* nor when it started */
    assert_int_equal(look(), HOLDERS_NONE);
    set_uids(CHILD, DEAD_UID, 7, 7, 7);
    assert_int_equal(look(), HOLDERS_HIDDEN);
}

static void who_is_seen_to_hold_goes_before_who_may(void **state) {
    (void)state;
    add_process(CHILD, DEAD_START + 1);
    hide(CHILD);
    add_process(CHILD + 1, DEAD_START + 1);
    hold(CHILD + 1, "/dev/nvidia0");
    add_process(CHILD + 2, DEAD_START + 1);
    hide(CHILD + 2);
    struct holders_subject subject = look_for(DEAD_START, DEAD_UID);
    assert_int_equal(subject.holders, HOLDERS_SOME);
    assert_int_equal(subject.holder, CHILD + 1);
}

/* --- the processes that can descend from the dead one --- */

#define FIRST   1
#define SHELL   2000 /* that started the dead process */
#define DEAD    2500
#define OTHER   3000 /* another shell, older than the dead process */
#define FIRST_2 3500 /* the first process of a PID namespace, older than the dead process */

/* A process that may not be looked into. */
static void add_hidden(pid_t pid, pid_t parent, unsigned long start) {
    add_process(pid, start);
    hide(pid);
    set_stat_below(pid, parent, "x", 'S', 0, 1, start);
}

static void remove_process(pid_t pid) {
    char path[256];
    snprintf(path, sizeof path, "%s/%d", proc, (int)pid);
    assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* The dead process, with where it comes from; it has gone. */
static struct holders_subject make_family(void) {
    struct holders_subject subject = {.token = 1, .uid = DEAD_UID};

    add_process(FIRST, 1);
    set_stat_below(FIRST, 0, "init", 'S', 0, 1, 1);
    add_hidden(SHELL, FIRST, 100);
    add_hidden(OTHER, FIRST, 100);
    add_hidden(FIRST_2, FIRST, 100);
    write_of(FIRST_2, "status", "Name:\tx\nUid:\t7\t7\t7\t7\nNSpid:\t3500\t1\n");
    add_hidden(DEAD, SHELL, DEAD_START);
    process_origin_read(&subject.origin, NULL, proc, DEAD);
    assert_true(subject.origin.is_complete);
    assert_int_equal(subject.origin.n_ancestors, 2);
    remove_process(DEAD);
    return subject;
}

static void the_ancestors_of_a_parent_are_read_once(void **state) {
    struct process_origin_cache cache = {0};
    struct process_origin first, second, third;
    (void)state;

    add_process(FIRST, 1);
    set_stat_below(FIRST, 0, "init", 'S', 0, 1, 1);
    add_hidden(OTHER, FIRST, 100);
    add_hidden(SHELL, OTHER, 200);
    add_hidden(DEAD, SHELL, DEAD_START);
    process_origin_read(&first, &cache, proc, DEAD);
    assert_true(first.is_complete);
    assert_int_equal(first.n_ancestors, 3);
    remove_process(OTHER); /* it is not read again */
    add_hidden(CHILD, SHELL, DEAD_START + 1);
    process_origin_read(&second, &cache, proc, CHILD);
    assert_true(second.is_complete);
    assert_int_equal(second.start_ticks, DEAD_START + 1);
    assert_int_equal(second.n_ancestors, 3);
    assert_memory_equal(second.ancestors, first.ancestors, 3 * sizeof *first.ancestors);
    set_stat_below(SHELL, FIRST, "x", 'S', 0, 1, 200); /* its parent ended */
    process_origin_read(&third, &cache, proc, CHILD);
    assert_true(third.is_complete);
    assert_int_equal(third.n_ancestors, 2);
    set_stat_below(SHELL, FIRST, "x", 'S', 0, 1, 300); /* another process has its pid */
    process_origin_read(&third, &cache, proc, CHILD);
    assert_int_equal(third.ancestors[0].start_ticks, 300);
}

/* Whether a process is suspected that was found hidden. */
static enum death_holders look_with(struct holders_subject *subject, pid_t pid, pid_t parent,
                                    unsigned long start) {
    add_hidden(pid, parent, start);
    holders_look(proc, FILES, NULL, 0, subject, 1);
    remove_process(pid);
    return subject->holders;
}

static void the_child_of_another_process_is_not_suspected(void **state) {
    struct holders_subject subject = make_family();
    (void)state;

    assert_int_equal(look_with(&subject, CHILD, OTHER, DEAD_START + 1), HOLDERS_NONE);
    add_hidden(CHILD, OTHER, DEAD_START + 1); /* nor is that one's child */
    assert_int_equal(look_with(&subject, CHILD + 1, CHILD, DEAD_START + 2), HOLDERS_NONE);
    subject.origin.is_complete = false; /* any process may get orphans then */
    assert_int_equal(look_with(&subject, CHILD + 1, CHILD, DEAD_START + 2), HOLDERS_HIDDEN);
}

static void a_process_that_may_have_been_an_orphan_is_suspected(void **state) {
    struct holders_subject subject = make_family();
    (void)state;

    /* Those that get orphans: ancestors of the dead process, and the first process of a namespace. */
    assert_int_equal(look_with(&subject, CHILD, FIRST, DEAD_START + 1), HOLDERS_HIDDEN);
    assert_int_equal(look_with(&subject, CHILD, SHELL, DEAD_START + 1), HOLDERS_HIDDEN);
    assert_int_equal(look_with(&subject, CHILD, FIRST_2, DEAD_START + 1), HOLDERS_HIDDEN);
    /* A parent that is not there, or not to be seen, or came later. */
    assert_int_equal(look_with(&subject, CHILD, CHILD + 7, DEAD_START + 1), HOLDERS_HIDDEN);
    assert_int_equal(look_with(&subject, CHILD, 0, DEAD_START + 1), HOLDERS_HIDDEN);
    set_stat_below(OTHER, FIRST, "x", 'S', 0, 1, DEAD_START + 9);
    assert_int_equal(look_with(&subject, CHILD, OTHER, DEAD_START + 1), HOLDERS_HIDDEN);
}

static void what_descends_from_a_suspect_is_suspected_through_any_chain(void **state) {
    struct holders_subject subject = make_family();
    (void)state;

    for (pid_t pid = CHILD; pid < CHILD + 5; pid++) { /* the first of them was an orphan; they hold nothing */
        add_process(pid, DEAD_START + 1);
        set_stat_below(pid, pid == CHILD ? FIRST : pid - 1, "x", 'S', 0, 1, DEAD_START + 1);
    }
    holders_look(proc, FILES, NULL, 0, &subject, 1);
    assert_int_equal(subject.holders, HOLDERS_NONE);
    assert_int_equal(look_with(&subject, CHILD + 9, CHILD + 4, DEAD_START + 2), HOLDERS_HIDDEN);
    /* Pids that were reused while the table was read can make a circle. */
    set_stat_below(CHILD, CHILD + 4, "x", 'S', 0, 1, DEAD_START + 1);
    assert_int_equal(look_with(&subject, CHILD + 9, CHILD + 4, DEAD_START + 2), HOLDERS_HIDDEN);
}

static void an_ancestor_whose_number_another_process_has_is_none(void **state) {
    struct holders_subject subject = make_family();
    (void)state;

    remove_process(SHELL);
    add_hidden(SHELL, FIRST, DEAD_START - 1); /* older than the dead process, and not its ancestor */
    assert_int_equal(look_with(&subject, CHILD, SHELL, DEAD_START + 1), HOLDERS_NONE);
}

static void an_ancestor_that_started_in_the_same_tick_is_no_child(void **state) {
    struct holders_subject subject = {.token = 1, .uid = DEAD_UID};
    (void)state;

    add_hidden(SHELL, 0, DEAD_START); /* the first process of a container: its parent cannot be seen */
    add_hidden(DEAD, SHELL, DEAD_START);
    process_origin_read(&subject.origin, NULL, proc, DEAD);
    assert_true(subject.origin.is_complete);
    remove_process(DEAD);
    holders_look(proc, FILES, NULL, 0, &subject, 1);
    assert_int_equal(subject.holders, HOLDERS_NONE);
    assert_int_equal(look_with(&subject, CHILD, SHELL, DEAD_START), HOLDERS_HIDDEN);
    remove_process(SHELL);
    add_hidden(SHELL, 0, DEAD_START + 1); /* another process has its number */
    assert_int_equal(look_with(&subject, CHILD, SHELL, DEAD_START), HOLDERS_HIDDEN);
}

/* --- processes that end --- */

static void the_dead_hold_nothing_but_by_their_threads(void **state) {
    char path[256];
    (void)state;

    add_process(CHILD, DEAD_START + 1);
    hide(CHILD); /* a zombie's are not to be had */
    set_stat(CHILD, "worker", 'Z', 0, 1, DEAD_START + 1);
    assert_int_equal(look(), HOLDERS_NONE);
    set_stat(CHILD, "worker", 'Z', 0, 2, DEAD_START + 1); /* its first thread ended, another goes on */
    assert_int_equal(mkdir(in_proc(path, CHILD, "task"), 0755), 0);
    assert_int_equal(mkdir(in_proc(path, CHILD, "task/4000"), 0755), 0);
    assert_int_equal(mkdir(in_proc(path, CHILD, "task/4001"), 0755), 0);
    assert_int_equal(mkdir(in_proc(path, CHILD, "task/4001/fd"), 0755), 0);
    assert_int_equal(look(), HOLDERS_NONE);
    add_link(in_proc(path, CHILD, "task/4001/fd/3"), "/dev/nvidiactl");
    assert_int_equal(look(), HOLDERS_SOME);
}

static void who_has_gone_meanwhile_holds_nothing(void **state) {
    char path[256];
    (void)state;

    add_process(CHILD, DEAD_START + 1);
    assert_int_equal(rmdir(in_proc(path, CHILD, "fd")), 0);
    assert_int_equal(look(), HOLDERS_NONE);
    assert_int_equal(unlink(in_proc(path, CHILD, "stat")), 0);
    assert_int_equal(look(), HOLDERS_NONE);
}

/* --- several at once --- */

static void each_of_the_dead_has_its_own_children(void **state) {
    struct holders_subject subjects[] = {
        {.token = 1, .origin = {.start_ticks = 500}, .uid = DEAD_UID},
        {.token = 2, .origin = {.start_ticks = 700}, .uid = DEAD_UID},
        {.token = 3, .origin = {.start_ticks = 900}, .uid = 7},
    };
    (void)state;

    add_process(CHILD, 600);
    hold(CHILD, "/dev/nvidia0");
    add_process(CHILD + 1, 950);
    hide(CHILD + 1);
    holders_look(proc, FILES, NULL, 0, subjects, 3);
    assert_int_equal(subjects[0].holders, HOLDERS_SOME);
    assert_int_equal(subjects[1].holders, HOLDERS_HIDDEN);
    assert_int_equal(subjects[1].holder, CHILD + 1);
    assert_int_equal(subjects[2].holders, HOLDERS_NONE);
}

/* --- a /proc that does not show all --- */

static void a_proc_that_hides_users_tells_nothing(void **state) {
    static const char *const options[] = {"hidepid=2",          "hidepid=1",   "hidepid=invisible",
                                          "hidepid=ptraceable", "hidepid=off", "hidepid=0"};
    char text[256];
    (void)state;

    for (unsigned i = 0; i < 6; i++) {
        snprintf(text, sizeof text, "25 1 0:23 / /proc rw,nosuid - proc proc rw,%s\n", options[i]);
        write_of(getpid(), "mountinfo", text);
        write_of(getpid(), "status", NO_RIGHTS);
        assert_int_equal(look(), i < 4 ? HOLDERS_UNKNOWN : HOLDERS_NONE);
        write_of(getpid(), "status", MAY_SEE_ALL); /* from whom nothing is hidden */
        assert_int_equal(look(), HOLDERS_NONE);
    }
}

static void a_proc_of_others_tells_nothing(void **state) {
    char path[256];
    (void)state;

    snprintf(path, sizeof path, "%s/self", proc);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(look(), HOLDERS_UNKNOWN);
    add_process(CHILD, 1);
    write_of(CHILD, "status", MAY_SEE_ALL);
    add_link(path, "4000"); /* another namespace's numbers */
    assert_int_equal(look(), HOLDERS_UNKNOWN);
    struct holders_subject subject = {.origin = {.start_ticks = 1}};
    holders_look("/nonexistent", FILES, NULL, 0, &subject, 1);
    assert_int_equal(subject.holders, HOLDERS_UNKNOWN);
}

static void a_proc_without_this_process_tells_nothing(void **state) {
    char path[256];
    (void)state;

    snprintf(path, sizeof path, "%s/%d", proc, (int)getpid());
    char aside[256];
    snprintf(aside, sizeof aside, "%s/aside", proc);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(look(), HOLDERS_UNKNOWN);
}

/* --- the small ones --- */

static uint64_t start_of(const char *root, pid_t pid) {
    struct process_origin origin;
    process_origin_read(&origin, NULL, root, pid);
    return origin.start_ticks;
}

static void the_start_is_what_stat_says(void **state) {
    (void)state;
    add_process(CHILD, 123456);
    assert_int_equal(start_of(proc, CHILD), 123456);
    assert_int_equal(start_of(proc, CHILD + 1), 0);
    assert_int_equal(start_of(proc, 0), 0);
    write_of(CHILD, "stat", "4000 (x");
    assert_int_equal(start_of(proc, CHILD), 0);
    assert_true(start_of("/proc", getpid()) > 0);
}

static void the_driver_is_loaded_where_devices_say_so_or_nothing(void **state) {
    char path[256];
    (void)state;

    assert_true(holders_driver_is_loaded(proc));
    snprintf(path, sizeof path, "%s/devices", proc);
    write_at(path, "Character devices:\n  1 mem\n195 nvidia-frontend\n");
    assert_true(holders_driver_is_loaded(proc));
    write_at(path, "Character devices:\n  1 mem\n");
    assert_false(holders_driver_is_loaded(proc));
}

/* The real /proc: a child that keeps a descriptor, until it ends. */
static void a_real_child_is_found_until_it_ends(void **state) {
    char name[64], files[80];
    int status, ends[2];
    (void)state;

    if (geteuid() != 0)
        skip(); /* others' processes may not be looked into */
    snprintf(name, sizeof name, "gpupool-test-holders-%d", (int)getpid());
    snprintf(files, sizeof files, "/memfd:%s", name);
    int fd = memfd_create(name, 0);
    assert_true(fd >= 0);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit((int)read(ends[0], name, 1)); /* until the test lets go */
    }
    close(ends[0]);
    close(fd);
    struct holders_subject subject = {.uid = getuid()};
    process_origin_read(&subject.origin, NULL, "/proc", getpid());
    holders_look("/proc", files, NULL, 0, &subject, 1);
    assert_int_equal(subject.holders, HOLDERS_SOME);
    assert_int_equal(subject.holder, child);
    close(ends[1]);
    TEST_REAP(child, &status);
    /* Another process that is just beginning or ending on this machine may be hidden for a moment. */
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS;
    do
        holders_look("/proc", files, NULL, 0, &subject, 1);
    while (subject.holders == HOLDERS_HIDDEN && clock_now_ns() < end_ns);
    assert_int_equal(subject.holders, HOLDERS_NONE);
}

#define IN_PROC(test) cmocka_unit_test_setup_teardown(test, make_proc, remove_proc)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_PROC(nobody_holds_anything),
        IN_PROC(an_open_file_of_the_driver_is_held),
        IN_PROC(the_holder_is_named_as_ps_shows_it),
        IN_PROC(a_mapped_file_of_the_driver_is_held),
        IN_PROC(who_is_older_inherited_nothing),
        IN_PROC(everybody_is_suspected_where_the_start_is_not_known),
        IN_PROC(who_has_a_better_reason_is_not_suspected),
        IN_PROC(kernel_threads_hold_nothing),
        IN_PROC(a_name_cannot_pose_as_numbers),
        IN_PROC(who_may_not_be_looked_into_is_suspected),
        IN_PROC(nobody_changes_users_without_privilege),
        IN_PROC(what_cannot_be_read_is_feared),
        IN_PROC(who_is_seen_to_hold_goes_before_who_may),
        IN_PROC(the_child_of_another_process_is_not_suspected),
        IN_PROC(a_process_that_may_have_been_an_orphan_is_suspected),
        IN_PROC(what_descends_from_a_suspect_is_suspected_through_any_chain),
        IN_PROC(an_ancestor_whose_number_another_process_has_is_none),
        IN_PROC(an_ancestor_that_started_in_the_same_tick_is_no_child),
        IN_PROC(the_ancestors_of_a_parent_are_read_once),
        IN_PROC(the_dead_hold_nothing_but_by_their_threads),
        IN_PROC(who_has_gone_meanwhile_holds_nothing),
        IN_PROC(each_of_the_dead_has_its_own_children),
        IN_PROC(a_proc_that_hides_users_tells_nothing),
        IN_PROC(a_proc_of_others_tells_nothing),
        IN_PROC(a_proc_without_this_process_tells_nothing),
        IN_PROC(the_start_is_what_stat_says),
        IN_PROC(the_driver_is_loaded_where_devices_say_so_or_nothing),
        cmocka_unit_test(a_real_child_is_found_until_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
