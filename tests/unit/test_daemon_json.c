/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The administrative commands, line by line: what is JSON and known is answered, everything else gets an
 * error, and every answer is one line of JSON by a reader that shares nothing with the writer.
 */
#include <unistd.h>

#include "client/ctl/json.h"
#include "core_fixture.h"
#include "daemon/admin/admin.h"
#include "daemon/admin/admin_json.h"
#include "daemon/admin/admin_terms.h"
#include "daemon/config/reload.h"
#include "daemon/data/channels.h"
#include "daemon/data/lingering.h"
#include "daemon/death/watcher.h"
#include "daemon/loop/identity.h"
#include "daemon/loop/listener.h"
#include "daemon/loop/notices.h"
#include "daemon/loop/store.h"
#include "daemon/supply/pools.h"
#include "daemon/supply/supplier.h"
#include "publish_lease.h"

#define UID_STRANGER 65533u

/* --- a recogniser of RFC 8259; returns what follows the value, NULL where there is none */

static const char *json_value(const char *text, unsigned depth);

static const char *json_blank(const char *text) {
    return text + strspn(text, " \t\r\n");
}

static const char *json_string(const char *text) {
    if (*text++ != '"')
        return NULL;
    for (; *text != '"'; text++) {
        if ((unsigned char)*text < ' ')
            return NULL;
        if (*text != '\\')
            continue;
        text++;
        if (*text == 'u' && strspn(text + 1, "0123456789abcdefABCDEF") >= 4)
            text += 4;
        else if (*text == '\0' || strchr("\"\\/bfnrt", *text) == NULL)
            return NULL;
    }
    return text + 1;
}

static const char *json_digits(const char *text) {
    size_t digits = strspn(text, "0123456789");
    return digits == 0 ? NULL : text + digits;
}

static const char *json_number(const char *text) {
    text += *text == '-';
    text = *text == '0' ? text + 1 : json_digits(text);
    if (text != NULL && *text == '.')
        text = json_digits(text + 1);
    if (text != NULL && (*text == 'e' || *text == 'E'))
        text = json_digits(text + 1 + strspn(text + 1, "+-"));
    return text;
}

static const char *json_members(const char *text, char end, unsigned depth) {
    text = json_blank(text + 1);
    if (*text == end)
        return text + 1;
    for (;; text++) {
        if (end == '}') {
            text = json_string(json_blank(text));
            if (text == NULL || *(text = json_blank(text)) != ':')
                return NULL;
            text++;
        }
        text = json_value(text, depth);
        if (text == NULL)
            return NULL;
        text = json_blank(text);
        if (*text == end)
            return text + 1;
        if (*text != ',')
            return NULL;
    }
}

static const char *json_value(const char *text, unsigned depth) {
    text = json_blank(text);
    if (depth > 8)
        return NULL;
    if (*text == '{')
        return json_members(text, '}', depth + 1);
    if (*text == '[')
        return json_members(text, ']', depth + 1);
    if (*text == '"')
        return json_string(text);
    if (strncmp(text, "true", 4) == 0 || strncmp(text, "null", 4) == 0)
        return text + 4;
    if (strncmp(text, "false", 5) == 0)
        return text + 5;
    return json_number(text);
}

/* One object and a newline, and no other newline. */
static void assert_is_reply(const char *line) {
    assert_non_null(line);
    assert_int_equal(*line, '{');
    const char *end = json_value(line, 0);
    assert_non_null(end);
    assert_string_equal(end, "\n");
    assert_ptr_equal(strchr(line, '\n'), end);
}

/* --- a daemon with a pool and no loop */

static struct supplier supplier = {.segment_kind = PROTO_SEGMENT_LEGACY_IPC};
static struct core *core;
static struct config configuration;
static struct reload the_reload;
static struct watcher watcher;
static struct lingering lingering;
static struct machine machine = {.gpu_kind = PROTO_GPU_SIM};
static struct listener listener;
static struct identity identity;
static struct notices notices;
static struct store store;
static struct channels channels; /* without pages */
static struct admin_terms terms = {.config = &configuration,
                                   .reload = &the_reload,
                                   .watcher = &watcher,
                                   .lingering = &lingering,
                                   .machine = &machine,
                                   .data_listener = &listener,
                                   .admin_listener = &listener,
                                   .identity = &identity,
                                   .notices = &notices,
                                   .store = &store,
                                   .channels = &channels};

