/* SPDX-License-Identifier: Apache-2.0 */
/* gpupoold's command line. Documented for users in gpupoold(8). */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/high_fd.h"
#include "base/units.h"
#include "daemon/config/config.h"
#include "daemon/config/config_place.h"
#include "daemon/daemon.h"
#include "daemon/keeper/keeper.h"
#include "daemon/loop/log.h"
#include "gpu/gpu.h"

enum {
    EXIT_USAGE = 2,
    OPTION_KEY = 256, /* options that set a key of [daemon]: OPTION_KEY + index */
};

/* Options that are a key of the configuration file's [daemon] section. */
static const struct {
    const char *option, *key;
} keyed[] = {
    {"socket", "socket"},     {"admin-socket", "admin_socket"}, {"gpu", "gpu"},
    {"sim-gpus", "sim_gpus"}, {"sim-memory", "sim_memory"},     {"log-level", "log_level"},
};
#define KEYED (sizeof keyed / sizeof *keyed)

struct command_line {
    const char *config_path;
    bool config_given;
    const char *values[KEYED];
    bool private, keeper, check_config, print_config;
    const char *estate_format; /* is asked about; NULL: none is */
    int ready_fd;
    /* The arguments of a keeper's daemon: the program's name and all options but the keeper's own. */
    char **daemon_arguments;
    int n_daemon_arguments;
};

static void print_help(const char *config_path) {
    printf("Usage: gpupoold [OPTION]…\n"
           "Lends GPU memory and pinned host memory to worker processes.\n\n"
           "  --config FILE         configuration (default %s, if it is there)\n"
           "  --socket PATH         data socket (default " CONFIG_SOCKET_DEFAULT ")\n"
           "  --admin-socket PATH   administrative socket (default " CONFIG_ADMIN_SOCKET_DEFAULT ")\n"
           "  --gpu auto|cuda|sim|none\n"
           "                        device memory (default: auto, cuda where there is a GPU, else none)\n"
           "  --sim-gpus N          how many simulated GPUs (default 1)\n"
           "  --sim-memory SIZE     memory of each (default 8GiB)\n"
           "  --log-level LEVEL     error, warning, info or debug\n"
           "                        (default info, with --private warning)\n"
           "  --check-config        read the configuration, say what is wrong with it, and exit\n"
           "  --print-config        print the configuration and where each value comes from, and exit\n"
           "  --keeper              run the daemon in a process of its own, and start it again when it dies\n"
           "  --private             end with the last client, and remove the sockets' directory\n"
           "  --ready-fd N          write a byte to this descriptor when clients can connect\n"
           "  --reads-estate FORMAT say whether this program can go on with a daemon's estate, and exit\n"
           "  --help, --version\n\n"
           "See gpupoold(8) and gpupoold.conf(5).\n",
           config_path);
}

/* Whether there is a file to read: the default one need not be there, and a private daemon is its program's
 * own affair. */
static bool has_file(const struct command_line *line) {
    return line->config_given || (!line->private && access(line->config_path, F_OK) == 0);
}

/* Notes an option that was read, which are the arguments before argv[optind], for a keeper's daemon. */
static void note_daemon_arguments(struct command_line *line, char **argv, int begin) {
    while (begin < optind)
        line->daemon_arguments[line->n_daemon_arguments++] = argv[begin++];
}

/* Returns -1 to go on, or the exit status. */
static int parse_command_line(int argc, char **argv, struct command_line *line) {
    struct option options[KEYED + 10] = {0};
    uint64_t number;
    int option, begin = optind;

    note_daemon_arguments(line, argv, 0);
    for (unsigned i = 0; i < KEYED; i++)
        options[i] = (struct option){keyed[i].option, required_argument, NULL, OPTION_KEY + (int)i};
    options[KEYED] = (struct option){"config", required_argument, NULL, 'c'};
    options[KEYED + 1] = (struct option){"private", no_argument, NULL, 'p'};
    options[KEYED + 2] = (struct option){"ready-fd", required_argument, NULL, 'r'};
    options[KEYED + 3] = (struct option){"check-config", no_argument, NULL, 'k'};
    options[KEYED + 6] = (struct option){"print-config", no_argument, NULL, 'P'};
    options[KEYED + 4] = (struct option){"help", no_argument, NULL, 'h'};
    options[KEYED + 5] = (struct option){"version", no_argument, NULL, 'v'};
    options[KEYED + 7] = (struct option){"keeper", no_argument, NULL, 'K'};
    options[KEYED + 8] = (struct option){"reads-estate", required_argument, NULL, 'E'};
    for (; (option = getopt_long(argc, argv, "", options, NULL)) != -1; begin = optind) {
        if (option != 'K' && option != 'r')
            note_daemon_arguments(line, argv, begin);
        if (option >= OPTION_KEY) {
            line->values[option - OPTION_KEY] = optarg;
            continue;
        }
        switch (option) {
        case 'c':
            line->config_path = optarg;
            line->config_given = true;
            break;
        case 'p':
            line->private = true;
            break;
        case 'K':
            line->keeper = true;
            break;
        case 'r':
            if (units_parse_number(optarg, 1 << 20, &number) < 0) {
                fprintf(stderr, "gpupoold: --ready-fd: '%s' is no descriptor's number\n", optarg);
                return EXIT_USAGE;
            }
            line->ready_fd = (int)number;
            break;
        case 'k':
            line->check_config = true;
            break;
        case 'P':
            line->print_config = true;
            break;
        case 'E':
            line->estate_format = optarg;
            break;
        case 'h':
            print_help(config_place((char[PATH_MAX]){0}));
            return EXIT_SUCCESS;
        case 'v':
            printf("gpupoold %s (%s%s)\n", GPUPOOL_VERSION, gpu_cuda_built() ? "CUDA " : "no CUDA",
                   gpu_cuda_built() ? gpu_cuda_toolkit() : "");
            return EXIT_SUCCESS;
        default:
            fprintf(stderr, "Try 'gpupoold --help'.\n");
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "gpupoold: unexpected argument '%s'\nTry 'gpupoold --help'.\n", argv[optind]);
        return EXIT_USAGE;
    }
    if (line->keeper && line->private) {
        fprintf(stderr, "gpupoold: --keeper and --private: a private daemon ends with its program\n");
        return EXIT_USAGE;
    }
    return -1;
}

