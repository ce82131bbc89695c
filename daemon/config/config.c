/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "daemon/config/subuid.h"
#include "daemon/core/pool.h"
#include "gpu/gpu.h"

const struct config_pool config_pool_unset = {.enabled = -1, .huge_pages = -1, .export_as = -1, .zero = -1};

void config_init(struct config *config) {
    *config = (struct config){
        .socket = CONFIG_SOCKET_DEFAULT,
        .admin_socket = CONFIG_ADMIN_SOCKET_DEFAULT,
        .gpu = CONFIG_GPU_AUTO,
        .sim_gpus = 1,
        .sim_memory_bytes = 8 * GIB,
        .sessions_limit = SESSIONS_MAX_DEFAULT,
        .records_bytes = 16 * MIB,
        .history_hours = 14 * 24,
        .session_leases_limit = SESSION_LEASES_DEFAULT,
        .subuid = SUBUID_FILE_DEFAULT,
        .log_level = LOG_LEVEL_INFO,
        .device = config_pool_unset,
        .host = config_pool_unset,
    };
    list_init(&config->sections);
    list_init(&config->rules);
}

void config_deinit(struct config *config) {
    list_for_each_entry_safe(struct config_section, section, &config->sections, link) {
        list_remove(&section->link);
        free(section->pool.allow);
        free(section->pool.allowed);
        free(section);
    }
    list_for_each_entry_safe(struct config_rule, rule, &config->rules, link) {
        list_remove(&rule->link);
        free(rule);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct config_pool *pool = i == 0 ? &config->device : &config->host;
        free(pool->allow);
        free(pool->allowed);
        pool->allow = pool->allowed = NULL;
    }
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
    from->device.allow = from->host.allow = from->device.allowed = from->host.allowed = NULL;
    from->ranges = NULL;
    from->n_ranges = 0;
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

const struct config_section *config_pool_section(const struct config *config, enum proto_pool_kind kind,
                                                 const uint8_t *uuid, int number) {
    const struct config_section *found = NULL;

    list_for_each_entry(const struct config_section, section, &config->sections, link) {
        if (section_is_for(section, kind, uuid, number) && (section->by_uuid || found == NULL))
            found = section; /* the UUID's section wins over the number's */
    }
    return found;
}

void config_resolve(const struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number,
                    uint64_t total_bytes, struct config_pool_sizes *ret_sizes) {
    const struct config_pool *common = kind == PROTO_POOL_HOST ? &config->host : &config->device;
    const struct config_section *own = config_pool_section(config, kind, uuid, number);
    const struct config_pool *one = own != NULL ? &own->pool : &config_pool_unset;
    unsigned default_percent = kind == PROTO_POOL_HOST ? 50 : 90;

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
    const struct config_pool *told = one->allow != NULL ? one : common;
    const char *allow = told->allowed != NULL ? told->allowed : told->allow;
    ret_sizes->allow = allow != NULL && strcmp(allow, "all") == 0 ? NULL : allow;
    ret_sizes->enabled = enabled != 0;
    ret_sizes->huge_pages = huge_pages < 0 ? CONFIG_HUGE_PAGES_AUTO : (enum config_huge_pages)huge_pages;
}

/* --- warnings --- */

void config_note_place(struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number) {
    if (config->n_places < PROTO_POOLS_MAX) {
        struct config_pool_place *place = &config->places[config->n_places++];
        *place = (struct config_pool_place){.kind = kind, .number = number};
        if (uuid != NULL)
            memcpy(place->uuid, uuid, sizeof place->uuid);
    }
    list_for_each_entry(struct config_section, section, &config->sections, link) {
        section->is_there |= section_is_for(section, kind, uuid, number);
    }
}

void config_note_places_of(struct config *config, const struct config *other) {
    for (unsigned i = 0; i < other->n_places; i++) {
        const struct config_pool_place *place = &other->places[i];
        config_note_place(config, place->kind, place->kind == PROTO_POOL_HOST ? NULL : place->uuid,
                          place->number);
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
    unsigned n_warnings = 0;

    list_for_each_entry(const struct config_section, section, &config->sections, link) {
        struct gpu_uuid uuid;
        char text[GPU_UUID_TEXT_SIZE];

        /* Without device pools it is no mistake that the file speaks of them. */
        if (section->is_there || (section->kind == PROTO_POOL_DEVICE && config->gpu == CONFIG_GPU_NONE))
            continue;
        n_warnings++;
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
    return n_warnings;
}
