/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration files. A refused file is refused with lines of text that name the file and its lines, in
 * order; the lines that are not named are right. An accepted file is
 * within its limits, gives the same configuration when it is read twice over, and keeps its meaning with
 * comments between its lines.
 *
 * Input: the file.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/config/changes.h"
#include "daemon/config/config.h"
#include "daemon/core/limits.h"
#include "daemon/core/pool.h"
#include "gpu/gpu.h"
#include "tests/fuzz/fuzz.h"

#define COMMENT "# a comment\n"
#define BETWEEN "\n[daemon]\n"

static void check_mistakes(const struct config_mistakes *mistakes, const char *path) {
    unsigned told = config_mistakes_told(mistakes);

    MUST(told > 0 && told <= CONFIG_MISTAKES_MAX && told <= mistakes->count);
    for (unsigned i = 0; i < told; i++) {
        const char *text = mistakes->first[i].text;
        MUST(memchr(text, '\0', CONFIG_MISTAKE_SIZE) != NULL && strncmp(text, path, strlen(path)) == 0);
        MUST(text[strlen(path)] == ':');
        MUST(i == 0 || mistakes->first[i - 1].line <= mistakes->first[i].line);
        for (size_t j = 0; text[j] != '\0'; j++)
            MUST((unsigned char)text[j] >= ' ');
    }
}

