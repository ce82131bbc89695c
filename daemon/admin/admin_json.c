/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/units.h"
#include "base/utf8.h"
#include "daemon/admin/admin_channels.h"
#include "daemon/admin/admin_config.h"
#include "daemon/admin/admin_estate.h"
#include "daemon/admin/admin_names.h"
#include "daemon/admin/admin_report.h"
#include "daemon/admin/admin_terms.h"
#include "daemon/admin/scope_json.h"
#include "daemon/config/reload.h"
#include "daemon/core/core.h"
#include "daemon/core/recorder.h"
#include "daemon/data/client.h"
#include "daemon/death/watcher.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/identity.h"
#include "daemon/loop/log.h"

#define REQUEST_DEPTH_MAX 4 /* requests are flat */

/* --- requests --- */

static size_t count_digits(const char *text, size_t size) {
    size_t digits = 0;
    while (digits < size && text[digits] >= '0' && text[digits] <= '9')
        digits++;
    return digits;
}

/* The length of the number that begins at text, or 0 where JSON knows none like it: cJSON takes what strtod
 * takes, so also 01 and 1. */
static size_t number_length(const char *text, size_t size) {
    size_t i = text[0] == '-' ? 1 : 0, digits = count_digits(text + i, size - i);

    if (digits == 0 || (digits > 1 && text[i] == '0'))
        return 0;
    i += digits;
    if (i < size && text[i] == '.') {
        digits = count_digits(text + i + 1, size - i - 1);
        if (digits == 0)
            return 0;
        i += 1 + digits;
    }
    if (i < size && (text[i] == 'e' || text[i] == 'E')) {
        i++;
        if (i < size && (text[i] == '+' || text[i] == '-'))
            i++;
        digits = count_digits(text + i, size - i);
        if (digits == 0)
            return 0;
        i += digits;
    }
    return i;
}

/* Returns NULL, or what is wrong with the line before JSON is even looked at. */
static const char *scan(const char *text, size_t size) {
    unsigned depth = 0;
    bool in_string = false;

    for (size_t i = 0; i < size;) {
        uint32_t character;
        size_t length = utf8_decode(text + i, size - i, &character);
        if (length == 0)
            return "the request is not valid UTF-8";
        if (character < ' ' && text[i] != '\t' && text[i] != '\r')
            return "the request has a control character in it";
        if (!in_string && (text[i] == '-' || count_digits(text + i, 1) > 0)) {
            length = number_length(text + i, size - i);
            if (length == 0)
                return "the request has a number that is none in JSON";
            i += length;
            continue;
        }
        if (in_string && text[i] == '\\') {
            if (size - i >= 6 && memcmp(text + i + 1, "u0000", 5) == 0)
                return "the request has a NUL in it"; /* where cJSON's strings would end */
            i += 2; /* whatever is escaped, a multi-byte character cannot be */
            continue;
        }
        if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && (text[i] == '{' || text[i] == '[') && ++depth > REQUEST_DEPTH_MAX)
            return "the request is nested too deeply: a request is one flat object";
        else if (!in_string && (text[i] == '}' || text[i] == ']') && depth > 0)
            depth--;
        i += length;
    }
    return NULL;
}

/* The one function that reads integers: cJSON keeps numbers as doubles, which are exact up to 2^53. */
static bool read_integer(const cJSON *item, uint64_t maximum, uint64_t *ret_integer) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > (double)maximum)
        return false;
    uint64_t integer = (uint64_t)item->valuedouble;
    if ((double)integer != item->valuedouble)
        return false;
    *ret_integer = integer;
    return true;
}

enum key {
    KEY_COMMAND = 1,
    KEY_DAEMON = 2,
    KEY_POOL = 4,
    KEY_SESSION = 8,
    KEY_SCOPE = 16,
    KEY_UIDS = 32,
    KEY_QUOTA = 64,
    KEY_LABELS = 128,
    KEY_END = 256,
    KEY_OFF = 512,
    KEY_NOTIFY = 1024,
    KEY_KEEPER = 2048,
    KEY_LIMIT = 4096,
    KEY_NAME = 8192,
    KEY_UID = 16384,
};

