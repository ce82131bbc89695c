/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_value.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/nearest.h"
#include "base/units.h"
#include "proto/limits.h"

#define BLANKS " \t"

/* Where a name ends: they are what useradd takes, and some more, but nothing that the file gives a meaning.
 */
#define NAME_ENDS ", \t;:[]="

/* The most of what is counted: a limit that is more is none. */
#define COUNT_MAX UINT32_MAX

#define HINT_SIZE 96u

/* --- hints, which end a complaint --- */

static const char *no_hint(char hint[HINT_SIZE]) {
    hint[0] = '\0';
    return hint;
}

static const char *mean(const char *word, char hint[HINT_SIZE]) {
    snprintf(hint, HINT_SIZE, "; did you mean '%s'?", word);
    return hint;
}

static const char *hint_of_words(const char *value, const char *const *words, char hint[HINT_SIZE]) {
    static const char *const yes[] = {"true", "on", "1", "y", "enabled", NULL};
    static const char *const no[] = {"false", "off", "0", "n", "disabled", NULL};
    const char *word = nearest_word(value, words);
    bool is_boolean = strcmp(words[0], "no") == 0 && strcmp(words[1], "yes") == 0;

    for (unsigned i = 0; word == NULL && is_boolean && yes[i] != NULL; i++)
        word = strcasecmp(value, yes[i]) == 0 ? "yes" : strcasecmp(value, no[i]) == 0 ? "no" : NULL;
    return word == NULL ? no_hint(hint) : mean(word, hint);
}

/* For "4GB" and its like, whose unit is not known: is it of 1000 or of 1024? */
static const char *hint_of_unit(const char *value, char hint[HINT_SIZE]) {
    static const char *const words[] = {"unlimited", NULL};
    size_t length = strlen(value), digits = strspn(value, "0123456789.");
    char text[32];
    uint64_t bytes;

    if (digits > 0 && length >= 2 && length < sizeof text - 1 && strchr("bB", value[length - 1]) != NULL &&
        strchr("kKmMgGtT", value[length - 2]) != NULL) {
        char letter = value[length - 2];
        snprintf(text, sizeof text, "%.*s%ciB", (int)length - 2, value,
                 letter >= 'a' ? letter - 'a' + 'A' : letter);
        if (units_parse_bytes(text, &bytes) == 0) {
            snprintf(hint, HINT_SIZE, "; did you mean '%s'? Units are KiB, MiB, GiB and TiB, of 1024", text);
            return hint;
        }
    }
    return nearest_word(value, words) != NULL ? mean(words[0], hint) : no_hint(hint);
}

/* --- from text --- */

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
        if (r < 0)
            return r;
        if (size.value > PROTO_SIZE_MAX)
            return -ERANGE;
    }
    *ret_size = size;
    return 0;
}

static int set_number(uint32_t *number, const struct config_key *key, const struct config_setting *setting) {
    uint64_t parsed;

    if (units_parse_number(setting->value, key->bound, &parsed) < 0 || parsed == 0)
        return config_complain(setting, "%s: '%s' is not a number from 1 to %" PRIu64, key->name,
                               setting->value, key->bound);
    *number = (uint32_t)parsed;
    return 0;
}

static int set_bytes(uint64_t *bytes, const struct config_key *key, const struct config_setting *setting) {
    uint64_t parsed;
    char hint[HINT_SIZE];

    if (units_parse_bytes(setting->value, &parsed) < 0 || parsed < key->bound || parsed > PROTO_SIZE_MAX)
        return config_complain(setting, "%s: '%s' is not a size of at least %s, such as 8GiB%s", key->name,
                               setting->value, BYTES_TEXT(key->bound), hint_of_unit(setting->value, hint));
    *bytes = parsed;
    return 0;
}

/* The part of a complaint that names the values which a type takes. */
static const char *what_of(enum config_type type) {
    switch (type) {
    case CONFIG_QUOTA_COUNT:
        return "neither a number nor unlimited";
    case CONFIG_QUOTA_BYTES:
        return "neither a size such as 64MiB nor unlimited";
    case CONFIG_QUOTA_SIZE:
        return "neither a size such as 8GiB nor a share such as 50% nor unlimited";
    default:
        return "neither a size such as 64MiB nor a share such as 50%";
    }
}

static int set_size(struct config_size *size, const struct config_key *key,
                    const struct config_setting *setting) {
    struct config_size parsed = {.set = true, .is_unlimited = true};
    const char *value = setting->value;
    char hint[HINT_SIZE];
    bool is_count = key->type == CONFIG_QUOTA_COUNT;
    int r = 0;

    if (key->type == CONFIG_SIZE || strcmp(value, "unlimited") != 0) {
        r = is_count && value[strspn(value, "0123456789")] != '\0' ? -EINVAL
                                                                   : config_parse_size(value, &parsed);
        if (r == 0 && ((is_count && parsed.value > COUNT_MAX) ||
                       (key->type == CONFIG_QUOTA_BYTES && parsed.is_percent)))
            r = -EINVAL;
    }
    if (r == -ERANGE && !is_count)
        return config_complain(setting, "%s: '%s' is more than the largest size, %s", key->name, value,
                               BYTES_TEXT(PROTO_SIZE_MAX));
    if (r < 0)
        return config_complain(setting, "%s: '%s' is %s%s", key->name, value, what_of(key->type),
                               hint_of_unit(value, hint));
    *size = parsed;
    return 0;
}

