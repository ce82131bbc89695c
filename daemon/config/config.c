/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/core/pool.h"
#include "gpu/gpu.h"
#include "daemon/config/subuid.h"

/* More than a machine has processes. RLIMIT_NOFILE may allow fewer (daemon/loop/descriptors.h). */
#define CONFIG_SESSIONS_MAX 100000u
#define CONFIG_LEASES_MAX   16777216u

static const struct config_pool pool_unset = {.enabled = -1, .huge_pages = -1, .export_as = -1, .zero = -1};

void config_init(struct config *config) {
    *config = (struct config){
        .socket = CONFIG_SOCKET_DEFAULT,
        .admin_socket = CONFIG_ADMIN_SOCKET_DEFAULT,
        .gpu = CONFIG_GPU_AUTO,
        .sim_gpus = 1,
        .sim_memory_bytes = 8 * GIB,
        .sessions_limit = SESSIONS_MAX_DEFAULT,
        .session_leases_limit = SESSION_LEASES_DEFAULT,
        .subuid = SUBUID_FILE_DEFAULT,
        .log_level = LOG_LEVEL_INFO,
        .device = pool_unset,
        .host = pool_unset,
    };
    list_init(&config->sections);
    list_init(&config->rules);
}

void config_deinit(struct config *config) {
    list_for_each_entry_safe(struct config_section, section, &config->sections, link) {
        list_remove(&section->link);
        free(section->pool.allow);
        free(section);
    }
    list_for_each_entry_safe(struct config_rule, rule, &config->rules, link) {
        list_remove(&rule->link);
        free(rule);
    }
    free(config->device.allow);
    free(config->host.allow);
    config->device.allow = config->host.allow = NULL;
    free(config->ranges);
    config->ranges = NULL;
    config->n_ranges = 0;
}

/* Moves a list's members to another head. */
static void move_list(struct list *to, struct list *from) {
    list_init(to); /* a list's head does not move by copying */
    while (!list_is_empty(from)) {
        struct list *first = from->next;
        list_remove(first);
        list_append(to, first);
    }
}

void config_move(struct config *to, struct config *from) {
    *to = *from;
    move_list(&to->sections, &from->sections);
    move_list(&to->rules, &from->rules);
    from->device.allow = from->host.allow = NULL;
    from->ranges = NULL;
    from->n_ranges = 0;
}

static int set_number(uint32_t *number, uint32_t maximum, const struct config_setting *setting) {
    uint64_t parsed;

    if (units_parse_number(setting->value, maximum, &parsed) < 0 || parsed == 0)
        return config_complain(setting, "%s: '%s' is not a number from 1 to %u", setting->key, setting->value,
                               maximum);
    *number = (uint32_t)parsed;
    return 0;
}

/* mistake: what any other value is. */
static int set_choice(int *choice, const char *const *choices, const struct config_setting *setting,
                      const char *mistake) {
    for (int i = 0; choices[i] != NULL; i++)
        if (strcmp(setting->value, choices[i]) == 0) {
            *choice = i;
            return 0;
        }
    return config_complain(setting, "%s: '%s' is %s", setting->key, setting->value, mistake);
}

static int set_path(char path[CONFIG_PATH_SIZE], const struct config_setting *setting) {
    if (setting->value[0] != '/')
        return config_complain(setting, "%s: '%s' is not an absolute path", setting->key, setting->value);
    if (strlen(setting->value) >= CONFIG_PATH_SIZE)
        return config_complain(
            setting, "%s: the path has more than %u characters, which is what a Unix socket's may have",
            setting->key, CONFIG_PATH_SIZE - 1);
    snprintf(path, CONFIG_PATH_SIZE, "%s", setting->value);
    return 0;
}

