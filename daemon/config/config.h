/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_H
#define DAEMON_CONFIG_CONFIG_H
/*
 * The configuration: defaults, then the configuration file, then the command line. Documented for users
 * in gpupoold.conf(5). A configuration is read whole or not at all: each mistake names file, line and remedy.
 *
 * Names of users and groups stay names here, and shares stay shares: user_policy.c looks the names up before the
 * configuration takes effect.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/list.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/config_value.h"
#include "daemon/config/mistakes.h"
#include "daemon/loop/log.h"
#include "proto/proto.h"

#define CONFIG_SOCKET_DEFAULT       "/run/gpupool/gpupool.sock"
#define CONFIG_ADMIN_SOCKET_DEFAULT "/run/gpupool-admin/admin.sock"

/* "quota group:" and a name. */
#define CONFIG_SECTION_NAME_SIZE (CONFIG_NAME_SIZE + 16u)

enum config_gpu {
    CONFIG_GPU_AUTO, /* cuda where there is a GPU, none elsewhere */
    CONFIG_GPU_CUDA,
    CONFIG_GPU_SIM,
    CONFIG_GPU_NONE,
};

enum config_huge_pages {
    CONFIG_HUGE_PAGES_AUTO,
    CONFIG_HUGE_PAGES_OFF,
    CONFIG_HUGE_PAGES_REQUIRE,
};

/* How memory is handed to clients. */
enum config_export {
    CONFIG_EXPORT_USUAL, /* "ipc" of device pools, "memfd" of host pools */
    CONFIG_EXPORT_VMM,
};

/* The part that sets new memory to zero, where the driver makes it by descriptor. */
enum config_zero {
    CONFIG_ZERO_DRIVER, /* the driver has cleared it */
    CONFIG_ZERO_DAEMON, /* the daemon, in a context of its own */
    CONFIG_ZERO_USUAL,  /* not told */
};

/* A pool's settings; unset members are inherited from its kind. */
struct config_pool {
    struct config_size limit, step, reserve, low_water; /* shares are of what the device or node has */
    int enabled;                                        /* -1: unset */
    int huge_pages;                                     /* enum config_huge_pages; -1: unset */
    int export_as;                                      /* enum config_export; -1: unset */
    int zero;                                           /* enum config_zero; -1: unset */
    char *allow;                /* the users that may use it, as in the file; owned; NULL: unset */
    char *allowed;              /* the same with numbers, by user_policy_look_up(); owned */
    int lines[CONFIG_KEYS_MAX]; /* the origins of the values, in the order of the keys' table */
};

extern const struct config_pool config_pool_unset;

/* A section for one pool: [device GPU-…], [device 0], [host 1]. */
struct config_section {
    enum proto_pool_kind kind;
    bool by_uuid;
    uint8_t uuid[PROTO_UUID_BYTES];
    int number;    /* device ordinal or NUMA node */
    bool is_there; /* config_note_place() has seen it */
    struct config_pool pool;
    struct list link;
};

/* A tenant's limits. Shares are of the pool's limit. */
struct config_limits {
    struct config_size sessions, leases, ranges, segments, waiting, replies, kept, device, host;
    int lines[CONFIG_KEYS_MAX];
};

/* A section for one user or group: [quota user:alice]. */
struct config_rule {
    struct config_who who;
    struct config_limits limits;
    struct list link;
};

/* A device or node of the machine. */
struct config_pool_place {
    enum proto_pool_kind kind;
    uint8_t uuid[PROTO_UUID_BYTES]; /* of a device */
    int number;
};

struct config {
    char socket[CONFIG_PATH_SIZE], admin_socket[CONFIG_PATH_SIZE];
    enum config_gpu gpu;
    uint32_t sim_gpus;
    uint64_t sim_memory_bytes;
    uint32_t sessions_limit, session_leases_limit;
    uint64_t records_bytes; /* of the flight recorder's records */
    uint32_t history_hours;
    char group[CONFIG_NAME_SIZE]; /* of the data socket; "": what there is */
    char subuid[CONFIG_PATH_SIZE]; /* the file of subordinate uids; "": they have quotas of their own */
    enum log_level log_level;
    struct config_pool device, host;
    struct list sections;       /* struct config_section.link */
    struct config_limits quota; /* of users without rules of their own */
    struct list rules;          /* struct config_rule.link */
    struct config_pool_place places[PROTO_POOLS_MAX]; /* that config_note_place() was told of */
    unsigned n_places;
    unsigned n_unknown_names;   /* that user_policy_look_up() left out */
    int lines[CONFIG_KEYS_MAX]; /* the origins of the values of [daemon] */
    bool has_file;              /* a file was read */
    struct policy_range *ranges; /* what user_policy_look_up() read in the file */
    unsigned n_ranges;
};

void config_init(struct config *config);
void config_deinit(struct config *config);
/* Moves a configuration into an uninitialised one; the source is empty afterwards. */
void config_move(struct config *to, struct config *from);

