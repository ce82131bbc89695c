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
#include "directory_fixture.h"
#include "gpu/gpu.h"
#include "unit.h"

#define UUID_TEXT "GPU-00112233-4455-6677-8899-aabbccddeeff"

static struct config_mistakes mistakes;

static int read_bytes(struct config *config, const char *text, size_t size) {
    const char *path = path_of("conf");
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    config_init(config);
    mistakes = (struct config_mistakes){0};
    int r = config_read_file(config, path, &mistakes);
    unlink(path);
    return r;
}

/* error: of several mistakes the first. */
static int read_text(struct config *config, const char *text, char *error, size_t error_size) {
    int r = read_bytes(config, text, strlen(text));
    snprintf(error, error_size, "%.500s", mistakes.count > 0 ? mistakes.first[0].text : "");
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
    } wrong[] = {
        {"gpu = sim\n", 1, "before the first section"},
        {"[daemon]\n\ngpu = nvidia\n", 3, "none of auto, cuda, sim, none"},
        {"[daemon]\nGPU = sim\n", 2, "no key 'GPU'; did you mean 'gpu'? See gpupoold.conf(5)"},
        {"[daemon]\ngpus = 1\n", 2, "no key 'gpus'"},
        {"[daemon]\nsocket = run/x.sock\n", 2, "not an absolute path"},
        {"[daemon]\nsocket =\n", 2, "socket: there is no value behind the '='"},
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
        {"[device]\nreserve = 1000000 TiB\n", 2, "more than the largest size, 64 PiB"},
        {"[host]\nlow_water = some\n", 2, "low_water: 'some' is neither a size"},
        {"[device]\nenabled = maybe\n", 2, "neither no nor yes"},
        {"[device]\nhuge_pages = auto\n", 2, "[device] has no key 'huge_pages', but [host] has"},
        {"[host]\nhuge_pages = some\n", 2, "none of auto, off, require"},
        {"[device 0x1]\nlimit = 1GiB\n", 1, "neither a device's number nor a GPU's UUID"},
        {"[device GPU-1234]\nlimit = 1GiB\n", 1, "neither a device's number nor a GPU's UUID"},
        {"[host " UUID_TEXT "]\nlimit = 1GiB\n", 1, "no NUMA node's number"},
        {"[pool]\nlimit = 1GiB\n", 1, "there is no section [pool]"},
        {"[daemon]\ngpu = sim\nrubbish\n", 3, "neither [section] nor key = value"},
        {"[daemon\ngpu = sim\n", 1, "neither [section] nor key = value"},
        {"[quota]\nmemory = 1GiB\n", 2, "[quota] has no key 'memory'"},
        {"[quota]\nsessions = few\n", 2, "sessions: 'few' is neither a number nor unlimited"},
        {"[quota]\nsessions = 50%\n", 2, "neither a number"},
        {"[quota]\nleases = 4294967296\n", 2, "neither a number"},
        {"[quota]\nleases = -1\n", 2, "neither a number"},
        {"[quota]\nwaiting = 1KiB\n", 2, "neither a number"},
        {"[quota]\nwaiting =\n", 2, "no value"},
        {"[quota]\ndevice = 101%\n", 2, "neither a size such as 8GiB nor a share such as 50% nor unlimited"},
        {"[quota]\nhost = much\n", 2, "neither a size"},
        {"[quota]\nreplies = 5%\n", 2, "neither a size such as 64MiB nor unlimited"},
        {"[quota]\nkept = 5%\n", 2, "neither a size such as 64MiB nor unlimited"},
        {"[quota alice]\nhost = 1GiB\n", 1, "there are [quota], [quota user:NAME] and [quota group:NAME]"},
        {"[quota user:]\nhost = 1GiB\n", 1, "there are [quota]"},
        {"[quota user:a, user:b]\nhost = 1GiB\n", 1, "there are [quota]"},
        {"[quota user:0123456789012345678901234567890123456789012345678901234567890123]\nhost = 1GiB\n", 1,
         "names of at most 63 characters"},
        {"[device]\nallow = alice\n", 2, "neither all nor a list such as user:alice, group:research"},
        {"[device]\nallow =\n", 2, "no value"},
        {"[device]\nallow = all, user:alice\n", 2, "neither all nor a list"},
        {"[host 0]\nallow = user:alice group:research\n", 2, "neither all nor a list"},
        {"[host 0]\nallow = user:alice,\n", 2, "neither all nor a list"},
        {"[daemon]\ngroup =\n", 2, "no value"},
        {"[daemon] gpu = sim\n", 1, "there is 'gpu = sim' behind [daemon]: give it a line of its own"},
    };
    (void)state;

    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct config config;
        char error[512], place[160];
        assert_int_equal(read_text(&config, wrong[i].text, error, sizeof error), -EINVAL);
        snprintf(place, sizeof place, "%s:%u: ", path_of("conf"), wrong[i].line);
        if (strncmp(error, place, strlen(place)) != 0 || strstr(error, wrong[i].complaint) == NULL)
            fail_msg("'%s' was answered with '%s'", wrong[i].text, error);
        config_deinit(&config);
    }
}