static int set_daemon(struct config *config, const struct config_setting *setting) {
    static const char *const gpus[] = {"auto", "cuda", "sim", "none", NULL};
    const char *key = setting->key, *value = setting->value;

    if (strcmp(key, "socket") == 0)
        return set_path(config->socket, setting);
    if (strcmp(key, "admin_socket") == 0)
        return set_path(config->admin_socket, setting);
    if (strcmp(key, "gpu") == 0) {
        int choice = (int)config->gpu;
        int r = set_choice(&choice, gpus, setting, "none of auto, cuda, sim, none");
        config->gpu = (enum config_gpu)choice;
        return r;
    }
    if (strcmp(key, "sim_gpus") == 0)
        return set_number(&config->sim_gpus, GPU_SIM_DEVICES_MAX, setting);
    if (strcmp(key, "sim_memory") == 0) {
        uint64_t bytes;
        if (units_parse_bytes(value, &bytes) < 0 || bytes < SEGMENT_GRANULE || bytes > PROTO_SIZE_MAX)
            return config_complain(setting, "sim_memory: '%s' is not a size of at least 2 MiB, such as 8GiB",
                                   value);
        config->sim_memory_bytes = bytes;
        return 0;
    }
    if (strcmp(key, "sessions_limit") == 0)
        return set_number(&config->sessions_limit, CONFIG_SESSIONS_MAX, setting);
    if (strcmp(key, "session_leases_limit") == 0)
        return set_number(&config->session_leases_limit, CONFIG_LEASES_MAX, setting);
    if (strcmp(key, "group") == 0) {
        if (*value == '\0' || strlen(value) >= sizeof config->group)
            return config_complain(setting, "group: '%s' is no group's name", value);
        snprintf(config->group, sizeof config->group, "%s", value);
        return 0;
    }
    if (strcmp(key, "subuid") == 0) {
        if (strcmp(value, "no") != 0 && (*value != '/' || strlen(value) >= sizeof config->subuid))
            return config_complain(setting, "subuid: '%s' is neither a path such as /etc/subuid nor no",
                                   value);
        snprintf(config->subuid, sizeof config->subuid, "%s", *value == '/' ? value : "");
        return 0;
    }
    if (strcmp(key, "log_level") == 0)
        return log_parse_level(value, &config->log_level) == 0
                   ? 0
                   : config_complain(setting, "log_level: '%s' is none of error, warning, info, debug",
                                     value);
    return config_complain(setting, "[daemon] has no key '%s'; see gpupoold.conf(5)", key);
}

static int set_pool(struct config_pool *pool, bool is_host, const struct config_setting *setting) {
    static const char *const booleans[] = {"no", "yes", NULL};
    static const char *const huge_pages[] = {"auto", "off", "require", NULL};
    static const char *const zeroes[] = {"driver", "daemon", NULL};
    static const char *const exports[] = {"ipc", "vmm", NULL}, *const host_exports[] = {"memfd", "vmm", NULL};
    const char *key = setting->key;
    struct config_size *size = strcmp(key, "limit") == 0       ? &pool->limit
                               : strcmp(key, "step") == 0      ? &pool->step
                               : strcmp(key, "reserve") == 0   ? &pool->reserve
                               : strcmp(key, "low_water") == 0 ? &pool->low_water
                                                               : NULL;
    if (size != NULL && config_parse_size(setting->value, size) < 0)
        return config_complain(setting, "%s: '%s' is neither a size such as 64MiB nor a share such as 50%%",
                               key, setting->value);
    if (size != NULL)
        return 0;
    if (strcmp(key, "enabled") == 0)
        return set_choice(&pool->enabled, booleans, setting, "neither yes nor no");
    if (strcmp(key, "allow") == 0)
        return config_add_allowed(&pool->allow, setting);
    if (is_host && strcmp(key, "huge_pages") == 0)
        return set_choice(&pool->huge_pages, huge_pages, setting, "none of auto, off, require");
    if (strcmp(key, "export") == 0)
        return set_choice(&pool->export_as, is_host ? host_exports : exports, setting,
                          is_host ? "neither memfd nor vmm" : "neither ipc nor vmm");
    if (strcmp(key, "zero") == 0)
        return set_choice(&pool->zero, zeroes, setting, "neither driver nor daemon");
    return config_complain(setting, "[%s] has no key '%s'; see gpupoold.conf(5)", is_host ? "host" : "device",
                           key);
}

/* The section "[device 0]" and its like, made when it is first seen. */
static int find_section(struct config *config, const char *name, const struct config_setting *setting,
                        struct config_section **ret_section) {
    bool is_host = strncmp(name, "host ", 5) == 0;
    struct config_section wanted = {.kind = is_host ? PROTO_POOL_HOST : PROTO_POOL_DEVICE,
                                    .pool = pool_unset};
    struct gpu_uuid uuid;
    uint64_t number = 0;

    if (!is_host && strncmp(name, "device ", 7) != 0)
        return config_complain(
            setting,
            "there is no section [%s]; there are [daemon], [device], [host], [device NUMBER], "
            "[device GPU-UUID], [host NODE], [quota], [quota user:NAME] and [quota group:NAME]",
            name);
    const char *which = name + (is_host ? 5 : 7);
    if (!is_host && gpu_uuid_parse(which, &uuid) == 0) {
        wanted.by_uuid = true;
        memcpy(wanted.uuid, uuid.bytes, sizeof wanted.uuid);
    } else if (units_parse_number(which, 4095, &number) < 0) {
        return config_complain(setting, "[%s]: '%s' is %s", name, which,
                               is_host ? "no NUMA node's number"
                                       : "neither a device's number nor a GPU's UUID");
    }
    wanted.number = (int)number;
    list_for_each_entry(struct config_section, section, &config->sections, link) {
        if (section->kind == wanted.kind && section->by_uuid == wanted.by_uuid &&
            section->number == wanted.number && memcmp(section->uuid, wanted.uuid, sizeof wanted.uuid) == 0) {
            *ret_section = section;
            return 0;
        }
    }
    struct config_section *section = malloc(sizeof *section);
    if (section == NULL)
        return config_complain(setting, "out of memory");
    *section = wanted;
    list_append(&config->sections, &section->link);
    *ret_section = section;
    return 0;
}

