/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpupool-exporter: serves the daemon's metrics to Prometheus over HTTP, and nothing else. Each GET of
 * /metrics asks the daemon anew. It changes nothing, and the daemon need not run when it starts. One thread
 * of libmicrohttpd serves one request after another.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/ctl/address.h"
#include "client/ctl/json.h"
#include "client/ctl/metrics.h"
#include "client/ctl/question.h"
#include "client/ctl/text.h"

#define LISTEN_DEFAULT "127.0.0.1:9837"

/* Of each of two questions: Prometheus gives up after 10 s by default. */
#define ANSWER_NS (3 * NS_PER_S)

/* Prometheus needs one. */
#define CONNECTIONS_MAX   16u
#define CONNECTION_IDLE_S 30u

#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"
#define TYPE_TEXT    "text/plain; charset=utf-8"

static struct address address; /* of the daemon; fixed after the start */

/* Prints the metrics into a text of malloc(). Returns 0 or a negative errno. */
static int collect(char **ret_text, size_t *ret_size) {
    _cleanup_(reply_freep) struct reply *stats = NULL, *quotas = NULL, *scopes = NULL;

    int r = question_ask(&address, ANSWER_NS, "stats", &stats);
    if (r == 0)
        r = question_ask(&address, ANSWER_NS, "quota", &quotas);
    if (r == 0)
        r = question_ask(&address, ANSWER_NS, "scopes", &scopes);
    if (r < 0)
        return r;
    if (stats->error_code != NULL || quotas->error_code != NULL)
        return -EACCES;
    FILE *stream = open_memstream(ret_text, ret_size);
    if (stream == NULL)
        return -ENOMEM;
    metrics_print(stream, stats->root, quotas->root, scopes->error_code == NULL ? scopes->root : NULL);
    return fclose(stream) == 0 ? 0 : -ENOMEM;
}

/* text: of malloc(), which the response takes, or a constant. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              char *text, size_t size, enum MHD_ResponseMemoryMode mode) {
    struct MHD_Response *response = MHD_create_response_from_buffer(size, text, mode);

    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result say(struct MHD_Connection *connection, unsigned status, const char *text) {
    return answer(connection, status, TYPE_TEXT, (char *)text, strlen(text), MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result serve(void *user, struct MHD_Connection *connection, const char *url,
                             const char *method, const char *version, const char *upload, size_t *upload_size,
                             void **state) {
    static int seen;
    size_t size = 0;
    char *text = NULL, failure[256];
    (void)user;
    (void)version;
    (void)upload;

    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET /metrics is all that there is\n");
    if (*state == NULL) { /* the header alone has come */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_size > 0) {
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(url, "/metrics") != 0)
        return say(connection, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics\n");
    int r = collect(&text, &size);
    if (r == 0)
        return answer(connection, MHD_HTTP_OK, TYPE_METRICS, text, size, MHD_RESPMEM_MUST_FREE);
    free(text);
    snprintf(failure, sizeof failure, "gpupoold at %.160s does not answer: %s\n", address.paths[0],
             strerror(-r));
    return say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, failure);
}

/* Reads "ADDRESS:PORT", "[ADDRESS]:PORT" or ":PORT". Returns what freeaddrinfo() frees, or NULL after a
 * complaint. */
static struct addrinfo *find_listen(const char *listen) {
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(listen, ':');
    struct addrinfo *found = NULL;
    char host[64] = "";

    if (colon != NULL && listen[0] == '[' && colon > listen + 1 && colon[-1] == ']')
        snprintf(host, sizeof host, "%.*s", (int)(colon - listen - 2), listen + 1);
    else if (colon != NULL)
        snprintf(host, sizeof host, "%.*s", (int)(colon - listen), listen);
    if (colon == NULL || getaddrinfo(host[0] != '\0' ? host : NULL, colon + 1, &hints, &found) != 0) {
        complain(EXIT_FAILURE,
                 "--listen: '%s' is no address and port, such as " LISTEN_DEFAULT " or [::]:9837", listen);
        return NULL;
    }
    return found;
}

static void print_help(void) {
    puts("Usage: gpupool-exporter [OPTION...]\n"
         "Serves gpupoold's metrics to Prometheus at /metrics, by HTTP.\n"
         "\n"
         "      --listen=ADDRESS:PORT  where to listen, by default " LISTEN_DEFAULT "\n"
         "      --admin-socket=PATH    of the daemon, by default " ADMIN_SOCKET_DEFAULT "\n"
         "  -h, --help                 print this, and exit\n"
         "      --version              print the version, and exit");
}

/* Returns -1 to go on, or the code to exit with. */
static int read_options(int argc, char **argv, const char **ret_listen) {
    static const struct option long_options[] = {{"listen", required_argument, NULL, 'l'},
                                                 {"admin-socket", required_argument, NULL, 'a'},
                                                 {"help", no_argument, NULL, 'h'},
                                                 {"version", no_argument, NULL, 'v'},
                                                 {0}};
    const char *socket = getenv("GPUPOOL_ADMIN_SOCKET");
    int option;

    *ret_listen = LISTEN_DEFAULT;
    while ((option = getopt_long(argc, argv, "h", long_options, NULL)) >= 0)
        switch (option) {
        case 'l':
            *ret_listen = optarg;
            break;
        case 'a':
            socket = optarg;
            break;
        case 'h':
            print_help();
            return EXIT_SUCCESS;
        case 'v':
            puts("gpupool-exporter " GPUPOOL_VERSION);
            return EXIT_SUCCESS;
        default:
            return complain(2, "Try 'gpupool-exporter --help'.");
        }
    if (optind < argc)
        return complain(2, "'%s' is no option. Try 'gpupool-exporter --help'.", argv[optind]);
    snprintf(address.paths[0], sizeof address.paths[0], "%s",
             socket != NULL && socket[0] != '\0' ? socket : ADMIN_SOCKET_DEFAULT);
    address.n_paths = 1;
    return -1;
}

int main(int argc, char **argv) {
    const char *listen;
    sigset_t ends;
    int number;

    int code = read_options(argc, argv, &listen);
    if (code >= 0)
        return code;
    struct addrinfo *place = find_listen(listen);
    if (place == NULL)
        return 2;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* for the thread of the library, too */
    signal(SIGPIPE, SIG_IGN);
    unsigned flags =
        MHD_USE_INTERNAL_POLLING_THREAD | (place->ai_family == AF_INET6 ? MHD_USE_DUAL_STACK : 0);
    struct MHD_Daemon *server = MHD_start_daemon(
        flags, 0, NULL, NULL, serve, NULL, MHD_OPTION_SOCK_ADDR, place->ai_addr, MHD_OPTION_CONNECTION_LIMIT,
        CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_IDLE_S, MHD_OPTION_END);
    int error = errno;
    freeaddrinfo(place);
    if (server == NULL)
        return complain(EXIT_FAILURE, "cannot listen at %s: %s", listen, strerror(error));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server, MHD_DAEMON_INFO_BIND_PORT);
    fprintf(stderr, "serving /metrics of gpupoold at %s on port %u\n", address.paths[0],
            info != NULL ? (unsigned)info->port : 0);
    sigwait(&ends, &number);
    MHD_stop_daemon(server);
    return EXIT_SUCCESS;
}