static int make_daemon(void **state) {
    (void)state;
    terms.core = core = core_make();
    config_init(&configuration);
    channels_init(&channels, core, NULL, NULL);
    reload_init(&the_reload, &(struct reload_terms){.config = &configuration});
    identity = (struct identity){.started_ns = clock_now_ns()};
    snprintf(listener.path, sizeof listener.path, "/run/\"quoted\"\\path");
    notices = (struct notices){0};
    notices_add(&notices, "a notice with \"quotes\" and a \t tab");
    add_pool(core, 64 * MIB, 8 * MIB, 0)->owner = &supplier;
    add_starting_pool(core, 64 * MIB, 8 * MIB, 0)->owner = &supplier;
    core_pool_failed(core->pools[1], "an error with \"quotes\", \\ and \x01", 0);
    return 0;
}

static int drop_daemon(void **state) {
    (void)state;
    core_destroy(core);
    config_deinit(&configuration);
    return 0;
}

static char *ask_json(uid_t uid, const char *line, size_t size) {
    /* in memory of its own size, so that reading beyond the line is seen */
    char *copy = malloc(size > 0 ? size : 1);
    assert_non_null(copy);
    memcpy(copy, line, size);
    char *reply = admin_json_answer(&terms, uid, copy, size);
    free(copy);
    assert_is_reply(reply);
    *strchr(reply, '\n') = '\0';
    return reply;
}

static void expect_error(uid_t uid, const char *line, size_t size, const char *code) {
    struct reply *read = NULL;
    char *reason = NULL, *reply = ask_json(uid, line, size);
    if (reply_read(reply, strlen(reply), "ping", &read, &reason) != 0 || read->error_code == NULL ||
        strcmp(read->error_code, code) != 0)
        fail_msg("%.*s was answered with %s", (int)size, line, reply);
    assert_true(strlen(read->error_message) > 0);
    reply_free(read);
    free(reply);
}

static unsigned length_of(const struct cJSON *object, const char *key) {
    unsigned length = 0;
    reply_each(member, object, key) length += member != NULL;
    return length;
}

static const struct cJSON *element(const struct cJSON *object, const char *key, unsigned index) {
    const struct cJSON *member = reply_first(object, key);
    while (index-- > 0)
        member = reply_next(member);
    return member;
}

static struct reply *expect_reply(uid_t uid, const char *line, const char *command) {
    struct reply *read = NULL;
    char *reason = NULL, *reply = ask_json(uid, line, strlen(line));
    if (reply_read(reply, strlen(reply), command, &read, &reason) != 0 || read->error_code != NULL)
        fail_msg("%s was answered with %s: %s", line, reply, reason != NULL ? reason : "");
    free(reply);
    return read;
}

static void good_lines_are_answered(void **state) {
    static const struct {
        const char *line, *command;
    } good[] = {
        {"{\"command\":\"ping\"}", "ping"},
        {" \t{ \"command\" : \"ping\" } \r", "ping"},
        {"{\"\\u0063ommand\":\"\\u0070ing\"}", "ping"},
        {"{\"command\":\"stats\"}", "stats"},
        {"{\"command\":\"pools\"}", "pools"},
        {"{\"command\":\"sessions\"}", "sessions"},
        {"{\"command\":\"quota\"}", "quota"},
        {"{\"command\":\"names\"}", "names"},
        {"{\"command\":\"channels\"}", "channels"},
        {"{\"command\":\"config\"}", "config"},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof good / sizeof *good; i++)
        reply_free(expect_reply(UID_STRANGER, good[i].line, good[i].command)); /* reading is for everybody */
}

static void quotas_tell_what_each_user_has_and_may_have(void **state) {
    struct policy *policy = NULL;
    (void)state;

    assert_int_equal(policy_new(&policy), 0);
    policy->everybody[QUOTA_LEASES] = 7;
    policy->everybody[QUOTA_POOLS] = 8 * MIB;
    core_set_policy(core, policy, 0);
    struct session *session = open_session(core, 1, UID_A);
    open_session(core, 2, UID_B);
    take_growing(session, core->pools[0], 3 * MIB, 0);
    struct reply *reply = expect_reply(UID_STRANGER, "{\"command\":\"quota\"}", "quota");
    assert_int_equal(length_of(reply->root, "quotas"), 2);
    const struct cJSON *quota = element(reply->root, "quotas", 0);
    assert_int_equal(reply_count(quota, "uid"), UID_A);
    assert_int_equal(reply_count(quota, "sessions"), 1);
    assert_int_equal(reply_count(quota, "sessions_limit"), REPLY_NULL);
    assert_int_equal(reply_count(quota, "leases"), 1);
    assert_int_equal(reply_count(quota, "leases_limit"), 7);
    assert_int_equal(length_of(quota, "pools"), 2);
    assert_int_equal(reply_count(element(quota, "pools", 0), "bytes"), 3 * MIB);
    assert_int_equal(reply_count(element(quota, "pools", 0), "bytes_limit"), 8 * MIB);
    assert_int_equal(reply_count(element(quota, "pools", 1), "bytes"), 0);
    assert_int_equal(reply_count(element(quota, "pools", 1), "bytes_limit"), REPLY_NULL);
    assert_int_equal(reply_count(element(reply->root, "quotas", 1), "uid"), UID_B);
    assert_int_equal(reply_count(element(element(reply->root, "quotas", 1), "pools", 0), "bytes"), 0);
    reply_free(reply);
}

