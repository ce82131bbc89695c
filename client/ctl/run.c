/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/run.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/program.h"
#include "client/ctl/text.h"
#include "client/session/socket.h"
#include "proto/proto.h"

#define LIBRARY        "libgpupool-preload.so"
#define SOCKET_DEFAULT "/run/gpupool/gpupool.sock"

/* A service that its socket starts needs a moment for its GPUs. */
#define GREETING_NS (10 * NS_PER_S)

struct options {
    const char *socket;
    const char *library; /* NULL: it is looked for */
    bool force;
};

static const char help[] =
    "Usage: gpupoolctl run [OPTION...] [--] PROGRAM [ARGUMENT...]\n"
    "Runs a program that knows nothing of gpupool with memory of gpupoold: what it asks of the CUDA\n"
    "runtime (cudaMalloc, cudaMallocHost and their like) comes from the daemon's pools. The program has\n"
    "to use the shared runtime, libcudart.so.12 or libcudart.so.13, as PyTorch does.\n"
    "\n"
    "Options:\n"
    "      --socket=PATH     where the daemon lends, by default $GPUPOOL_SOCKET,\n"
    "                        else " SOCKET_DEFAULT "\n"
    "      --library=FILE    the preload library, by default the installed " LIBRARY "\n"
    "      --force           run a program, too, that it cannot serve\n"
    "  -h, --help            print this and exit\n"
    "\n"
    "Exit status: the program's; 125 gpupoolctl failed, 126 the program cannot be executed, 127 there is\n"
    "no such program.\n";

void run_print_help(void) {
    fputs(help, stdout);
}

