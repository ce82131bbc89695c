/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the daemon's configuration: files, their mistakes, and the settings that apply to a pool. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/config/config.h"
#include "daemon/core/pool.h"
#include "gpu/gpu.h"
#include "directory_fixture.h"
#include "unit.h"

#define UUID_TEXT "GPU-00112233-4455-6677-8899-aabbccddeeff"

static int read_text(struct config *config, const char *text, char *error, size_t error_size) {
    const char *path = path_of("conf");
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    config_init(config);
    int r = config_read_file(config, path, error, error_size);
    unlink(path);
    return r;
}

static void a_limit_above_the_memory_is_cut(void **state) {
    static const char gpu_has[] = "the GPU has";
    struct config_pool_sizes sizes;
    struct config config;
    char error[512];

    (void)state;
    assert_int_equal(read_text(&config, "[device]\nlimit = 9GiB\n", error, sizeof error), 0);
    for (uint64_t total = 8 * GIB; total <= 10 * GIB; total += GIB) {
        config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, total, &sizes);
        assert_int_equal(sizes.limit_bytes, 9 * GIB);
        assert_null(sizes.limit_of);
        bool is_cut = total < 9 * GIB;
        assert_int_equal(config_cut_limit("pool", total, gpu_has, &sizes), is_cut);
        assert_int_equal(sizes.limit_bytes, is_cut ? total : 9 * GIB);
        assert_ptr_equal(sizes.limit_of, is_cut ? gpu_has : NULL);
    }
    config_deinit(&config);
}

static void a_good_file_says_what_it_says(void **state) {
    struct config config;
    struct config_pool_sizes sizes;
    char error[512];
    (void)state;

    assert_int_equal(read_text(&config,
                               "# a comment\n"
                               "[daemon]\n"
                               "socket = /run/x/data.sock ; and one behind it\n"
                               "admin_socket=/run/x/admin.sock\n"
                               "gpu = sim\n"
                               "sim_gpus = 3\n"
                               "sim_memory = 1.5 GiB\n"
                               "sessions_limit = 7\n"
                               "session_leases_limit = 9\n"
                               "log_level = debug\n"
                               "\n"
                               "[device]\n"
                               "limit = 75%\n"
                               "step = 128MiB\n"
                               "low_water = 25%\n"
                               "zero = daemon\n"
                               "[device 1]\n"
                               "zero = driver\n"
                               "[host]\n"
                               "enabled = no\n"
                               "huge_pages = require\n"
                               "[host 1]\n"
                               "enabled = yes\n"
                               "reserve = 1GiB\n"
                               "low_water = 0\n",
                               error, sizeof error),
                     0);
    assert_string_equal(config.socket, "/run/x/data.sock");
    assert_string_equal(config.admin_socket, "/run/x/admin.sock");
    assert_int_equal(config.gpu, CONFIG_GPU_SIM);
    assert_int_equal(config.sim_gpus, 3);
    assert_int_equal(config.sim_memory_bytes, 3 * GIB / 2);
    assert_int_equal(config.sessions_limit, 7);
    assert_int_equal(config.session_leases_limit, 9);
    assert_int_equal(config.log_level, LOG_LEVEL_DEBUG);
    config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, 1000 * MIB, &sizes);
    assert_int_equal(sizes.limit_bytes, 750 * MIB);
    assert_int_equal(sizes.step_bytes, 128 * MIB);
    assert_int_equal(sizes.reserve_bytes, 0);
    assert_int_equal(sizes.low_water_bytes, 250 * MIB);
    assert_true(sizes.enabled);
    assert_int_equal(sizes.zero, CONFIG_ZERO_DAEMON);
    config_resolve(&config, PROTO_POOL_DEVICE, NULL, 1, 1000 * MIB, &sizes);
    assert_int_equal(sizes.zero, CONFIG_ZERO_DRIVER);
    config_resolve(&config, PROTO_POOL_HOST, NULL, 0, 1000 * MIB, &sizes);
    assert_false(sizes.enabled);
    assert_int_equal(sizes.zero, CONFIG_ZERO_USUAL);
    config_resolve(&config, PROTO_POOL_HOST, NULL, 1, 1000 * MIB, &sizes);
    assert_true(sizes.enabled);
    assert_int_equal(sizes.huge_pages, CONFIG_HUGE_PAGES_REQUIRE);
    assert_int_equal(sizes.reserve_bytes, GIB);
    assert_int_equal(sizes.low_water_bytes, 0);
    assert_int_equal(sizes.limit_bytes, 500 * MIB); /* the default: half of the node */
    config_deinit(&config);
}

