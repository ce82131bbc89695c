/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_keys.h"

#include <assert.h>
#include <string.h>

#include "base/nearest.h"
#include "daemon/config/config.h"
#include "daemon/config/subuid.h"
#include "daemon/core/limits.h"
#include "gpu/gpu.h"

/* More than a machine has processes. RLIMIT_NOFILE may allow fewer (daemon/loop/descriptors.h). */
#define SESSIONS_MAX 100000u
#define LEASES_MAX   16777216u

#define RECORDS_MIN       UINT64_C(65536) /* a thousand records */
#define HISTORY_HOURS_MAX 8784u           /* a year */

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* In the order of the enums in config.h and log.h. */
static const char *const gpus[] = {"auto", "cuda", "sim", "none", NULL};
static const char *const levels[] = {"error", "warning", "info", "debug", NULL};
static const char *const booleans[] = {"no", "yes", NULL};
static const char *const huge_pages[] = {"auto", "off", "require", NULL};
static const char *const zeroes[] = {"driver", "daemon", NULL};
static const char *const device_exports[] = {"ipc", "vmm", NULL};
static const char *const host_exports[] = {"memfd", "vmm", NULL};

#define AT(member) offsetof(struct config, member)
static const struct config_key daemon_keys[] = {
    {"socket", CONFIG_PATH, true, AT(socket), NULL, 0, NULL},
    {"admin_socket", CONFIG_PATH, true, AT(admin_socket), NULL, 0, NULL},
    {"gpu", CONFIG_CHOICE, true, AT(gpu), gpus, 0, NULL},
    {"sim_gpus", CONFIG_NUMBER, true, AT(sim_gpus), NULL, GPU_SIM_DEVICES_MAX, NULL},
    {"sim_memory", CONFIG_BYTES, true, AT(sim_memory_bytes), NULL, SEGMENT_GRANULE, NULL},
    {"sessions_limit", CONFIG_NUMBER, false, AT(sessions_limit), NULL, SESSIONS_MAX, NULL},
    {"session_leases_limit", CONFIG_NUMBER, false, AT(session_leases_limit), NULL, LEASES_MAX, NULL},
    {"records", CONFIG_BYTES, true, AT(records_bytes), NULL, RECORDS_MIN, NULL},
    {"history_hours", CONFIG_NUMBER, true, AT(history_hours), NULL, HISTORY_HOURS_MAX, NULL},
    {"group", CONFIG_GROUP, true, AT(group), NULL, 0, NULL},
    {"subuid", CONFIG_PATH_OR_NO, false, AT(subuid), NULL, 0, SUBUID_FILE_DEFAULT},
    {"log_level", CONFIG_CHOICE, false, AT(log_level), levels, 0, NULL},
};
#undef AT

#define AT(member) offsetof(struct config_pool, member)
static const struct config_key device_keys[] = {
    {"enabled", CONFIG_CHOICE, true, AT(enabled), booleans, 0, "yes"},
    {"limit", CONFIG_SIZE, false, AT(limit), NULL, 0, "90%"},
    {"step", CONFIG_SIZE, false, AT(step), NULL, 0, NULL},
    {"reserve", CONFIG_SIZE, false, AT(reserve), NULL, 0, "0"},
    {"low_water", CONFIG_SIZE, false, AT(low_water), NULL, 0, NULL},
    {"export", CONFIG_CHOICE, true, AT(export_as), device_exports, 0, "ipc"},
    {"zero", CONFIG_CHOICE, false, AT(zero), zeroes, 0, NULL},
    {"allow", CONFIG_USERS, false, AT(allow), NULL, 0, "all"},
};