static int set_choice(int *choice, const struct config_key *key, const struct config_setting *setting) {
    char list[128] = "", hint[HINT_SIZE];
    size_t used = 0;
    unsigned n = 0;

    for (; key->words[n] != NULL; n++)
        if (strcmp(setting->value, key->words[n]) == 0) {
            *choice = (int)n;
            return 0;
        }
    for (unsigned i = 0; i < n && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0   ? n == 2 ? "neither " : "none of "
                                 : n == 2 ? " nor "
                                          : ", ",
                                 key->words[i]);
    return config_complain(setting, "%s: '%s' is %s%s", key->name, setting->value, list,
                           hint_of_words(setting->value, key->words, hint));
}

static int set_path(char path[CONFIG_PATH_SIZE], const struct config_key *key,
                    const struct config_setting *setting) {
    const char *value = setting->value;

    if (key->type == CONFIG_PATH_OR_NO && strcmp(value, "no") == 0)
        value = "";
    else if (value[0] != '/')
        return key->type == CONFIG_PATH
                   ? config_complain(setting, "%s: '%s' is not an absolute path", key->name, value)
                   : config_complain(setting, "%s: '%s' is neither a path such as %s nor no", key->name,
                                     value, key->fallback);
    if (strlen(value) >= CONFIG_PATH_SIZE)
        return config_complain(
            setting, "%s: the path has more than %u characters, which is what a Unix socket's may have",
            key->name, CONFIG_PATH_SIZE - 1);
    snprintf(path, CONFIG_PATH_SIZE, "%s", value);
    return 0;
}

static int set_group(char group[CONFIG_NAME_SIZE], const struct config_setting *setting) {
    if (strlen(setting->value) >= CONFIG_NAME_SIZE)
        return config_complain(setting, "group: '%s' is no group's name", setting->value);
    snprintf(group, CONFIG_NAME_SIZE, "%s", setting->value);
    return 0;
}

int config_value_set(const struct config_key *key, void *values, const struct config_setting *setting) {
    void *value = (char *)values + key->offset;

    switch (key->type) {
    case CONFIG_NUMBER:
        return set_number(value, key, setting);
    case CONFIG_BYTES:
        return set_bytes(value, key, setting);
    case CONFIG_SIZE:
    case CONFIG_QUOTA_COUNT:
    case CONFIG_QUOTA_BYTES:
    case CONFIG_QUOTA_SIZE:
        return set_size(value, key, setting);
    case CONFIG_CHOICE:
        return set_choice(value, key, setting);
    case CONFIG_PATH:
    case CONFIG_PATH_OR_NO:
        return set_path(value, key, setting);
    case CONFIG_GROUP:
        return set_group(value, setting);
    case CONFIG_USERS:
        return config_add_users(value, setting);
    }
    return -EINVAL;
}

/* --- lists of users and groups --- */

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

int config_add_users(char **list, const struct config_setting *setting) {
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

/* --- to text --- */

char *config_bytes_text(uint64_t bytes) {
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {{"TiB", TIB}, {"GiB", GIB}, {"MiB", MIB}, {"KiB", KIB}, {"", 1}};
    unsigned i = bytes == 0 ? 4 : 0;
    char *text;

    while (bytes % units[i].factor != 0)
        i++;
    return asprintf(&text, "%" PRIu64 "%s", bytes / units[i].factor, units[i].name) < 0 ? NULL : text;
}

static char *size_text(const struct config_size *size, bool is_count) {
    char *text;

    if (size->is_unlimited)
        return strdup("unlimited");
    if (!size->is_percent && !is_count)
        return config_bytes_text(size->value);
    return asprintf(&text, "%" PRIu64 "%s", size->value, size->is_percent ? "%" : "") < 0 ? NULL : text;
}

char *config_value_text(const struct config_key *key, const void *values) {
    const void *value = (const char *)values + key->offset;
    char *text;

    switch (key->type) {
    case CONFIG_NUMBER:
        return asprintf(&text, "%" PRIu32, *(const uint32_t *)value) < 0 ? NULL : text;
    case CONFIG_BYTES:
        return config_bytes_text(*(const uint64_t *)value);
    case CONFIG_SIZE:
    case CONFIG_QUOTA_COUNT:
    case CONFIG_QUOTA_BYTES:
    case CONFIG_QUOTA_SIZE:
        return size_text(value, key->type == CONFIG_QUOTA_COUNT);
    case CONFIG_CHOICE:
        return strdup(key->words[*(const int *)value]);
    case CONFIG_PATH_OR_NO:
        return strdup(*(const char *)value == '\0' ? "no" : value);
    case CONFIG_PATH:
    case CONFIG_GROUP:
        return strdup(value);
    case CONFIG_USERS:
        return strdup(*(char *const *)value);
    }
    return NULL;
}

void config_value_copy(const struct config_key *key, void *to, const void *from) {
    static const size_t sizes[] = {
        [CONFIG_NUMBER] = sizeof(uint32_t),
        [CONFIG_BYTES] = sizeof(uint64_t),
        [CONFIG_SIZE] = sizeof(struct config_size),
        [CONFIG_QUOTA_COUNT] = sizeof(struct config_size),
        [CONFIG_QUOTA_BYTES] = sizeof(struct config_size),
        [CONFIG_QUOTA_SIZE] = sizeof(struct config_size),
        [CONFIG_CHOICE] = sizeof(int),
        [CONFIG_PATH] = CONFIG_PATH_SIZE,
        [CONFIG_PATH_OR_NO] = CONFIG_PATH_SIZE,
        [CONFIG_GROUP] = CONFIG_NAME_SIZE,
    };
    assert(key->type != CONFIG_USERS);
    memcpy((char *)to + key->offset, (const char *)from + key->offset, sizes[key->type]);
}