int config_set(struct config *config, const char *section, const char *key, const char *value, char *error,
               size_t error_size) {
    const struct config_setting setting = {key, value, error, error_size};
    struct config_section *one = NULL;

    if (strcmp(section, "daemon") == 0)
        return set_daemon(config, &setting);
    if (strcmp(section, "device") == 0)
        return set_pool(&config->device, false, &setting);
    if (strcmp(section, "host") == 0)
        return set_pool(&config->host, true, &setting);
    if (strlen(section) >= CONFIG_SECTION_MAX)
        return config_complain(&setting, "[%s]: the section's name has more than %u characters", section,
                               CONFIG_SECTION_MAX - 1);
    if (strcmp(section, "quota") == 0)
        return config_set_quota(&config->quota, &config->rules, "", &setting);
    if (strncmp(section, "quota ", 6) == 0)
        return config_set_quota(&config->quota, &config->rules, section + 6, &setting);
    if (*section == '\0')
        return config_complain(&setting, "'%s' stands before the first section", key);
    int r = find_section(config, section, &setting, &one);
    return r < 0 ? r : set_pool(&one->pool, one->kind == PROTO_POOL_HOST, &setting);
}

uint64_t config_percent_of(uint64_t bytes, uint64_t percent) {
    return bytes / 100 * percent + bytes % 100 * percent / 100;
}

/* A setting of a pool's own section, of its kind, or the fallback. */
static uint64_t resolve_size(const struct config_size *one, const struct config_size *kind, uint64_t fallback,
                             uint64_t total_bytes) {
    const struct config_size *size = one->set ? one : kind;
    if (!size->set)
        return fallback;
    return size->is_percent ? config_percent_of(total_bytes, size->value) : size->value;
}

/* The step of a pool unless it is configured. Device memory is made in no time, so that its pools can grow by
 * what is needed, except for a reserve, which is made before anybody says what is. Host memory takes time to
 * make, and each process registers the whole of a segment. */
static uint64_t default_step(enum proto_pool_kind kind, uint64_t reserve_bytes, uint64_t total_bytes) {
    if (kind == PROTO_POOL_DEVICE && reserve_bytes == 0)
        return POOL_STEP_BY_SIZE;
    uint64_t bytes = kind == PROTO_POOL_HOST ? 0 : total_bytes / 64;
    return bytes < 64 * MIB ? 64 * MIB : bytes > 512 * MIB ? 512 * MIB : bytes;
}

/* Whether a section is for the device or node. uuid: NULL for nodes. */
static bool section_is_for(const struct config_section *section, enum proto_pool_kind kind,
                           const uint8_t *uuid, int number) {
    if (section->kind != kind)
        return false;
    return section->by_uuid ? uuid != NULL && memcmp(section->uuid, uuid, PROTO_UUID_BYTES) == 0
                            : section->number == number;
}

