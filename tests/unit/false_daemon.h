/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FALSE_DAEMON_H
#define TESTS_FALSE_DAEMON_H
/*
 * A daemon for tests of the client library: a thread that speaks proto.h from the other side, in the test's
 * process. By itself it behaves: two host pools, one device pool, segments that are described once a session
 * with at most one unconfirmed descriptor, leases it counts. A test's `handle` function sees every request
 * first and may answer it, or not, in any way it likes.
 *
 * The device segment is memory of another process (the exporter, forked before anything else), because a
 * simulated GPU like a real one refuses to open a handle in the process that made it.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/packet.h"
#include "base/units.h"
#include "gpu/gpu.h"
#include "proto/proto.h"

#define FALSE_POOL_HOST    1u
#define FALSE_POOL_DEVICE  2u
#define FALSE_POOL_HOST_B  3u /* of a NUMA node that no test machine has */
#define FALSE_NODE_B       77
#define FALSE_SEGMENT_SIZE (4 * MIB)
#define FALSE_SESSIONS_MAX 8u
#define FALSE_LEASES_MAX   256u
#define FALSE_BACKLOG_MAX  256u

struct exporter {
    pid_t pid;
    int hold; /* its end closes when this process ends, and it ends then */
    struct gpu_uuid uuid;
    struct gpu_ipc_handle handle;
};

/* Forks the process that owns the device memory. Must come before any thread and any use of the simulated
 * GPU. */
void exporter_start(struct exporter *exporter);
void exporter_stop(struct exporter *exporter);

struct false_lease {
    uint64_t id; /* 0: free entry */
    uint32_t pool;
    uint64_t offset, size;
};

struct false_session {
    int fd; /* -1: free entry */
    bool described[4];
    bool has_page, has_board;
    int alive_fd;         /* the write end of the pipe that tells of the daemon's end; 0: none */
    uint64_t unconfirmed; /* segment whose OPENED has not come */
    struct false_lease leases[FALSE_LEASES_MAX];
    unsigned backlog_count;
    struct proto_message *backlog; /* requests that wait for OPENED */
};

struct false_daemon {
    char directory[64];
    char path[96];
    int listener, stop_fd;
    pthread_t thread;
    bool running;
    const struct exporter *exporter;
    enum proto_gpu_kind gpu;
    int host_segments[4]; /* memfds, by pool */
    /* Returns true when it dealt with the request. Runs on the daemon's thread, unlocked. */
    bool (*handle)(struct false_daemon *daemon, struct false_session *session,
                   const struct proto_message *request);
    void *user;
    uint16_t version; /* of the wire */
    bool shows_alive; /* handle sees ASK_ALIVE, which is answered and not counted else */
    struct false_session sessions[FALSE_SESSIONS_MAX];
    uint64_t last_lease;
    struct proto_message decoded;

    pthread_mutex_t
        lock; /* below; counters may be read without it. Each changes before the client is answered */
    pthread_cond_t changed;
    _Atomic unsigned session_count, ended, leases, acquires, releases, opened, pages, byes, messages;
    bool is_stopped;
    bool has_token;
    uint64_t large_bytes;      /* at least so much is granted, to be divided */
    struct proto_lease shared; /* without description */
    _Atomic unsigned n_reclaimed;
    struct proto_reclaimed reclaimed; /* the last one */
};

/* handle and user may be set until false_daemon_run. Failures fail the test. */
void false_daemon_init(struct false_daemon *daemon, const struct exporter *exporter);
void false_daemon_run(struct false_daemon *daemon);
/* As after a crash: every connection ends without a word. */
void false_daemon_stop(struct false_daemon *daemon);
void false_daemon_deinit(struct false_daemon *daemon);

/* Waits, with a bound, until a counter of the daemon has a value. Fails the test otherwise. */
void false_daemon_await(struct false_daemon *daemon, const _Atomic unsigned *counter, unsigned value);

/* Answers a request as the daemon does by itself. */
void false_daemon_serve(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request);

/* Sends a message with any number of descriptors, or bytes that are no message. */
void false_send(struct false_session *session, const struct proto_message *message, const int *fds,
                unsigned count);
void false_send_bytes(struct false_session *session, const void *bytes, size_t size, const int *fds,
                      unsigned count);
void false_send_ok(struct false_session *session, uint64_t request);
void false_send_error(struct false_session *session, uint64_t request, enum proto_error error,
                      const char *text);

/* For a test that lies: called with each message that false_send() sends, and may change what goes out. Set
 * while no daemon runs; NULL: as it is. */
#define FALSE_FDS_MAX PACKET_FDS_MAX
struct false_packet {
    uint8_t bytes[PROTO_PACKET_MAX];
    size_t size;
    int fds[FALSE_FDS_MAX]; /* borrowed */
    unsigned n_fds;
};
extern void (*_Atomic false_alter)(const struct proto_message *message, struct false_packet *packet);

/* How many copies false_send() sends of each message behind the first one, as daemons do one after the other that end
 * while they send it. Set while no daemon runs; $GPUPOOL_TEST_COPIES is the number until then. */
extern unsigned false_copies;

/* A PAGE, with a memfd of some size, sealed or not. */
void false_send_page(struct false_session *session, uint64_t request, uint64_t size, bool sealed);

/* Both are thread-safe. ALIVE, with a pipe of which the session has the write end. The write end is closed, as if the daemon had ended. */
void false_send_alive(struct false_session *session, uint64_t request);
void false_end_alive(struct false_session *session);

/* A LEASE in the segment of a pool, without or with its description. */
struct proto_message false_lease_message(struct false_daemon *daemon, uint64_t request, uint32_t pool,
                                         uint64_t size, bool described);

/* A memfd of some size, sealed or not. */
int make_memfd(uint64_t size, bool sealed);
int open_fds(void);

#endif