static void bad_lines_are_answered_with_an_error(void **state) {
    static const char *const bad[] = {
        "",
        " ",
        "null",
        "1",
        "\"stats\"",
        "[]",
        "[{\"command\":\"stats\"}]",
        "{}",
        "{",
        "}",
        "{\"command\"}",
        "{\"command\":}",
        "{\"command\":\"stats\"",
        "{\"command\":\"stats\"}}",
        "{\"command\":\"stats\"}{}",
        "{\"command\":\"stats\"} x",
        "{\"command\":\"stats\",}",
        "{'command':'stats'}",
        "{command:\"stats\"}",
        "{\"command\":stats}",
        "{\"command\":null}",
        "{\"command\":1}",
        "{\"command\":true}",
        "{\"command\":[\"stats\"]}",
        "{\"command\":{\"command\":\"stats\"}}",
        /* another case, twice, unknown */
        "{\"Command\":\"stats\"}",
        "{\"COMMAND\":\"stats\"}",
        "{\"command\":\"stats\",\"Command\":\"stats\"}",
        "{\"command\":\"stats\",\"command\":\"stats\"}",
        "{\"command\":\"trim\",\"pool\":1,\"pool\":1}",
        "{\"command\":\"stats\",\"verbose\":true}",
        "{\"command\":\"stats\",\"\":1}",
        "{\"command\":\"stats\",\"pool\":1}",
        /* numbers */
        "{\"command\":\"trim\",\"pool\":01}",
        "{\"command\":\"trim\",\"pool\":-01}",
        "{\"command\":\"trim\",\"pool\":1.}",
        "{\"command\":\"trim\",\"pool\":.1}",
        "{\"command\":\"trim\",\"pool\":+1}",
        "{\"command\":\"trim\",\"pool\":1e}",
        "{\"command\":\"trim\",\"pool\":1e+}",
        "{\"command\":\"trim\",\"pool\":0x1}",
        "{\"command\":\"trim\",\"pool\":-}",
        "{\"command\":\"trim\",\"pool\":1e400}",
        "{\"command\":\"trim\",\"pool\":-1e400}",
        "{\"command\":\"trim\",\"pool\":NaN}",
        "{\"command\":\"trim\",\"pool\":Infinity}",
        "{\"command\":\"trim\",\"pool\":-1}",
        "{\"command\":\"trim\",\"pool\":1.5}",
        "{\"command\":\"trim\",\"pool\":\"1\"}",
        "{\"command\":\"trim\",\"pool\":null}",
        "{\"command\":\"trim\",\"pool\":4294967296}",
        "{\"command\":\"trim\",\"pool\":4294967297}",
        "{\"command\":\"trim\",\"pool\":9007199254740993}",
        "{\"command\":\"trim\",\"pool\":18446744073709551617}",
        "{\"command\":\"trim\",\"pool\":99999999999999999999999999999999999999999999999999999999999}",
        "{\"command\":\"trim\",\"pool\":1 1}",
        /* bytes */
        "{\"command\":\"stats\xff\"}",
        "{\"command\":\"\xc0\xaf\"}",
        "{\"command\":\"\xed\xa0\x80\"}",
        "{\"command\":\"\xf4\x90\x80\x80\"}",
        "{\"command\":\"\xe2\x82\"}",
        "{\"command\":\"stats\"}\xc3",
        "\xc3",
        "{\"command\":\"sta\x01ts\"}",
        "{\"command\":\"stats\"}\x0b",
        "{\"command\":\"\\",
        "{\"command\":\"\\x\"}",
        "{\"command\":\"\\u12\"}",
        "{\"command\":\"\\ud800\"}",
        "{\"command\":\"stats\\u0000\"}",
        "{\"command\\u0000\":\"stats\"}",
        /* depth */
        "{\"command\":[[[[[[]]]]]]}",
        "[[[[[[[[[[",
        "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":1}}}}}",
    };
    (void)state;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_error(0, bad[i], strlen(bad[i]), "invalid-request");
    expect_error(0, "{\"command\":\"stats\"}\0", 20, "invalid-request");
    expect_error(0, "{\"command\":\"sta\0ts\"}", 20, "invalid-request");
    expect_error(0, "{\"command\":\"stat\"}", 18, "unknown-command");
    expect_error(0, "{\"command\":\"\"}", 14, "unknown-command");
    expect_error(0, "{\"command\":\"STATS\"}", 19, "unknown-command");
    expect_error(0, "{\"command\":\"trim\",\"pool\":0}", 27, "no-such-pool");
    expect_error(0, "{\"command\":\"trim\",\"pool\":3}", 27, "no-such-pool");
    expect_error(0, "{\"command\":\"trim\",\"pool\":4294967295}", 36, "no-such-pool");
}

