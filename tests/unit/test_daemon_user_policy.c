/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of users and groups in the configuration: from the file's text to the core's policy. */
#include <errno.h>
#include <grp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core_fixture.h"
#include "daemon/config/config.h"
#include "daemon/config/user_policy.h"
#include "daemon/core/session.h"
#include "daemon/loop/peer.h"
#include "daemon/loop/users.h"
#include "directory_fixture.h"

/* A core with a device pool of 64 MiB and a host pool of 32 MiB. */
static struct core *core;
static struct config config;

static int apply(const char *text) {
    struct config_mistakes mistakes = {0};
    const char *path = path_of("conf");
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    config_deinit(&config);
    config_init(&config);
    if (config_read_file(&config, path, &mistakes) < 0)
        fail_msg("%s", mistakes.first[0].text);
    unlink(path);
    int r = user_policy_look_up(&config);
    return r < 0 ? r : user_policy_apply(core, &config);
}

static int set_up(void **state) {
    const struct pool_config host = {.kind = PROTO_POOL_HOST,
                                     .device = -1,
                                     .name = "host",
                                     .sizes = {.limit_bytes = 32 * MIB, .step_bytes = 2 * MIB}};
    struct pool *pool;
    (void)state;

    config_init(&config);
    core = core_make();
    add_pool(core, 64 * MIB, 2 * MIB, 0);
    return core_add_pool(core, &host, &pool);
}

static int tear_down(void **state) {
    (void)state;
    core_destroy(core);
    config_deinit(&config);
    return 0;
}

static const struct quota *quota_of(uid_t uid) {
    return &open_session(core, (pid_t)uid + 1, uid)->tenant->quota;
}

static void nobody_has_all_of_the_daemon_unless_it_is_said(void **state) {
    (void)state;
    core->sessions_limit = 640; /* as far as the descriptors allow */
    core->segments_limit = 101;
    assert_int_equal(apply("[daemon]\nsessions_limit = 1000\n"), 0);
    const struct quota *quota = quota_of(UID_A);
    assert_int_equal(quota->limits[QUOTA_SESSIONS], 630);
    assert_int_equal(quota->limits[QUOTA_LEASES], 1048576);
    assert_int_equal(quota->limits[QUOTA_RANGES], 2097152);
    assert_int_equal(quota->limits[QUOTA_SEGMENTS], 50);
    assert_int_equal(quota->limits[QUOTA_WAITING], 16384);
    assert_int_equal(quota->limits[QUOTA_REPLIES], 64 * MIB);
    assert_int_equal(quota->limits[QUOTA_KEPT], QUOTA_UNLIMITED);
    assert_int_equal(quota->limits[QUOTA_POOLS], QUOTA_UNLIMITED);
    assert_int_equal(quota->limits[QUOTA_POOLS + 1], QUOTA_UNLIMITED);
}

static void what_is_said_of_everybody_of_users_and_of_groups_counts(void **state) {
    (void)state;
    assert_int_equal(apply("[quota]\n"
                           "sessions = 5\n"
                           "leases = unlimited\n"
                           "replies = 1MiB\n"
                           "kept = 24GiB\n"
                           "device = 50%\n"
                           "host = 8MiB\n"
                           "[quota user:1002]\n"
                           "sessions = unlimited\n"
                           "host = 25%\n"
                           "[quota user:root]\n"
                           "waiting = 3\n"
                           "[quota group:1003]\n"
                           "host = 0\n"
                           "[quota user:1002]\n" /* goes on */
                           "waiting = 9\n"
                           "kept = 0\n"),
                     0);
    const struct quota *a = quota_of(UID_A), *b = quota_of(UID_B), *c = quota_of(1003), *root = quota_of(0);
    assert_int_equal(a->limits[QUOTA_SESSIONS], 5);
    assert_int_equal(a->limits[QUOTA_LEASES], QUOTA_UNLIMITED);
    assert_int_equal(a->limits[QUOTA_WAITING], 16384);
    assert_int_equal(a->limits[QUOTA_REPLIES], MIB);
    assert_int_equal(a->limits[QUOTA_KEPT], 24 * 1024 * (uint64_t)MIB);
    assert_int_equal(b->limits[QUOTA_KEPT], 0);
    assert_int_equal(a->limits[QUOTA_POOLS], 32 * MIB);
    assert_int_equal(a->limits[QUOTA_POOLS + 1], 8 * MIB);
    assert_int_equal(b->limits[QUOTA_SESSIONS], QUOTA_UNLIMITED);
    assert_int_equal(b->limits[QUOTA_WAITING], 9);
    assert_int_equal(b->limits[QUOTA_POOLS], 32 * MIB);
    assert_int_equal(b->limits[QUOTA_POOLS + 1], 8 * MIB);
    assert_int_equal(c->limits[QUOTA_POOLS + 1], 0); /* its primary group */
    assert_int_equal(root->limits[QUOTA_WAITING], 3);
    assert_int_equal(root->limits[QUOTA_SESSIONS], 5);
}

