/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/ctl/data_socket.h"
#include "client/ctl/text.h"

static void add_path(struct address *address, size_t length, const char *directory, const char *name) {
    char *path = address->paths[address->n_paths];

    snprintf(path, ADDRESS_PATH_SIZE, "%.*s%s", (int)length, directory, name);
    if (address->n_paths == 0 || strcmp(path, address->paths[0]) != 0)
        address->n_paths++;
}

/* Where the daemon says that its admin socket is, and beside the data socket, by the same name. */
static void add_paths(struct address *address, const char *admin_path) {
    const char *admin_slash = strrchr(admin_path, '/'), *slash = strrchr(address->data_path, '/');

    if (admin_slash != NULL)
        add_path(address, 0, "", admin_path);
    add_path(address, slash != NULL ? (size_t)(slash + 1 - address->data_path) : 0, address->data_path,
             admin_slash != NULL ? admin_slash + 1 : strrchr(ADMIN_SOCKET_DEFAULT, '/') + 1);
}

/* Asks the data socket. */
static int find_daemon(struct address *address, uint64_t timeout_ns, int code) {
    static const uint8_t unknown[PROTO_IDENTITY_BYTES];
    char text[PROTO_TEXT_MAX + 1];
    struct proto_hello_reply reply;

    const struct data_question question = {
        .option = "GPUPOOL_SOCKET", .timeout_ns = timeout_ns, .has_admin_option = true};
    int r = data_greet(address->data_path, clock_deadline_ns(clock_now_ns(), timeout_ns), &reply, text);
    if (r != 0)
        return data_complain(code, address->data_path, &question, r, text);
    if (memcmp(reply.identity, unknown, sizeof unknown) == 0)
        return complain(code, "gpupoold at %s cannot tell its admin socket: name it with --admin-socket",
                        address->data_path);
    hex_write(reply.identity, sizeof reply.identity, address->identity);
    add_paths(address, reply.admin_path);
    return 0;
}

int address_find(struct address *address, const char *named, uint64_t timeout_ns, int code) {
    bool is_private;

    *address = (struct address){0};
    if (named == NULL || named[0] == '\0')
        named = getenv("GPUPOOL_ADMIN_SOCKET");
    if (named == NULL || named[0] == '\0') {
        address->data_path = data_path_of_environment(&is_private);
        if (address->data_path != NULL)
            return find_daemon(address, timeout_ns, code);
        if (is_private)
            return complain(code,
                            "GPUPOOL_SOCKET is private, and no program has handed its private daemon on to "
                            "this process: set GPUPOOL_SOCKET to the path that gpupool_socket_path() returns "
                            "in the program");
        named = ADMIN_SOCKET_DEFAULT;
    }
    add_path(address, 0, "", named);
    return 0;
}