/* A client that found the daemon by a path says which daemon it means. */
static void a_request_for_another_daemon_is_refused(void **state) {
    char line[128];
    (void)state;

    hex_write((const uint8_t *)"0123456789abcdef", PROTO_IDENTITY_BYTES, identity.text);
    snprintf(line, sizeof line, "{\"daemon\":\"%s\",\"command\":\"stats\"}", identity.text);
    struct reply *reply = expect_reply(0, line, "stats");
    assert_string_equal(reply_text(reply->root, "daemon.identity"), "30313233343536373839616263646566");
    reply_free(reply);
    line[strlen("{\"daemon\":\"")] ^= 1;
    expect_error(0, line, strlen(line), "other-daemon");
    snprintf(line, sizeof line, "{\"daemon\":\"\",\"command\":\"trim\"}");
    expect_error(0, line, strlen(line), "other-daemon");
    snprintf(line, sizeof line, "{\"daemon\":7,\"command\":\"trim\"}");
    expect_error(0, line, strlen(line), "invalid-request");
    snprintf(line, sizeof line, "{\"daemon\":\"%s\",\"daemon\":\"%s\",\"command\":\"ping\"}", "a", "a");
    expect_error(0, line, strlen(line), "invalid-request");
}

static void the_longest_line_is_answered(void **state) {
    static const char fillings[] = {'[', '{', '"', '\\', ' ', '1', 'a', '-', ','};
    char *line = malloc(ADMIN_LINE_MAX);
    (void)state;
    assert_non_null(line);
    for (unsigned i = 0; i < sizeof fillings; i++) {
        memset(line, fillings[i], ADMIN_LINE_MAX);
        expect_error(0, line, ADMIN_LINE_MAX, "invalid-request");
    }
    free(line);
}

static void any_byte_of_a_good_line_may_be_another(void **state) {
    const char good[] = "{\"command\":\"trim\",\"pool\":12}";
    char line[sizeof good];
    (void)state;
    for (size_t at = 0; at < sizeof good - 1; at++)
        for (unsigned byte = 0; byte < 256; byte++) {
            memcpy(line, good, sizeof good);
            line[at] = (char)byte;
            free(ask_json(0, line, sizeof good - 1)); /* one line of JSON, whatever was asked */
        }
}

static void trim_is_for_root_and_the_daemons_own_user(void **state) {
    const char trim[] = "{\"command\":\"trim\"}", one[] = "{\"command\":\"trim\",\"pool\":1}";
    (void)state;

    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, core->pools[0], MIB, 0);
    close_session(session, 0);
    static const char reload[] = "{\"command\":\"reload\"}";
    expect_error(UID_STRANGER, reload, sizeof reload - 1, "permission-denied");
    expect_error(geteuid(), reload, sizeof reload - 1, "internal"); /* this daemon has no command line */
    expect_error(UID_STRANGER, trim, sizeof trim - 1, "permission-denied");
    expect_error(UID_STRANGER, one, sizeof one - 1, "permission-denied");
    assert_int_equal(core->pools[0]->retiring_bytes, 0);
    struct reply *reply = expect_reply(geteuid(), one, "trim");
    assert_int_equal(reply_count(reply->root, "trimmed_bytes"), 8 * MIB);
    assert_int_equal(length_of(reply->root, "pools"), 1);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "id"), 1);
    reply_free(reply);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    reply = expect_reply(0, trim, "trim");
    assert_int_equal(reply_count(reply->root, "trimmed_bytes"), 0);
    assert_int_equal(length_of(reply->root, "pools"), 2);
    reply_free(reply);
}

