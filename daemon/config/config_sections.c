/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of a configuration, and their keys: found by name, set, stepped through, and as text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "base/units.h"
#include "daemon/config/config.h"
#include "gpu/gpu.h"

#define PRINT_WIDTH 38 /* as gpupoolctl config has it */

/* --- sections --- */

static struct config_view view_of_pool(struct config_pool *pool, enum proto_pool_kind kind) {
    return (struct config_view){kind == PROTO_POOL_HOST ? &config_host_keys : &config_device_keys, pool,
                                pool->lines, NULL, NULL};
}

static struct config_view view_of_section(struct config_section *section) {
    struct config_view view = view_of_pool(&section->pool, section->kind);
    view.section = section;
    return view;
}

static struct config_view view_of_limits(struct config_limits *limits, const struct config_rule *rule) {
    return (struct config_view){&config_quota_keys, limits, limits->lines, NULL, rule};
}

/* The sections that there always are: [daemon], [device], [host], [quota]. */
static bool view_of_common(struct config *config, unsigned i, struct config_view *ret_view) {
    switch (i) {
    case 0:
        *ret_view = (struct config_view){&config_daemon_keys, config, config->lines, NULL, NULL};
        return true;
    case 1:
        *ret_view = view_of_pool(&config->device, PROTO_POOL_DEVICE);
        return true;
    case 2:
        *ret_view = view_of_pool(&config->host, PROTO_POOL_HOST);
        return true;
    case 3:
        *ret_view = view_of_limits(&config->quota, NULL);
        return true;
    default:
        return false;
    }
}

static bool is_same_place(const struct config_section *a, const struct config_section *b) {
    return a->kind == b->kind && a->by_uuid == b->by_uuid && a->number == b->number &&
           memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0;
}

static struct config_section *find_section(const struct config *config, const struct config_section *wanted) {
    list_for_each_entry(struct config_section, section, &config->sections, link) {
        if (is_same_place(section, wanted))
            return section;
    }
    return NULL;
}

static struct config_rule *find_rule(const struct config *config, const struct config_who *who) {
    list_for_each_entry(struct config_rule, rule, &config->rules, link) {
        if (rule->who.is_group == who->is_group && strcmp(rule->who.name, who->name) == 0)
            return rule;
    }
    return NULL;
}

/* [device 0], [device GPU-…], [host 1]. */
static int find_pool_section(struct config *config, const char *name, const struct config_place *place,
                             struct config_view *ret_view) {
    bool is_host = strncmp(name, "host ", 5) == 0;
    struct config_section wanted = {.kind = is_host ? PROTO_POOL_HOST : PROTO_POOL_DEVICE,
                                    .pool = config_pool_unset};
    const char *which = name + (is_host ? 5 : 7);
    struct gpu_uuid uuid;
    uint64_t number = 0;

    if (!is_host && gpu_uuid_parse(which, &uuid) == 0) {
        wanted.by_uuid = true;
        memcpy(wanted.uuid, uuid.bytes, sizeof wanted.uuid);
    } else if (units_parse_number(which, 4095, &number) < 0) {
        return config_mistake(place, "[%s]: '%s' is %s", name, which,
                              is_host ? "no NUMA node's number"
                                      : "neither a device's number nor a GPU's UUID");
    }
    wanted.number = (int)number;
    struct config_section *section = find_section(config, &wanted);
    if (section == NULL) {
        section = malloc(sizeof *section);
        if (section == NULL)
            return config_mistake(place, "out of memory");
        *section = wanted;
        list_append(&config->sections, &section->link);
    }
    *ret_view = view_of_section(section);
    return 0;
}

/* [quota user:alice], [quota group:research]. */
static int find_quota_section(struct config *config, const char *who, const struct config_place *place,
                              struct config_view *ret_view) {
    struct config_who wanted;
    const char *list = who;

    if (config_next_who(&list, &wanted) < 0 || list != NULL)
        return config_mistake(place,
                              "[quota %s]: there are [quota], [quota user:NAME] and [quota group:NAME], with "
                              "names of at most %u characters",
                              who, CONFIG_NAME_SIZE - 1);
    struct config_rule *rule = find_rule(config, &wanted);
    if (rule == NULL) {
        rule = calloc(1, sizeof *rule);
        if (rule == NULL)
            return config_mistake(place, "out of memory");
        rule->who = wanted;
        list_append(&config->rules, &rule->link);
    }
    *ret_view = view_of_limits(&rule->limits, rule);
    return 0;
}

