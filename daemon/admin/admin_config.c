/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin_config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/admin/admin_report.h"
#include "daemon/admin/admin_terms.h"
#include "daemon/config/changes.h"
#include "daemon/config/reload.h"
#include "daemon/core/core.h"
#include "daemon/core/policy.h"
#include "daemon/core/pool.h"
#include "daemon/loop/listener.h"
#include "daemon/supply/backing.h"
#include "daemon/supply/pools.h"
#include "daemon/supply/supplier.h"

#define REASON_SIZE 320u

/* The value that the daemon uses in place of the configured one. */
struct effect {
    char *value;              /* owned; NULL: the value as it is configured */
    char reason[REASON_SIZE]; /* of the value; "": there is none to tell */
};

__attribute__((format(printf, 2, 3))) static void give_reason(struct effect *effect, const char *format,
                                                              ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(effect->reason, sizeof effect->reason, format, arguments);
    va_end(arguments);
}

static void put_text(cJSON *object, const char *key, char *text) {
    if (text != NULL)
        config_clean(text);
    report_string(object, key, text);
}

static const char *source_name(int line) {
    return line > 0                      ? "file"
           : line == CONFIG_COMMAND_LINE ? "command-line"
           : line == CONFIG_KEPT         ? "kept"
                                         : "default";
}

static void put_origin(cJSON *object, int line) {
    cJSON_AddStringToObject(object, "source", source_name(line));
    if (line > 0)
        report_integer(object, "line", (uint64_t)line);
    else
        cJSON_AddNullToObject(object, "line");
}

/* The value that a setting has from the daemon's next start on, where the file has another one by now. */
static void put_next(cJSON *object, const struct config_change *pending) {
    put_text(object, "next_value", pending != NULL ? pending->after : NULL);
    report_string(object, "next_source", pending != NULL ? source_name(pending->line) : NULL);
    if (pending != NULL && pending->line > 0)
        report_integer(object, "next_line", (uint64_t)pending->line);
    else
        cJSON_AddNullToObject(object, "next_line");
}

/* The change of the view's own section that waits for a restart, or of the section that holds for it. */
static const struct config_change *find_pending(const struct admin_terms *terms,
                                                const struct config_view *view,
                                                const struct config_view *holder,
                                                const struct config_key *key) {
    char section[CONFIG_SECTION_NAME_SIZE];
    const struct config_change *pending =
        reload_pending(terms->reload, config_section_name(view, section), key);

    return pending != NULL ? pending
                           : reload_pending(terms->reload, config_section_name(holder, section), key);
}

/* Describes a key of a section, and what became of it. Takes effect's value. */
static cJSON *describe(const struct admin_terms *terms, const struct config_view *view,
                       const struct config_key *key, struct effect *effect) {
    const struct config *config = terms->config;
    const struct config_view holder = config_holder(config, view, key);
    char section[CONFIG_SECTION_NAME_SIZE];
    _cleanup_(freep) char *value = NULL, *in_force = effect->value;
    cJSON *object = cJSON_CreateObject();

    if (config_text(config, view, key, &value) < 0)
        value = NULL;
    cJSON_AddStringToObject(object, "section", config_section_name(&holder, section));
    cJSON_AddStringToObject(object, "key", key->name);
    put_text(object, "value", value);
    put_origin(object, config_line(&holder, key));
    cJSON_AddBoolToObject(object, "needs_restart", key->needs_restart);
    bool is_same = value != NULL && in_force != NULL && strcmp(value, in_force) == 0;
    put_text(object, "in_force", is_same ? NULL : in_force);
    report_string(object, "reason", effect->reason[0] != '\0' ? effect->reason : NULL);
    put_next(object, find_pending(terms, view, &holder, key));
    return object;
}

/* --- [daemon] and [quota] --- */

static bool is_key(const struct config_key *key, const char *name) {
    return strcmp(key->name, name) == 0;
}

static void number_in_force(struct effect *effect, uint64_t number) {
    if (asprintf(&effect->value, "%" PRIu64, number) < 0)
        effect->value = NULL;
}

static void socket_in_force(struct effect *effect, const struct listener *listener) {
    if (listener->fd < 0 || listener->owned)
        return;
    effect->value = strdup(listener->path);
    give_reason(effect, "the socket that the service manager passed");
}

static void group_in_force(struct effect *effect, const struct admin_terms *terms) {
    struct stat status;

    if (terms->data_listener->fd < 0 || stat(terms->data_listener->path, &status) < 0)
        return;
    number_in_force(effect, status.st_gid);
    give_reason(effect, "the group of the socket's file");
}