static void a_file_that_cannot_be_read_is_no_configuration(void **state) {
    struct config config;
    (void)state;

    config_init(&config);
    mistakes = (struct config_mistakes){0};
    assert_int_equal(config_read_file(&config, path_of("none"), &mistakes), -ENOENT);
    assert_non_null(strstr(mistakes.first[0].text, "none: No such file"));
    /* a directory opens, and has no lines */
    assert_true(config_read_file(&config, directory, &mistakes) < 0);
    assert_int_equal(mistakes.count, 2);
    assert_non_null(strstr(mistakes.first[1].text, "cannot be read: "));
    assert_non_null(strstr(mistakes.first[1].text, directory));
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
    const struct config_place place = {.mistakes = &mistakes, .line = CONFIG_COMMAND_LINE};
    assert_int_equal(config_set(&config, "host 0", "limit", "2GiB", &place), 0);
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

/* Whether the mistakes are these, each with its line; the list ends with line 0. */
struct expected {
    int line;
    const char *words;
};

static void expect_mistakes(const char *text, size_t size, const struct expected *expected) {
    struct config config;
    char place[32];
    unsigned n = 0;

    assert_int_equal(read_bytes(&config, text, size), -EINVAL);
    for (; expected[n].line != 0; n++) {
        snprintf(place, sizeof place, "conf:%d: ", expected[n].line);
        if (n >= config_mistakes_told(&mistakes) || strstr(mistakes.first[n].text, place) == NULL ||
            strstr(mistakes.first[n].text, expected[n].words) == NULL)
            fail_msg("'%s%s' is not in: %s", place, expected[n].words, mistakes.first[n].text);
    }
    assert_int_equal(mistakes.count, n);
    config_deinit(&config);
}

static void all_mistakes_are_told_of_in_their_order(void **state) {
    static const char text[] = "limit = 1GiB\n"
                               "[daemon]\n"
                               "sim_gpus = x\n"
                               "gpu = y\n"
                               "rubbish\n"
                               "gpu = sim\n"
                               "[device 0]\n"
                               "[nonsense]\n"
                               "limit = 1GiB\n"
                               "step = 1GiB\n"
                               " indented = yes\n"
                               "[host\n"
                               "limit = 1GiB\n"
                               "[quota]\n"
                               "sessions = \n"
                               "socket = \0/run\n"
                               "leases = 5\n"
                               "rubbish";
    static const struct expected expected[] = {
        {1, "'limit' stands before the first section"},
        {3, "sim_gpus: 'x' is not a number"},
        {4, "gpu: 'y' is none of auto, cuda, sim, none"},
        {5, "neither [section] nor key = value"},
        {6, "'gpu' was given in [daemon] before, in line 4"},
        {7, "[device 0] has no key"},
        {8, "there is no section [nonsense]"},
        {11, "this line is indented"},
        {12, "it has no ']'"},
        {15, "sessions: there is no value behind the '='"},
        {16, "this line has a NUL in it"},
        {18, "neither [section] nor key = value"},
        {0},
    };
    (void)state;

    expect_mistakes(text, sizeof text - 1, expected);
}

static void ten_thousand_mistakes_have_a_short_answer(void **state) {
    struct config config;
    char *text;
    size_t size;
    (void)state;

    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    fputs("[daemon]\n", file);
    for (unsigned i = 0; i < 10000; i++)
        fprintf(file, "key_%u = \xff\x1b[31m\n", i);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(read_bytes(&config, text, size), -EINVAL);
    assert_int_equal(mistakes.count, 10000);
    assert_int_equal(config_mistakes_told(&mistakes), CONFIG_MISTAKES_MAX);
    for (unsigned i = 0; i < CONFIG_MISTAKES_MAX; i++)
        assert_int_equal(mistakes.first[i].line, i + 2);
    config_deinit(&config);
    free(text);
}

/* A complaint goes to a terminal and into JSON: the file's other bytes become question marks. */
static void a_complaint_is_printable(void **state) {
    struct config config;
    (void)state;

    assert_int_equal(read_bytes(&config, "[daemon]\ngpu = \xff\x1b[31m\xc3\xa9\xc2\x9b\n", 26), -EINVAL);
    assert_non_null(strstr(mistakes.first[0].text, "gpu: '?\?[31m\xc3\xa9?\?' is none of"));
    config_deinit(&config);
}

static void misspelt_words_are_guessed(void **state) {
    static const struct {
        const char *text;
        const char *guess; /* NULL: there is none */
    } words[] = {
        {"[daemon]\nsesions_limit = 5\n", "did you mean 'sessions_limit'?"},
        {"[daemon]\nadmin-socket = /a\n", "did you mean 'admin_socket'?"},
        {"[daemon]\nLOG_LEVEL = info\n", "did you mean 'log_level'?"},
        {"[daemon]\ncolour = blue\n", NULL},
        {"[device]\nlimt = 5\n", "did you mean 'limit'?"},
        {"[device]\nlow = 5\n", "did you mean 'low_water'?"},
        {"[device]\nsessions_limit = 5\n", "but [daemon] has"},
        {"[quota]\nsesssions = 5\n", "did you mean 'sessions'?"},
        {"[quota]\nlimit = 5\n", "but [device] has"},
        {"[daemon]\ngpu = cdua\n", "did you mean 'cuda'?"},
        {"[daemon]\ngpu = Sim\n", "did you mean 'sim'?"},
        {"[daemon]\ngpu = nvidia\n", NULL},
        {"[daemon]\nlog_level = warn\n", "did you mean 'warning'?"},
        {"[device]\nenabled = true\n", "did you mean 'yes'?"},
        {"[device]\nenabled = off\n", "did you mean 'no'?"},
        {"[device]\nenabled = Yes\n", "did you mean 'yes'?"},
        {"[device]\nexport = vvm\n", "did you mean 'vmm'?"},
        {"[device]\nlimit = 4GB\n", "did you mean '4GiB'?"},
        {"[device]\nlimit = 1.5 tb\n", "did you mean '1.5 TiB'?"},
        {"[daemon]\nsim_memory = 8gb\n", "did you mean '8GiB'?"},
        {"[quota]\nhost = unlimted\n", "did you mean 'unlimited'?"},
        {"[devcie 0]\nlimit = 1GiB\n", "Did you mean [device 0]?"},
        {"[Host]\n", "Did you mean [host]?"},
        {"[quotas user:a]\nhost = 1GiB\n", "Did you mean [quota user:a]?"},
        {"[nonsense]\n", NULL},
    };
    (void)state;

    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        struct config config;
        assert_int_equal(read_bytes(&config, words[i].text, strlen(words[i].text)), -EINVAL);
        const char *said = mistakes.first[0].text;
        if (words[i].guess != NULL ? strstr(said, words[i].guess) == NULL
                                   : strcasestr(said, "did you mean") != NULL)
            fail_msg("'%s' was answered with '%s'", words[i].text, said);
        assert_int_equal(mistakes.count, 1);
        config_deinit(&config);
    }
}