/* mistakes: unless NULL, gets those of the file. */
static int read_text(const char *text, size_t size, struct config *config, struct config_mistakes *mistakes) {
    struct config_mistakes own = {0};
    char path[64];

    if (mistakes == NULL)
        mistakes = &own;
    *mistakes = own;
    _cleanup_(close_fdp) int fd = memfd_create("configuration", MFD_CLOEXEC);
    MUST(fd >= 0 && write(fd, text, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    config_init(config);
    int r = config_read_file(config, path, mistakes);
    MUST(r == 0 || r == -EINVAL);
    MUST((r == 0) == (mistakes->count == 0));
    if (r < 0) {
        check_mistakes(mistakes, path);
        config_deinit(config);
    }
    return r;
}

static bool sizes_are_equal(const struct config_size *a, const struct config_size *b) {
    return a->set == b->set && a->is_percent == b->is_percent && a->is_unlimited == b->is_unlimited &&
           a->value == b->value;
}

/* A pool's lists of users add up, so that a file read twice has them twice: then they are not compared. */
static bool pools_are_equal(const struct config_pool *a, const struct config_pool *b, bool twice) {
    return sizes_are_equal(&a->limit, &b->limit) && sizes_are_equal(&a->step, &b->step) &&
           sizes_are_equal(&a->reserve, &b->reserve) && sizes_are_equal(&a->low_water, &b->low_water) &&
           a->enabled == b->enabled && a->huge_pages == b->huge_pages && a->export_as == b->export_as &&
           a->zero == b->zero && (a->allow == NULL) == (b->allow == NULL) &&
           (twice || a->allow == NULL || strcmp(a->allow, b->allow) == 0);
}

static bool limits_are_equal(const struct config_limits *a, const struct config_limits *b) {
    return sizes_are_equal(&a->sessions, &b->sessions) && sizes_are_equal(&a->leases, &b->leases) &&
           sizes_are_equal(&a->ranges, &b->ranges) && sizes_are_equal(&a->segments, &b->segments) &&
           sizes_are_equal(&a->waiting, &b->waiting) && sizes_are_equal(&a->replies, &b->replies) &&
           sizes_are_equal(&a->kept, &b->kept) && sizes_are_equal(&a->device, &b->device) &&
           sizes_are_equal(&a->host, &b->host);
}

static bool sections_are_equal(const struct config *a, const struct config *b, bool twice) {
    const struct list *other = b->sections.next;

    list_for_each_entry(const struct config_section, one, &a->sections, link) {
        if (other == &b->sections)
            return false;
        const struct config_section *two = container_of(other, struct config_section, link);
        if (one->kind != two->kind || one->by_uuid != two->by_uuid || one->number != two->number ||
            memcmp(one->uuid, two->uuid, sizeof one->uuid) != 0 ||
            !pools_are_equal(&one->pool, &two->pool, twice))
            return false;
        other = other->next;
    }
    return other == &b->sections;
}

static bool rules_are_equal(const struct config *a, const struct config *b) {
    const struct list *other = b->rules.next;

    list_for_each_entry(const struct config_rule, one, &a->rules, link) {
        if (other == &b->rules)
            return false;
        const struct config_rule *two = container_of(other, struct config_rule, link);
        if (one->who.is_group != two->who.is_group || strcmp(one->who.name, two->who.name) != 0 ||
            !limits_are_equal(&one->limits, &two->limits))
            return false;
        other = other->next;
    }
    return other == &b->rules;
}

static bool configs_are_equal(const struct config *a, const struct config *b, bool twice) {
    return strcmp(a->socket, b->socket) == 0 && strcmp(a->admin_socket, b->admin_socket) == 0 &&
           strcmp(a->group, b->group) == 0 && a->gpu == b->gpu && a->sim_gpus == b->sim_gpus &&
           a->sim_memory_bytes == b->sim_memory_bytes && a->sessions_limit == b->sessions_limit &&
           a->session_leases_limit == b->session_leases_limit && strcmp(a->subuid, b->subuid) == 0 &&
           a->log_level == b->log_level && pools_are_equal(&a->device, &b->device, twice) &&
           pools_are_equal(&a->host, &b->host, twice) && limits_are_equal(&a->quota, &b->quota) &&
           sections_are_equal(a, b, twice) && rules_are_equal(a, b);
}

static void check_sizes(const struct config *config, enum proto_pool_kind kind, const uint8_t *uuid,
                        int number) {
    static const uint64_t totals[] = {0, 2 * MIB, 80 * GIB, PROTO_SIZE_MAX};

    for (unsigned i = 0; i < sizeof totals / sizeof *totals; i++) {
        struct config_pool_sizes sizes;
        config_resolve(config, kind, uuid, number, totals[i], &sizes);
        MUST(sizes.limit_bytes <= PROTO_SIZE_MAX && sizes.step_bytes <= PROTO_SIZE_MAX);
        MUST(sizes.reserve_bytes <= PROTO_SIZE_MAX && sizes.low_water_bytes <= PROTO_SIZE_MAX);
        MUST(sizes.huge_pages <= CONFIG_HUGE_PAGES_REQUIRE);
        MUST(sizes.export_as <= CONFIG_EXPORT_VMM);
        MUST(sizes.zero <= CONFIG_ZERO_USUAL);
    }
}

/* The reader of a pool's list of users takes the list. */
static void check_allowed(const struct config_pool *pool) {
    const char *list = pool->allow;
    struct config_who who;
    int r = 1;

    while (list != NULL && r > 0) {
        r = config_next_who(&list, &who);
        MUST(r >= 0 || strcmp(pool->allow, "all") == 0);
        MUST(r <= 0 || memchr(who.name, '\0', sizeof who.name) != NULL);
    }
}

static void check_config(const struct config *config) {
    const uint8_t no_uuid[PROTO_UUID_BYTES] = {0};

    MUST(config->socket[0] == '/' && memchr(config->socket, '\0', sizeof config->socket) != NULL);
    MUST(config->admin_socket[0] == '/' &&
         memchr(config->admin_socket, '\0', sizeof config->admin_socket) != NULL);
    MUST(config->gpu <= CONFIG_GPU_NONE && config->log_level <= LOG_LEVEL_DEBUG);
    MUST(config->sim_gpus >= 1 && config->sim_gpus <= GPU_SIM_DEVICES_MAX);
    MUST(config->sim_memory_bytes >= SEGMENT_GRANULE && config->sim_memory_bytes <= PROTO_SIZE_MAX);
    MUST(config->sessions_limit >= 1 && config->session_leases_limit >= 1);
    check_sizes(config, PROTO_POOL_DEVICE, no_uuid, 0);
    check_sizes(config, PROTO_POOL_HOST, NULL, 0);
    check_allowed(&config->device);
    check_allowed(&config->host);
    MUST(memchr(config->group, '\0', sizeof config->group) != NULL);
    list_for_each_entry(const struct config_rule, rule, &config->rules, link) {
        MUST(rule->who.name[0] != '\0' && memchr(rule->who.name, '\0', sizeof rule->who.name) != NULL);
    }
    list_for_each_entry(const struct config_section, section, &config->sections, link) {
        MUST(section->kind == PROTO_POOL_DEVICE || section->kind == PROTO_POOL_HOST);
        MUST(section->kind == PROTO_POOL_DEVICE || !section->by_uuid);
        MUST(section->number >= 0);
        check_allowed(&section->pool);
        check_sizes(config, section->kind, section->by_uuid ? section->uuid : NULL, section->number);
    }
}

/* The file with a comment behind each of its lines. Owned by the caller. */
static char *with_comments(const char *text, size_t size, size_t *ret_size) {
    size_t lines = 1, used = 0;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    char *commented = malloc(size + lines * sizeof COMMENT);
    MUST(commented != NULL);
    for (size_t i = 0; i < size; i++) {
        commented[used++] = text[i];
        if (text[i] == '\n') {
            memcpy(commented + used, COMMENT, strlen(COMMENT));
            used += strlen(COMMENT);
        }
    }
    *ret_size = used;
    return commented;
}

/* Whether the text read alone or commented is the same configuration. Read twice over it is, too, unless it
 * sets a key: a key is set once. */
static void check_same(const char *text, size_t size, const struct config *config, bool twice) {
    struct config_mistakes mistakes;
    struct config other;

    if (read_text(text, size, &other, &mistakes) < 0) {
        MUST(twice);
        for (unsigned i = 0; i < config_mistakes_told(&mistakes); i++)
            MUST(strstr(mistakes.first[i].text, "' was given in [") != NULL);
        return;
    }
    MUST(configs_are_equal(config, &other, twice));
    config_deinit(&other);
}

/* The values as text, read again, are the same configuration. */
static void check_text(const struct config *config) {
    struct config_view view = {0}, twin;
    char name[CONFIG_SECTION_NAME_SIZE], *text = NULL, *value;
    bool is_whole = true; /* lists of users may be too long for a line */
    struct config other;
    size_t size;
    FILE *file = open_memstream(&text, &size);

    MUST(file != NULL);
    while (config_next_section(config, &view)) {
        MUST(config_find_twin(config, &view, &twin) && twin.values == view.values);
        fprintf(file, "[%s]\n", config_section_name(&view, name));
        for (unsigned i = 0; i < view.table->count; i++) {
            MUST(config_text(config, &view, &view.table->keys[i], &value) == 0);
            MUST(value != NULL || view.lines[i] == CONFIG_UNSET);
            is_whole &= view.lines[i] == CONFIG_UNSET || strlen(value) < 150;
            if (view.lines[i] != CONFIG_UNSET)
                fprintf(file, "%s = %s\n", view.table->keys[i].name, value);
            free(value);
        }
    }
    MUST(fclose(file) == 0);
    if (is_whole) {
        MUST(read_text(text, size, &other, NULL) == 0);
        MUST(configs_are_equal(config, &other, false));
        config_deinit(&other);
    }
    free(text);
}

/* A mistake behind the file is told of beside those in it. */
static void check_all_are_told(const char *text, size_t size, const struct config_mistakes *before) {
    static const char end[] = "\n[daemon]\nno value\n";
    struct config_mistakes mistakes;
    struct config config;

    _cleanup_(freep) char *longer = malloc(size + sizeof end);
    MUST(longer != NULL);
    memcpy(longer, text, size);
    memcpy(longer + size, end, sizeof end - 1);
    MUST(read_text(longer, size + sizeof end - 1, &config, &mistakes) < 0);
    MUST(mistakes.count == before->count + 1);
}

static unsigned compare(struct config *fresh, const struct config *in_force, unsigned *ret_n_restarts) {
    struct config_changes changes = {0};

    MUST(config_compare(fresh, in_force, &changes) == 0);
    unsigned count = changes.count;
    if (ret_n_restarts != NULL)
        *ret_n_restarts = changes.n_restarts;
    MUST(changes.n_restarts <= count);
    for (unsigned i = 0; i < config_changes_told(&changes); i++)
        MUST(changes.first[i].section[0] != '\0' && changes.first[i].key != NULL);
    config_changes_deinit(&changes);
    MUST(config_changes_told(&changes) == 0);
    return count;
}

/* A reading that is compared with itself has no changes. One that took effect beside another one differs from
 * the file only in the keys that need a restart. */
static void check_changes(const char *text, size_t size) {
    struct config first, second, defaults;
    unsigned n_restarts, n_restarts_again;

    MUST(read_text(text, size, &first, NULL) == 0 && read_text(text, size, &second, NULL) == 0);
    MUST(compare(&second, &first, NULL) == 0);
    MUST(configs_are_equal(&first, &second, false));
    config_init(&defaults);
    compare(&first, &defaults, &n_restarts);
    MUST(compare(&second, &first, &n_restarts_again) == n_restarts && n_restarts_again == n_restarts);
    /* back to the defaults: the keys that wait for a restart have them already */
    compare(&defaults, &first, &n_restarts);
    MUST(n_restarts == 0);
    config_deinit(&first);
    config_deinit(&second);
    config_deinit(&defaults);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct config_mistakes mistakes;
    struct config config, moved;
    size_t commented_size;

    _cleanup_(freep) char *commented = with_comments((const char *)data, size, &commented_size);
    if (read_text((const char *)data, size, &config, &mistakes) < 0) {
        check_all_are_told((const char *)data, size, &mistakes);
        unsigned count = mistakes.count;
        MUST(read_text(commented, commented_size, &config, &mistakes) < 0);
        MUST(mistakes.count == count);
        return 0;
    }
    check_all_are_told((const char *)data, size, &mistakes);
    check_config(&config);
    check_text(&config);
    check_changes((const char *)data, size);
    check_same(commented, commented_size, &config, false);

    /* Twice over. A byte order mark may stand at the beginning only. */
    _cleanup_(freep) char *twice = malloc(2 * size + strlen(BETWEEN));
    MUST(twice != NULL);
    memcpy(twice, data, size);
    memcpy(twice + size, BETWEEN, strlen(BETWEEN));
    memcpy(twice + size + strlen(BETWEEN), data, size);
    if (size > 0 && data[0] != 0xef)
        check_same(twice, 2 * size + strlen(BETWEEN), &config, true);

    config_move(&moved, &config);
    MUST(list_is_empty(&config.sections) && list_is_empty(&config.rules));
    check_same((const char *)data, size, &moved, false);
    config_deinit(&moved);
    return 0;
}
