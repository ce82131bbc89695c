/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_PUPPET_H
#define TESTS_INTEGRATION_PUPPET_H
/*
 * A puppet: a client process of the integration tests. The test program executes itself again, so that the
 * library sees a fresh process; the puppet carries out commands that come over a socket pair, one answer
 * each, and calls nothing but the public library. So a test reads as a script, and what acts in it are real
 * processes.
 *
 * A puppet has up to PUPPET_CLIENTS clients and a numbered set of buffers. It ends with puppet_quit()
 * (farewell, exit status 0, which a sanitizer's report would change) or puppet_kill().
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/include/gpupool/gpupool.h"
#include "tests/integration/harness.h"

#define PUPPET_CLIENTS 4u
#define PUPPET_BUFFERS 256u
#define PUPPET_TEXT    1536u
#define PUPPET_POOLS   24u

enum puppet_verb {
    PUPPET_OPEN = 1,  /* text: socket ("": the environment's); flags: of the open call */
    PUPPET_CLOSE,     /* the client; its buffers are forgotten */
    PUPPET_POOL_LIST, /* → pools, number */
    PUPPET_ACQUIRE,   /* pool, or kind and device; size, timeout_ns, flags → buffer */
    PUPPET_RELEASE,   /* slot */
    PUPPET_SHRINK,    /* slot, size → buffer */
    PUPPET_SHARE,     /* slot → token */
    PUPPET_ATTACH,    /* slot, token → buffer */
    PUPPET_QUERY,     /* slot → info */
    PUPPET_COPY,      /* slot → other slot: the struct, as a caller could copy it */
    PUPPET_FILL,      /* slot, seed: writes seed's pattern into all of the buffer */
    PUPPET_CHECK,     /* slot, seed → 0, or 1 when it is not there. Seed 0: zeros */
    PUPPET_ROUNDS,    /* number rounds of acquire, fill, check and release of pool or kind; → number done */
    PUPPET_ROUNDS_ON, /* the same until PUPPET_STOP comes; one answer, after that */
    PUPPET_STOP,      /* ends PUPPET_ROUNDS_ON */
    PUPPET_FORK_TRY,  /* a forked child tries every call; → number: how many were not refused with FORKED */
    PUPPET_FORK_HOLD, /* a forked child keeps all descriptors until it is killed; → number: its pid */
    PUPPET_CUT,      /* shuts the socket of the daemon down behind the library's back; the process lives on */
    PUPPET_GPU_KIND, /* → number */
    PUPPET_SOCKET_PATH, /* → text */
    PUPPET_SLEEP,       /* slot, flags: enum gpupool_keep */
    PUPPET_WAKE,        /* slot, timeout_ns, flags → buffer */
    PUPPET_PAIR,   /* device, size, flags: a pair that grows to size in three steps, is copied and cleared */
    PUPPET_STREAM, /* makes a stream and uses it for all that follows */
    PUPPET_QUIT,
};

struct puppet_command {
    uint32_t verb, client, slot, other;
    uint32_t pool, kind;
    int32_t device;
    uint32_t flags;
    uint64_t size, timeout_ns, seed, number;
    struct gpupool_token token;
    char text[256];
};

struct puppet_answer {
    int32_t result; /* the library's, or a verb's own */
    uint32_t reserved;
    uint64_t number;
    struct gpupool_buffer buffer; /* in the command's slot */
    struct gpupool_buffer_info info;
    struct gpupool_token token;
    struct gpupool_pool pools[PUPPET_POOLS];
    char text[PUPPET_TEXT]; /* the library's error text where result is not 0 */
};

struct puppet {
    pid_t pid;
    int fd;
    unsigned client; /* that commands made by the functions below use */
    struct puppet_answer answer;
};

/* A further part that this program can play: run gets the socket's end and the role's argument. */
struct puppet_role {
    const char *name;
    int (*run)(int fd, const char *argument);
};

/* To be called first in main(): plays the part when this process is a puppet, and returns its exit status; -1
 * in the test itself. roles end with a NULL name; may be NULL. */
int puppet_main(int argc, char **argv, const struct puppet_role *roles);

/* Starts one that knows the daemon's socket (NULL: of no daemon). environment as for test_spawn(). uid 0: as
 * is. */