/* Writes a file of subordinate uids, and applies a configuration with it. */
static int apply_subuid(const char *text, bool is_on) {
    char conf[512], path[256];

    snprintf(path, sizeof path, "%s", path_of("subuid"));
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    snprintf(
        conf, sizeof conf,
        "[daemon]\nsubuid = %s\n[quota]\nleases = 3\nsessions = unlimited\n[quota user:1001]\nleases = 2\n",
        is_on ? path : "no");
    int r = apply(conf);
    unlink(path);
    return r;
}

static void subordinate_uids_share_the_quotas_of_their_owner(void **state) {
    static const char text[] =
        "# a comment\n\n1001:100000:65536\nroot:300000:2\n1001:nonsense:3\n"
        "nobody-of-this-name:400000:5\n1001:0:5\n1001:4294967000:65536\n1001:500000\n1001:700000:1:1\n";
    struct pool *pool = core->pools[0];
    (void)state;

    assert_int_equal(apply_subuid(text, true), 0);
    assert_int_equal(config.n_ranges, 2);
    struct session *owner = open_session(core, 1, UID_A), *first = open_session(core, 2, 100000);
    struct session *last = open_session(core, 3, 165535), *beyond = open_session(core, 4, 165536);
    struct session *of_root = open_session(core, 5, 300001);
    assert_ptr_not_equal(owner->tenant, first->tenant);
    assert_int_equal(first->tenant->account->owner.uid, UID_A);
    assert_ptr_equal(first->tenant->account, last->tenant->account);
    assert_ptr_equal(first->tenant->account, owner->tenant->account);
    assert_null(beyond->tenant->account);
    assert_int_equal(of_root->tenant->account->owner.uid, 0);
    take_growing(first, pool, 4096, 0);
    const struct proto_lease_name name = name_of(take_growing(last, pool, 4096, 0));
    ask(owner, pool, 1, 4096, 0, 0);
    expect_text(expect_refused(core, owner, 1, PROTO_E_LIMIT), "has 2 leases");
    ask(first, pool, 2, 4096, 0, 0);
    expect_text(expect_refused(core, first, 2, PROTO_E_LIMIT), "user 100000 (all uids of the user");
    take_growing(beyond, pool, 4096, 0);
    take_growing(of_root, pool, 4096, 0);
    assert_int_equal(release(last, name, 0), 0);
    take_growing(owner, pool, 4096, 0);
    /* a reload moves the charges: off, and on again */
    assert_int_equal(apply_subuid(text, false), 0);
    assert_null(first->tenant->account);
    take(first, pool, 4096, 0);
    assert_int_equal(apply_subuid(text, true), 0);
    assert_int_equal(owner->tenant->account->quota.used[QUOTA_LEASES], 3);
    assert_int_equal(owner->tenant->account->quota.used[QUOTA_SESSIONS], 3);
    ask(owner, pool, 3, 4096, 0, 0);
    expect_refused(core, owner, 3, PROTO_E_LIMIT);
    assert_true(core_is_valid(core));
}

static void a_file_of_subordinate_uids_need_not_be_there(void **state) {
    (void)state;
    assert_int_equal(apply("[daemon]\nsubuid = /nowhere/at/all\n"), 0);
    assert_int_equal(config.n_ranges, 0);
}

