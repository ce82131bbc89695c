/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/run.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/ctl/data_socket.h"
#include "client/ctl/program.h"
#include "client/ctl/text.h"
#include "proto/proto.h"

#define LIBRARY "libgpupool-preload.so"
#define AUDIT   "libgpupool-audit.so"

#define REPORT_VARIABLE "GPUPOOL_REPORT" /* client/preload/report.h */

struct options {
    const char *socket;
    const char *library; /* NULL: it is looked for */
    const char *report;  /* NULL: none; "-": on standard error; else a file */
    const char *memory_info; /* NULL: as the environment says */
    bool force;
};

static const char help[] =
    "Usage: gpupoolctl run [OPTION...] [--] PROGRAM [ARGUMENT...]\n"
    "Runs a program that knows nothing of gpupool with memory of gpupoold: what it\n"
    "asks of the CUDA runtime (cudaMalloc, cudaMallocHost and their like) or of the\n"
    "driver (cuMemAlloc and its like) comes from the daemon's pools. The runtime may\n"
    "be a shared library or a part of the program.\n"
    "\n"
    "Options:\n"
    "      --socket=PATH     where the daemon lends, by default $GPUPOOL_SOCKET,\n"
    "                        else " DATA_SOCKET_DEFAULT "\n"
    "      --library=FILE    the preload library, by default the installed\n"
    "                        " LIBRARY "; " AUDIT "\n"
    "                        lies beside it\n"
    "      --report[=FILE]   at the end of each process that asked for memory, say\n"
    "                        what came from the pools and what did not, and why: on\n"
    "                        standard error, or at the end of a file\n"
    "      --memory-info=OF  cudaMemGetInfo() and its like tell the memory of the\n"
    "                        pool (the default), or that of the gpu\n"
    "      --force           run a program, too, that it cannot serve\n"
    "  -h, --help            print this and exit\n"
    "\n"
    "Exit status: the program's; 125 gpupoolctl failed, 126 the program cannot be\n"
    "executed, 127 there is no such program.\n";

void run_print_help(void) {
    fputs(help, stdout);
}

