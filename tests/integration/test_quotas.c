/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas and access as users meet them: a daemon with a configuration, and processes of two users. Needs
 * root, to be them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"
#include "tests/integration/wire_peer.h"

#define ALICE 65534u /* and each one's group */
#define BOB   65533u
#define POOLS "[device]\nlimit = 64MiB\nstep = 4MiB\n[host]\nlimit = 64MiB\nstep = 4MiB\n"

static struct test_daemon daemon_;

static void start(const char *config) {
    daemon_start(&daemon_, &(struct daemon_options){.config = config, .for_all_users = true});
}

static void reload(const char *config) {
    daemon_write_config(&daemon_, config);
    daemon_signal(&daemon_, SIGHUP);
}

static uint64_t waiters(unsigned kind) {
    return daemon_pool(&daemon_, puppet_kind_name(kind), 0, "waiters");
}

/* Opens its first client with a cache. */
static void connect_cached(struct puppet *puppet, uid_t uid) {
    puppet_start_as(puppet, &daemon_, NULL, uid);
    PUPPET_MUST(puppet, puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_OPEN}));
}

static bool is_root(void) {
    return geteuid() == 0;
}

static void what_is_beyond_the_quota_waits_for_the_users_own_memory(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    (void)state;

    if (!is_root())
        skip();
    start(POOLS "[quota user:65534]\nhost = 8MiB\ndevice = 8MiB\n");
    for (unsigned i = 0; i < count; i++) {
        struct puppet one, two, bob;
        puppet_connect_as(&one, &daemon_, NULL, ALICE);
        puppet_connect_as(&two, &daemon_, NULL, ALICE);
        puppet_connect_as(&bob, &daemon_, NULL, BOB);
        PUPPET_MUST(&one, puppet_acquire(&one, 0, kinds[i], 6 * MIB, GPUPOOL_FOREVER, 0));
        puppet_send_acquire(&two, 0, kinds[i], 4 * MIB, GPUPOOL_FOREVER);
        WAIT_UNTIL(waiters(kinds[i]) == 1);
        PUPPET_MUST(&bob, puppet_acquire(&bob, 0, kinds[i], 20 * MIB, GPUPOOL_FOREVER, 0)); /* not held up */
        assert_false(puppet_has_answered(&two));
        PUPPET_MUST(&one, puppet_release(&one, 0));
        PUPPET_MUST(&two, puppet_receive(&two));
        PUPPET_MUST_BE(&one, puppet_acquire(&one, 0, kinds[i], 6 * MIB, 20 * NS_PER_MS, 0),
                       GPUPOOL_E_EXHAUSTED);
        PUPPET_SAID(&one, "QUOTA: user 65534 has 4 MiB of the 8 MiB");
        PUPPET_MUST_BE(&one, puppet_acquire(&one, 0, kinds[i], 9 * MIB, GPUPOOL_FOREVER, 0), GPUPOOL_E_LIMIT);
        PUPPET_SAID(&one, "QUOTA");
        puppet_quit(&one);
        puppet_quit(&two);
        puppet_quit(&bob);
    }
    daemon_stop(&daemon_);
}