static int complain_of_section(const char *name, const struct config_place *place) {
    static const char *const words[] = {"daemon", "device", "host", "quota", NULL};
    const char *rest = name + strcspn(name, " "); /* "[devcie 0]": the first word is the misspelt one */
    char first[16], hint[96] = "";

    snprintf(first, sizeof first, "%.*s", (int)(rest - name), name);
    const char *meant = nearest_word(first, words);
    if (meant != NULL)
        snprintf(hint, sizeof hint, ". Did you mean [%s%.64s]?", meant, rest);
    return config_mistake(place,
                          "there is no section [%s]; there are [daemon], [device], [host], [device NUMBER], "
                          "[device GPU-UUID], [host NODE], [quota], [quota user:NAME] and [quota "
                          "group:NAME]%s",
                          name, hint);
}

int config_find_section(struct config *config, const char *name, const struct config_place *place,
                        struct config_view *ret_view) {
    struct config_view view;

    for (unsigned i = 0; view_of_common(config, i, &view); i++)
        if (strcmp(name, view.table->name) == 0) {
            *ret_view = view;
            return 0;
        }
    if (strncmp(name, "device ", 7) == 0 || strncmp(name, "host ", 5) == 0)
        return find_pool_section(config, name, place, ret_view);
    if (strncmp(name, "quota ", 6) == 0)
        return find_quota_section(config, name + 6, place, ret_view);
    return complain_of_section(name, place);
}

bool config_find_twin(const struct config *config, const struct config_view *view,
                      struct config_view *ret_twin) {
    struct config *other = (struct config *)config; /* the view's values are the caller's to leave alone */

    if (view->section != NULL) {
        struct config_section *section = find_section(config, view->section);
        if (section != NULL)
            *ret_twin = view_of_section(section);
        return section != NULL;
    }
    if (view->rule != NULL) {
        struct config_rule *rule = find_rule(config, &view->rule->who);
        if (rule != NULL)
            *ret_twin = view_of_limits(&rule->limits, rule);
        return rule != NULL;
    }
    for (unsigned i = 0; view_of_common(other, i, ret_twin); i++)
        if (ret_twin->table == view->table)
            return true;
    return false;
}

bool config_next_section(const struct config *config, struct config_view *view) {
    struct config *own = (struct config *)config;
    const struct list *next = view->section != NULL ? view->section->link.next : config->sections.next;
    struct config_view common;
    unsigned i = 0;

    if (view->section == NULL && view->rule == NULL) {
        if (view->table == NULL)
            return view_of_common(own, 0, view);
        while (view_of_common(own, i++, &common) && common.table != view->table)
            ;
        if (view_of_common(own, i, view))
            return true;
    }
    if (view->rule == NULL && next != &config->sections) {
        *view = view_of_section(container_of(next, struct config_section, link));
        return true;
    }
    next = view->rule != NULL ? view->rule->link.next : config->rules.next;
    if (next == &config->rules)
        return false;
    struct config_rule *rule = container_of(next, struct config_rule, link);
    *view = view_of_limits(&rule->limits, rule);
    return true;
}

char *config_section_name(const struct config_view *view, char name[CONFIG_SECTION_NAME_SIZE]) {
    const struct config_section *section = view->section;
    char text[GPU_UUID_TEXT_SIZE];
    struct gpu_uuid uuid;

    if (view->rule != NULL) {
        snprintf(name, CONFIG_SECTION_NAME_SIZE, "quota %s:%s", view->rule->who.is_group ? "group" : "user",
                 view->rule->who.name);
    } else if (section != NULL && section->by_uuid) {
        memcpy(uuid.bytes, section->uuid, sizeof uuid.bytes);
        gpu_uuid_format(&uuid, text);
        snprintf(name, CONFIG_SECTION_NAME_SIZE, "device %s", text);
    } else if (section != NULL) {
        snprintf(name, CONFIG_SECTION_NAME_SIZE, "%s %d", view->table->name, section->number);
    } else {
        snprintf(name, CONFIG_SECTION_NAME_SIZE, "%s", view->table->name);
    }
    return name;
}

/* --- keys --- */

static int *line_of(const struct config_view *view, const struct config_key *key) {
    return &view->lines[key - view->table->keys];
}

/* inih takes " ;" for the beginning of a comment, not "#", which a path may have. */
static bool has_comment(const struct config_key *key, const char *value) {
    bool is_free_text = key->type == CONFIG_PATH || key->type == CONFIG_PATH_OR_NO ||
                        key->type == CONFIG_GROUP || key->type == CONFIG_USERS;
    const char *hash = strchr(value, '#');

    while (is_free_text && hash != NULL && hash != value && hash[-1] != ' ' && hash[-1] != '\t')
        hash = strchr(hash + 1, '#');
    return hash != NULL;
}