/* A user with very many leases must not make the loop write very long replies. */
static void leases_and_sharing_are_bounded(void **state) {
    struct peer peer = {.pid = 4711, .uid = UID_A, .gid = 7, .command = "many"};
    struct session *sessions[3];
    struct proto_token fresh = {0}, token;
    (void)state;

    for (unsigned s = 0; s < 3; s++) {
        assert_int_equal(core_session_open(core, &peer, 0, &sessions[s]), 0);
        if (s == 0)
            describe(take_growing(sessions[s], core->pools[0], 512, 0), NULL);
        for (unsigned i = s == 0 ? 1 : 0; i < 300; i++) {
            struct lease *lease = take(sessions[s], core->pools[0], 512, 0);
            const struct proto_lease_name name = name_of(lease);
            memcpy(fresh.bytes, &lease->id, sizeof lease->id);
            assert_int_equal(share_lease(sessions[s], &name, 0, &fresh, &token), 0);
        }
    }
    struct reply *reply = expect_reply(UID_A, "{\"command\":\"leases\"}", "leases");
    assert_int_equal(length_of(reply->root, "leases"), 512);
    assert_int_equal(reply_count(reply->root, "total"), 900);
    reply_free(reply);
    reply = expect_reply(UID_A, "{\"command\":\"sharing\"}", "sharing");
    assert_int_equal(length_of(reply->root, "blocks"), 256);
    assert_false(reply_flag(reply->root, "is_whole"));
    reply_free(reply);
    reply = expect_reply(UID_STRANGER, "{\"command\":\"leases\"}", "leases");
    assert_int_equal(length_of(reply->root, "leases"), 0);
    assert_int_equal(reply_count(reply->root, "total"), 0);
    reply_free(reply);
    for (unsigned s = 0; s < 3; s++)
        core_session_close(sessions[s], 0);
}

static void stats_tell_what_is(void **state) {
    struct peer peer = {.pid = 4711, .uid = UID_A, .gid = 7, .command = "py\"thon\\"};
    struct session *session = NULL;
    (void)state;

    assert_int_equal(core_session_open(core, &peer, 0, &session), 0);
    describe(take_growing(session, core->pools[0], MIB, 0), NULL);
    take(session, core->pools[0], MIB, 0);
    core_answer_sent(&(struct answer){.pool = core->pools[0], .waited = true}, UINT64_MAX);
    core_session_set_page(session, &page);
    atomic_store(&page.counters[0].pool, core->pools[0]->id);
    atomic_store(&page.counters[0].taken_bytes, MIB / 2);
    atomic_store(&page.counters[0].hits, 3);
    atomic_store(&page.counters[0].misses, 1);
    atomic_store(&page.counters[0].moves, 5);
    struct reply *reply = expect_reply(UID_STRANGER, "{\"command\":\"stats\"}", "stats");
    assert_string_equal(reply_text(reply->root, "daemon.gpu"), "sim");
    assert_string_equal(reply_text(reply->root, "daemon.socket"), "/run/\"quoted\"\\path");
    assert_int_equal(reply_count(reply->root, "daemon.pid"), getpid());
    assert_int_equal(length_of(reply->root, "daemon.notices"), 1);
    assert_string_equal(reply_string(reply_first(reply->root, "daemon.notices")),
                        "a notice with \"quotes\" and a \t tab");
    assert_int_equal(length_of(reply->root, "pools"), 2);
    assert_string_equal(reply_text(element(reply->root, "pools", 0), "state"), "ready");
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "reserved_bytes"), 8 * MIB);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "leased_bytes"), 2 * MIB);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "in_use_bytes"), MIB / 2);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "cached_bytes"), 3 * MIB / 2);
    assert_true(reply_ratio(element(reply->root, "pools", 0), "hit_ratio") == 0.75);
    assert_true(reply_ratio(element(reply->root, "pools", 1), "hit_ratio") == REPLY_NULL_RATIO);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "moves"), 5);
    assert_int_equal(reply_count(element(reply->root, "pools", 1), "moves"), 0);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "free_bytes"), 6 * MIB);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "leases"), 2);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "acquires"), core->pools[0]->stats.n_acquires);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "histograms.waiting_ns.count"), 1);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "histograms.waiting_ns.p50"),
                     histogram_quantile_ns(&core->pools[0]->stats.waiting, 500));
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "histograms.waiting_ns.p90"),
                     histogram_quantile_ns(&core->pools[0]->stats.waiting, 900));
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "histograms.waiting_ns.p99"), UINT64_C(1)
                                                                                                     << 38);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "histograms.acquire_ns.count"), 0);
    assert_true(reply_count(element(reply->root, "pools", 0), "histograms.acquire_ns.p99") == REPLY_NULL);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "histograms.growth_ns.count"), 1);
    assert_string_equal(reply_text(element(reply->root, "pools", 1), "state"), "failed");
    assert_non_null(
        strstr(reply_text(element(reply->root, "pools", 1), "last_error"), "an error with \"quotes\", \\"));
    assert_int_equal(length_of(reply->root, "sessions"), 1);
    assert_int_equal(reply_count(element(reply->root, "sessions", 0), "pid"), 4711);
    assert_string_equal(reply_text(element(reply->root, "sessions", 0), "command"), "py\"thon\\");
    assert_string_equal(reply_text(element(reply->root, "sessions", 0), "state"), "active");
    assert_int_equal(reply_count(element(reply->root, "sessions", 0), "leased_bytes"), 2 * MIB);
    assert_int_equal(reply_count(element(reply->root, "sessions", 0), "in_use_bytes"), MIB / 2);
    assert_int_equal(reply_count(element(reply->root, "sessions", 0), "cached_bytes"), 3 * MIB / 2);
    assert_true(reply_ratio(element(reply->root, "sessions", 0), "hit_ratio") == 0.75);
    assert_int_equal(reply_count(element(reply->root, "sessions", 0), "moves"), 5);
    reply_free(reply);

    lose_session(session, 0);
    reply = expect_reply(UID_STRANGER, "{\"command\":\"sessions\"}", "sessions");
    assert_string_equal(reply_text(element(reply->root, "sessions", 0), "state"), "quarantined");
    assert_string_equal(reply_text(element(reply->root, "sessions", 0), "quarantine_reason"),
                        "waiting for its process to end");
    reply_free(reply);
    session_gone(session, 0);
}