static void daemon_effect(const struct admin_terms *terms, const struct config_key *key,
                          struct effect *effect) {
    static const char *const gpus[] = {"none", "cuda", "sim"};
    const struct config *config = terms->config;

    if (is_key(key, "socket")) {
        socket_in_force(effect, terms->data_listener);
    } else if (is_key(key, "admin_socket")) {
        socket_in_force(effect, terms->admin_listener);
    } else if (is_key(key, "group") && config->group[0] == '\0') {
        group_in_force(effect, terms);
    } else if (is_key(key, "gpu") && config->gpu == CONFIG_GPU_AUTO) {
        unsigned kind = terms->machine->gpu_kind == PROTO_GPU_CUDA  ? 1
                        : terms->machine->gpu_kind == PROTO_GPU_SIM ? 2
                                                                    : 0;
        effect->value = strdup(gpus[kind]);
        give_reason(effect, kind == 0 ? "the driver finds no GPU" : "the driver finds a GPU");
    } else if (is_key(key, "sessions_limit") && terms->core->sessions_limit < config->sessions_limit) {
        number_in_force(effect, terms->core->sessions_limit);
        give_reason(effect, "%" PRIu64 " descriptors (RLIMIT_NOFILE) allow no more", terms->n_descriptors);
    }
}

static void quota_effect(const struct admin_terms *terms, const struct config_key *key,
                         struct effect *effect) {
    const struct policy *policy = terms->core->policy;

    if (policy == NULL)
        return;
    if (is_key(key, "sessions") && !terms->config->quota.sessions.set) {
        number_in_force(effect, policy->everybody[QUOTA_SESSIONS]);
        give_reason(effect, "all but a 64th of the sessions that there may be");
    } else if (is_key(key, "segments") && !terms->config->quota.segments.set) {
        number_in_force(effect, policy->everybody[QUOTA_SEGMENTS]);
        give_reason(effect, "half of the segments that there are descriptors for");
    }
}

/* The sections as they are configured: all keys of those that there always are, of the others those that are
 * set. */
static void put_settings(cJSON *reply, const struct admin_terms *terms) {
    cJSON *settings = cJSON_AddArrayToObject(reply, "settings");
    struct config_view view = {0};

    while (config_next_section(terms->config, &view))
        for (unsigned i = 0; i < view.table->count; i++) {
            const struct config_key *key = &view.table->keys[i];
            struct effect effect = {0};
            if ((view.section != NULL || view.rule != NULL) && config_line(&view, key) == CONFIG_UNSET)
                continue;
            if (view.table == &config_daemon_keys)
                daemon_effect(terms, key, &effect);
            else if (view.table == &config_quota_keys && view.rule == NULL)
                quota_effect(terms, key, &effect);
            else if (view.section != NULL && !view.section->is_there)
                give_reason(&effect, "this machine has no such %s, so this has no effect",
                            view.section->kind == PROTO_POOL_HOST ? "NUMA node" : "GPU");
            else if (view.rule != NULL && !view.rule->who.is_known)
                give_reason(&effect, "there is no such %s, so this has no effect",
                            view.rule->who.is_group ? "group" : "user");
            cJSON_AddItemToArray(settings, describe(terms, &view, key, &effect));
        }
}

/* --- pools --- */

static void limit_effect(const struct pool *pool, const struct config_size *limit, struct effect *effect) {
    const struct supplier *supplier = pool->owner;

    effect->value = config_bytes_text(pool->limit_bytes);
    if (pool->limit_of != NULL)
        give_reason(effect, "cut to the %s that %s", BYTES_TEXT(supplier->total.bytes), supplier->total.of);
    else if (!limit->set || limit->is_percent)
        give_reason(effect, "of the %s that %s", BYTES_TEXT(supplier->total.bytes), supplier->total.of);
}