/* Returns -1 to go on with argv[optind], or the code to exit with. */
static int parse(int argc, char **argv, struct options *options) {
    static const struct option long_options[] = {
        {"socket", required_argument, NULL, 's'},
        {"library", required_argument, NULL, 'l'},
        {"report", optional_argument, NULL, 'r'},
        {"memory-info", required_argument, NULL, 'm'},
        {"force", no_argument, NULL, 'f'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static char name[] = "gpupoolctl run"; /* for what getopt says */
    int option;

    argv[0] = name;
    while ((option = getopt_long(argc, argv, "+h", long_options, NULL)) >= 0)
        switch (option) {
        case 's':
            options->socket = optarg;
            break;
        case 'l':
            options->library = optarg;
            break;
        case 'r':
            options->report = optarg != NULL ? optarg : "-";
            break;
        case 'm':
            if (strcmp(optarg, "pool") != 0 && strcmp(optarg, "gpu") != 0)
                return complain(RUN_FAILED, "--memory-info: \"%s\" is neither pool nor gpu", optarg);
            options->memory_info = optarg;
            break;
        case 'f':
            options->force = true;
            break;
        case 'h':
            run_print_help();
            return fflush(stdout) == 0 ? EXIT_SUCCESS : RUN_FAILED;
        default:
            fputs("Try 'gpupoolctl run --help'.\n", stderr);
            return RUN_FAILED;
        }
    if (optind == argc) {
        complain(RUN_FAILED, "run: no program given");
        fputs("Try 'gpupoolctl run --help'.\n", stderr);
        return RUN_FAILED;
    }
    return -1;
}

/* For the program. 0 or the code to exit with. */
static int set_variable(const char *variable, const char *value) {
    return setenv(variable, value, 1) < 0 ? complain(RUN_FAILED, "%s", strerror(errno)) : 0;
}

/* --- the library --- */

/* Where it may lie, from the directory of this program: beside an installation wherever it was moved, in the
 * build tree; then where it was to be installed. */
static const char *const places[] = {("../" GPUPOOL_LIBDIR), "../lib", "../preload"};

static int find_library(const char *named, char ret_path[static PATH_MAX]) {
    char self[PATH_MAX], path[2 * PATH_MAX];

    if (named != NULL) {
        if (realpath(named, ret_path) == NULL)
            return complain(RUN_FAILED, "--library: %s: %s", named, strerror(errno));
        return 0;
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = '\0';
        *strrchr(self, '/') = '\0';
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            snprintf(path, sizeof path, "%s/%s/%s", self, places[i], LIBRARY);
            if (realpath(path, ret_path) != NULL)
                return 0;
        }
    }
    if (realpath(GPUPOOL_FULL_LIBDIR "/" LIBRARY, ret_path) != NULL)
        return 0;
    return complain(RUN_FAILED, "%s is not in %s: install it, or name it with --library", LIBRARY,
                    GPUPOOL_FULL_LIBDIR);
}

/* Sets a variable of the dynamic linker to a library and what it names already, in one order or the other. */
static int add_library(const char *variable, const char *library, bool is_first) {
    const char *others = getenv(variable);
    _cleanup_(freep) char *list = NULL;
    int r;

    if (others == NULL || others[0] == '\0')
        r = asprintf(&list, "%s", library);
    else
        r = asprintf(&list, "%s:%s", is_first ? library : others, is_first ? others : library);
    if (r < 0) {
        list = NULL;
        return complain(RUN_FAILED, "out of memory");
    }
    return set_variable(variable, list);
}

/* In front of what is preloaded already, because the first definition of a name counts; behind what audits
 * already, because the last audit library decides a binding. */
static int preload(const char *library) {
    char audit[PATH_MAX + sizeof AUDIT];

    if (strpbrk(library, ": \t") != NULL)
        return complain(RUN_FAILED, "%s: the dynamic linker cannot preload a path with a colon or a blank",
                        library);
    snprintf(audit, sizeof audit, "%.*s/%s", (int)(strrchr(library, '/') - library), library, AUDIT);
    if (access(audit, R_OK) < 0)
        return complain(RUN_FAILED, "%s: %s: it belongs beside %s, as it is installed", audit,
                        strerror(errno), library);
    int r = add_library("LD_PRELOAD", library, true);
    return r == 0 ? add_library("LD_AUDIT", audit, false) : r;
}

/* --- the report --- */

/* Tells the libraries where the report goes. The program may change its directory, so the path is absolute. */
static int ask_for_report(const char *report) {
    char path[PATH_MAX];

    if (report == NULL) /* or a gpupoolctl run around this one asked for it */
        return 0;
    if (strcmp(report, "-") != 0) {
        if (report[0] == '\0')
            return complain(RUN_FAILED,
                            "--report: no file is named: --report=FILE, or --report for standard error");
        int file = open(report, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
        if (file < 0)
            return complain(RUN_FAILED, "--report: %s cannot be written: %s", report, strerror(errno));
        close(file);
        if (realpath(report, path) == NULL)
            return complain(RUN_FAILED, "--report: %s: %s", report, strerror(errno));
        report = path;
    }
    return set_variable(REPORT_VARIABLE, report);
}

/* --- frameworks --- */

/* JAX maps its memory itself (cuMemCreate), by each of its allocators but this one, which takes memory of the
 * device's default pool in stream order. It takes three quarters of the memory at its start unless told not
 * to. A program that names an allocator is left alone. */
static int choose_allocators(void) {
    static const char *const allocator = "XLA_PYTHON_CLIENT_ALLOCATOR";
    static const char *const preallocate = "XLA_PYTHON_CLIENT_PREALLOCATE";

    if (getenv(allocator) != NULL)
        return 0;
    int code = set_variable(allocator, "cuda_async");
    return code != 0 || getenv(preallocate) != NULL ? code : set_variable(preallocate, "false");
}

/* --- the daemon --- */

static int check_daemon(const struct options *options) {
    struct proto_hello_reply reply;
    char text[PROTO_TEXT_MAX + 1];
    const char *path = options->socket;

    if (strcmp(path, "private") == 0)
        return complain(RUN_FAILED,
                        "run: each process of the program would start a private daemon of its own: start one "
                        "gpupoold, and name its socket with --socket");
    const struct data_question question = {.option = "--socket", .timeout_ns = GREETING_NS};
    int r = data_greet(path, clock_deadline_ns(clock_now_ns(), GREETING_NS), &reply, text);
    if (r != 0)
        return data_complain(RUN_FAILED, path, &question, r, text);
    if (options->force)
        return 0;
    if (reply.gpu == PROTO_GPU_NONE)
        return complain(RUN_FAILED, "gpupoold at %s serves no GPU: it has nothing to lend to a CUDA program",
                        path);
    if (reply.gpu == PROTO_GPU_SIM)
        complain(0, "warning: gpupoold at %s simulates its GPU: no kernel can use its memory", path);
    return 0;
}

/* --- the program --- */

static int check_program(const char *name, const struct options *options) {
    char path[PATH_MAX];

    int r = program_find(name, path, sizeof path);
    if (r < 0)
        return complain(r == -ENOENT ? RUN_NOT_FOUND : RUN_CANNOT_EXECUTE, "%s: %s", name,
                        r == -ENOENT ? "there is no such program" : "it cannot be executed");
    if (options->force)
        return 0;
    switch (program_judge(path, sizeof path)) {
    case PROGRAM_SERVED:
        return 0;
    case PROGRAM_STATIC:
        return complain(
            RUN_FAILED,
            "%s is linked statically, so no library can be preloaded into it: link it dynamically, or use "
            "libgpupool-client in it. --force runs it without gpupool's memory",
            path);
    case PROGRAM_PRIVILEGED:
        return complain(
            RUN_FAILED,
            "%s is set-user-ID, set-group-ID or has capabilities, so the dynamic linker preloads "
            "nothing into "
            "it: run it from the account that it is for. --force runs it without gpupool's memory",
            path);
    }
    return 0;
}

int run_program(int argc, char **argv) {
    struct options options = {.socket = getenv("GPUPOOL_SOCKET")};
    char library[PATH_MAX];

    int code = parse(argc, argv, &options);
    if (code >= 0)
        return code;
    if (options.socket == NULL || options.socket[0] == '\0')
        options.socket = DATA_SOCKET_DEFAULT;
    const char *handed = getenv("GPUPOOL_PRIVATE_SOCKET"); /* by a program with a private daemon */
    if (strcmp(options.socket, "private") == 0 && handed != NULL && handed[0] != '\0')
        options.socket = handed;
    char **program = argv + optind;
    code = check_program(program[0], &options);
    if (code == 0)
        code = find_library(options.library, library);
    if (code == 0)
        code = check_daemon(&options);
    if (code == 0)
        code = preload(library);
    if (code == 0)
        code = ask_for_report(options.report);
    if (code == 0 && options.memory_info != NULL)
        code = set_variable("GPUPOOL_MEMORY_INFO", options.memory_info);
    if (code == 0)
        code = choose_allocators();
    if (code != 0)
        return code;
    char socket[PATH_MAX];
    /* The program may change its directory. A path that is too long to be made absolute did not connect. */
    code = set_variable("GPUPOOL_SOCKET", realpath(options.socket, socket) != NULL ? socket : options.socket);
    if (code != 0)
        return code;
    execvp(program[0], program);
    return complain(errno == ENOENT ? RUN_NOT_FOUND : RUN_CANNOT_EXECUTE, "%s: %s", program[0],
                    strerror(errno));
}
