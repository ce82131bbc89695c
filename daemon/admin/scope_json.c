/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/scope_json.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "base/utf8.h"
#include "daemon/admin/admin_report.h"
#include "daemon/config/config_keys.h"
#include "daemon/core/core.h"
#include "daemon/loop/log.h"

/* Of scope.json: what the largest request has, and its number. */
#define SAVED_SIZE_MAX 32768

/* Writes why. Returns -EINVAL. */
__attribute__((format(printf, 2, 3))) static int refuse(char why[SCOPES_TEXT_SIZE], const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, SCOPES_TEXT_SIZE, format, arguments);
    va_end(arguments);
    return -EINVAL;
}

static void report_uids(cJSON *object, const struct scope_terms *terms) {
    cJSON *uids = cJSON_AddArrayToObject(object, "uids");
    for (unsigned i = 0; i < terms->n_uids; i++)
        cJSON_AddItemToArray(uids, cJSON_CreateNumber(terms->uids[i]));
}

static void report_labels(cJSON *object, const struct scope_terms *terms) {
    cJSON *labels = cJSON_AddObjectToObject(object, "labels");
    for (unsigned i = 0; i < terms->n_labels; i++)
        cJSON_AddStringToObject(labels, terms->labels[i].name, terms->labels[i].value);
}

static int read_uids(const cJSON *uids, struct scope_terms *terms, char why[SCOPES_TEXT_SIZE]) {
    const cJSON *item;

    if (uids != NULL && cJSON_GetArraySize(uids) == 0)
        return refuse(why, "'uids' names nobody: leave it out, so that every user may come in");
    cJSON_ArrayForEach(item, uids) {
        if (terms->n_uids == SCOPE_UIDS_MAX)
            return refuse(why, "a scope names at most %u users; without 'uids' every user may come in",
                          SCOPE_UIDS_MAX);
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble >= UINT32_MAX ||
            (double)(uid_t)item->valuedouble != item->valuedouble)
            return refuse(why, "'uids' has something in it that is no user's number");
        terms->uids[terms->n_uids++] = (uid_t)item->valuedouble;
    }
    return 0;
}

static int read_quota(const cJSON *quota, struct config_limits *limits, char why[SCOPES_TEXT_SIZE]) {
    const cJSON *item;

    cJSON_ArrayForEach(item, quota) {
        struct config_mistakes mistakes = {0};
        const struct config_place place = {
            .mistakes = &mistakes, .line = CONFIG_COMMAND_LINE, .option = "quota"};
        const struct config_setting setting = {
            .key = item->string, .value = cJSON_GetStringValue(item), .place = &place};
        const struct config_key *key = config_find_key(&config_quota_keys, item->string);
        if (setting.value == NULL)
            return refuse(why, "the quota's '%.64s' is a string, such as \"8GiB\", \"64\" or \"unlimited\"",
                          item->string);
        const struct config_size *size = key == NULL ? NULL : (void *)((char *)limits + key->offset);
        if (size != NULL && size->set)
            return refuse(why, "the quota's '%s' is given twice", item->string);
        if (key == NULL)
            config_complain_of_key(&config_quota_keys, &setting);
        if (key == NULL || config_value_set(key, limits, &setting) < 0)
            return refuse(why, "%s", mistakes.first[0].text);
    }
    return 0;
}

/* A name that Prometheus takes for a label. */
static bool is_label(const char *name) {
    size_t length = strlen(name);

    for (size_t i = 0; i < length; i++)
        if (!(isalpha((unsigned char)name[i]) || name[i] == '_' ||
              (i > 0 && isdigit((unsigned char)name[i]))))
            return false;
    return length > 0 && length < SCOPE_LABEL_SIZE && strncmp(name, "__", 2) != 0;
}

/* UTF-8 is what the whole request is. */
static bool is_text(const char *value) {
    for (const char *c = value; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == '\177')
            return false;
    return strlen(value) < SCOPE_VALUE_SIZE;
}

static int read_labels(const cJSON *labels, struct scope_terms *terms, char why[SCOPES_TEXT_SIZE]) {
    const cJSON *item;

    cJSON_ArrayForEach(item, labels) {
        const char *value = cJSON_GetStringValue(item);
        if (terms->n_labels == SCOPE_LABELS_MAX)
            return refuse(why, "a scope has at most %u labels", SCOPE_LABELS_MAX);
        if (!is_label(item->string) || strcmp(item->string, "scope") == 0)
            return refuse(
                why,
                "'%.64s' cannot be a label's name: letters, digits and '_', a digit not first, at most "
                "%u bytes, and not 'scope'",
                item->string, SCOPE_LABEL_SIZE - 1);
        for (unsigned i = 0; i < terms->n_labels; i++)
            if (strcmp(terms->labels[i].name, item->string) == 0)
                return refuse(why, "the label '%s' is given twice", item->string);
        if (value == NULL || !is_text(value))
            return refuse(why, "the label '%s' is a string of at most %u bytes, without control characters",
                          item->string, SCOPE_VALUE_SIZE - 1);
        struct scope_label *label = &terms->labels[terms->n_labels++];
        snprintf(label->name, sizeof label->name, "%s", item->string);
        snprintf(label->value, sizeof label->value, "%s", value);
    }
    return 0;
}