static void an_empty_file_leaves_the_defaults(void **state) {
    struct config config;
    struct config_pool_sizes sizes;
    char error[512];
    (void)state;

    assert_int_equal(read_text(&config, "", error, sizeof error), 0);
    assert_string_equal(config.socket, CONFIG_SOCKET_DEFAULT);
    assert_int_equal(config.gpu, CONFIG_GPU_AUTO);
    config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, 1000 * MIB, &sizes);
    assert_int_equal(sizes.limit_bytes, 900 * MIB);
    assert_int_equal(sizes.step_bytes, POOL_STEP_BY_SIZE);
    assert_int_equal(sizes.low_water_bytes, 0); /* the next size is not known */
    assert_int_equal(sizes.huge_pages, CONFIG_HUGE_PAGES_AUTO);
    /* host memory takes time to make */
    config_resolve(&config, PROTO_POOL_HOST, NULL, 0, 141 * GIB, &sizes);
    assert_int_equal(sizes.step_bytes, 64 * MIB);
    assert_int_equal(sizes.low_water_bytes, 32 * MIB);
    config_deinit(&config);
}

/* A reserve is made before anybody says what is needed: in a few large segments, by the GPU's size. */
static void a_reserve_is_made_in_steps_of_a_fixed_size(void **state) {
    struct config config;
    struct config_pool_sizes sizes;
    char error[512];
    (void)state;

    assert_int_equal(read_text(&config, "[device]\nreserve = 10%\n", error, sizeof error), 0);
    config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, 1000 * MIB, &sizes);
    assert_int_equal(sizes.step_bytes, 64 * MIB);
    assert_int_equal(sizes.low_water_bytes, 32 * MIB);
    config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, 16 * GIB, &sizes);
    assert_int_equal(sizes.step_bytes, 256 * MIB);
    config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, 141 * GIB, &sizes);
    assert_int_equal(sizes.step_bytes, 512 * MIB);
    config_deinit(&config);
}

static void a_step_that_is_told_is_never_none(void **state) {
    struct config config;
    struct config_pool_sizes sizes;
    char error[512];
    (void)state;

    assert_int_equal(read_text(&config, "[device]\nstep = 0\n", error, sizeof error), 0);
    config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, 16 * GIB, &sizes);
    assert_int_equal(sizes.step_bytes, 2 * MIB);
    config_deinit(&config);
}