int config_set_key(const struct config_view *view, const char *name, const char *value,
                   const struct config_place *place) {
    const struct config_setting setting = {name, value, place};
    const struct config_key *key = config_find_key(view->table, name);
    char section[CONFIG_SECTION_NAME_SIZE];

    if (key == NULL)
        return config_complain_of_key(view->table, &setting);
    int *line = line_of(view, key);
    if (place->path != NULL && *line > 0 && key->type != CONFIG_USERS)
        return config_complain(&setting, "'%s' was given in [%s] before, in line %d", name,
                               config_section_name(view, section), *line);
    *line = place->path != NULL ? place->line : CONFIG_COMMAND_LINE;
    if (*value == '\0')
        return config_complain(&setting,
                               "%s: there is no value behind the '='; give one, or take the line out", name);
    if (has_comment(key, value))
        return config_complain(&setting,
                               "%s: '%s' has a '#' in it: a comment behind a value begins with a blank and "
                               "';', and '#' begins one on a line of its own only",
                               name, value);
    return config_value_set(key, view->values, &setting);
}

int config_set(struct config *config, const char *section, const char *key, const char *value,
               const struct config_place *place) {
    struct config_view view;

    int r = config_find_section(config, section, place, &view);
    return r < 0 ? r : config_set_key(&view, key, value, place);
}

struct config_view config_holder(const struct config *config, const struct config_view *view,
                                 const struct config_key *key) {
    struct config *own = (struct config *)config;

    if (view->section == NULL || *line_of(view, key) != CONFIG_UNSET)
        return *view;
    return view_of_pool(view->section->kind == PROTO_POOL_HOST ? &own->host : &own->device,
                        view->section->kind);
}

int config_line(const struct config_view *view, const struct config_key *key) {
    return *line_of(view, key);
}

struct config_view config_pool_view(const struct config *config, enum proto_pool_kind kind,
                                    const uint8_t *uuid, int number) {
    struct config *own = (struct config *)config;
    const struct config_section *found = config_pool_section(config, kind, uuid, number);
    struct config_view view = {0};

    while (found != NULL && config_next_section(config, &view))
        if (view.section == found)
            return view;
    return view_of_pool(kind == PROTO_POOL_HOST ? &own->host : &own->device, kind);
}

int config_text(const struct config *config, const struct config_view *view, const struct config_key *key,
                char **ret_text) {
    const struct config_view holder = config_holder(config, view, key);
    const char *fallback = holder.rule != NULL ? "inherited" : key->fallback;
    char *text = NULL;

    if (*line_of(&holder, key) != CONFIG_UNSET || holder.table == &config_daemon_keys)
        text = config_value_text(key, holder.values);
    else if (fallback != NULL)
        text = strdup(fallback);
    else {
        *ret_text = NULL;
        return 0;
    }
    if (text == NULL)
        return -ENOMEM;
    if (*text == '\0') { /* the group that is not set */
        free(text);
        text = NULL;
    }
    *ret_text = text;
    return 0;
}

static int print_key(const struct config *config, const struct config_view *view,
                     const struct config_key *key, const char *path, FILE *stream) {
    int line = config_line(view, key), width = PRINT_WIDTH;
    char *value;

    int r = config_text(config, view, key, &value);
    if (r < 0)
        return r;
    int n =
        value != NULL ? fprintf(stream, "%s = %s", key->name, value) : fprintf(stream, "# %s =", key->name);
    free(value);
    fprintf(stream, "%*s ; ", n < width ? width - n : 0, "");
    if (line > 0)
        fprintf(stream, "%s:%d", path, line);
    else
        fputs(line == CONFIG_COMMAND_LINE ? "command line" : "default", stream);
    fputs(key->needs_restart ? " (restart)\n" : "\n", stream);
    return 0;
}

int config_print(const struct config *config, const char *path, FILE *stream) {
    char name[CONFIG_SECTION_NAME_SIZE];
    struct config_view view = {0};
    int r = 0;

    while (r == 0 && config_next_section(config, &view)) {
        bool is_common = view.section == NULL && view.rule == NULL;
        fprintf(stream, "%s[%s]\n", view.table == &config_daemon_keys ? "" : "\n",
                config_section_name(&view, name));
        for (unsigned i = 0; r == 0 && i < view.table->count; i++)
            if (is_common || view.lines[i] != CONFIG_UNSET)
                r = print_key(config, &view, &view.table->keys[i], path, stream);
    }
    return r;
}