void config_resolve(const struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number,
                    uint64_t total_bytes, struct config_pool_sizes *ret_sizes) {
    const struct config_pool *common = kind == PROTO_POOL_HOST ? &config->host : &config->device;
    const struct config_pool *one = &pool_unset;
    unsigned default_percent = kind == PROTO_POOL_HOST ? 50 : 90;

    list_for_each_entry(const struct config_section, section, &config->sections, link) {
        if (section_is_for(section, kind, uuid, number) && (section->by_uuid || one == &pool_unset))
            one = &section->pool; /* the UUID's section wins over the number's */
    }
    int export_as = one->export_as >= 0 ? one->export_as : common->export_as;
    ret_sizes->export_as = export_as < 0 ? CONFIG_EXPORT_USUAL : (enum config_export)export_as;
    int zero = one->zero >= 0 ? one->zero : common->zero;
    ret_sizes->zero = zero < 0 ? CONFIG_ZERO_USUAL : (enum config_zero)zero;
    ret_sizes->limit_bytes = resolve_size(&one->limit, &common->limit,
                                          config_percent_of(total_bytes, default_percent), total_bytes);
    ret_sizes->reserve_bytes = resolve_size(&one->reserve, &common->reserve, 0, total_bytes);
    ret_sizes->step_bytes = resolve_size(
        &one->step, &common->step, default_step(kind, ret_sizes->reserve_bytes, total_bytes), total_bytes);
    bool has_step = one->step.set || common->step.set;
    if (has_step && ret_sizes->step_bytes == POOL_STEP_BY_SIZE)
        ret_sizes->step_bytes = SEGMENT_GRANULE; /* a step that is told is never none */
    /* Clients ask for whole segments there. */
    uint64_t slot_bytes = proto_slot_bytes(ret_sizes->limit_bytes);
    if (kind == PROTO_POOL_DEVICE && ret_sizes->export_as == CONFIG_EXPORT_VMM &&
        ret_sizes->step_bytes > slot_bytes)
        ret_sizes->step_bytes = slot_bytes;
    /* Half a step: a client that needs little is not given two steps, one that takes piece after piece finds
     * the next step made. A pool that grows by what is asked for makes nothing ahead: no request tells the
     * next size, and the memory of a GPU is what users run out of. */
    ret_sizes->low_water_bytes =
        resolve_size(&one->low_water, &common->low_water,
                     ret_sizes->step_bytes == POOL_STEP_BY_SIZE ? 0 : ret_sizes->step_bytes / 2, total_bytes);
    ret_sizes->limit_of = NULL;
    int enabled = one->enabled >= 0 ? one->enabled : common->enabled;
    int huge_pages = one->huge_pages >= 0 ? one->huge_pages : common->huge_pages;
    const char *allow = one->allow != NULL ? one->allow : common->allow;
    ret_sizes->allow = allow != NULL && strcmp(allow, "all") == 0 ? NULL : allow;
    ret_sizes->enabled = enabled != 0;
    ret_sizes->huge_pages = huge_pages < 0 ? CONFIG_HUGE_PAGES_AUTO : (enum config_huge_pages)huge_pages;
}

/* --- mistakes --- */

void config_note_place(struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number) {
    list_for_each_entry(struct config_section, section, &config->sections, link) {
        section->is_there |= section_is_for(section, kind, uuid, number);
    }
}

unsigned config_cut_limit(const char *name, uint64_t total_bytes, const char *total_of,
                          struct config_pool_sizes *sizes) {
    if (sizes->limit_bytes <= total_bytes)
        return 0;
    log_warning("%s: its limit of %s is above the %s that %s, and is cut to that", name,
                BYTES_TEXT(sizes->limit_bytes), BYTES_TEXT(total_bytes), total_of);
    sizes->limit_bytes = total_bytes;
    sizes->limit_of = total_of;
    return 1;
}

unsigned config_check_sizes(const char *name, const struct config_pool_sizes *sizes) {
    if (sizes->limit_bytes < SEGMENT_GRANULE) {
        log_warning(
            "%s: its limit of %s is less than a segment of %s, so it lends nothing: raise the limit, or say "
            "enabled = no",
            name, BYTES_TEXT(sizes->limit_bytes), BYTES_TEXT(SEGMENT_GRANULE));
        return 1;
    }
    if (sizes->reserve_bytes > sizes->limit_bytes) {
        log_warning("%s: its reserve of %s is above its limit of %s and is cut to it", name,
                    BYTES_TEXT(sizes->reserve_bytes), BYTES_TEXT(sizes->limit_bytes));
        return 1;
    }
    if (sizes->export_as == CONFIG_EXPORT_VMM && sizes->huge_pages == CONFIG_HUGE_PAGES_REQUIRE) {
        log_warning(
            "%s: huge_pages = require has no effect with export = vmm, where the driver makes the pages: "
            "leave one of them out",
            name);
        return 1;
    }
    if (sizes->export_as != CONFIG_EXPORT_VMM && sizes->zero != CONFIG_ZERO_USUAL) {
        log_warning("%s: zero has an effect with export = vmm alone: leave it out, or set export = vmm",
                    name);
        return 1;
    }
    return 0;
}

unsigned config_check_sections(const struct config *config) {
    unsigned n_mistakes = 0;

    list_for_each_entry(const struct config_section, section, &config->sections, link) {
        struct gpu_uuid uuid;
        char text[GPU_UUID_TEXT_SIZE];

        /* Without device pools it is no mistake that the file speaks of them. */
        if (section->is_there || (section->kind == PROTO_POOL_DEVICE && config->gpu == CONFIG_GPU_NONE))
            continue;
        n_mistakes++;
        memcpy(uuid.bytes, section->uuid, sizeof uuid.bytes);
        gpu_uuid_format(&uuid, text);
        if (section->kind == PROTO_POOL_HOST)
            log_warning("[host %d]: this machine has no such NUMA node; the section is not used",
                        section->number);
        else if (section->by_uuid)
            log_warning("[device %s]: there is no such GPU; the section is not used", text);
        else
            log_warning("[device %d]: there is no such GPU; the section is not used", section->number);
    }
    return n_mistakes;
}