struct request_keys {
    unsigned given; /* enum key */
    const char *command;
    const char *daemon; /* the identity of the daemon that is meant */
    uint64_t pool, session;
    const char *scope;
    const char
        *notify; /* of a keeper: the path of its socket, its process, and how many descriptors it holds */
    uint64_t keeper, limit;
    const char *name;                   /* of what a process published */
    uint64_t uid;                       /* whose it is */
    const cJSON *uids, *quota, *labels; /* of the request */
    bool end, off;
    uid_t asker; /* the user who asks, which is no key */
};

enum key_type {
    TYPE_STRING,
    TYPE_INTEGER,
    TYPE_BOOLEAN,
    TYPE_ARRAY,
    TYPE_OBJECT,
};

/* The keys of requests. */
#define AT(member) offsetof(struct request_keys, member)
static const struct key_row {
    enum key key;
    const char *name, *content;
    size_t place; /* in struct request_keys */
    enum key_type type;
    uint64_t maximum; /* of an integer */
} key_rows[] = {
    {KEY_COMMAND, "command", "a string, such as \"stats\"", AT(command), TYPE_STRING, 0},
    {KEY_DAEMON, "daemon", "the identity of the daemon that is meant, a string", AT(daemon), TYPE_STRING, 0},
    {KEY_POOL, "pool", "a pool's id, a whole number", AT(pool), TYPE_INTEGER, UINT32_MAX},
    {KEY_SESSION, "session", "a session's id, a whole number", AT(session), TYPE_INTEGER, UINT64_C(1) << 53},
    {KEY_SCOPE, "scope", "a scope's name, a string", AT(scope), TYPE_STRING, 0},
    {KEY_UIDS, "uids", "an array of users' numbers", AT(uids), TYPE_ARRAY, 0},
    {KEY_QUOTA, "quota", "an object, such as {\"device\":\"8GiB\"}", AT(quota), TYPE_OBJECT, 0},
    {KEY_LABELS, "labels", "an object, such as {\"pod\":\"trainer-0\"}", AT(labels), TYPE_OBJECT, 0},
    {KEY_END, "end", "true or false", AT(end), TYPE_BOOLEAN, 0},
    {KEY_OFF, "off", "true or false", AT(off), TYPE_BOOLEAN, 0},
    {KEY_NOTIFY, "notify", "the path of a keeper's socket, a string", AT(notify), TYPE_STRING, 0},
    {KEY_KEEPER, "keeper", "a process's number, a whole number", AT(keeper), TYPE_INTEGER, INT32_MAX},
    {KEY_LIMIT, "limit", "a whole number", AT(limit), TYPE_INTEGER, UINT32_MAX},
    {KEY_NAME, "name", "the name of what was published, a string", AT(name), TYPE_STRING, 0},
    {KEY_UID, "uid", "a user's number, a whole number", AT(uid), TYPE_INTEGER, UINT32_MAX - 1},
};
#undef AT

/* The mistake in a request; "": there is none. */
struct flaw {
    char text[320];
};

/* Returns false. */
__attribute__((format(printf, 2, 3))) static bool flaw_set(struct flaw *flaw, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(flaw->text, sizeof flaw->text, format, arguments);
    va_end(arguments);
    return false;
}

static const struct key_row *find_key(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(key_rows); i++)
        if (strcmp(key_rows[i].name, name) == 0)
            return &key_rows[i];
    return NULL;
}

/* Takes the value of a key. Returns whether it has the key's type. */
static bool take_key(const cJSON *item, const struct key_row *row, struct request_keys *keys) {
    void *place = (char *)keys + row->place;

    switch (row->type) {
    case TYPE_INTEGER:
        return read_integer(item, row->maximum, place);
    case TYPE_BOOLEAN:
        *(bool *)place = cJSON_IsTrue(item);
        return cJSON_IsBool(item);
    case TYPE_ARRAY:
    case TYPE_OBJECT:
        *(const cJSON **)place = item;
        return row->type == TYPE_ARRAY ? cJSON_IsArray(item) : cJSON_IsObject(item);
    default:
        *(const char **)place = cJSON_GetStringValue(item);
        return cJSON_IsString(item);
    }
}