static void a_mistake_is_refused_with_its_line_and_a_remedy(void **state) {
    static const struct {
        const char *text;
        unsigned line;
        const char *complaint;
    } mistakes[] = {
        {"gpu = sim\n", 1, "before the first section"},
        {"[daemon]\n\ngpu = nvidia\n", 3, "none of auto, cuda, sim, none"},
        {"[daemon]\nGPU = sim\n", 2, "no key 'GPU'; see gpupoold.conf(5)"},
        {"[daemon]\ngpus = 1\n", 2, "no key 'gpus'"},
        {"[daemon]\nsocket = run/x.sock\n", 2, "not an absolute path"},
        {"[daemon]\nsocket =\n", 2, "not an absolute path"},
        {"[daemon]\nsocket = "
         "/0123456789012345678901234567890123456789012345678901234567890123456789012345678901"
         "23456789012345678901234567\n",
         2, "more than 107 characters"},
        {"[daemon]\nsim_gpus = 0\n", 2, "not a number from 1 to 16"},
        {"[daemon]\nsim_gpus = 17\n", 2, "not a number from 1 to 16"},
        {"[daemon]\nsim_gpus = 1x\n", 2, "not a number"},
        {"[daemon]\nsim_gpus = -1\n", 2, "not a number"},
        {"[daemon]\nsessions_limit = 99999999999999999999\n", 2, "not a number"},
        {"[daemon]\nsession_leases_limit = many\n", 2, "not a number"},
        {"[daemon]\nsim_memory = 1MiB\n", 2, "at least 2 MiB"},
        {"[daemon]\nsim_memory = 50%\n", 2, "not a size"},
        {"[daemon]\nlog_level = loud\n", 2, "none of error, warning, info, debug"},
        {"[device]\nlimit = 101%\n", 2, "neither a size such as 64MiB nor a share such as 50%"},
        {"[device]\nlimit = -5%\n", 2, "neither a size"},
        {"[device]\nlimit = %\n", 2, "neither a size"},
        {"[device]\nlimit = 5.5%\n", 2, "neither a size"},
        {"[device]\nstep = 64 parsecs\n", 2, "neither a size"},
        {"[device]\nreserve = 1000000 TiB\n", 2, "neither a size"},
        {"[host]\nlow_water = some\n", 2, "low_water: 'some' is neither a size"},
        {"[device]\nenabled = maybe\n", 2, "neither yes nor no"},
        {"[device]\nhuge_pages = auto\n", 2, "[device] has no key 'huge_pages'"},
        {"[host]\nhuge_pages = some\n", 2, "none of auto, off, require"},
        {"[device 0x1]\nlimit = 1GiB\n", 2, "neither a device's number nor a GPU's UUID"},
        {"[device GPU-1234]\nlimit = 1GiB\n", 2, "neither a device's number nor a GPU's UUID"},
        {"[host " UUID_TEXT "]\nlimit = 1GiB\n", 2, "no NUMA node's number"},
        {"[pool]\nlimit = 1GiB\n", 2, "there is no section [pool]"},
        {"[daemon]\ngpu = sim\nrubbish\n", 3, "neither [section] nor key = value"},
        {"[daemon\ngpu = sim\n", 1, "neither [section] nor key = value"},
        {"[quota]\nmemory = 1GiB\n", 2, "[quota] has no key 'memory'"},
        {"[quota]\nsessions = few\n", 2, "sessions: 'few' is neither a number nor unlimited"},
        {"[quota]\nsessions = 50%\n", 2, "neither a number"},
        {"[quota]\nleases = 4294967296\n", 2, "neither a number"},
        {"[quota]\nleases = -1\n", 2, "neither a number"},
        {"[quota]\nwaiting = 1KiB\n", 2, "neither a number"},
        {"[quota]\nwaiting =\n", 2, "neither a number"},
        {"[quota]\ndevice = 101%\n", 2, "neither a size such as 8GiB nor a share such as 50% nor unlimited"},
        {"[quota]\nhost = much\n", 2, "neither a size"},
        {"[quota]\nreplies = 5%\n", 2, "neither a size such as 64MiB nor unlimited"},
        {"[quota alice]\nhost = 1GiB\n", 2, "there are [quota], [quota user:NAME] and [quota group:NAME]"},
        {"[quota user:]\nhost = 1GiB\n", 2, "there are [quota]"},
        {"[quota user:a, user:b]\nhost = 1GiB\n", 2, "there are [quota]"},
        {"[quota user:0123456789012345678901234567890123456789]\nhost = 1GiB\n", 2,
         "more than 48 characters"},
        {"[device]\nallow = alice\n", 2, "neither all nor a list such as user:alice, group:research"},
        {"[device]\nallow =\n", 2, "neither all nor a list"},
        {"[device]\nallow = all, user:alice\n", 2, "neither all nor a list"},
        {"[host 0]\nallow = user:alice group:research\n", 2, "neither all nor a list"},
        {"[host 0]\nallow = user:alice,\n", 2, "neither all nor a list"},
        {"[daemon]\ngroup =\n", 2, "no group's name"},
        /* of two mistakes the first, with its own text */
        {"[daemon]\nsim_gpus = x\ngpu = y\n", 2, "sim_gpus"},
        {"[daemon]\nrubbish\ngpu = y\n", 2, "neither [section] nor key = value"},
        {"[daemon]\ngpu = y\nrubbish\n", 2, "gpu: 'y'"},
    };
    (void)state;

    for (unsigned i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct config config;
        char error[512], place[160];
        assert_int_equal(read_text(&config, mistakes[i].text, error, sizeof error), -EINVAL);
        snprintf(place, sizeof place, "%s:%u: ", path_of("conf"), mistakes[i].line);
        if (strncmp(error, place, strlen(place)) != 0 || strstr(error, mistakes[i].complaint) == NULL)
            fail_msg("'%s' was answered with '%s'", mistakes[i].text, error);
        config_deinit(&config);
    }
}

static void a_file_that_cannot_be_read_is_no_configuration(void **state) {
    struct config config;
    char error[512];
    (void)state;

    config_init(&config);
    assert_int_equal(config_read_file(&config, path_of("none"), error, sizeof error), -ENOENT);
    assert_non_null(strstr(error, "none"));
    assert_true(config_read_file(&config, directory, error, sizeof error) <
                0); /* a directory opens, and has no lines */
    assert_non_null(strstr(error, directory));
    config_deinit(&config);
}