static void sizes_are_taken_as_people_write_them(void **state) {
    static const char *const sizes[] = {"4GiB",  "4 GiB ", "4g",         "4G",
                                        "4096M", "4gib\r", "4294967296", "4GiB ; half"};
    struct config config;
    struct config_pool_sizes resolved;
    char text[64];
    (void)state;

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(text, sizeof text, "\xef\xbb\xbf[device]\r\nlimit = %s\n", sizes[i]);
        assert_int_equal(read_bytes(&config, text, strlen(text)), 0);
        config_resolve(&config, PROTO_POOL_DEVICE, NULL, 0, 80 * GIB, &resolved);
        assert_int_equal(resolved.limit_bytes, 4 * GIB);
        config_deinit(&config);
    }
}

static void a_hash_behind_a_value_is_explained(void **state) {
    static const char *const values[] = {
        "[device]\nlimit = 4GiB # half\n",         "[device]\nlimit = 4GiB #half\n",
        "[device]\nlimit = 4GiB# half\n",          "[device]\nlimit = # half\n",
        "[daemon]\nsocket = /run/x.sock # data\n", "[device]\nallow = all # of them\n"};
    struct config config;
    (void)state;

    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
        assert_int_equal(read_bytes(&config, values[i], strlen(values[i])), -EINVAL);
        assert_non_null(
            strstr(mistakes.first[0].text, "a comment behind a value begins with a blank and ';'"));
        config_deinit(&config);
    }
    static const char path[] = "[daemon]\nsocket = /run/x#1.sock\n[device] # one behind a section\n";
    assert_int_equal(read_bytes(&config, path, strlen(path)), 0);
    assert_string_equal(config.socket, "/run/x#1.sock");
    config_deinit(&config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_mistakes_are_told_of_in_their_order),
        cmocka_unit_test(ten_thousand_mistakes_have_a_short_answer),
        cmocka_unit_test(a_complaint_is_printable),
        cmocka_unit_test(misspelt_words_are_guessed),
        cmocka_unit_test(sizes_are_taken_as_people_write_them),
        cmocka_unit_test(a_hash_behind_a_value_is_explained),
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