/* Takes a parsed request apart. Returns whether it is in order. */
static bool read_keys(const cJSON *request, struct request_keys *ret_keys, struct flaw *flaw) {
    struct request_keys keys = {0};
    const cJSON *item;

    if (!cJSON_IsObject(request))
        return flaw_set(flaw, "a request is an object, such as {\"command\":\"stats\"}");
    cJSON_ArrayForEach(item, request) {
        const struct key_row *row = find_key(item->string);
        if (row == NULL)
            return flaw_set(flaw, "the request has an unknown key, '%.64s'", item->string);
        if ((keys.given & row->key) != 0)
            return flaw_set(flaw, "'%s' is given twice", row->name);
        if (!take_key(item, row, &keys))
            return flaw_set(flaw, "'%s' is %s", row->name, row->content);
        keys.given |= row->key;
    }
    *ret_keys = keys;
    return true;
}

/* --- replies --- */

/* Prints the reply on one line. Takes it. */
static char *finish(cJSON *reply) {
    char *text = cJSON_PrintUnformatted(reply);
    cJSON_Delete(reply);
    if (text == NULL)
        return NULL;
    size_t length = strlen(text);
    char *line = realloc(text, length + 2);
    if (line == NULL) {
        free(text);
        return NULL;
    }
    memcpy(line + length, "\n", 2);
    return line;
}

char *admin_json_error(const char *code, const char *message) {
    cJSON *reply = cJSON_CreateObject();
    cJSON *error = cJSON_AddObjectToObject(reply, "error");
    cJSON_AddStringToObject(error, "code", code);
    cJSON_AddStringToObject(error, "message", message);
    return finish(reply);
}

/* --- commands --- */

bool admin_is_operator(uid_t uid) {
    return uid == 0 || uid == geteuid();
}

/* The parts of a reply. */
enum part {
    PART_DAEMON_IN_BRIEF = 1,
    PART_DAEMON = 2,
    PART_POOLS = 4,
    PART_SESSIONS = 8,
    PART_QUARANTINE = 16,
    PART_QUOTAS = 32,
    PART_PARCELS = 64,
    PART_CONFIG = 128,
    PART_LEASES = 256,
    PART_SHARING = 512,
    PART_SCOPES = 1024,
    PART_ESTATE = 2048,
    PART_NAMES = 4096,
    PART_CHANNELS = 8192,
};

static char *answer_parts(const struct admin_terms *terms, uid_t uid, const struct request_keys *keys,
                          unsigned parts) {
    cJSON *reply = cJSON_CreateObject();

    if (parts != PART_DAEMON_IN_BRIEF)
        core_poll_fences(terms->core);
    if ((parts & (PART_DAEMON | PART_DAEMON_IN_BRIEF)) != 0)
        report_daemon(reply, terms, (parts & PART_DAEMON_IN_BRIEF) != 0);
    if ((parts & PART_POOLS) != 0)
        report_pools(reply, terms->core);
    if ((parts & (PART_SESSIONS | PART_QUARANTINE)) != 0) {
        watcher_refresh_sizes(terms->watcher);
        report_sessions(reply, terms->core, uid, (parts & PART_QUARANTINE) != 0);
    }
    if ((parts & PART_QUOTAS) != 0)
        report_quotas(reply, terms->core);
    if ((parts & PART_PARCELS) != 0)
        report_parcels(reply, terms->core, uid);
    if ((parts & PART_NAMES) != 0)
        report_names(reply, terms->core, uid);
    if ((parts & PART_CHANNELS) != 0)
        report_channels(reply, terms, uid);
    if ((parts & PART_LEASES) != 0)
        report_leases(reply, terms->core, uid, keys->session);
    if ((parts & PART_SHARING) != 0)
        report_sharing(reply, terms->core, uid);
    if ((parts & PART_SCOPES) != 0)
        report_scopes(reply, terms->core);
    if ((parts & PART_ESTATE) != 0)
        report_estate(reply, terms);
    if ((parts & PART_CONFIG) != 0)
        report_config(reply, terms);
    return finish(reply);
}