/* Exactly: half of 80 GiB is 40 GiB, and not a segment less. */
uint64_t config_percent_of(uint64_t bytes, uint64_t percent);

/* A section of a configuration, of whatever kind. Borrows the configuration; stays as long as it does. */
struct config_view {
    const struct config_table *table;
    void *values; /* what the keys' offsets are of */
    int *lines;
    const struct config_section *section; /* of one pool; NULL: it is of another kind */
    const struct config_rule *rule;       /* of one user or group; likewise */
};

/* Finds a section by its name, without brackets, and makes it where it is for one pool, user or group.
 * Returns 0, or -EINVAL with a complaint. */
int config_find_section(struct config *config, const char *name, const struct config_place *place,
                        struct config_view *ret_view);

/* The section of another configuration that is for the same, or false. */
bool config_find_twin(const struct config *config, const struct config_view *view,
                      struct config_view *ret_twin);

/* Steps through the sections: a view of zeros begins. Returns false behind the last one. */
bool config_next_section(const struct config *config, struct config_view *view);

/* "quota user:alice". Returns name. */
char *config_section_name(const struct config_view *view, char name[CONFIG_SECTION_NAME_SIZE]);

/* The section whose value of a key holds for a view: its own, or that of its kind of pools. */
struct config_view config_holder(const struct config *config, const struct config_view *view,
                                 const struct config_key *key);

/* The origin of a key's value in this section: a line, or CONFIG_UNSET and its like. */
int config_line(const struct config_view *view, const struct config_key *key);

/* The section that holds for a pool: its own, or that of its kind. uuid: NULL for nodes. */
struct config_view config_pool_view(const struct config *config, enum proto_pool_kind kind,
                                    const uint8_t *uuid, int number);

/* The section for one pool that holds for this pool: that of its UUID, else that of its number; or NULL. */
const struct config_section *config_pool_section(const struct config *config, enum proto_pool_kind kind,
                                                 const uint8_t *uuid, int number);

/* The value of a view's key as the file would have it: its own, or the one that holds without it. Owned by
 * the caller. Returns 0 and the text, NULL where the daemon computes the value; or -ENOMEM. */
int config_text(const struct config *config, const struct config_view *view, const struct config_key *key,
                char **ret_text);

/* Prints a configuration in the form of its file, with the origin of each value in a comment. path: of the
 * file. Returns 0 or -ENOMEM. */
int config_print(const struct config *config, const char *path, FILE *stream);

/* Sets one key of a section. Of a file (with a path in the place) a key is set once. Returns 0, or -EINVAL
 * with a complaint. */
int config_set_key(const struct config_view *view, const char *key, const char *value,
                   const struct config_place *place);

/* Sets one key of the section with a name, as the command line does. Returns 0, or -EINVAL with a complaint.
 */
int config_set(struct config *config, const char *section, const char *key, const char *value,
               const struct config_place *place);

/* Reads a file over what is set, to its end, whatever mistakes there are. Returns 0, -EINVAL with mistakes,
 * or another negative errno, with a mistake, when it cannot be read. The configuration is to be thrown away
 * on failure. */
int config_read_file(struct config *config, const char *path, struct config_mistakes *mistakes);

/* The settings of one pool, all set. total_bytes: percentages are of it. */
struct config_pool_sizes {
    uint64_t limit_bytes, step_bytes, reserve_bytes, low_water_bytes;
    bool enabled;
    enum config_huge_pages huge_pages;
    enum config_export export_as;
    enum config_zero zero;
    const char *allow;    /* borrowed; NULL: every user may use it */
    const char *limit_of; /* as in struct pool_sizes; set by config_cut_limit() */
};
void config_resolve(const struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number,
                    uint64_t total_bytes, struct config_pool_sizes *ret_sizes);

/*
 * Warnings of a configuration on this machine, although its file has no mistake: sections for devices that
 * are not there, sizes that make no sense. The daemon starts all the same; the log and --check-config tell of
 * it.
 */

/* Notes that the machine has a device or node: sections for it are not in vain. uuid: NULL for nodes. */
void config_note_place(struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number);

/* Notes the places that were noted in another configuration of the same machine. */
void config_note_places_of(struct config *config, const struct config *other);

/* Warns of a limit of the named pool above the memory that there is, and cuts it to that. total_of: the end
 * of "the 8 GiB that …", borrowed. Returns the number of warnings. */
unsigned config_cut_limit(const char *name, uint64_t total_bytes, const char *total_of,
                          struct config_pool_sizes *sizes);

/* Warns of sizes of the named pool that make no sense. Returns the number of warnings. */
unsigned config_check_sizes(const char *name, const struct config_pool_sizes *sizes);

/* Warns of sections for places that were not noted, after all were. Returns the number of warnings. */
unsigned config_check_sections(const struct config *config);

#endif