static void what_the_users_caches_hold_idle_makes_room_within_the_quota(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    (void)state;

    if (!is_root())
        skip();
    start(POOLS "[quota]\nhost = 16MiB\ndevice = 16MiB\n");
    for (unsigned i = 0; i < count; i++) {
        struct puppet one, two;
        connect_cached(&one, ALICE);
        connect_cached(&two, ALICE);
        for (unsigned slot = 0; slot < 12; slot++)
            PUPPET_MUST(&one, puppet_acquire(&one, slot, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        for (unsigned slot = 0; slot < 12; slot++)
            PUPPET_MUST(&one, puppet_release(&one, slot));
        PUPPET_MUST(&two, puppet_acquire(&two, 0, kinds[i], 12 * MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&two, puppet_release(&two, 0));
        for (unsigned slot = 0; slot < 12; slot++) /* and back, in small steps */
            PUPPET_MUST(&one, puppet_acquire(&one, slot, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        puppet_quit(&one);
        puppet_quit(&two);
    }
    daemon_stop(&daemon_);
}

/* A cache asks for more than it needs, but not for more than there is. */
static void a_quota_below_what_a_cache_asks_for_is_used_up_all_the_same(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    (void)state;

    if (!is_root())
        skip();
    start(POOLS "[quota]\nhost = 1MiB\ndevice = 1MiB\n");
    for (unsigned i = 0; i < count; i++) {
        struct puppet one;
        connect_cached(&one, ALICE);
        for (unsigned slot = 0; slot < 3; slot++)
            PUPPET_MUST(&one, puppet_acquire(&one, slot, kinds[i], 256 * KIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST_BE(&one, puppet_acquire(&one, 3, kinds[i], 2 * MIB, GPUPOOL_FOREVER, 0), GPUPOOL_E_LIMIT);
        puppet_quit(&one);
    }
    daemon_stop(&daemon_);
}

static void a_quota_that_is_raised_serves_who_waits(void **state) {
    struct puppet one, two;
    (void)state;

    if (!is_root())
        skip();
    start(POOLS "[quota]\nhost = 8MiB\n");
    puppet_connect_as(&one, &daemon_, NULL, ALICE);
    puppet_connect_as(&two, &daemon_, NULL, ALICE);
    PUPPET_MUST(&one, puppet_acquire(&one, 0, GPUPOOL_POOL_HOST, 6 * MIB, GPUPOOL_FOREVER, 0));
    puppet_send_acquire(&two, 0, GPUPOOL_POOL_HOST, 4 * MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(waiters(GPUPOOL_POOL_HOST) == 1);
    reload(POOLS "[quota]\nhost = 25%\n");
    PUPPET_MUST(&two, puppet_receive(&two));
    puppet_quit(&one);
    puppet_quit(&two);
    daemon_stop(&daemon_);
}

static void a_user_has_no_more_sessions_than_allowed_and_others_have_theirs(void **state) {
    struct puppet one, two, three, bob;
    (void)state;

    if (!is_root())
        skip();
    start(POOLS "[quota]\nsessions = 2\n");
    puppet_connect_as(&one, &daemon_, NULL, ALICE);
    puppet_connect_as(&two, &daemon_, NULL, ALICE);
    puppet_start_as(&three, &daemon_, NULL, ALICE);
    PUPPET_MUST_BE(&three, puppet_open(&three, ""), GPUPOOL_E_LIMIT);
    PUPPET_SAID(&three, "QUOTA: user 65534 has 2 sessions");
    puppet_connect_as(&bob, &daemon_, NULL, BOB);
    puppet_quit(&one);
    PUPPET_MUST(&three, puppet_open(&three, ""));
    puppet_quit(&two);
    puppet_quit(&three);
    puppet_quit(&bob);
    daemon_stop(&daemon_);
}

static void what_is_said_of_a_group_holds_for_its_members(void **state) {
    struct puppet alice, bob;
    (void)state;

    if (!is_root())
        skip();
    start(POOLS "[quota group:65533]\nhost = 0\n");
    puppet_connect_as(&alice, &daemon_, NULL, ALICE);
    puppet_connect_as(&bob, &daemon_, NULL, BOB);
    PUPPET_MUST(&alice, puppet_acquire(&alice, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST_BE(&bob, puppet_acquire(&bob, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0),
                   GPUPOOL_E_LIMIT);
    puppet_quit(&alice);
    puppet_quit(&bob);
    daemon_stop(&daemon_);
}

static unsigned pools_listed(struct puppet *puppet, unsigned kind) {
    unsigned count = 0;
    PUPPET_MUST(puppet, puppet_do(puppet, PUPPET_POOL_LIST, 0));
    for (uint64_t i = 0; i < puppet->answer.number; i++)
        count += puppet->answer.pools[i].kind == kind;
    return count;
}

/* The view of an administrator. */
static unsigned host_pools_in_stats(void) {
    unsigned count = 0;
    cJSON *reply = daemon_ask(&daemon_, "{\"command\":\"pools\"}"), *pool;
    cJSON_ArrayForEach(pool, cJSON_GetObjectItemCaseSensitive(reply, "pools")) count +=
        strcmp(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(pool, "kind")), "host") == 0;
    cJSON_Delete(reply);
    return count;
}

static void a_pool_that_a_user_may_not_use_is_not_there_for_it(void **state) {
    struct puppet alice, bob;
    (void)state;

    if (!is_root())
        skip();
    start(POOLS "allow = user:65534\n"); /* of [host] */
    puppet_connect_as(&alice, &daemon_, NULL, ALICE);
    puppet_connect_as(&bob, &daemon_, NULL, BOB);
    const unsigned there = pools_listed(&alice, GPUPOOL_POOL_HOST);
    assert_true(there > 0);
    uint32_t pool = 0;
    for (uint64_t i = 0; i < alice.answer.number; i++)
        if (alice.answer.pools[i].kind == GPUPOOL_POOL_HOST)
            pool = alice.answer.pools[i].id;
    PUPPET_MUST(&alice, puppet_acquire(&alice, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    assert_int_equal(pools_listed(&bob, GPUPOOL_POOL_HOST), 0);
    PUPPET_MUST_BE(&bob, puppet_acquire(&bob, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0),
                   GPUPOOL_E_NO_POOL);
    const struct puppet_command by_id = {
        .verb = PUPPET_ACQUIRE, .pool = pool, .size = MIB, .timeout_ns = GPUPOOL_FOREVER};
    PUPPET_MUST_BE(&bob, puppet_call(&bob, &by_id), GPUPOOL_E_NO_POOL); /* whose number it knows */
    if (test_has_device())
        PUPPET_MUST(&bob, puppet_acquire(&bob, 1, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0));
    assert_int_equal(host_pools_in_stats(), there);
    reload(POOLS "allow = user:65534, group:65533\n");
    WAIT_UNTIL(pools_listed(&bob, GPUPOOL_POOL_HOST) == there);
    PUPPET_MUST(&bob, puppet_acquire(&bob, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    puppet_quit(&alice);
    puppet_quit(&bob);
    daemon_stop(&daemon_);
}

static void the_data_socket_is_for_its_group(void **state) {
    struct puppet alice, bob;
    struct stat status;
    (void)state;

    if (!is_root())
        skip();
    daemon_start(&daemon_, &(struct daemon_options){.config = POOLS "[daemon]\ngroup = 65534\n"});
    assert_int_equal(stat(daemon_.socket, &status), 0);
    assert_int_equal(status.st_gid, ALICE);
    assert_int_equal(status.st_mode & 0777, 0660);
    assert_int_equal(chmod(daemon_.directory, 0755), 0);
    puppet_connect_as(&alice, &daemon_, NULL, ALICE);
    puppet_start_as(&bob, &daemon_, NULL, BOB);
    PUPPET_MUST_BE(&bob, puppet_open(&bob, ""), GPUPOOL_E_CONNECT);
    puppet_quit(&alice);
    puppet_quit(&bob);
    daemon_stop(&daemon_);
}

static void without_the_group_that_is_asked_for_it_does_not_start(void **state) {
    (void)state;
    daemon_prepare(&daemon_, &(struct daemon_options){.config = POOLS "[daemon]\ngroup = no-such-group\n",
                                                      .unready = true});
    daemon_restart(&daemon_);
    int status = daemon_wait(&daemon_);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    assert_true(daemon_logged(&daemon_, "there is no group 'no-such-group'"));
    assert_int_not_equal(access(daemon_.socket, F_OK), 0);
    daemon_remove(&daemon_);
}

static void a_session_for_which_the_users_replies_would_be_too_many_ends(void **state) {
    struct proto_message message;
    struct peer peer, other;
    uint8_t packet[PROTO_PACKET_MAX];
    int fd = -1;
    (void)state;

    start(POOLS "[quota]\nreplies = 64KiB\n");
    peer_open(&daemon_, &peer, 0);
    peer_open(&daemon_, &other, 0);
    peer_send_acquire(&peer, MIB, NS_FOREVER);
    peer_receive(&peer, &message, &fd); /* and does not say OPENED: what follows is kept */
    close(fd);
    message = (struct proto_message){.header = {.operation = PROTO_LIST_POOLS, .request = 77}};
    size_t size = proto_encode(&message, packet);
    unsigned sent = 0;
    while (send(peer.fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size)
        assert_true(++sent < 5000); /* far below what one session may have kept */
    assert_true(sent > 100);
    WAIT_UNTIL(daemon_logged(&daemon_, "do not read their replies"));
    peer_acquire(&other, MIB); /* what was kept has come back */
    close(peer.fd);
    peer_close(&other);
    daemon_stop(&daemon_);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_beyond_the_quota_waits_for_the_users_own_memory),
        cmocka_unit_test(what_the_users_caches_hold_idle_makes_room_within_the_quota),
        cmocka_unit_test(a_quota_below_what_a_cache_asks_for_is_used_up_all_the_same),
        cmocka_unit_test(a_quota_that_is_raised_serves_who_waits),
        cmocka_unit_test(a_user_has_no_more_sessions_than_allowed_and_others_have_theirs),
        cmocka_unit_test(what_is_said_of_a_group_holds_for_its_members),
        cmocka_unit_test(a_pool_that_a_user_may_not_use_is_not_there_for_it),
        cmocka_unit_test(the_data_socket_is_for_its_group),
        cmocka_unit_test(without_the_group_that_is_asked_for_it_does_not_start),
        cmocka_unit_test(a_session_for_which_the_users_replies_would_be_too_many_ends),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