static void a_long_line_is_read_whole_or_refused(void **state) {
    struct config config;
    char text[700], error[512];
    (void)state;

    /* inih's buffer has 200 characters: what stands behind them is still the same comment. */
    snprintf(text, sizeof text, "[daemon]\n#%0199d sim_gpus = 4\ngpu = sim\n", 0);
    assert_int_equal(read_text(&config, text, error, sizeof error), 0);
    assert_int_equal(config.sim_gpus, 1);
    assert_int_equal(config.gpu, CONFIG_GPU_SIM);
    config_deinit(&config);
    snprintf(text, sizeof text, "[daemon]\nlog_level =%0199d\ngpu = nonsense\n", 0);
    assert_int_equal(read_text(&config, text, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, ":2: this line has more than"));
    config_deinit(&config);
}

static void the_nearest_word_on_a_pool_counts(void **state) {
    struct config config;
    struct config_pool_sizes sizes;
    struct gpu_uuid uuid;
    char error[512];
    (void)state;

    assert_int_equal(gpu_uuid_parse(UUID_TEXT, &uuid), 0);
    for (unsigned order = 0; order < 2; order++) {
        assert_int_equal(read_text(&config,
                                   order == 0
                                       ? "[device]\nlimit = 8GiB\nstep = 8MiB\n"
                                         "[device 0]\nlimit = 4GiB\n[device " UUID_TEXT "]\nlimit = 2GiB\n"
                                       : "[device " UUID_TEXT "]\nlimit = 2GiB\n[device 0]\nlimit = 4GiB\n"
                                         "[device]\nlimit = 8GiB\nstep = 8MiB\n",
                                   error, sizeof error),
                         0);
        config_resolve(&config, PROTO_POOL_DEVICE, uuid.bytes, 0, 80 * GIB, &sizes);
        assert_int_equal(sizes.limit_bytes, 2 * GIB);
        assert_int_equal(sizes.step_bytes, 8 * MIB);      /* what it does not say, its kind does */
        assert_int_equal(sizes.low_water_bytes, 4 * MIB); /* half of that step */
        uuid.bytes[0] ^= 1;
        config_resolve(&config, PROTO_POOL_DEVICE, uuid.bytes, 0, 80 * GIB, &sizes);
        assert_int_equal(sizes.limit_bytes, 4 * GIB);
        config_resolve(&config, PROTO_POOL_DEVICE, uuid.bytes, 1, 80 * GIB, &sizes);
        assert_int_equal(sizes.limit_bytes, 8 * GIB);
        config_resolve(&config, PROTO_POOL_HOST, NULL, 0, 80 * GIB, &sizes);
        assert_int_equal(sizes.limit_bytes, 40 * GIB); /* what is said of devices says nothing of the host */
        uuid.bytes[0] ^= 1;
        config_deinit(&config);
    }
}

static void a_section_met_twice_is_one(void **state) {
    struct config config;
    struct config_pool_sizes sizes;
    char error[512];
    (void)state;

    assert_int_equal(read_text(&config,
                               "[host 0]\nlimit = 4GiB\n[host 1]\nstep = 4MiB\n[host 0]\nreserve = 1GiB\n",
                               error, sizeof error),
                     0);
    config_resolve(&config, PROTO_POOL_HOST, NULL, 0, 80 * GIB, &sizes);
    assert_int_equal(sizes.limit_bytes, 4 * GIB);
    assert_int_equal(sizes.reserve_bytes, GIB);
    /* the command line comes later and wins */
    assert_int_equal(config_set(&config, "host 0", "limit", "2GiB", error, sizeof error), 0);
    config_resolve(&config, PROTO_POOL_HOST, NULL, 0, 80 * GIB, &sizes);
    assert_int_equal(sizes.limit_bytes, 2 * GIB);
    config_deinit(&config);
}

static void a_moved_configuration_takes_its_sections_along(void **state) {
    struct config from, to;
    struct config_pool_sizes sizes;
    char error[512];
    (void)state;

    for (unsigned sections = 0; sections < 2; sections++) {
        assert_int_equal(read_text(&from, sections ? "[host 0]\nlimit = 4GiB\n" : "[daemon]\ngpu = none\n",
                                   error, sizeof error),
                         0);
        config_move(&to, &from);
        assert_true(list_is_empty(&from.sections));
        config_deinit(&from);
        memset(&from, 0xa5, sizeof from); /* nothing points back */
        config_resolve(&to, PROTO_POOL_HOST, NULL, 0, 80 * GIB, &sizes);
        assert_int_equal(sizes.limit_bytes, sections ? 4 * GIB : 40 * GIB);
        config_deinit(&to);
    }
}