static char *answer_trim(const struct admin_terms *terms, const struct request_keys *keys) {
    const struct core *core = terms->core;
    uint64_t total = 0;

    if ((keys->given & KEY_POOL) != 0 && core_find_pool(core, (uint32_t)keys->pool) == NULL)
        return admin_json_error("no-such-pool", "no pool has this id; 'pools' lists them");
    cJSON *reply = cJSON_CreateObject();
    cJSON *pools = cJSON_CreateArray();
    for (unsigned i = 0; i < core->n_pools; i++) {
        struct pool *pool = core->pools[i];
        if ((keys->given & KEY_POOL) != 0 && pool->id != keys->pool)
            continue;
        recorder_set_time(terms->core, clock_now_ns());
        uint64_t bytes = core_trim(pool);
        cJSON *entry = cJSON_CreateObject();
        report_integer(entry, "id", pool->id);
        report_integer(entry, "trimmed_bytes", bytes);
        cJSON_AddItemToArray(pools, entry);
        total += bytes;
    }
    report_integer(reply, "trimmed_bytes", total);
    cJSON_AddItemToObject(reply, "pools", pools);
    return finish(reply);
}

/* Adds what a pool that drains still has out. */
static void add_drained(cJSON *pools, const struct pool *pool) {
    cJSON *entry = cJSON_CreateObject();
    unsigned n_sessions = 0;

    list_for_each_entry(const struct session, session, &pool->core->sessions, link) {
        const struct session_pool *part = &session->pools[pool->id - 1];
        n_sessions += part->leased_bytes > 0 || part->fenced_bytes > 0 || part->n_mapped > 0;
    }
    report_integer(entry, "id", pool->id);
    cJSON_AddBoolToObject(entry, "draining", pool->is_draining);
    report_integer(entry, "sessions", n_sessions);
    report_integer(entry, "held_bytes", pool->leased_bytes + pool->fenced_bytes + pool->quarantined_bytes);
    report_integer(entry, "named_bytes", pool->named_bytes);
    report_integer(entry, "reserved_bytes", pool->reserved_bytes);
    cJSON_AddItemToArray(pools, entry);
}

static char *answer_drain(const struct admin_terms *terms, const struct request_keys *keys) {
    struct core *core = terms->core;

    if ((keys->given & KEY_POOL) != 0 && core_find_pool(core, (uint32_t)keys->pool) == NULL)
        return admin_json_error("no-such-pool", "no pool has this id; 'pools' lists them");
    cJSON *reply = cJSON_CreateObject();
    cJSON *pools = cJSON_AddArrayToObject(reply, "pools");
    for (unsigned i = 0; i < core->n_pools; i++) {
        struct pool *pool = core->pools[i];
        if ((keys->given & KEY_POOL) != 0 && pool->id != keys->pool)
            continue;
        if (pool->is_draining == keys->off) {
            log_warning(keys->off ? "an operator has %s lend again"
                                  : "an operator drains %s: no more is lent from it",
                        pool->name);
            core_pool_drain(pool, !keys->off, clock_now_ns());
        }
        add_drained(pools, pool);
    }
    return finish(reply);
}

/* The session of an id that has a client, if it is in this state. */
static struct session *find_session(const struct core *core, uint64_t id, enum session_state state) {
    list_for_each_entry(struct session, session, &core->sessions, link) {
        if (session->id == id && session->state == state && session->owner != NULL)
            return session;
    }
    return NULL;
}

/* Gives a quarantined session's memory back although nothing shows that it is safe. The dead process's GPU
 * work, or the process itself where it has not ended, may then write into memory that is lent anew, to
 * processes of the same user. Other users only ever get memory that comes fresh from the driver, and the
 * driver keeps memory that a process has mapped. */
static char *answer_quarantine_release(const struct admin_terms *terms, const struct request_keys *keys) {
    const struct session *session = find_session(terms->core, keys->session, SESSION_QUARANTINED);

    if (session == NULL)
        return admin_json_error("no-such-session",
                                "no session in quarantine has this id; 'quarantine' lists them");
    uint64_t bytes = session->leased_bytes + session->fenced_bytes;
    log_warning(
        "root releases %s of session %llu (pid %d, %s) from quarantine by force, although %s: work that the "
        "process left on a GPU may write into what is lent anew",
        BYTES_TEXT(bytes), (unsigned long long)keys->session, (int)session->peer.pid, session->peer.command,
        session->quarantine_reason);
    cJSON *reply = cJSON_CreateObject();
    report_integer(reply, "session", keys->session);
    report_integer(reply, "pid", report_pid(session->peer.pid));
    report_integer(reply, "released_bytes", bytes);
    report_string(reply, "quarantine_reason", session->quarantine_reason);
    recorder_set_time(terms->core, clock_now_ns());
    record(terms->core, &(struct recorded){.kind = PROTO_RECORD_FORCE, .session = session, .bytes = bytes});
    client_force(session->owner);
    return finish(reply);
}