/* Returns -1 to go on with argv[optind], or the code to exit with. */
static int parse(int argc, char **argv, struct options *options) {
    static const struct option long_options[] = {
        {"socket", required_argument, NULL, 's'},
        {"library", required_argument, NULL, 'l'},
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

/* In front of what is preloaded already. */
static int preload(const char *library) {
    const char *others = getenv("LD_PRELOAD");
    _cleanup_(freep) char *list = NULL;

    if (strpbrk(library, ": \t") != NULL)
        return complain(RUN_FAILED, "%s: the dynamic linker cannot preload a path with a colon or a blank",
                        library);
    if (asprintf(&list, "%s%s%s", library, others != NULL && others[0] != '\0' ? ":" : "",
                 others != NULL ? others : "") < 0) {
        list = NULL;
        return complain(RUN_FAILED, "out of memory");
    }
    return setenv("LD_PRELOAD", list, 1) < 0 ? complain(RUN_FAILED, "%s", strerror(errno)) : 0;
}

/* --- the daemon --- */

static int read_reply(int fd, uint64_t deadline_ns, char *packet, struct proto_message *ret_reply) {
    int fds[SOCKET_FDS_MAX];
    unsigned count = 0;
    bool has_lost; /* descriptors, which are not looked at */
    const char *reason;
    size_t size = 0;

    int r = socket_receive(fd, packet, PROTO_PACKET_MAX, deadline_ns, &size, fds, &count, &has_lost, false);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < count; i++)
        close_fd(fds[i]);
    if (size == 0)
        return -ECONNRESET;
    return proto_decode(PROTO_FROM_DAEMON, packet, size, ret_reply, &reason);
}

/* Greets the daemon as a client would: does a daemon answer at the data socket, may this user borrow, and
 * what GPU does it serve? The session ends with the call. Returns 0; a positive PROTO_E_… with the daemon's
 * text in *ret_text (PROTO_TEXT_MAX + 1 bytes); -EBADMSG where what answers is not gpupoold; -ECONNRESET
 * where it hung up; -ETIMEDOUT, -ENAMETOOLONG or what connect(2) said. */
static int greet(const char *path, uint64_t deadline_ns, enum proto_gpu_kind *ret_gpu, char *ret_text) {
    struct proto_message message = {.header = {.operation = PROTO_HELLO, .request = 1}};
    _cleanup_(close_fdp) int fd = -1;
    char packet[PROTO_PACKET_MAX];

    message.hello = (struct proto_hello){.magic = PROTO_MAGIC,
                                         .version_min = PROTO_VERSION_MIN,
                                         .version_max = PROTO_VERSION_MAX,
                                         .flags = PROTO_HELLO_NO_GPU};
    int r = socket_connect(path, SOCK_SEQPACKET, deadline_ns, &fd);
    if (r == 0)
        r = socket_send(fd, packet, proto_encode(&message, packet), deadline_ns);
    if (r == 0)
        r = read_reply(fd, deadline_ns, packet, &message);
    if (r < 0)
        return r == -EPIPE ? -ECONNRESET : r;
    if (message.header.operation == PROTO_ERROR) {
        memcpy(ret_text, message.failure.text, sizeof message.failure.text);
        return (int)message.failure.error;
    }
    if (message.header.operation != PROTO_HELLO_REPLY)
        return -EBADMSG;
    *ret_gpu = (enum proto_gpu_kind)message.hello_reply.gpu;
    message = (struct proto_message){.header = {.operation = PROTO_BYE, .request = 2}};
    (void)socket_send(fd, packet, proto_encode(&message, packet), deadline_ns);
    return 0;
}

static int check_daemon(const struct options *options) {
    char text[PROTO_TEXT_MAX + 1];
    enum proto_gpu_kind gpu = PROTO_GPU_NONE;
    const char *path = options->socket;

    if (strcmp(path, "private") == 0)
        return complain(RUN_FAILED,
                        "run: each process of the program would start a private daemon of its own: start one "
                        "gpupoold, and name its socket with --socket");
    int r = greet(path, clock_deadline_ns(clock_now_ns(), GREETING_NS), &gpu, text);
    switch (r) {
    case 0:
        break;
    case -ENOENT:
    case -ECONNREFUSED:
        return complain(
            RUN_FAILED,
            "no gpupoold answers at %s: start it (systemctl start gpupoold), or name its socket with "
            "--socket",
            path);
    case -EACCES:
    case -EPERM:
        return complain(RUN_FAILED,
                        "this user may not connect to %s: ask its owner for access (the group gpupool)",
                        path);
    case -EPROTOTYPE:
        return complain(
            RUN_FAILED,
            "%s is not the socket that gpupoold lends by (the admin socket, perhaps): name that with "
            "--socket",
            path);
    case -ETIMEDOUT:
        return complain(RUN_FAILED, "gpupoold at %s did not answer within %s: look at its log", path,
                        NS_TEXT(GREETING_NS));
    case -EBADMSG:
    case -EMSGSIZE:
        return complain(RUN_FAILED, "what answers at %s does not speak gpupoold's protocol: check the path",
                        path);
    default:
        if (r > 0)
            return complain(RUN_FAILED, "gpupoold at %s refused: %s", path, text);
        return complain(RUN_FAILED, "cannot talk to gpupoold at %s: %s", path, strerror(-r));
    }
    if (options->force)
        return 0;
    if (gpu == PROTO_GPU_NONE)
        return complain(RUN_FAILED, "gpupoold at %s serves no GPU: it has nothing to lend to a CUDA program",
                        path);
    if (gpu == PROTO_GPU_SIM)
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
    case PROGRAM_STATIC_CUDA:
        return complain(
            RUN_FAILED,
            "%s contains the CUDA runtime (it was linked statically, nvcc's default), so its calls cannot be "
            "redirected: link it with nvcc --cudart shared, or use libgpupool-client in it. --force runs it "
            "without gpupool's memory",
            path);
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
        options.socket = SOCKET_DEFAULT;
    char **program = argv + optind;
    code = check_program(program[0], &options);
    if (code == 0)
        code = find_library(options.library, library);
    if (code == 0)
        code = check_daemon(&options);
    if (code == 0)
        code = preload(library);
    if (code != 0)
        return code;
    char socket[PATH_MAX];
    /* The program may change its directory. A path that is too long to be made absolute did not connect. */
    if (setenv("GPUPOOL_SOCKET", realpath(options.socket, socket) != NULL ? socket : options.socket, 1) < 0)
        return complain(RUN_FAILED, "%s", strerror(errno));
    execvp(program[0], program);
    return complain(errno == ENOENT ? RUN_NOT_FOUND : RUN_CANNOT_EXECUTE, "%s: %s", program[0],
                    strerror(errno));
}
