/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_H
#define DAEMON_CONFIG_CONFIG_H
/*
 * The configuration: defaults, then the configuration file, then the command line. Documented for users
 * in gpupoold.conf(5). A configuration is read whole or not at all: a mistake names file, line and remedy.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/config/config_quota.h"
#include "daemon/loop/log.h"
#include "proto/proto.h"

#define CONFIG_FILE_DEFAULT         "/etc/gpupool/gpupoold.conf"
#define CONFIG_SOCKET_DEFAULT       "/run/gpupool/gpupool.sock"
#define CONFIG_ADMIN_SOCKET_DEFAULT "/run/gpupool/admin.sock"
#define CONFIG_PATH_SIZE            108u /* sockaddr_un.sun_path */

/* inih cuts sections off at 50 characters, its NUL included, without a word. */
#define CONFIG_SECTION_MAX 49u

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
    char *allow; /* the users that may use it, as in the file; owned; NULL: unset */
};

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

struct config {
    char socket[CONFIG_PATH_SIZE], admin_socket[CONFIG_PATH_SIZE];
    enum config_gpu gpu;
    uint32_t sim_gpus;
    uint64_t sim_memory_bytes;
    uint32_t sessions_limit, session_leases_limit;
    char group[CONFIG_NAME_SIZE]; /* of the data socket; "": what there is */
    char subuid[CONFIG_PATH_SIZE]; /* the file of subordinate uids; "": they have quotas of their own */
    enum log_level log_level;
    struct config_pool device, host;
    struct list sections;       /* struct config_section.link */
    struct config_limits quota; /* of users without rules of their own */
    struct list rules;          /* struct config_rule.link */
    unsigned n_unknown_names;   /* that access_look_up() left out */
    struct policy_range *ranges; /* what access_look_up() read in the file */
    unsigned n_ranges;
};

void config_init(struct config *config);
void config_deinit(struct config *config);
/* Moves a configuration into an uninitialised one; the source is empty afterwards. */
void config_move(struct config *to, struct config *from);

/* Exactly: half of 80 GiB is 40 GiB, and not a segment less. */
uint64_t config_percent_of(uint64_t bytes, uint64_t percent);

/* Sets one key of a section, as the file and the command line do. Returns 0, or -EINVAL with the complaint in
 * error. */
int config_set(struct config *config, const char *section, const char *key, const char *value, char *error,
               size_t error_size);

/* Reads a file over what is set. Returns 0; -ENOENT and others when it cannot be read; -EINVAL; error has the
 * text, with file and line. The configuration is to be thrown away on failure. */
int config_read_file(struct config *config, const char *path, char *error, size_t error_size);

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
 * Mistakes in a configuration on this machine, although its file can be read: sections for devices that are
 * not there, sizes that make no sense. The daemon starts all the same; the log and --check-config tell of it.
 */

/* Notes that the machine has a device or node: sections for it are not in vain. uuid: NULL for nodes. */
void config_note_place(struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number);

/* Warns of a limit of the named pool above the memory that there is, and cuts it to that. total_of: the end
 * of "the 8 GiB that …", borrowed. Returns the number of mistakes. */
unsigned config_cut_limit(const char *name, uint64_t total_bytes, const char *total_of,
                          struct config_pool_sizes *sizes);

/* Warns of sizes of the named pool that make no sense. Returns the number of mistakes. */
unsigned config_check_sizes(const char *name, const struct config_pool_sizes *sizes);

/* Warns of sections for places that were not noted, after all were. Returns the number of mistakes. */
unsigned config_check_sections(const struct config *config);

#endif