/* Ends the connection of a session whose process may live on. Its memory is in quarantine until the process
 * has ended, as after each end without a farewell. */
static void end_session(const struct session *session) {
    record(session->core, &(struct recorded){.kind = PROTO_RECORD_FORCE,
                                             .session = session,
                                             .bytes = session->leased_bytes + session->fenced_bytes});
    client_dismiss(session->owner);
}

static char *answer_session_end(const struct admin_terms *terms, const struct request_keys *keys) {
    const struct session *found = find_session(terms->core, keys->session, SESSION_ACTIVE);

    if (found == NULL)
        return admin_json_error("no-such-session", "no active session has this id; 'sessions' lists them");
    uint64_t bytes = found->leased_bytes + found->fenced_bytes;
    log_warning("an operator ends session %llu (pid %d, %s)", (unsigned long long)found->id,
                (int)found->peer.pid, found->peer.command);
    cJSON *reply = cJSON_CreateObject();
    report_process(reply, found);
    report_integer(reply, "held_bytes", bytes);
    recorder_set_time(terms->core, clock_now_ns());
    end_session(found);
    return finish(reply);
}

static bool has_session(const struct core *core, uint64_t id) {
    list_for_each_entry(const struct session, session, &core->sessions, link) {
        if (session->id == id)
            return true;
    }
    return false;
}

/* Ends what was sent and not taken: those who have the tokens get NO_TOKEN. */
static char *answer_parcels_revoke(const struct admin_terms *terms, const struct request_keys *keys) {
    bool has_sender = (keys->given & KEY_SESSION) != 0;
    uint64_t bytes;

    if (has_sender && keys->session == 0)
        return admin_json_error("no-such-session",
                                "sessions are numbered from 1; 'parcels' lists the senders");
    unsigned n = core_revoke_all(terms->core, has_sender ? keys->session : 0, clock_now_ns(), &bytes);
    if (n == 0 && has_sender && !has_session(terms->core, keys->session))
        return admin_json_error(
            "no-such-session", "there is no session of this number, and nothing that one sent is to be taken "
                               "yet; 'parcels' lists the senders");
    if (n > 0)
        log_info("an operator revoked %s sent and not taken: %s came back", COUNT_TEXT(n, "buffer"),
                 BYTES_TEXT(bytes));
    cJSON *reply = cJSON_CreateObject();
    report_integer(reply, "revoked", n);
    report_integer(reply, "revoked_bytes", bytes);
    return finish(reply);
}

/* Has a name of the user who asks stand for nothing any more, or for an operator one of any user. */
static char *answer_unpublish(const struct admin_terms *terms, const struct request_keys *keys) {
    struct tenant_id owner = {.uid = (keys->given & KEY_UID) != 0 ? (uid_t)keys->uid : keys->asker};

    if ((keys->given & KEY_SCOPE) != 0) {
        if (!admin_is_operator(keys->asker))
            return admin_json_error(
                "permission-denied",
                "names in scopes are for root and for the daemon's own user to unpublish; "
                "a process of the scope can, too");
        const struct scope *scope = scope_find_name(terms->core, keys->scope);
        if (scope == NULL)
            return admin_json_error("no-such-scope", "there is no scope of this name; 'scopes' lists them");
        owner.scope = scope->id;
    }
    if (!report_may_tell(keys->asker, owner))
        return admin_json_error(
            "permission-denied",
            "names of other users are for root and for the daemon's own user to unpublish");
    cJSON *reply = cJSON_CreateObject();
    if (names_unpublish(reply, terms->core, keys->asker, owner, keys->name) == 0)
        return finish(reply);
    cJSON_Delete(reply);
    return admin_json_error("no-such-name",
                            "the user has published nothing under this name; 'names' lists what there is");
}

