/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/user_policy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/config/config.h"
#include "daemon/config/subuid.h"
#include "daemon/core/core.h"
#include "daemon/loop/log.h"
#include "daemon/loop/users.h"

static uint64_t sessions_default(const struct core *core) {
    return core->sessions_limit - core->sessions_limit / 64; /* some are left to others */
}

/* Half of those that there are descriptors for: the pools of another user have the other half. */
static uint64_t segments_default(const struct core *core) {
    return core->segments_limit / 2;
}

/* Finds the number of a user or group. Returns whether there is one; logs and counts where there is none. */
static bool look_up(struct config *config, struct config_who *who) {
    who->is_known = (who->is_group ? users_find_group : users_find_user)(who->name, &who->id) == 0;
    if (!who->is_known) {
        log_warning("there is no %s '%s': what the configuration says of it holds for nobody",
                    who->is_group ? "group" : "user", who->name);
        config->n_unknown_names++;
    }
    return who->is_known;
}

/* Makes the list of a pool's users with numbers in place of names, and without unknown names. Returns 0 or
 * -ENOMEM. */
static int look_up_users(struct config *config, struct config_pool *pool) {
    const char *position = pool->allow;
    struct config_who who;
    char *numbers = NULL;
    size_t size;

    if (pool->allow == NULL || strcmp(pool->allow, "all") == 0)
        return 0;
    FILE *text = open_memstream(&numbers, &size);
    if (text == NULL)
        return -ENOMEM;
    for (const char *separator = ""; config_next_who(&position, &who) > 0;)
        if (look_up(config, &who)) {
            fprintf(text, "%s%s:%" PRIu32, separator, who.is_group ? "group" : "user", who.id);
            separator = ",";
        }
    bool failed = ferror(text) != 0;
    if (fclose(text) != 0 || failed) {
        free(numbers);
        return -ENOMEM;
    }
    free(pool->allowed);
    pool->allowed = numbers;
    return 0;
}

int user_policy_look_up(struct config *config) {
    list_for_each_entry(struct config_rule, rule, &config->rules, link) {
        look_up(config, &rule->who);
    }
    int r = look_up_users(config, &config->device);
    if (r == 0)
        r = look_up_users(config, &config->host);
    if (r == 0 && config->subuid[0] != '\0')
        r = subuid_read(config->subuid, &config->ranges, &config->n_ranges);
    list_for_each_entry(struct config_section, section, &config->sections, link) {
        r = r == 0 ? look_up_users(config, &section->pool) : r;
    }
    return r;
}

static struct policy_subject subject_of(const struct config_who *who) {
    return (struct policy_subject){.is_group = who->is_group, .id = who->id};
}

/* A configured limit as a number; total: the whole that a percentage is of. */
static uint64_t resolve(const struct config_size *size, uint64_t total, uint64_t fallback) {
    if (!size->set)
        return fallback;
    if (size->is_unlimited)
        return QUOTA_UNLIMITED;
    return size->is_percent ? config_percent_of(total, size->value) : size->value;
}

/* A section's limits for the pools that there are; those that it does not set are those of fallback. */
static void resolve_limits(const struct config_limits *limits, const struct core *core,
                           const uint64_t fallback[QUOTA_ITEMS], uint64_t ret_limits[QUOTA_ITEMS]) {
    memcpy(ret_limits, fallback, QUOTA_ITEMS * sizeof *ret_limits);
    ret_limits[QUOTA_SESSIONS] = resolve(&limits->sessions, 0, fallback[QUOTA_SESSIONS]);
    ret_limits[QUOTA_LEASES] = resolve(&limits->leases, 0, fallback[QUOTA_LEASES]);
    ret_limits[QUOTA_RANGES] = resolve(&limits->ranges, 0, fallback[QUOTA_RANGES]);
    ret_limits[QUOTA_SEGMENTS] = resolve(&limits->segments, 0, fallback[QUOTA_SEGMENTS]);
    ret_limits[QUOTA_WAITING] = resolve(&limits->waiting, 0, fallback[QUOTA_WAITING]);
    ret_limits[QUOTA_REPLIES] = resolve(&limits->replies, 0, fallback[QUOTA_REPLIES]);
    ret_limits[QUOTA_KEPT] = resolve(&limits->kept, 0, fallback[QUOTA_KEPT]);
    for (unsigned i = 0; i < core->n_pools; i++) {
        const struct pool *pool = core->pools[i];
        unsigned item = quota_item_of_pool(pool->id);
        ret_limits[item] = resolve(pool->kind == PROTO_POOL_HOST ? &limits->host : &limits->device,
                                   pool->limit_bytes, fallback[item]);
    }
}

/* Lets users have a pool. The list has numbers. */
static int allow(struct policy *policy, uint32_t pool_id, const char *list) {
    struct config_who who;

    policy_restrict(policy, pool_id);
    while (config_next_who(&list, &who) > 0) {
        if (!users_parse_id(who.name, &who.id))
            continue;
        const struct policy_subject subject = subject_of(&who);
        int r = policy_allow(policy, pool_id, &subject);
        if (r < 0)
            return r;
    }
    return 0;
}

void user_policy_resolve(const struct core *core, const struct config_limits *limits,
                         uint64_t ret_limits[QUOTA_ITEMS]) {
    uint64_t unset[QUOTA_ITEMS];

    policy_limits_begin(unset);
    resolve_limits(limits, core, unset, ret_limits);
}

static void policy_freep(struct policy **policy) {
    policy_free(*policy);
}

int user_policy_apply(struct core *core, const struct config *config) {
    _cleanup_(policy_freep) struct policy *policy = NULL;
    uint64_t fallback[QUOTA_ITEMS], limits[QUOTA_ITEMS];

    int r = policy_new(&policy);
    if (r < 0)
        return r;
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        fallback[item] = QUOTA_UNLIMITED;
    fallback[QUOTA_SESSIONS] = sessions_default(core);
    fallback[QUOTA_LEASES] = LEASES_DEFAULT;
    fallback[QUOTA_RANGES] = RANGES_DEFAULT;
    fallback[QUOTA_SEGMENTS] = segments_default(core);
    fallback[QUOTA_WAITING] = WAITING_DEFAULT;
    fallback[QUOTA_REPLIES] = REPLIES_DEFAULT;
    resolve_limits(&config->quota, core, fallback, policy->everybody);
    policy_limits_begin(fallback);
    list_for_each_entry(const struct config_rule, rule, &config->rules, link) {
        if (!rule->who.is_known)
            continue;
        const struct policy_subject subject = subject_of(&rule->who);
        resolve_limits(&rule->limits, core, fallback, limits);
        r = policy_add_rule(policy, &subject, limits);
        if (r < 0)
            return r;
    }
    for (unsigned i = 0; i < config->n_ranges; i++) {
        r = policy_add_range(policy, &config->ranges[i]);
        if (r < 0)
            return r;
    }
    for (unsigned i = 0; i < core->n_pools; i++) {
        const struct pool *pool = core->pools[i];
        struct config_pool_sizes sizes;
        bool is_host = pool->kind == PROTO_POOL_HOST;
        config_resolve(config, pool->kind, is_host ? NULL : pool->uuid,
                       is_host ? pool->numa_node : pool->device, 0, &sizes);
        r = sizes.allow != NULL ? allow(policy, pool->id, sizes.allow) : 0;
        if (r < 0)
            return r;
    }
    core_set_policy(core, take_ptr(&policy), clock_now_ns());
    return 0;
}