static void pool_effect(const struct pool *pool, const struct config_view *holder,
                        const struct config_key *key, struct effect *effect) {
    const struct config_pool *values = holder->values;
    const struct supplier *supplier = pool->owner;
    bool is_set = config_line(holder, key) != CONFIG_UNSET;

    if (is_key(key, "limit")) {
        limit_effect(pool, &values->limit, effect);
    } else if (is_key(key, "step")) {
        effect->value = config_bytes_text(pool_step_bytes(pool));
        if (!is_set && pool->step_bytes == POOL_STEP_BY_SIZE)
            give_reason(effect, "at least 1/4096 of what the pool has, and as much as clients ask for");
    } else if (is_key(key, "reserve")) {
        effect->value = config_bytes_text(pool->reserve_bytes);
    } else if (is_key(key, "low_water")) {
        effect->value = config_bytes_text(pool->low_water_bytes);
        if (!is_set)
            give_reason(effect, "%s",
                        pool->step_bytes == POOL_STEP_BY_SIZE ? "there is neither step nor reserve"
                                                              : "half of the step");
    } else if (is_key(key, "export")) {
        effect->value = strdup(backing_kind(supplier->segment_kind)->export_name);
    } else if (is_key(key, "zero")) {
        effect->value = strdup(supplier_zeroed_by(supplier));
        if (supplier->unclean != NULL)
            give_reason(effect, "the driver's setting %s keeps it from clearing memory", supplier->unclean);
    }
}

static cJSON *describe_pool(const struct admin_terms *terms, const struct pool *pool) {
    const struct config *config = terms->config;
    bool is_host = pool->kind == PROTO_POOL_HOST;
    const struct config_view view = config_pool_view(config, pool->kind, is_host ? NULL : pool->uuid,
                                                     is_host ? pool->numa_node : pool->device);
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "id", pool->id);
    cJSON_AddStringToObject(object, "kind", is_host ? "host" : "device");
    cJSON_AddStringToObject(object, "name", pool->name);
    cJSON *settings = cJSON_AddArrayToObject(object, "settings");
    for (unsigned i = 0; i < view.table->count; i++) {
        const struct config_key *key = &view.table->keys[i];
        const struct config_view holder = config_holder(config, &view, key);
        struct effect effect = {0};
        pool_effect(pool, &holder, key, &effect);
        cJSON_AddItemToArray(settings, describe(terms, &view, key, &effect));
    }
    return object;
}

static const char *file_of(const struct admin_terms *terms) {
    return terms->config->has_file ? terms->reload->terms.path : NULL;
}

void report_config(cJSON *reply, const struct admin_terms *terms) {
    report_string(reply, "file", file_of(terms));
    put_settings(reply, terms);
    cJSON *pools = cJSON_AddArrayToObject(reply, "pools");
    for (unsigned i = 0; i < terms->core->n_pools; i++)
        cJSON_AddItemToArray(pools, describe_pool(terms, terms->core->pools[i]));
}

/* --- a reload --- */

/* The lines of a copy of the log, as an array. */
static void put_lines(cJSON *reply, const char *key, const struct log_copy *copy) {
    cJSON *lines = cJSON_AddArrayToObject(reply, key);
    _cleanup_(freep) char *text = strdup(copy->text);
    char *rest = NULL;

    for (char *line = text != NULL ? strtok_r(text, "\n", &rest) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        config_clean(line);
        cJSON_AddItemToArray(lines, cJSON_CreateString(line));
    }
}

static cJSON *describe_change(const struct config_change *change) {
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "section", change->section);
    cJSON_AddStringToObject(object, "key", change->key->name);
    put_text(object, "before", change->before);
    put_text(object, "after", change->after);
    put_origin(object, change->line);
    cJSON_AddBoolToObject(object, "needs_restart", change->key->needs_restart);
    return object;
}

void report_reload(cJSON *reply, const struct admin_terms *terms, const struct reload_outcome *outcome) {
    report_string(reply, "file", file_of(terms));
    cJSON_AddBoolToObject(reply, "applied", outcome->result == 0);
    cJSON *mistakes = cJSON_AddArrayToObject(reply, "mistakes");
    for (unsigned i = 0; i < config_mistakes_told(outcome->mistakes); i++)
        cJSON_AddItemToArray(mistakes, cJSON_CreateString(outcome->mistakes->first[i].text));
    report_integer(reply, "mistakes_total", outcome->mistakes->count);
    put_lines(reply, "warnings", outcome->warnings);
    report_integer(reply, "warnings_total", outcome->warnings->count);
    cJSON *changes = cJSON_AddArrayToObject(reply, "changes");
    for (unsigned i = 0; outcome->result == 0 && i < config_changes_told(outcome->changes); i++)
        cJSON_AddItemToArray(changes, describe_change(&outcome->changes->first[i]));
    report_integer(reply, "changes_total", outcome->result == 0 ? outcome->changes->count : 0);
}