/* The error of a scope that cannot be made or changed. */
static char *scope_error(int r, const char *why) {
    return admin_json_error(r == -EEXIST                         ? "exists"
                            : r == -ENOENT                       ? "no-such-scope"
                            : r == -EINVAL || r == -ENAMETOOLONG ? "invalid-request"
                            : r == -ENOSPC                       ? "busy"
                                                                 : "internal",
                            why);
}

/* Makes or changes a scope, by scope_json_add() or scope_json_set(). */
static char *answer_scope(const struct admin_terms *terms, const struct request_keys *keys,
                          scope_json_change *change, const char *words) {
    const struct scope_members members = {
        .name = keys->scope, .uids = keys->uids, .quota = keys->quota, .labels = keys->labels};
    char why[SCOPES_TEXT_SIZE];
    struct scope *scope;

    int r = change(terms->scopes, &members, &scope, why);
    if (r < 0)
        return scope_error(r, why);
    log_info("an operator %s scope '%s'", words, scope->terms.name);
    cJSON *reply = cJSON_CreateObject();
    report_scope(reply, scope);
    return finish(reply);
}

static char *answer_scope_add(const struct admin_terms *terms, const struct request_keys *keys) {
    return answer_scope(terms, keys, scope_json_add, "adds");
}

static char *answer_scope_set(const struct admin_terms *terms, const struct request_keys *keys) {
    return answer_scope(terms, keys, scope_json_set, "changes");
}

/* Ends the sessions of a scope that are not over. */
static void end_sessions(const struct core *core, const struct scope *scope) {
    list_for_each_entry_safe(struct session, session, &core->sessions, link) {
        if (session->tenant->scope != scope || session->state != SESSION_ACTIVE || session->owner == NULL)
            continue;
        end_session(session);
    }
}

/* A scope that has no process left is gone afterwards: the reply says how it was before. */
static char *answer_scope_drop(const struct admin_terms *terms, const struct request_keys *keys) {
    struct scope *scope = scope_find_name(terms->core, keys->scope);

    if (scope == NULL && !scopes_forget(terms->scopes, keys->scope))
        return admin_json_error("no-such-scope", "there is no scope of this name; 'scopes' lists them");
    uint32_t id = scope == NULL ? SCOPE_ORDINARY : scope->id;
    recorder_set_time(terms->core, clock_now_ns());
    if (scope != NULL && !scope->is_dropped) {
        log_info("an operator drops scope '%s'", scope->terms.name);
        scopes_drop(terms->scopes, scope);
        scope = scope_find(terms->core, id);
    }
    if (scope != NULL && keys->end) {
        end_sessions(terms->core, scope);
        scope = scope_find(terms->core, id);
    }
    cJSON *reply = cJSON_CreateObject();
    cJSON_AddBoolToObject(reply, "is_gone", scope == NULL);
    if (scope == NULL)
        cJSON_AddNullToObject(reply, "left");
    else
        report_scope(cJSON_AddObjectToObject(reply, "left"), scope);
    return finish(reply);
}

char admin_json_later[] = "";

static char *answer_reload(const struct admin_terms *terms, const struct request_keys *keys) {
    (void)keys;
    if (terms->reload->terms.reread == NULL)
        return admin_json_error("internal", "this daemon was not given a configuration to read again");
    return admin_json_later;
}

char *admin_json_reloaded(const struct admin_terms *terms, const struct reload_outcome *outcome) {
    if (outcome->result < 0 && (outcome->mistakes == NULL || outcome->mistakes->count == 0))
        return admin_json_error("internal",
                                outcome->result == -ECANCELED
                                    ? "the daemon is stopping: the configuration was not read again"
                                    : "there is no memory or thread to read the configuration again; "
                                      "it stays as it was");
    cJSON *reply = cJSON_CreateObject();
    report_reload(reply, terms, outcome);
    return finish(reply);
}

static char *answer_restart(const struct admin_terms *terms, const struct request_keys *keys) {
    const char *missing = estate_missing(terms);
    char text[512];

    (void)keys;
    if (missing != NULL) {
        snprintf(text, sizeof text, "the sessions would not survive it, for there is no estate: %s", missing);
        return admin_json_error("no-estate", text);
    }
    cJSON *reply = cJSON_CreateObject();
    report_integer(reply, "pid", (uint64_t)getpid());
    terms->restart(terms->daemon);
    return finish(reply);
}

