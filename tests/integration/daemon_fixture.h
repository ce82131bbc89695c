/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_DAEMON_FIXTURE_H
#define TESTS_INTEGRATION_DAEMON_FIXTURE_H
/* One daemon for all tests of a program, with pools of POOL_MIB, or with the configuration TEST_CONFIG_TEXT.
 * The program defines one of them before it includes this; and, where it defines TEST_SIM_GPUS, with so many
 * simulated GPUs instead of one, and TEST_FOR_ALL_USERS as true, for other users' clients, too. */
#include "tests/integration/harness.h"

#ifndef TEST_SIM_GPUS
#define TEST_SIM_GPUS 0
#endif
#ifndef TEST_CONFIG_TEXT
#define TEST_CONFIG_TEXT test_config(config, POOL_MIB, POOL_MIB)
static char config[TEST_CONFIG_SIZE];
#endif
#ifndef TEST_FOR_ALL_USERS
#define TEST_FOR_ALL_USERS false
#endif

static struct test_daemon daemon_;

static inline int start_daemon(void **state) {
    (void)state;
    daemon_start(&daemon_, &(struct daemon_options){.config = TEST_CONFIG_TEXT,
                                                    .sim_gpus = TEST_SIM_GPUS,
                                                    .for_all_users = TEST_FOR_ALL_USERS});
    return 0;
}

static inline int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

static inline uint64_t host_pool(const char *member) {
    return daemon_pool(&daemon_, "host", 0, member);
}

#endif
