/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration, for people: in the form of its file, with the origin of each value in a comment behind
 * it. Values that only the daemon knows are comments, too.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

#define SETTING_WIDTH 38 /* the comments of most settings begin in one column */

/* The origin of a value, such as /etc/gpupool/gpupoold.conf:12. */
static const char *origin_text(const char *source, uint64_t line, const char *file, char *text, size_t size) {
    if (strcmp(source, "file") == 0 && file != NULL && line != REPLY_NULL)
        snprintf(text, size, "%s:%" PRIu64, file, line);
    else if (strcmp(source, "command-line") == 0)
        snprintf(text, size, "command line");
    else if (strcmp(source, "kept") == 0)
        snprintf(text, size, "kept until a restart");
    else
        snprintf(text, size, "%s", source);
    return text;
}

static const char *origin_of(const struct cJSON *setting, const char *file, char *text, size_t size) {
    return origin_text(reply_text(setting, "source"), reply_count(setting, "line"), file, text, size);
}

/* The value that waits for a restart, such as " (/etc/gpupool/gpupoold.conf:3: 2 from the next start)", or
 * "". */
static const char *next_of(const struct cJSON *setting, const char *file, char *text, size_t size) {
    const char *source = reply_text(setting, "next_source"), *value = reply_text(setting, "next_value");
    char origin[512];

    text[0] = '\0';
    if (source != NULL)
        snprintf(text, size, " (%s: %s from the next start)",
                 origin_text(source, reply_count(setting, "next_line"), file, origin, sizeof origin),
                 value != NULL ? value : "nothing set");
    return text;
}

/* The value that the daemon made of a setting, and the reason: "in force 7200MiB, of the 8 GiB that the GPU has". */
static void effect_of(const struct cJSON *setting, char *text, size_t size) {
    const char *in_force = reply_text(setting, "in_force"), *reason = reply_text(setting, "reason");

    snprintf(text, size, "%s%s%s%s", in_force != NULL ? "in force " : "", in_force != NULL ? in_force : "",
             in_force != NULL && reason != NULL ? ", " : "", reason != NULL ? reason : "");
}

static void print_setting(struct output *output, const struct cJSON *setting, const char *file) {
    const char *value = reply_text(setting, "value"), *key = reply_text(setting, "key");
    const char *hash = value == NULL ? "# " : "", *shown = value == NULL ? "" : value;
    bool is_default = strcmp(reply_text(setting, "source"), "default") == 0;
    bool is_waiting = reply_text(setting, "next_source") != NULL;
    char origin[512], effect[512], next[1024];

    origin_of(setting, file, origin, sizeof origin);
    effect_of(setting, effect, sizeof effect);
    size_t width = strlen(hash) + strlen(key) + strlen(" = ") + strlen(shown);
    print_line(output,
               is_waiting   ? STYLE_WARNING
               : is_default ? STYLE_QUIET
                            : STYLE_PLAIN,
               "%s%s = %s%*s ; %s%s%s%s%s", hash, key, shown,
               width < SETTING_WIDTH ? (int)(SETTING_WIDTH - width) : 0, "", origin,
               next_of(setting, file, next, sizeof next), effect[0] != '\0' ? "; " : "", effect,
               reply_flag(setting, "needs_restart") && !is_waiting ? " (restart)" : "");
}

/* The settings of which a pool made something. */
static void print_pool(struct output *output, const struct cJSON *pool, const char *file) {
    char origin[512], effect[512], next[1024];

    print_line(output, STYLE_PLAIN, "%s", "");
    print_line(output, STYLE_HEADING, "# pool %" PRIu64 ", %s", reply_count(pool, "id"),
               reply_text(pool, "name"));
    reply_each(setting, pool, "settings") {
        const char *value = reply_text(setting, "value");
        effect_of(setting, effect, sizeof effect);
        next_of(setting, file, next, sizeof next);
        if (effect[0] != '\0' || next[0] != '\0')
            print_line(output, next[0] != '\0' ? STYLE_WARNING : STYLE_PLAIN, "#   %s%s%s: %s%s[%s], %s%s",
                       reply_text(setting, "key"), value != NULL ? " = " : "", value != NULL ? value : "",
                       effect, effect[0] != '\0' ? "; " : "", reply_text(setting, "section"),
                       origin_of(setting, file, origin, sizeof origin), next);
    }
}

void view_config(struct output *output, const struct cJSON *reply) {
    const char *file = reply_text(reply, "file"), *section = "";

    print_line(output, STYLE_HEADING, "# gpupoold's configuration: %s",
               file != NULL ? file : "there is no file");
    print_line(output, STYLE_QUIET,
               "# Behind each value stands its origin; a value with (restart) changes with a restart only.");
    reply_each(setting, reply, "settings") {
        if (strcmp(section, reply_text(setting, "section")) != 0) {
            section = reply_text(setting, "section");
            print_line(output, STYLE_PLAIN, "%s", "");
            print_line(output, STYLE_HEADING, "[%s]", section);
        }
        print_setting(output, setting, file);
    }
    reply_each(pool, reply, "pools") print_pool(output, pool, file);
}

static void print_rest(struct output *output, const struct cJSON *reply, const char *array,
                       const char *total) {
    uint64_t n_told = 0;

    reply_each(element, reply, array) n_told++;
    if (reply_count(reply, total) > n_told)
        print_line(output, STYLE_QUIET, "%" PRIu64 " more %s are not shown.",
                   reply_count(reply, total) - n_told, array);
}

static void print_change(struct output *output, const struct cJSON *change, const char *file) {
    const char *before = reply_text(change, "before"), *after = reply_text(change, "after");
    bool needs_restart = reply_flag(change, "needs_restart");
    char origin[512];

    print_line(output, needs_restart ? STYLE_WARNING : STYLE_PLAIN, "[%s] %s: %s -> %s (%s)%s",
               reply_text(change, "section"), reply_text(change, "key"), before != NULL ? before : "default",
               after != NULL ? after : "default", origin_of(change, file, origin, sizeof origin),
               needs_restart ? " needs a restart" : "");
}

void view_reload(struct output *output, const struct cJSON *reply) {
    const char *file = reply_text(reply, "file");

    reply_each(mistake, reply, "mistakes") print_line(output, STYLE_ALARM, "%s", reply_string(mistake));
    print_rest(output, reply, "mistakes", "mistakes_total");
    reply_each(change, reply, "changes") print_change(output, change, file);
    print_rest(output, reply, "changes", "changes_total");
    reply_each(warning, reply, "warnings")
        print_line(output, STYLE_WARNING, "warning: %s", reply_string(warning));
    print_rest(output, reply, "warnings", "warnings_total");
    if (!reply_flag(reply, "applied"))
        print_line(output, STYLE_HEADING, "The configuration stays as it was.");
    else if (reply_first(reply, "changes") == NULL)
        print_line(output, STYLE_QUIET, "Nothing changed.");
}