static char *answer_estate_drop(const struct admin_terms *terms, const struct request_keys *keys) {
    (void)keys;
    if (terms->desk->estate == NULL)
        return admin_json_error("no-estate", estate_missing(terms));
    cJSON *reply = cJSON_CreateObject();
    report_integer(reply, "removed", terms->drop_estate(terms->daemon));
    return finish(reply);
}

/* All descriptors go to a keeper, which holds them from then on. The reply does not wait for that. */
static char *answer_adopt(const struct admin_terms *terms, const struct request_keys *keys) {
    char why[ADMIN_WHY_SIZE] = "";

    int r = terms->adopt(terms->daemon, keys->notify, keys->keeper, keys->limit, why);
    if (r < 0)
        return admin_json_error(r == -EALREADY  ? "exists"
                                : r == -ENODATA ? "no-estate"
                                                : "invalid-request",
                                why);
    cJSON *reply = cJSON_CreateObject();
    report_integer(reply, "pid", (uint64_t)getpid());
    return finish(reply);
}

enum command_user {
    FOR_ALL,
    FOR_OPERATORS,
    FOR_ROOT,
};

/* The commands. docs/schema/request.json says the same of the requests; a test compares them. */
static const struct command {
    const char *name;
    enum command_user user;
    unsigned parts;        /* of the reply; 0: answer() writes it */
    unsigned takes, needs; /* keys beside those that all commands take */
    char *(*answer)(const struct admin_terms *terms, const struct request_keys *keys);
    const char *denial; /* for other users */
} commands[] = {
    {.name = "ping", .parts = PART_DAEMON_IN_BRIEF},
    {.name = "stats", .parts = PART_DAEMON | PART_POOLS | PART_SESSIONS},
    {.name = "pools", .parts = PART_POOLS},
    {.name = "sessions", .parts = PART_SESSIONS},
    {.name = "quota", .parts = PART_QUOTAS},
    {.name = "quarantine", .parts = PART_QUARANTINE},
    {.name = "parcels", .parts = PART_PARCELS},
    {.name = "names", .parts = PART_NAMES},
    {.name = "channels", .parts = PART_CHANNELS},
    {.name = "unpublish",
     .takes = KEY_NAME | KEY_UID | KEY_SCOPE,
     .needs = KEY_NAME,
     .answer = answer_unpublish},
    {.name = "leases", .parts = PART_LEASES, .takes = KEY_SESSION},
    {.name = "sharing", .parts = PART_SHARING},
    {.name = "config", .parts = PART_CONFIG},
    {.name = "estate", .parts = PART_ESTATE},
    {"restart", FOR_OPERATORS, 0, 0, 0, answer_restart, "restart is for root and for the daemon's own user"},
    {"estate-drop", FOR_OPERATORS, 0, 0, 0, answer_estate_drop,
     "estate-drop is for root and for the daemon's own user"},
    {"adopt", FOR_OPERATORS, 0, KEY_NOTIFY | KEY_KEEPER | KEY_LIMIT, KEY_NOTIFY | KEY_KEEPER | KEY_LIMIT,
     answer_adopt, "adopt is for root and for the daemon's own user"},
    {"trim", FOR_OPERATORS, 0, KEY_POOL, 0, answer_trim, "trim is for root and for the daemon's own user"},
    {"drain", FOR_OPERATORS, 0, KEY_POOL | KEY_OFF, 0, answer_drain,
     "drain is for root and for the daemon's own user"},
    {"reload", FOR_OPERATORS, 0, 0, 0, answer_reload, "reload is for root and for the daemon's own user"},
    {"quarantine-release", FOR_ROOT, 0, KEY_SESSION, KEY_SESSION, answer_quarantine_release,
     "what is in quarantine is for root alone to release"},
    {"session-end", FOR_OPERATORS, 0, KEY_SESSION, KEY_SESSION, answer_session_end,
     "session-end is for root and for the daemon's own user"},
    {"scopes", FOR_OPERATORS, PART_SCOPES, 0, 0, NULL, "scopes is for root and for the daemon's own user"},
    {"scope-add", FOR_OPERATORS, 0, KEY_SCOPE | KEY_UIDS | KEY_QUOTA | KEY_LABELS, KEY_SCOPE,
     answer_scope_add, "scope-add is for root and for the daemon's own user"},
    {"scope-set", FOR_OPERATORS, 0, KEY_SCOPE | KEY_UIDS | KEY_QUOTA | KEY_LABELS, KEY_SCOPE,
     answer_scope_set, "scope-set is for root and for the daemon's own user"},
    {"scope-drop", FOR_OPERATORS, 0, KEY_SCOPE | KEY_END, KEY_SCOPE, answer_scope_drop,
     "scope-drop is for root and for the daemon's own user"},
    {"parcels-revoke", FOR_OPERATORS, 0, KEY_SESSION, 0, answer_parcels_revoke,
     "parcels-revoke is for root and for the daemon's own user; a process revokes by the token"},
};