/* --- names */

/* The session is to build the name, or waits for it. Returns which. */
static bool is_to_build(struct session *session, const char *text) {
    struct proto_open_name open = {.timeout_ns = UINT64_MAX, .flags = PROTO_OPEN_NAME_BUILD};
    struct name_answer next;
    bool builds = false;

    snprintf(open.name, sizeof open.name, "%s", text);
    assert_int_equal(core_open_name(session, 1, &open, 5), 0);
    while (core_next_name_answer(core, &next))
        builds = builds || next.named.state == PROTO_NAME_BUILD;
    return builds;
}

static unsigned names_told(uid_t uid, uint64_t *ret_total) {
    struct reply *reply = expect_reply(uid, "{\"command\":\"names\"}", "names");
    unsigned n = length_of(reply->root, "names");

    *ret_total = reply_count(reply->root, "total");
    reply_free(reply);
    return n;
}

#define UNPUBLISH "{\"command\":\"unpublish\",\"name\":\"weights/\\\"a\\\"\""

static void names_tell_what_holds_memory(void **state) {
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(session, core->pools[0], 3 * MIB, 0);
    uint64_t total, generation = publish_lease(session, lease, "weights/\"a\"", PROTO_PUBLISH_KEEP, 5);
    (void)state;

    assert_true(is_to_build(session, "built"));
    assert_false(is_to_build(other, "built"));
    struct reply *reply = expect_reply(UID_A, "{\"command\":\"names\"}", "names");
    assert_int_equal(length_of(reply->root, "names"), 2);
    const struct cJSON *name = element(reply->root, "names", 0);
    assert_string_equal(reply_text(name, "name"), "weights/\"a\"");
    assert_int_equal(reply_count(name, "uid"), UID_A);
    assert_int_equal(reply_count(name, "generation"), generation);
    assert_true(reply_flag(name, "kept"));
    assert_false(reply_flag(name, "live"));
    assert_int_equal(reply_count(name, "bytes"), 3 * MIB);
    assert_int_equal(reply_count(name, "buffers"), 1);
    assert_string_equal(reply_text(name, "layout"), "fffffffffffffffe");
    assert_int_equal(reply_count(name, "session"), session->id);
    assert_string_equal(reply_text(name, "publisher"), "active");
    assert_int_equal(reply_count(name, "holders"), 1);
    assert_int_equal(reply_count(name, "builder_session"), REPLY_NULL);
    name = element(reply->root, "names", 1);
    assert_int_equal(reply_count(name, "generation"), REPLY_NULL);
    assert_null(reply_text(name, "publisher"));
    assert_int_equal(reply_count(name, "builder_session"), session->id);
    assert_int_equal(reply_count(name, "waiting"), 1);
    reply_free(reply);

    reply = expect_reply(UID_A, "{\"command\":\"leases\"}", "leases");
    assert_string_equal(reply_text(element(reply->root, "leases", 0), "name"), "weights/\"a\"");
    reply_free(reply);
    reply = expect_reply(UID_A, "{\"command\":\"sharing\"}", "sharing");
    assert_int_equal(reply_count(element(reply->root, "blocks", 0), "parcels"), 0);
    assert_int_equal(reply_count(element(reply->root, "blocks", 0), "names"), 1);
    reply_free(reply);
    core_session_close(other, 0);
    core_session_close(session, 0);
    reply = expect_reply(0, "{\"command\":\"names\"}", "names");
    assert_int_equal(length_of(reply->root, "names"), 1); /* the kept one */
    assert_string_equal(reply_text(element(reply->root, "names", 0), "publisher"), "gone");
    assert_int_equal(reply_count(element(reply->root, "names", 0), "holders"), 0);
    reply_free(reply);
    reply = expect_reply(0, "{\"command\":\"parcels\"}", "parcels");
    assert_int_equal(length_of(reply->root, "parcels"), 0);
    assert_int_equal(reply_count(reply->root, "total"), 0);
    reply_free(reply);
    reply = expect_reply(0, "{\"command\":\"pools\"}", "pools");
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "parcels"), 0);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "parcel_bytes"), 0);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "named"), 1);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "named_bytes"), 3 * MIB);
    reply_free(reply);
    reply = expect_reply(0, "{\"command\":\"quota\"}", "quota");
    assert_int_equal(reply_count(element(reply->root, "quotas", 0), "names"), 1);
    assert_int_equal(reply_count(element(reply->root, "quotas", 0), "kept_bytes"), 3 * MIB);
    assert_int_equal(reply_count(element(reply->root, "quotas", 0), "kept_bytes_limit"), REPLY_NULL);
    reply_free(reply);
    reply_free(expect_reply(UID_A, UNPUBLISH "}", "unpublish"));
    assert_int_equal(names_told(0, &total), 0);
    assert_int_equal(total, 0);
}