/* Defaults, file, command line. Used again at each reload. Returns 0, or a negative errno with mistakes. */
static int read_configuration(void *user, struct config *ret_config, struct config_mistakes *mistakes) {
    const struct command_line *line = user;
    struct config_place place = {.mistakes = mistakes, .line = CONFIG_COMMAND_LINE};
    struct config config;

    config_init(&config);
    if (line->private) /* its standard error is the program's */
        config.log_level = LOG_LEVEL_WARNING;
    if (has_file(line))
        config_read_file(&config, line->config_path, mistakes);
    for (unsigned i = 0; i < KEYED; i++) {
        place.option = keyed[i].option;
        if (line->values[i] != NULL)
            config_set(&config, "daemon", keyed[i].key, line->values[i], &place);
    }
    place.option = NULL;
    if (mistakes->count == 0 && strcmp(config.socket, config.admin_socket) == 0)
        config_mistake(&place, "socket and admin_socket are both %s: give each a path of its own",
                       config.socket);
    if (mistakes->count > 0) {
        config_deinit(&config);
        return -EINVAL;
    }
    config_move(ret_config, &config);
    return 0;
}

/* Looks for what a start would refuse or warn of, without opening sockets. Returns the exit status. */
static int check_configuration(const struct command_line *line, struct config *config) {
    const struct daemon_options options = {.config = config, .ready_fd = -1};
    unsigned n_warnings;

    log_set_level(LOG_LEVEL_WARNING);
    int r = daemon_check(&options, &n_warnings);
    config_deinit(config);
    if (r < 0)
        return EXIT_USAGE;
    printf("%s: no mistakes", has_file(line) ? line->config_path : "defaults");
    if (n_warnings > 0)
        printf(", %u warning%s", n_warnings, n_warnings == 1 ? "" : "s");
    printf("\n");
    return EXIT_SUCCESS;
}

/* Returns the exit status. */
static int answer_about_estate(const char *format) {
    char why[SUCCESSION_TEXT_SIZE];

    if (succession_reads(format, why))
        return EXIT_SUCCESS;
    fprintf(stderr, "gpupoold: %s\n", why);
    return EXIT_FAILURE;
}

static int keep(const struct command_line *line, char **argv) {
    const struct keeper_options options = {line->daemon_arguments, argv, line->ready_fd};
    return keeper_run(&options);
}

int main(int argc, char **argv) {
    char config_path[PATH_MAX];
    struct command_line line = {.config_path = config_place(config_path), .ready_fd = -1};
    struct config_mistakes mistakes = {0};
    struct config config;

    if (standard_streams_fill(O_RDWR) < 0) { /* nothing that is opened later may be among them */
        fprintf(stderr, "gpupoold: /dev/null: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    _cleanup_(freep) char **daemon_arguments = calloc((size_t)argc + 1, sizeof *argv);
    line.daemon_arguments = daemon_arguments;
    if (daemon_arguments == NULL) {
        fprintf(stderr, "gpupoold: no memory\n");
        return EXIT_FAILURE;
    }
    int status = parse_command_line(argc, argv, &line);
    if (status >= 0)
        return status;
    if (line.estate_format != NULL)
        return answer_about_estate(line.estate_format);
    if (line.keeper && !line.check_config && !line.print_config) /* the daemon reads the configuration */
        return keep(&line, argv);
    if (!line.check_config && !line.print_config)
        daemon_hold_signals(true);
    if (read_configuration(&line, &config, &mistakes) < 0) {
        config_mistakes_log(&mistakes);
        return EXIT_USAGE;
    }
    if (line.check_config)
        return check_configuration(&line, &config);
    if (line.print_config) {
        int r = config_print(&config, line.config_path, stdout);
        config_deinit(&config);
        return r == 0 && fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    log_set_level(config.log_level);
    struct daemon_options options = {
        .config = &config,
        .config_path = line.config_path,
        .reread = read_configuration,
        .reread_user = &line,
        .private = line.private,
        .ready_fd = line.ready_fd,
    };
    int r = daemon_run(&options);
    config_deinit(&config);
    return r < 0                  ? EXIT_FAILURE
           : r == DAEMON_RESTARTS ? KEEPER_RESTART_STATUS
           : r == DAEMON_ADOPTED  ? KEEPER_ADOPTED_STATUS
                                  : EXIT_SUCCESS;
}