/* For the next daemon: as a request has it. Owned by the caller; NULL: no memory. */
static char *saved_text(const struct scope_terms *terms, const struct config_limits *limits) {
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "id", terms->id);
    cJSON_AddStringToObject(object, "scope", terms->name);
    if (terms->n_uids > 0)
        report_uids(object, terms);
    cJSON *quota = cJSON_AddObjectToObject(object, "quota");
    for (unsigned i = 0; i < config_quota_keys.count; i++) {
        const struct config_key *key = &config_quota_keys.keys[i];
        const struct config_size *size = (const void *)((const char *)limits + key->offset);
        _cleanup_(freep) char *text = size->set ? config_value_text(key, limits) : NULL;
        if (text != NULL)
            cJSON_AddStringToObject(quota, key->name, text);
    }
    report_labels(object, terms);
    char *text = cJSON_Print(object);
    cJSON_Delete(object);
    return text;
}

/* Reads the members that are given in place of what the terms have. */
static int read_members(const struct scope_members *members, struct scope_terms *terms,
                        struct config_limits *limits, char why[SCOPES_TEXT_SIZE]) {
    int r = 0;

    if (members->uids != NULL) {
        terms->n_uids = 0;
        r = read_uids(members->uids, terms, why);
    }
    if (r == 0 && members->quota != NULL) {
        *limits = (struct config_limits){0};
        r = read_quota(members->quota, limits, why);
    }
    if (r == 0 && members->labels != NULL) {
        terms->n_labels = 0;
        r = read_labels(members->labels, terms, why);
    }
    return r;
}

/* id: 0: a new one, which is saved. */
static int add(struct scopes *scopes, const struct scope_members *members, uint32_t id,
               struct scope **ret_scope, char why[SCOPES_TEXT_SIZE]) {
    struct scope_terms terms = {.id = id != SCOPE_ORDINARY ? id : scope_next_id(scopes->terms.core)};
    struct config_limits limits = {0};

    if (!scope_name_is_sound(members->name))
        return refuse(
            why,
            "'%.80s' cannot be a scope's name: letters, digits, '.', '_' and '-', a letter or digit "
            "first, at most %u bytes",
            members->name, SCOPE_NAME_SIZE - 1);
    if (scope_find_name(scopes->terms.core, members->name) != NULL) {
        refuse(why, "there is a scope '%s': 'scopes' shows it", members->name);
        return -EEXIST;
    }
    if (scopes->directory[0] == '\0')
        return refuse(why,
                      "this daemon is a program's own, or its admin socket's path is too long: it has no "
                      "scopes");
    snprintf(terms.name, sizeof terms.name, "%s", members->name);
    int r = read_members(members, &terms, &limits, why);
    if (r < 0)
        return r;
    _cleanup_(freep) char *saved = id != SCOPE_ORDINARY ? NULL : saved_text(&terms, &limits);
    if (id == SCOPE_ORDINARY && saved == NULL) {
        refuse(why, "no memory");
        return -ENOMEM;
    }
    return scopes_add(scopes, &terms, &limits, saved, ret_scope, why);
}

int scope_json_add(struct scopes *scopes, const struct scope_members *members, struct scope **ret_scope,
                   char why[SCOPES_TEXT_SIZE]) {
    return add(scopes, members, SCOPE_ORDINARY, ret_scope, why);
}

int scope_json_set(struct scopes *scopes, const struct scope_members *members, struct scope **ret_scope,
                   char why[SCOPES_TEXT_SIZE]) {
    struct scope *scope = scope_find_name(scopes->terms.core, members->name);
    const struct scope_socket *socket = scope != NULL ? scope->owner : NULL;

    if (socket == NULL) {
        refuse(why, "there is no scope of this name that is open; 'scopes' lists them");
        return -ENOENT;
    }
    struct scope_terms terms = scope->terms;
    struct config_limits limits = socket->limits;
    terms.id = scope->id;
    int r = read_members(members, &terms, &limits, why);
    if (r < 0)
        return r;
    _cleanup_(freep) char *saved = saved_text(&terms, &limits);
    if (saved == NULL) {
        refuse(why, "no memory");
        return -ENOMEM;
    }
    *ret_scope = scope;
    return scopes_set(scopes, scope, &terms, &limits, saved, why);
}

