/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_quota.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "proto/limits.h"

#define BLANKS " \t"

/* Where a name ends: they are what useradd takes, and some more, but nothing that the file gives a meaning.
 */
#define NAME_ENDS ", \t;:[]="

/* The most of what is counted: a limit that is more is none. */
#define COUNT_MAX UINT32_MAX

int config_complain(const struct config_setting *setting, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(setting->error, setting->error_size, format, arguments);
    va_end(arguments);
    return -EINVAL;
}

int config_parse_size(const char *text, struct config_size *ret_size) {
    struct config_size size = {.set = true};
    size_t length = strlen(text);

    if (length > 0 && text[length - 1] == '%') {
        char *end;
        errno = 0;
        unsigned long percent = strtoul(text, &end, 10);
        if (errno != 0 || end != text + length - 1 || end == text || *text == '-' || *text == '+' ||
            percent > 100)
            return -EINVAL;
        size.is_percent = true;
        size.value = percent;
    } else {
        int r = units_parse_bytes(text, &size.value);
        if (r < 0 || size.value > PROTO_SIZE_MAX)
            return -EINVAL;
    }
    *ret_size = size;
    return 0;
}

int config_next_who(const char **list, struct config_who *ret_who) {
    struct config_who who = {0};

    if (*list == NULL)
        return 0;
    const char *text = *list + strspn(*list, BLANKS);
    if (strncmp(text, "user:", 5) != 0 && strncmp(text, "group:", 6) != 0)
        return -EINVAL;
    who.is_group = text[0] == 'g';
    text = strchr(text, ':') + 1;
    size_t length = strcspn(text, NAME_ENDS);
    if (length == 0 || length >= sizeof who.name)
        return -EINVAL;
    memcpy(who.name, text, length);
    text += length;
    text += strspn(text, BLANKS);
    if (*text != '\0' && *text != ',')
        return -EINVAL;
    *list = *text == ',' ? text + 1 : NULL;
    *ret_who = who;
    return 1;
}

int config_add_allowed(char **list, const struct config_setting *setting) {
    const char *value = setting->value;
    struct config_who who;
    int r = 1;

    for (const char *position = value; strcmp(value, "all") != 0 && r > 0;)
        r = config_next_who(&position, &who);
    if (r < 0)
        return config_complain(
            setting, "allow: '%s' is neither all nor a list such as user:alice, group:research", value);
    /* Lists add up, and everybody and some more are everybody. */
    if (*list != NULL && strcmp(*list, "all") == 0)
        return 0;
    char *longer = NULL;
    if (*list == NULL || strcmp(value, "all") == 0)
        longer = strdup(value);
    else if (asprintf(&longer, "%s,%s", *list, value) < 0)
        longer = NULL;
    if (longer == NULL)
        return config_complain(setting, "out of memory");
    free(*list);
    *list = longer;
    return 0;
}

static int parse_limit(const char *value, bool is_count, struct config_size *ret_size) {
    struct config_size size = {.set = true, .is_unlimited = true};

    if (strcmp(value, "unlimited") != 0) {
        if (is_count && (value[strspn(value, "0123456789")] != '\0' || config_parse_size(value, &size) < 0))
            return -EINVAL;
        if (!is_count && config_parse_size(value, &size) < 0)
            return -EINVAL;
        if (is_count && size.value > COUNT_MAX)
            return -EINVAL;
    }
    *ret_size = size;
    return 0;
}

static int set_limit(struct config_limits *limits, const struct config_setting *setting) {
    const char *key = setting->key, *value = setting->value;
    struct config_size *count = strcmp(key, "sessions") == 0   ? &limits->sessions
                                : strcmp(key, "leases") == 0   ? &limits->leases
                                : strcmp(key, "ranges") == 0   ? &limits->ranges
                                : strcmp(key, "segments") == 0 ? &limits->segments
                                : strcmp(key, "waiting") == 0  ? &limits->waiting
                                                               : NULL;
    struct config_size *bytes = strcmp(key, "device") == 0 ? &limits->device
                                : strcmp(key, "host") == 0 ? &limits->host
                                                           : NULL;
    struct config_size replies;

    if (count != NULL)
        return parse_limit(value, true, count) == 0
                   ? 0
                   : config_complain(setting, "%s: '%s' is neither a number nor unlimited", key, value);
    if (bytes != NULL)
        return parse_limit(value, false, bytes) == 0
                   ? 0
                   : config_complain(
                         setting,
                         "%s: '%s' is neither a size such as 8GiB nor a share such as 50%% nor unlimited",
                         key, value);
    if (strcmp(key, "replies") != 0)
        return config_complain(setting, "[quota] has no key '%s'; see gpupoold.conf(5)", key);
    if (parse_limit(value, false, &replies) < 0 || replies.is_percent)
        return config_complain(setting, "replies: '%s' is neither a size such as 64MiB nor unlimited", value);
    limits->replies = replies;
    return 0;
}

int config_set_quota(struct config_limits *everybody, struct list *rules, const char *who,
                     const struct config_setting *setting) {
    struct config_who wanted;
    const char *list = who;

    if (*who == '\0')
        return set_limit(everybody, setting);
    if (config_next_who(&list, &wanted) < 0 || list != NULL)
        return config_complain(
            setting, "[quota %s]: there are [quota], [quota user:NAME] and [quota group:NAME]", who);
    list_for_each_entry(struct config_rule, rule, rules, link) {
        if (rule->who.is_group == wanted.is_group && strcmp(rule->who.name, wanted.name) == 0)
            return set_limit(&rule->limits, setting);
    }
    struct config_rule *rule = calloc(1, sizeof *rule);
    if (rule == NULL)
        return config_complain(setting, "out of memory");
    rule->who = wanted;
    list_append(rules, &rule->link);
    return set_limit(&rule->limits, setting);
}
