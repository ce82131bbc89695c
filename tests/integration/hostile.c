/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/hostile.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/cleanup.h"

/* Descriptors that a driver may open at any time and keep; a simulated one has none of its own. */
#define DRIVERS_MAX 8u

struct test_daemon daemon_;
unsigned descriptors;
static char config[TEST_CONFIG_SIZE];
static const char *beside = "nobody"; /* the attack that goes on */

unsigned hostile_descriptors(void) {
    /* A simulated device's segments are memfds, as those of the host. Segments by descriptor have one more. */
    unsigned segments = (unsigned)(test_is_simulated() ? daemon_sum(&daemon_, "segments")
                                                       : daemon_pool(&daemon_, "host", -1, "segments"));
    if (test_has_device() && test_exports_vmm())
        segments += (unsigned)daemon_pool(&daemon_, "device", -1, "segments");
    return daemon_descriptors(&daemon_) - segments;
}

bool is_at_rest(void) {
    return daemon_sum(&daemon_, "quarantined_bytes") == 0 && daemon_sum(&daemon_, "leases") == 0 &&
           daemon_sum(&daemon_, "waiters") == 0 && daemon_number(&daemon_, "sessions") == 0;
}

static void print_stats(void) {
    cJSON *reply = daemon_ask(&daemon_, "{\"command\":\"stats\"}");
    _cleanup_(freep) char *text = cJSON_Print(reply);
    print_error("beside %s. The daemon's stats:\n%s\n", beside, text);
    cJSON_Delete(reply);
}

void come_to_rest(const char *after) {
    unsigned spare = test_is_simulated() ? 0 : DRIVERS_MAX;
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS;

    beside = after;
    cJSON_Delete(daemon_ask(&daemon_, "{\"command\":\"parcels-revoke\"}"));
    while (!is_at_rest() || hostile_descriptors() < descriptors ||
           hostile_descriptors() > descriptors + spare) {
        if (clock_now_ns() > end_ns) {
            print_stats();
            fail_msg("%s is over, and the daemon has %u descriptors, %u at first", after,
                     hostile_descriptors(), descriptors);
        }
        test_pause();
    }
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes") + daemon_sum(&daemon_, "fenced_bytes"), 0);
}

void live_well(struct puppet *puppet, unsigned rounds) {
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS;

    puppet_send(puppet, &(struct puppet_command){.verb = PUPPET_ROUNDS,
                                                 .kind = GPUPOOL_POOL_HOST,
                                                 .size = 256 * KIB,

                                                 .seed = rounds,
                                                 .number = rounds});
    while (!puppet_has_answered(puppet) && clock_now_ns() < end_ns)
        test_pause();
    if (!puppet_has_answered(puppet)) {
        print_stats();
        fail_msg("the client beside %s gets no answer", beside);
    }
    int r = puppet_receive(puppet);
    if (r != 0 || puppet->answer.number != rounds) {
        print_stats();
        fail_msg("the client beside %s: %s: %s", beside, gpupool_error_name(r), puppet->answer.text);
    }
}

int hostile_start_daemon(void **state) {
    struct puppet victim;
    (void)state;
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                    .for_all_users = true});
    /* Descriptors that the daemon opens once and keeps are not to be counted later. */
    puppet_connect(&victim, &daemon_);
    live_well(&victim, 2);
    if (test_has_device())
        PUPPET_MUST(&victim, puppet_acquire(&victim, 1, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&victim, puppet_acquire(&victim, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    puppet_kill(&victim);
    WAIT_UNTIL(is_at_rest());
    descriptors = hostile_descriptors();
    return 0;
}

int hostile_stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

int raw_connect(void) {
    return raw_client_connect(daemon_.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
}

/* --- the frame --- */

pid_t attacker_start(uid_t uid, void (*attack)(int ready), int *ret_ready) {
    int ready[2];

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit many = {4096, 4096};
        setrlimit(RLIMIT_NOFILE, &many);
        if (uid != 0 && (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0))
            _exit(98);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        attack(ready[1]);
        _exit(0);
    }
    close(ready[1]);
    *ret_ready = ready[0];
    return pid;
}

void survive_as(uid_t uid, const char *name, void (*attack)(int ready), bool newcomers) {
    struct puppet good, late;
    int ready;
    char byte;

    beside = name;
    puppet_connect(&good, &daemon_);
    pid_t pid = attacker_start(uid, attack, &ready);
    if (read(ready, &byte, 1) != 1)
        fail_msg("%s came to its end before it began", name);
    close(ready);
    live_well(&good, 30);
    if (newcomers) {
        puppet_connect(&late, &daemon_);
        live_well(&late, 10);
        puppet_quit(&late);
    }
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == 0) {
        kill(pid, SIGUSR1); /* ends those that go on for ever */
        /* Those that come to an end by themselves have things to say by their status. How long all of that
         * takes is the machine's affair: each answer that they wait for has its bound (raw_connect()). */
        while (waitpid(pid, &status, WNOHANG) == 0)
            live_well(&good, 5);
    }
    if (!(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1) &&
        !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        fail_msg("%s ended with status 0x%x", name, (unsigned)status);
    live_well(&good, 10);
    puppet_quit(&good);
    come_to_rest(name);
}

void tell(int ready) {
    MUST(write(ready, "", 1) == 1);
}

/* An attacker that has to come to its end: it is not to be ended by the frame. */
void be_heard_out(void) {
    signal(SIGUSR1, SIG_IGN);
}