/* --- after a start --- */

/* Reads a small file. Owned by the caller; NULL: it cannot be read, or is too large. */
static char *read_text(const char *path) {
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat status;
    bool is_own = fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
    char *text = is_own ? calloc(1, SAVED_SIZE_MAX + 1) : NULL;
    ssize_t n = text == NULL ? -1 : read(fd, text, SAVED_SIZE_MAX);

    if (n >= 0 && n < SAVED_SIZE_MAX) {
        utf8_make_valid(text);
        return text;
    }
    free(text);
    return NULL;
}

static int restore(struct scopes *scopes, const char *name, const cJSON *object, char why[SCOPES_TEXT_SIZE]) {
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(object, "id");
    const cJSON *uids = cJSON_GetObjectItemCaseSensitive(object, "uids"),
                *quota = cJSON_GetObjectItemCaseSensitive(object, "quota"),
                *labels = cJSON_GetObjectItemCaseSensitive(object, "labels");
    struct scope *scope;

    if (!cJSON_IsNumber(id) || !(id->valuedouble >= 1 && id->valuedouble <= SCOPE_ID_MAX) ||
        (uids != NULL && !cJSON_IsArray(uids)) || (quota != NULL && !cJSON_IsObject(quota)) ||
        (labels != NULL && !cJSON_IsObject(labels)))
        return refuse(why, "it is not what the daemon writes");
    const struct scope_members members = {.name = name, .uids = uids, .quota = quota, .labels = labels};
    return add(scopes, &members, (uint32_t)id->valuedouble, &scope, why);
}

/* The directory, if it is there and the daemon's own: in a directory such as /tmp anybody can make one. */
static DIR *open_directory(const char *path) {
    int fd = path[0] == '\0' ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat status;

    if (fd < 0)
        return NULL;
    DIR *directory = fstat(fd, &status) == 0 && status.st_uid == geteuid() ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        log_warning("%s is not this daemon's own: no scopes are made again from there", path);
        close(fd);
    }
    return directory;
}

void scope_json_restore(struct scopes *scopes) {
    char path[2 * CONFIG_PATH_SIZE], why[SCOPES_TEXT_SIZE];
    DIR *directory = open_directory(scopes->directory);
    const struct dirent *entry;
    unsigned n_scopes = 0;

    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (!scope_name_is_sound(entry->d_name) ||
            scopes_file(scopes, entry->d_name, SCOPES_SAVED, path, sizeof path) < 0 ||
            (access(path, F_OK) < 0 &&
             (errno == ENOENT || errno == ENOTDIR))) /* it was dropped, and a container left something */
            continue;
        refuse(why, "it cannot be read, or is not the daemon's own");
        _cleanup_(freep) char *text = read_text(path);
        cJSON *object = text == NULL ? NULL : cJSON_Parse(text);
        if (object != NULL && restore(scopes, entry->d_name, object, why) == 0)
            n_scopes++;
        else
            log_warning("%s: the scope is not there again: %s; 'gpupoolctl scope drop %s' removes it", path,
                        why, entry->d_name);
        cJSON_Delete(object);
    }
    if (directory != NULL)
        closedir(directory);
    if (n_scopes > 0)
        log_info("%s of the daemon before again", COUNT_TEXT(n_scopes, "scope"));
}

/* --- replies --- */

void report_scope(cJSON *object, const struct scope *scope) {
    const struct scope_socket *socket = scope->owner;
    const struct core *core = scope->core;
    struct scope_use use;

    core_scope_report(scope, &use);
    report_integer(object, "id", scope->id);
    report_scope_name(object, scope);
    cJSON_AddStringToObject(object, "state", scope->is_dropped ? "dropped" : "open");
    report_string(object, "socket", socket == NULL ? NULL : socket->listener.path);
    report_uids(object, &scope->terms);
    report_labels(object, &scope->terms);
    report_integer(object, "users", scope->n_tenants);
    report_integer(object, "reserved_bytes", use.reserved_bytes);
    report_use(object, core, &use.quota);
}

void report_scopes(cJSON *reply, const struct core *core) {
    cJSON *scopes = cJSON_AddArrayToObject(reply, "scopes");
    list_for_each_entry(const struct scope, scope, &core->scopes, link) {
        cJSON *object = cJSON_CreateObject();
        report_scope(object, scope);
        cJSON_AddItemToArray(scopes, object);
    }
}