static void expect_mistake(const char *text, int line, const char *words) {
    struct config config;
    char error[512], place[32];

    assert_int_equal(read_text(&config, text, error, sizeof error), -EINVAL);
    snprintf(place, sizeof place, "conf:%d: ", line);
    if (strstr(error, place) == NULL || strstr(error, words) == NULL)
        fail_msg("'%s' and '%s' are not in: %s", place, words, error);
    config_deinit(&config);
}

static void a_key_is_given_once_in_a_section(void **state) {
    struct config config;
    char error[512];
    (void)state;

    expect_mistake("[host]\nlimit = 1GiB\nreserve = 0\nlimit = 2GiB\n", 4,
                   "'limit' was given in [host] before, in line 2");
    expect_mistake("[host]\nlimit = 1GiB\n[device]\nlimit = 1GiB\n[host]\nlimit = 1GiB\n", 6,
                   "before, in line 2");
    expect_mistake("[quota user:0]\nhost = 1GiB\n[quota user:0]\nhost = 1GiB\n", 4, "before, in line 2");
    assert_int_equal(
        read_text(&config,
                  "[host]\nlimit = 1GiB\n[host 0]\nlimit = 1GiB\nallow = user:0\nallow = user:1\n"
                  "[host]\nreserve = 0\n",
                  error, sizeof error),
        0);
    config_deinit(&config);
}

static void an_indented_line_is_called_so(void **state) {
    struct config config;
    char error[512];
    (void)state;

    expect_mistake("[host]\nlimit = 1GiB\n reserve = 1GiB\n", 3, "this line is indented");
    expect_mistake("[host]\n\tlimit = 1GiB\n", 2, "this line is indented");
    expect_mistake("  [host]\nlimit = 1GiB\n", 1, "this line is indented");
    assert_int_equal(
        read_text(&config, "[host]\n  # indented\n\t; too\n  \nlimit = 1GiB\r\n\r\n", error, sizeof error),
        0);
    config_deinit(&config);
}

static void a_section_that_says_nothing_is_a_mistake(void **state) {
    struct config config;
    char error[512];
    (void)state;

    expect_mistake("[devcie]\n# limit = 1GiB\n[host]\nlimit = 1GiB\n", 1, "there is no section [devcie]");
    expect_mistake("[host]\nlimit = 1GiB\n[nonsense]\n", 3, "there is no section [nonsense]");
    expect_mistake("[device 0]\n[host]\nlimit = 1GiB\n", 1, "[device 0] has no key");
    expect_mistake("[daemon]\n[quota user:0]\n# host = 1GiB\n", 2, "[quota user:0] has no key");
    expect_mistake("[host 0]", 1, "[host 0] has no key");
    assert_int_equal(
        read_text(&config, "\xef\xbb\xbf[daemon]\n[device]\n[host]\n[quota]\n", error, sizeof error), 0);
    config_deinit(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_given_once_in_a_section),
        cmocka_unit_test(an_indented_line_is_called_so),
        cmocka_unit_test(a_section_that_says_nothing_is_a_mistake),
        cmocka_unit_test(a_good_file_says_what_it_says),
        cmocka_unit_test(a_limit_above_the_memory_is_cut),
        cmocka_unit_test(an_empty_file_leaves_the_defaults),
        cmocka_unit_test(a_reserve_is_made_in_steps_of_a_fixed_size),
        cmocka_unit_test(a_step_that_is_told_is_never_none),
        cmocka_unit_test(a_mistake_is_refused_with_its_line_and_a_remedy),
        cmocka_unit_test(a_file_that_cannot_be_read_is_no_configuration),
        cmocka_unit_test(a_long_line_is_read_whole_or_refused),
        cmocka_unit_test(the_nearest_word_on_a_pool_counts),
        cmocka_unit_test(a_section_met_twice_is_one),
        cmocka_unit_test(a_moved_configuration_takes_its_sections_along),
    };
    return cmocka_run_group_tests_name("the configuration", tests, make_directory, remove_directory);
}