static void names_are_for_their_user_and_operators_to_unpublish(void **state) {
    static const char of_a[] = UNPUBLISH ",\"uid\":1001}", own[] = UNPUBLISH "}",
                      in_scope[] = UNPUBLISH ",\"scope\":\"pod\"}",
                      nameless[] = "{\"command\":\"unpublish\"}", negative[] = UNPUBLISH ",\"uid\":-1}",
                      nobody[] = UNPUBLISH ",\"uid\":4294967295}";
    struct session *session = open_session(core, 1, UID_A);
    struct lease *lease = take_growing(session, core->pools[0], 3 * MIB, 0);
    uint64_t total;
    (void)state;

    _Static_assert(UID_A == 1001, "of_a names this user");
    for (unsigned round = 0; round < 3; round++) {
        uint64_t generation = publish_lease(session, lease, "weights/\"a\"", 0, 5);
        assert_int_equal(names_told(UID_STRANGER, &total), 0);
        assert_int_equal(total, 0);
        assert_int_equal(names_told(UID_A, &total), 1);
        assert_int_equal(total, 1);
        expect_error(UID_STRANGER, of_a, sizeof of_a - 1, "permission-denied");
        expect_error(UID_STRANGER, own, sizeof own - 1, "no-such-name");
        expect_error(UID_A, in_scope, sizeof in_scope - 1, "permission-denied");
        expect_error(0, in_scope, sizeof in_scope - 1, "no-such-scope");
        expect_error(0, own, sizeof own - 1, "no-such-name");
        expect_error(UID_A, nameless, sizeof nameless - 1, "invalid-request");
        expect_error(0, negative, sizeof negative - 1, "invalid-request");
        expect_error(0, nobody, sizeof nobody - 1, "invalid-request");
        struct reply *reply = expect_reply(round == 0 ? 0 : UID_A, round == 1 ? own : of_a, "unpublish");
        assert_int_equal(reply_count(reply->root, "generation"), generation);
        assert_int_equal(reply_count(reply->root, "uid"), UID_A);
        assert_int_equal(reply_count(reply->root, "bytes"), 3 * MIB);
        assert_int_equal(reply_count(reply->root, "came_bytes"), 0); /* the publisher has it still */
        reply_free(reply);
        expect_error(UID_A, own, sizeof own - 1, "no-such-name");
    }
    publish_lease(session, lease, "weights/\"a\"", PROTO_PUBLISH_KEEP, 5);
    core_session_close(session, 0);
    struct reply *reply = expect_reply(0, of_a, "unpublish");
    assert_int_equal(reply_count(reply->root, "came_bytes"), 3 * MIB);
    reply_free(reply);
    assert_int_equal(core->pools[0]->leased_bytes, 0);
}

/* The session makes a channel of two slots and two consumers, which is kept. */
static void make_channel(struct session *session, const char *text) {
    struct lease *lease = take_growing(session, core->pools[0], 64 * KIB, 0);
    struct proto_make_channel make = {.lease = lease->id,
                                      .generation = lease->generation,
                                      .slot_bytes = 32 * KIB,
                                      .n_slots = 2,
                                      .n_consumers = 2,
                                      .policy = PROTO_CHANNEL_FAIL,
                                      .flags = PROTO_MAKE_CHANNEL_KEEP};
    static uint64_t n_tokens = UINT64_C(1) << 40;
    struct proto_token tokens[2] = {0};
    struct channel *channel;

    snprintf(make.name, sizeof make.name, "%s", text);
    for (unsigned i = 0; i < 2; i++) {
        n_tokens++;
        memcpy(tokens[i].bytes, &n_tokens, sizeof n_tokens);
    }
    assert_int_equal(core_make_channel(session, &make, tokens, 0, &channel), 0);
    core_channel_made(channel, NULL);
    assert_int_equal(
        release(session, (struct proto_lease_name){.lease = make.lease, .generation = make.generation}, 0),
        0);
}