static const struct config_key host_keys[] = {
    {"enabled", CONFIG_CHOICE, true, AT(enabled), booleans, 0, "yes"},
    {"limit", CONFIG_SIZE, false, AT(limit), NULL, 0, "50%"},
    {"step", CONFIG_SIZE, false, AT(step), NULL, 0, "64MiB"},
    {"reserve", CONFIG_SIZE, false, AT(reserve), NULL, 0, "0"},
    {"low_water", CONFIG_SIZE, false, AT(low_water), NULL, 0, NULL},
    {"export", CONFIG_CHOICE, true, AT(export_as), host_exports, 0, "memfd"},
    {"zero", CONFIG_CHOICE, false, AT(zero), zeroes, 0, NULL},
    {"allow", CONFIG_USERS, false, AT(allow), NULL, 0, "all"},
    {"huge_pages", CONFIG_CHOICE, false, AT(huge_pages), huge_pages, 0, "auto"},
};
#undef AT

#define AT(member) offsetof(struct config_limits, member)
static const struct config_key quota_keys[] = {
    {"device", CONFIG_QUOTA_SIZE, false, AT(device), NULL, 0, "unlimited"},
    {"host", CONFIG_QUOTA_SIZE, false, AT(host), NULL, 0, "unlimited"},
    {"sessions", CONFIG_QUOTA_COUNT, false, AT(sessions), NULL, 0, NULL},
    {"leases", CONFIG_QUOTA_COUNT, false, AT(leases), NULL, 0, "1048576"},
    {"ranges", CONFIG_QUOTA_COUNT, false, AT(ranges), NULL, 0, "2097152"},
    {"segments", CONFIG_QUOTA_COUNT, false, AT(segments), NULL, 0, NULL},
    {"waiting", CONFIG_QUOTA_COUNT, false, AT(waiting), NULL, 0, "16384"},
    {"replies", CONFIG_QUOTA_BYTES, false, AT(replies), NULL, 0, "64MiB"},
    {"kept", CONFIG_QUOTA_BYTES, false, AT(kept), NULL, 0, "unlimited"},
};
#undef AT

static_assert(COUNT(daemon_keys) <= CONFIG_KEYS_MAX && COUNT(device_keys) <= CONFIG_KEYS_MAX &&
                  COUNT(host_keys) <= CONFIG_KEYS_MAX && COUNT(quota_keys) <= CONFIG_KEYS_MAX,
              "the lines of a section have room for its keys");
static_assert(sizeof(enum config_gpu) == sizeof(int) && sizeof(enum log_level) == sizeof(int),
              "a choice is an int");

const struct config_table config_daemon_keys = {"daemon", daemon_keys, COUNT(daemon_keys)};
const struct config_table config_device_keys = {"device", device_keys, COUNT(device_keys)};
const struct config_table config_host_keys = {"host", host_keys, COUNT(host_keys)};
const struct config_table config_quota_keys = {"quota", quota_keys, COUNT(quota_keys)};

const struct config_key *config_find_key(const struct config_table *table, const char *name) {
    for (unsigned i = 0; i < table->count; i++)
        if (strcmp(table->keys[i].name, name) == 0)
            return &table->keys[i];
    return NULL;
}

int config_complain_of_key(const struct config_table *table, const struct config_setting *setting) {
    static const struct config_table *const tables[] = {&config_daemon_keys, &config_device_keys,
                                                        &config_host_keys, &config_quota_keys};
    struct nearest nearest = {.word = setting->key};

    for (unsigned i = 0; i < table->count; i++)
        nearest_offer(&nearest, table->keys[i].name);
    if (nearest.best != NULL)
        return config_complain(setting, "[%s] has no key '%s'; did you mean '%s'? See gpupoold.conf(5)",
                               table->name, setting->key, nearest.best);
    for (unsigned i = 0; i < COUNT(tables); i++)
        if (config_find_key(tables[i], setting->key) != NULL)
            return config_complain(setting, "[%s] has no key '%s', but [%s] has; see gpupoold.conf(5)",
                                   table->name, setting->key, tables[i]->name);
    return config_complain(setting, "[%s] has no key '%s'; see gpupoold.conf(5)", table->name, setting->key);
}
