/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon in a PID namespace of its own, as in a container, and clients outside of it: it sees no pid of
 * theirs, and none of their children. Takes root, and leave to make namespaces. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"

#define POOL_MIB   32u
#define SIZE_BYTES (20 * MIB)

static char config[TEST_CONFIG_SIZE];
static char script[] = "/tmp/gpupool-test-daemon-XXXXXX";
static struct test_daemon daemon_;

/* Whether processes can be started in a PID namespace with a /proc of its own. */
static bool can_make_namespaces(void) {
    return geteuid() == 0 && system("unshare --pid --fork --mount --mount-proc true 2>/dev/null") == 0;
}

/* The daemon becomes the first process of a new namespace; all that are started after it are outside again.
 */
static int start_daemon(void **state) {
    _cleanup_(close_fdp) int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    (void)state;

    assert_true(own >= 0);
    test_run_daemon_by(script, "unshare --mount --mount-proc");
    assert_int_equal(unshare(CLONE_NEWPID), 0);
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB)});
    assert_int_equal(setns(own, CLONE_NEWPID), 0);
    return 0;
}

static int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    unlink(script);
    return 0;
}

/* A member of the only session that there is. */
static cJSON *session_member(cJSON **reply, const char *member) {
    cJSON_Delete(*reply);
    *reply = daemon_ask(&daemon_, "{\"command\":\"sessions\"}");
    const cJSON *sessions = cJSON_GetObjectItemCaseSensitive(*reply, "sessions");
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(sessions, 0), member);
}

static void take_some(struct puppet *worker, unsigned flags) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    puppet_start(worker, &daemon_);
    PUPPET_MUST(worker,
                puppet_call(worker, &(struct puppet_command){.verb = PUPPET_OPEN,
                                                             .flags = GPUPOOL_OPEN_NO_CACHE | flags}));
    if ((flags & GPUPOOL_OPEN_NO_CUDA) != 0)
        count = 1; /* kinds begins with host memory */
    for (unsigned i = 0; i < count; i++)
        PUPPET_MUST(worker, puppet_acquire(worker, i, kinds[i], SIZE_BYTES, GPUPOOL_FOREVER, 0));
}

static void nobody_can_tell_of_a_client_from_outside(void **state) {
    struct puppet worker, other;
    cJSON *reply = NULL, *reason = NULL;
    char request[96];
    (void)state;

    if (!test_has_device())
        skip();
    take_some(&worker, 0);
    assert_int_equal(session_member(&reply, "pid")->valuedouble, 0);
    puppet_kill(&worker);
    WAIT_UNTIL((reason = session_member(&reply, "quarantine_reason"), cJSON_IsString(reason)) &&
               strstr(reason->valuestring, "until an operator releases it") != NULL);
    uint64_t id = (uint64_t)session_member(&reply, "id")->valuedouble;
    puppet_connect(&other, &daemon_); /* while the reaper looks again, as often as some round trips take */
    for (unsigned round = 0; round < 100; round++) {
        PUPPET_MUST(&other, puppet_acquire(&other, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&other, puppet_release(&other, 0));
    }
    puppet_quit(&other);
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 2 * SIZE_BYTES);
    snprintf(request, sizeof request, "{\"command\":\"quarantine-release\",\"session\":%llu}",
             (unsigned long long)id);
    cJSON_Delete(daemon_ask(&daemon_, request));
    WAIT_UNTIL(daemon_sum(&daemon_, "quarantined_bytes") == 0);
    cJSON_Delete(reply);
}

static void a_client_from_outside_that_uses_no_gpu_is_over_when_it_ends(void **state) {
    struct puppet worker;
    (void)state;

    take_some(&worker, GPUPOOL_OPEN_NO_CUDA);
    puppet_kill(&worker);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0 && daemon_sum(&daemon_, "quarantined_bytes") == 0);
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_can_tell_of_a_client_from_outside),
        cmocka_unit_test(a_client_from_outside_that_uses_no_gpu_is_over_when_it_ends),
    };
    int status = puppet_main(argc, argv, NULL);
    if (status >= 0)
        return status;
    if (!can_make_namespaces()) {
        fputs("skipped: this takes root, and leave to make namespaces\n", stderr);
        return 77;
    }
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