static unsigned channels_told(uid_t uid, uint64_t *ret_total) {
    struct reply *reply = expect_reply(uid, "{\"command\":\"channels\"}", "channels");
    unsigned n = length_of(reply->root, "channels");

    *ret_total = reply_count(reply->root, "total");
    reply_free(reply);
    return n;
}

static void channels_are_for_their_user_and_operators(void **state) {
    struct session *session = open_session(core, 1, UID_A);
    uint64_t total;
    (void)state;

    make_channel(session, "weights/\"a\"");
    assert_int_equal(channels_told(UID_STRANGER, &total), 0);
    assert_int_equal(total, 0);
    assert_int_equal(channels_told(UID_A, &total), 1);
    struct reply *reply = expect_reply(0, "{\"command\":\"channels\"}", "channels");
    const struct cJSON *channel = element(reply->root, "channels", 0);
    assert_string_equal(reply_text(channel, "name"), "weights/\"a\"");
    assert_string_equal(reply_text(channel, "policy"), "fail");
    assert_string_equal(reply_text(channel, "maker"), "active");
    assert_int_equal(reply_count(channel, "uid"), UID_A);
    assert_int_equal(reply_count(channel, "session"), session->id);
    assert_int_equal(reply_count(channel, "bytes"), 64 * KIB);
    assert_int_equal(reply_count(channel, "sent"), REPLY_NULL); /* it has no pages */
    assert_int_equal(length_of(channel, "places"), 3);
    assert_string_equal(reply_text(element(channel, "places", 2), "state"), "empty");
    assert_int_equal(reply_count(element(channel, "places", 2), "session"), REPLY_NULL);
    assert_int_equal(reply_count(element(channel, "places", 2), "behind"), REPLY_NULL);
    reply_free(reply);
    reply = expect_reply(0, "{\"command\":\"pools\"}", "pools");
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "channels"), 1);
    assert_int_equal(reply_count(element(reply->root, "pools", 0), "channel_bytes"), 64 * KIB);
    assert_int_equal(reply_count(element(reply->root, "pools", 1), "channels"), 0);
    reply_free(reply);
    core_session_close(session, 0);
    reply = expect_reply(0, "{\"command\":\"channels\"}", "channels");
    assert_string_equal(reply_text(element(reply->root, "channels", 0), "maker"), "gone"); /* it is kept */
    reply_free(reply);
    static const char stranger[] = UNPUBLISH ",\"uid\":1001}";
    expect_error(UID_STRANGER, stranger, sizeof stranger - 1, "permission-denied");
    reply = expect_reply(UID_A, UNPUBLISH "}", "unpublish");
    assert_true(reply_flag(reply->root, "channel"));
    assert_int_equal(reply_count(reply->root, "came_bytes"), 64 * KIB);
    reply_free(reply);
    assert_int_equal(channels_told(0, &total), 0);
    assert_int_equal(core->pools[0]->leased_bytes, 0);
}

static void channels_are_bounded(void **state) {
    struct session *session = open_session(core, 1, UID_A);
    char text[16];
    uint64_t total;
    (void)state;

    for (unsigned i = 0; i < 70; i++) {
        snprintf(text, sizeof text, "channel %u", i);
        make_channel(session, text);
    }
    assert_int_equal(channels_told(0, &total), 64);
    assert_int_equal(total, 70);
    core_unpublish_all(core, 0);
    assert_int_equal(channels_told(0, &total), 0);
    core_session_close(session, 0);
}

static void names_are_bounded(void **state) {
    struct session *session = open_session(core, 1, UID_A);
    char text[16];
    uint64_t total;
    (void)state;

    for (unsigned i = 0; i < 300; i++) {
        snprintf(text, sizeof text, "name %u", i);
        assert_true(is_to_build(session, text));
    }
    assert_int_equal(names_told(0, &total), 256);
    assert_int_equal(total, 300);
    core_session_close(session, 0);
    assert_int_equal(names_told(0, &total), 0);
    assert_int_equal(total, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_tell_what_holds_memory, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(channels_are_for_their_user_and_operators, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(channels_are_bounded, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(names_are_for_their_user_and_operators_to_unpublish, make_daemon,
                                        drop_daemon),
        cmocka_unit_test_setup_teardown(names_are_bounded, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(good_lines_are_answered, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(bad_lines_are_answered_with_an_error, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(a_request_for_another_daemon_is_refused, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(the_longest_line_is_answered, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(any_byte_of_a_good_line_may_be_another, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(trim_is_for_root_and_the_daemons_own_user, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(leases_and_sharing_are_bounded, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(stats_tell_what_is, make_daemon, drop_daemon),
        cmocka_unit_test_setup_teardown(quotas_tell_what_each_user_has_and_may_have, make_daemon,
                                        drop_daemon),
    };
    return cmocka_run_group_tests_name("administrative commands", tests, NULL, NULL);
}