void puppet_start_as(struct puppet *puppet, const struct test_daemon *daemon, const char *const *environment,
                     uid_t uid);
void puppet_start(struct puppet *puppet, const struct test_daemon *daemon);
/* Starts and opens its first client; fails the test when that fails. */
void puppet_connect(struct puppet *puppet, const struct test_daemon *daemon);
void puppet_connect_as(struct puppet *puppet, const struct test_daemon *daemon,
                       const char *const *environment, uid_t uid);
/* Starts a process that plays a role. */
void puppet_start_role(struct puppet *puppet, const struct test_daemon *daemon, const char *role,
                       const char *argument);
void puppet_start_role_as(struct puppet *puppet, const struct test_daemon *daemon,
                          const char *const *environment, const char *role, const char *argument);
/* A farewell. */
void puppet_quit(struct puppet *puppet);
void puppet_kill(struct puppet *puppet);

/* Sends a command; the answer is for puppet_receive(), which returns its result and keeps it in
 * puppet->answer. */
void puppet_send(struct puppet *puppet, const struct puppet_command *command);
int puppet_receive(struct puppet *puppet);
bool puppet_has_answered(const struct puppet *puppet);
int puppet_call(struct puppet *puppet, const struct puppet_command *command);

/* The usual commands. kind: GPUPOOL_POOL_DEVICE (device 0) or _HOST. All return the result. */
int puppet_open(struct puppet *puppet, const char *socket);
int puppet_acquire(struct puppet *puppet, unsigned slot, unsigned kind, uint64_t size, uint64_t timeout_ns,
                   unsigned flags);
void puppet_send_acquire(struct puppet *puppet, unsigned slot, unsigned kind, uint64_t size,
                         uint64_t timeout_ns);
int puppet_release(struct puppet *puppet, unsigned slot);
int puppet_share(struct puppet *puppet, unsigned slot, struct gpupool_token *ret_token);
int puppet_attach(struct puppet *puppet, unsigned slot, const struct gpupool_token *token);
int puppet_fill(struct puppet *puppet, unsigned slot, uint64_t seed);
int puppet_check(struct puppet *puppet, unsigned slot, uint64_t seed);
int puppet_query(struct puppet *puppet, unsigned slot);
int puppet_sleep(struct puppet *puppet, unsigned slot, enum gpupool_keep keep);
int puppet_wake(struct puppet *puppet, unsigned slot, uint64_t timeout_ns);
int puppet_do(struct puppet *puppet, enum puppet_verb verb, unsigned slot);

/* The kinds of pools that the daemon under test has; writes 1 or 2 of them and returns how many. */
unsigned puppet_kinds(unsigned kinds[static 2]);
const char *puppet_kind_name(unsigned kind);
void for_each_kind(void (*test)(unsigned kind));

/* Asserts a result and shows the puppet's error text otherwise. */
#define PUPPET_MUST(puppet, call) PUPPET_MUST_BE(puppet, call, 0)
#define PUPPET_MUST_BE(puppet, call, wanted)                                                                 \
    do {                                                                                                     \
        int result_ = (call);                                                                                \
        if (result_ != (wanted))                                                                             \
            fail_msg("%s: %s, not %s: %s", #call, gpupool_error_name(result_), gpupool_error_name(wanted),   \
                     result_ != 0 ? (puppet)->answer.text : "");                                             \
    } while (0)
/* The puppet's last error text has a part. */
#define PUPPET_SAID(puppet, part)                                                                            \
    do {                                                                                                     \
        if (strstr((puppet)->answer.text, (part)) == NULL)                                                   \
            fail_msg("the text has no '%s': %s", (part), (puppet)->answer.text);                             \
    } while (0)

/* Contents, for roles: fills memory with a seed's pattern; tells whether it is there (seed 0: zeros). */
int puppet_write_pattern(struct gpupool_client *client, const struct gpupool_buffer *buffer, uint64_t seed,
                         void *stream);
int puppet_read_pattern(struct gpupool_client *client, const struct gpupool_buffer *buffer, uint64_t seed,
                        void *stream);
/* A small generator (splitmix64): the same numbers from the same seed on every machine. */
uint64_t test_random(uint64_t *state);

#endif