static bool may_use(uid_t uid, unsigned pool) {
    struct session *session = open_session(core, (pid_t)uid + 1, uid);
    bool may = session_may_use(session, core->pools[pool]);
    close_session(session, 0);
    return may;
}

static void a_list_of_who_may_use_a_pool_is_kept_to(void **state) {
    (void)state;
    assert_int_equal(apply("[device]\nallow = user:1001 , group:1002\nallow=user:root\n"), 0);
    assert_true(may_use(UID_A, 0) && may_use(UID_B, 0) && may_use(0, 0));
    assert_false(may_use(1003, 0));
    assert_true(may_use(1003, 1));
    /* one pool's own list goes before its kind's, also when it is everybody */
    assert_int_equal(
        apply("[device]\nallow = user:1001\n[device 0]\nallow = all\n[host]\nallow = user:1001\n"), 0);
    assert_true(may_use(UID_B, 0));
    assert_false(may_use(UID_B, 1));
    assert_int_equal(apply("[host 0]\nallow = user:1002\n[host]\nallow = user:1001\n"), 0);
    assert_true(may_use(UID_B, 1));
    assert_false(may_use(UID_A, 1));
    assert_false(may_use(0, 1)); /* root is a user as others */
}

static void a_name_that_nobody_has_is_nobody(void **state) {
    gid_t gid;
    (void)state;
    assert_int_equal(
        apply("[quota]\nwaiting = 5\n"
              "[quota user:no-such-user]\nwaiting = 6\n[quota group:no-such-group]\nwaiting = 7\n"
              "[device]\nallow = user:no-such-user, group:no-such-group\n"),
        0);
    assert_int_equal(quota_of(UID_A)->limits[QUOTA_WAITING], 5);
    assert_int_equal(quota_of(0)->limits[QUOTA_WAITING], 5); /* not what it happens to be to begin with */
    assert_false(may_use(UID_A, 0));
    assert_false(may_use(0, 0));
    assert_int_equal(users_find_group("no-such-group", &gid), -ENOENT);
    assert_int_equal(users_find_group("root", &gid), 0);
    assert_int_equal(gid, 0);
    assert_int_equal(users_find_group("4711", &gid), 0);
    assert_int_equal(gid, 4711);
    assert_int_equal(users_find_group("4294967295", &gid), -ENOENT); /* "as it is" to chown() */
}

static void a_peers_groups_are_those_that_it_was_in_when_it_connected(void **state) {
    const gid_t groups[] = {71, 72, 73};
    struct peer peer;
    int pair[2];
    (void)state;

    if (geteuid() != 0)
        skip();
    gid_t own[256];
    int n_own = getgroups(256, own);
    assert_true(n_own >= 0);
    assert_int_equal(setgroups(3, groups), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(setgroups(0, NULL), 0);
    assert_int_equal(peer_identify(pair[0], &peer), 0);
    assert_int_equal(peer_read_groups(pair[0], &peer), 0);
    assert_int_equal(peer.n_groups, 3);
    assert_memory_equal(peer.groups, groups, sizeof groups);
    peer_drop_groups(&peer);
    peer_drop_groups(&peer);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(peer_identify(pair[0], &peer), 0);
    assert_int_equal(peer_read_groups(pair[0], &peer), 0); /* none */
    assert_int_equal(peer.n_groups, 0);
    peer_drop_groups(&peer);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(setgroups((size_t)n_own, own), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nobody_has_all_of_the_daemon_unless_it_is_said, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_said_of_everybody_of_users_and_of_groups_counts, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_list_of_who_may_use_a_pool_is_kept_to, set_up, tear_down),
        cmocka_unit_test_setup_teardown(subordinate_uids_share_the_quotas_of_their_owner, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_of_subordinate_uids_need_not_be_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_name_that_nobody_has_is_nobody, set_up, tear_down),
        cmocka_unit_test(a_peers_groups_are_those_that_it_was_in_when_it_connected),
    };
    return cmocka_run_group_tests_name("users and groups in the configuration", tests, make_directory,
                                       remove_directory);
}