/* Appends the names of the commands that take a key; 0: of all. */
static bool flaw_name_commands(struct flaw *flaw, unsigned key) {
    const char *separator = "";

    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++) {
        size_t length = strlen(flaw->text);
        if ((commands[i].takes & key) != key)
            continue;
        snprintf(flaw->text + length, sizeof flaw->text - length, "%s%s", separator, commands[i].name);
        separator = ", ";
    }
    return false;
}

/* Finds a request's command. Returns NULL where there is none, or where the keys do not go with it. */
static const struct command *find_command(const struct request_keys *keys, struct flaw *flaw) {
    const struct command *command = NULL;

    if ((keys->given & KEY_COMMAND) == 0) {
        flaw_set(flaw, "the request has no 'command': one of ");
        flaw_name_commands(flaw, 0);
        return NULL;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
        if (strcmp(commands[i].name, keys->command) == 0)
            command = &commands[i];
    if (command == NULL)
        return NULL;
    for (size_t i = 0; i < ARRAY_LENGTH(key_rows); i++) {
        const struct key_row *row = &key_rows[i];
        if ((keys->given & row->key & ~(command->takes | KEY_COMMAND | KEY_DAEMON)) != 0) {
            flaw_set(flaw, "'%s' does not go with %s, but with ", row->name, command->name);
            flaw_name_commands(flaw, row->key);
            return NULL;
        }
        if ((command->needs & row->key & ~keys->given) != 0) {
            flaw_set(flaw, "%s needs a '%s'", command->name, row->name);
            return NULL;
        }
    }
    return command;
}

static char *answer(const struct admin_terms *terms, uid_t uid, const struct request_keys *keys) {
    struct flaw flaw = {""};

    if (keys->daemon != NULL && strcmp(keys->daemon, terms->identity->text) != 0)
        return admin_json_error("other-daemon", "the request is for another daemon than this one");
    const struct command *command = find_command(keys, &flaw);
    if (flaw.text[0] != '\0')
        return admin_json_error("invalid-request", flaw.text);
    if (command == NULL) {
        flaw_set(&flaw, "the commands are ");
        flaw_name_commands(&flaw, 0);
        return admin_json_error("unknown-command", flaw.text);
    }
    if ((command->user == FOR_ROOT && uid != 0) ||
        (command->user == FOR_OPERATORS && !admin_is_operator(uid)))
        return admin_json_error("permission-denied", command->denial);
    return command->parts != 0 ? answer_parts(terms, uid, keys, command->parts)
                               : command->answer(terms, keys);
}

char *admin_json_answer(const struct admin_terms *terms, uid_t uid, const char *line, size_t size) {
    struct request_keys keys;
    struct flaw flaw;
    const char *end, *wrong = scan(line, size);

    if (wrong != NULL)
        return admin_json_error("invalid-request", wrong);
    cJSON *request = cJSON_ParseWithLengthOpts(line, size, &end, 0);
    while (request != NULL && end < line + size && strchr(" \t\r", *end) != NULL)
        end++;
    if (request == NULL || end != line + size) {
        cJSON_Delete(request);
        return admin_json_error("invalid-request", "the line is not one JSON object");
    }
    bool is_sound = read_keys(request, &keys, &flaw);
    keys.asker = uid;
    char *reply = is_sound ? answer(terms, uid, &keys) : admin_json_error("invalid-request", flaw.text);
    cJSON_Delete(request);
    return reply;
}
