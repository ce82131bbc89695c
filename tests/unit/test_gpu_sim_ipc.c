/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the simulated GPU between processes: handles, the processes that may open them, the list of
 * processes that hold memory, the remains of a dead client, and attacks on the exporter.
 */
#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "gpu/sim/internal.h"
#include "gpu_sim_fixture.h"
#include "tests/ghost.h"

#define OTHER_UID 65534 /* a user without rights */

static unsigned fds_at_rest; /* of this process, which has exported, without a connected peer */

static int start_exporter(void **state) {
    int r = sim_setup(state);
    void *memory = r == 0 ? allocate(2 * MIB) : NULL;

    if (memory == NULL)
        return r;
    export(memory);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    fds_at_rest = open_fds();
    return 0;
}

/* The exporter notices in its own time that a peer has ended: the next test is not to meet one. */
static int await_rest(void **state) {
    (void)state;
    WAIT_UNTIL(open_fds() == fds_at_rest);
    return 0;
}

#define AT_REST(test) cmocka_unit_test_setup(test, await_rest)

static void memory_is_shared_by_handle(void **state) {
    char *memory = allocate(4 * MIB);
    struct gpu_ipc_handle handle = export(memory), interior = export(memory + 3 * MIB);
    struct peer peer = start_peer();
    uint64_t slot;

    (void)state;
    /* An interior pointer names its allocation. */
    assert_memory_equal(&handle, &interior, sizeof(handle));
    write_word(memory + 8, 11);
    assert_int_equal(peer_open(&peer, &handle), 0);
    slot = peer_value(&peer);
    assert_int_equal(peer_ask(&peer, "get %u 8", (unsigned)slot), 0);
    assert_int_equal(peer_value(&peer), 11);
    assert_int_equal(peer_ask(&peer, "put %u %u 12", (unsigned)slot, (unsigned)(4 * MIB - 8)), 0);
    assert_int_equal(read_word(memory + 4 * MIB - 8), 12);
    /* The importer's bounds are the exporter's. */
    assert_int_equal(peer_ask(&peer, "put %u %u 12", (unsigned)slot, (unsigned)(4 * MIB - 7)),
                     GPU_ERROR_INVALID_VALUE);
    assert_int_equal(peer_ask(&peer, "close %u", (unsigned)slot), 0);
    assert_int_equal(peer_ask(&peer, "get %u 8", (unsigned)slot), GPU_ERROR_INVALID_VALUE);
    peer_end(&peer, 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void opening_again_gives_the_same_pointer_and_counts(void **state) {
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = start_peer();

    (void)state;
    assert_int_equal(peer_open(&peer, &handle), 0);
    assert_int_equal(peer_open(&peer, &handle), 0);
    assert_int_equal(peer_ask(&peer, "same 0 1"), 0);
    assert_int_equal(peer_ask(&peer, "close 0"), 0);
    assert_int_equal(peer_ask(&peer, "get 1 0"), 0);
    assert_true(is_listed(peer.pid));
    assert_int_equal(peer_ask(&peer, "close 1"), 0);
    assert_int_equal(peer_ask(&peer, "close 1"), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(peer_ask(&peer, "get 1 0"), GPU_ERROR_INVALID_VALUE);
    peer_end(&peer, 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void the_exporter_cannot_open_its_own(void **state) {
    void *memory = allocate(2 * MIB), *untouched = shared;
    struct gpu_ipc_handle handle = export(memory);

    (void)state;
    assert_int_equal(gpu->ipc_open(0, &handle, &untouched), GPU_ERROR_INVALID_CONTEXT);
    assert_ptr_equal(untouched, shared);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void only_own_device_memory_is_exported(void **state) {
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory), untouched = {{0}};
    struct peer peer = start_peer();

    (void)state;
    assert_int_equal(peer_open(&peer, &handle), 0);
    assert_int_equal(peer_ask(&peer, "export 0"), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(peer_ask(&peer, "free 0"), GPU_ERROR_INVALID_VALUE);
    peer_end(&peer, 0);
    assert_int_equal(gpu->ipc_export(0, shared, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->ipc_export(0, NULL, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->ipc_export(1, memory, &untouched), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->ipc_close(0, memory), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(gpu->ipc_export(0, memory, &untouched), GPU_ERROR_INVALID_VALUE);
}

static void a_handle_is_good_under_any_uid(void **state) {
    (void)state;
    if (geteuid() != 0)
        skip();
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = start_peer();
    write_word(memory, 13);
    assert_int_equal(peer_ask(&peer, "setuid %u", OTHER_UID), 0);
    assert_int_equal(peer_open(&peer, &handle), 0);
    assert_int_equal(peer_ask(&peer, "get 0 0"), 0);
    assert_int_equal(peer_value(&peer), 13);
    assert_true(is_listed(peer.pid));
    peer_end(&peer, SIGKILL);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void what_is_not_a_handle_is_refused(void **state) {
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = start_peer(), exporter = start_peer();

    (void)state;
    /* Every byte matters, whichever error it is that says so. */
    for (unsigned i = 0; i < GPU_IPC_HANDLE_BYTES; i++) {
        struct gpu_ipc_handle forged = handle;

        forged.bytes[i] ^= 0x10;
        assert_int_not_equal(peer_open(&peer, &forged), 0);
    }
    ((struct sim_handle *)(void *)&handle)->secret[SIM_SECRET_BYTES - 1] ^= 1;
    assert_int_equal(peer_open(&peer, &handle), GPU_ERROR_INVALID_VALUE);
    ((struct sim_handle *)(void *)&handle)->secret[SIM_SECRET_BYTES - 1] ^= 1;
    memset(&handle, 0, sizeof(handle));
    assert_int_equal(peer_open(&peer, &handle), GPU_ERROR_INVALID_VALUE);
    /* Freed. */
    handle = export(memory);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(peer_open(&peer, &handle), GPU_ERROR_MAP_BUFFER_OBJECT_FAILED);
    assert_false(is_listed(peer.pid));
    /* The exporter is dead. */
    assert_int_equal(peer_ask(&exporter, "allocate %u", 2u << 20), 0);
    assert_int_equal(peer_ask(&exporter, "export 0"), 0);
    assert_int_equal(peer_handle_parse(exporter.text, &handle), 0);
    peer_end(&exporter, SIGKILL);
    assert_int_equal(peer_open(&peer, &handle), GPU_ERROR_MAP_BUFFER_OBJECT_FAILED);
    peer_end(&peer, 0);
}

static void a_mapping_outlives_its_exporter(void **state) {
    struct peer exporter = start_peer();
    struct gpu_ipc_handle freed, left;
    void *of_freed, *of_left;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(peer_ask(&exporter, "allocate %u", 2u << 20), 0);
        assert_int_equal(peer_ask(&exporter, "put %u 0 %u", i, 20 + i), 0);
        assert_int_equal(peer_ask(&exporter, "export %u", i), 0);
        assert_int_equal(peer_handle_parse(exporter.text, i == 0 ? &freed : &left), 0);
    }
    assert_int_equal(gpu->ipc_open(0, &freed, &of_freed), 0);
    assert_int_equal(gpu->ipc_open(0, &left, &of_left), 0);
    assert_int_equal(peer_ask(&exporter, "free 0"), 0);
    assert_int_equal(read_word(of_freed), 20);
    peer_end(&exporter, SIGKILL);
    assert_int_equal(read_word(of_freed), 20);
    assert_int_equal(read_word(of_left), 21);
    write_word(of_left, 22);
    assert_int_equal(read_word(of_left), 22);
    assert_int_equal(gpu->ipc_close(0, of_freed), 0);
    assert_int_equal(gpu->ipc_close(0, of_left), 0);
}

static void those_who_have_memory_mapped_are_listed(void **state) {
    void *memory = allocate(2 * MIB), *second = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory), second_handle = export(second);
    struct peer one = start_peer(), two = start_peer();
    size_t count = 0;
    pid_t only;

    (void)state;
    assert_true(is_listed(getpid()));
    assert_false(is_listed(one.pid));
    assert_int_equal(peer_open(&one, &handle), 0);
    assert_int_equal(peer_open(&one, &second_handle), 0);
    assert_int_equal(peer_open(&two, &handle), 0);
    assert_true(is_listed(one.pid));
    assert_true(is_listed(two.pid));
    /* The count is the whole one, whatever fits; another device's list is another. */
    assert_int_equal(gpu->processes(0, &only, 1, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(gpu->processes(0, NULL, 0, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(gpu->processes(1, NULL, 0, &count), 0);
    assert_true(count <= 1);
    assert_int_equal(gpu->processes(SIM_DEVICES, NULL, 0, &count), GPU_ERROR_INVALID_DEVICE);
    /* Until the last one is closed, or the process is dead. */
    assert_int_equal(peer_ask(&one, "close 0"), 0);
    assert_true(is_listed(one.pid));
    assert_int_equal(peer_ask(&one, "close 1"), 0);
    WAIT_UNTIL(!is_listed(one.pid));
    peer_end(&two, SIGKILL);
    WAIT_UNTIL(!is_listed(two.pid));
    /* A peer that closed everything may come again. */
    assert_int_equal(peer_open(&one, &handle), 0);
    assert_true(is_listed(one.pid));
    peer_end(&one, 0);
    WAIT_UNTIL(!is_listed(one.pid));
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(gpu->memory_free(0, second), 0);
}

static void words_order_streams_of_two_processes(void **state) {
    struct peer peer = start_peer();
    void *stream;

    (void)state;
    memset(shared, 0, 4096);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(peer_ask(&peer, "register"), 0);
    assert_int_equal(peer_ask(&peer, "stream"), 0);
    /* Ours waits for theirs, which waits for ours. */
    assert_int_equal(peer_ask(&peer, "wait64 0 1"), 0);
    assert_int_equal(peer_ask(&peer, "write64 1 5"), 0);
    assert_int_equal(peer_ask(&peer, "query"), GPU_ERROR_NOT_READY);
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[1], 5), 0);
    assert_int_equal(gpu->stream_write64(0, stream, &shared[2], 6), 0);
    assert_int_equal(gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    assert_int_equal(gpu->stream_write64(0, NULL, &shared[0], 1), 0);
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    assert_int_equal(shared[2], 6);
    assert_int_equal(peer_ask(&peer, "sync"), 0);
    peer_end(&peer, 0);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
}

/* --- ghosts --- */

/* A client that dies by a signal with the memory mapped, and its ghost, which goes on until it is killed. */
static struct peer lingering_peer(const struct gpu_ipc_handle *handle, char *keep, pid_t *ret_ghost) {
    struct peer peer =
        peer_start(GPU_PEER, "sim", -1, (char *[]){"GPUPOOL_SIM_LINGER_MS=" GHOST_LINGERS, keep, NULL});

    assert_int_equal(peer_open(&peer, handle), 0);
    WAIT_UNTIL((*ret_ghost = find_ghost(peer.pid)) > 0);
    return peer;
}

/* Kills a peer and waits until it is gone, but leaves its socket open here. */
static void kill_peer(struct peer *peer) {
    kill(peer->pid, SIGKILL);
    TEST_REAP(peer->pid, NULL);
}

static bool socket_is_at_end(int fd) {
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void a_dead_client_writes_on_and_stays_listed(void **state) {
    uint64_t *memory = allocate(2 * MIB), *closed = allocate(2 * MIB), last;
    struct gpu_ipc_handle handle = export(memory), closed_handle = export(closed);
    pid_t ghost;
    struct peer peer = lingering_peer(&handle, NULL, &ghost);

    (void)state;
    assert_int_equal(peer_open(&peer, &closed_handle), 0);
    assert_int_equal(peer_ask(&peer, "close 1"), 0);
    write_word(memory, 0);
    write_word(closed, 0);
    kill_peer(&peer);
    /* Its socket ends with it; its work does not. */
    WAIT_UNTIL(socket_is_at_end(peer.fd));
    assert_true(is_listed(peer.pid));
    WAIT_UNTIL(__atomic_load_n(memory, __ATOMIC_ACQUIRE) > 3);
    assert_true(is_listed(peer.pid));
    kill(ghost, SIGKILL);
    WAIT_UNTIL(!is_listed(peer.pid));
    last = read_word(memory);
    assert_true(last > 3);
    /* After that nothing is written, and what it had closed never was. */
    assert_false(is_listed(peer.pid));
    assert_int_equal(read_word(memory), last);
    assert_int_equal(read_word(closed), 0);
    close(peer.fd);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(gpu->memory_free(0, closed), 0);
}

static void a_dead_clients_work_ends_by_itself(void **state) {
    uint64_t *memory = allocate(2 * MIB), last;
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = peer_start(GPU_PEER, "sim", -1, (char *[]){"GPUPOOL_SIM_LINGER_MS=20", NULL});

    (void)state;
    assert_int_equal(peer_open(&peer, &handle), 0);
    kill_peer(&peer);
    WAIT_UNTIL(!is_listed(peer.pid));
    last = read_word(memory);
    WAIT_UNTIL(socket_is_at_end(peer.fd));
    assert_false(is_listed(peer.pid));
    assert_int_equal(read_word(memory), last);
    close(peer.fd);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void a_dead_client_that_closed_everything_is_gone(void **state) {
    uint64_t *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    pid_t ghost;
    struct peer peer = lingering_peer(&handle, NULL, &ghost);

    (void)state;
    write_word(memory, 0);
    assert_int_equal(peer_ask(&peer, "close 0"), 0);
    WAIT_UNTIL(!is_listed(peer.pid));
    kill_peer(&peer);
    WAIT_UNTIL(socket_is_at_end(peer.fd));
    assert_false(is_listed(peer.pid));
    assert_int_equal(read_word(memory), 0);
    close(peer.fd);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void a_forked_childs_descriptors_outlive_the_client(void **state) {
    uint64_t *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    pid_t ghost;
    struct peer peer = lingering_peer(&handle, "GPUPOOL_SIM_LINGER_KEEP_FDS=1", &ghost);

    (void)state;
    write_word(memory, 0);
    kill_peer(&peer);
    WAIT_UNTIL(__atomic_load_n(memory, __ATOMIC_ACQUIRE) >= 1);
    /* The ghost is still at it, and still holds the socket. */
    assert_false(socket_is_at_end(peer.fd));
    assert_true(is_listed(peer.pid));
    kill(ghost, SIGKILL);
    WAIT_UNTIL(!is_listed(peer.pid));
    WAIT_UNTIL(socket_is_at_end(peer.fd));
    close(peer.fd);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

/* --- hostile processes --- */

/* A connection to this process's own exporter, as any process can make it that has once seen a handle. */
static int connect_to(const struct gpu_ipc_handle *handle) {
    struct sim_handle parts;
    struct sockaddr_un address;
    socklen_t length;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    memcpy(&parts, handle, sizeof(parts));
    length = sim_handle_address(&parts, &address);
    if (connect(fd, (struct sockaddr *)&address, length) < 0)
        fd = close_fd(fd);
    return fd;
}

static void the_exporter_survives_hostile_packets(void **state) {
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = start_peer();
    unsigned before = open_fds();
    uint8_t packet[4096];
    unsigned seed = 1;

    (void)state;
    for (unsigned round = 0; round < 300; round++) {
        size_t length = round < 130 ? round : (unsigned)rand_r(&seed) % sizeof(packet);
        int fd = connect_to(&handle);
        struct sim_answer answer;

        assert_true(fd >= 0);
        for (size_t i = 0; i < sizeof(packet); i++)
            packet[i] = (uint8_t)rand_r(&seed);
        /* Now and then most of it is right. */
        if (round % 3 == 0)
            memcpy(packet, &handle, (unsigned)rand_r(&seed) % sizeof(handle));
        send(fd, packet, length, MSG_NOSIGNAL);
        if (length != 0 && length != sizeof(handle))
            WAIT_UNTIL(recv(fd, &answer, sizeof(answer), 0) == 0); /* thrown out */
        close(fd);
    }
    /* One that asks and never reads is thrown out too, when its answers fill its queue. */
    {
        int fd = connect_to(&handle);
        ssize_t sent;

        WAIT_UNTIL((sent = send(fd, &handle, sizeof(handle), MSG_NOSIGNAL)) < 0 && errno == EPIPE);
        close(fd);
    }
    assert_int_equal(peer_open(&peer, &handle), 0);
    assert_true(is_listed(peer.pid));
    peer_end(&peer, 0);
    WAIT_UNTIL(open_fds() == before - 1); /* the peer's socket here */
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

static void silent_connections_are_bounded(void **state) {
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = start_peer();
    unsigned before = open_fds(), alive = 0;
    int fds[200];

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        fds[i] = connect_to(&handle);
        assert_true(fds[i] >= 0);
    }
    assert_int_equal(peer_open(&peer, &handle), 0);
    /* The exporter keeps few of those that say nothing, the newest. */
    WAIT_UNTIL(socket_is_at_end(fds[0]));
    for (unsigned i = 0; i < 200; i++)
        alive += !socket_is_at_end(fds[i]);
    assert_true(alive <= 64);
    assert_true(is_listed(peer.pid));
    assert_false(socket_is_at_end(fds[199]));
    for (unsigned i = 0; i < 200; i++)
        close(fds[i]);
    WAIT_UNTIL(open_fds() <= before + 1); /* the peer's connection */
    peer_end(&peer, 0);
    WAIT_UNTIL(open_fds() == before - 1);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

#define FILLERS_MAX 512

/* Takes all descriptors that this process may have. Returns how many that were. */
static unsigned fill_descriptors(int *fillers) {
    unsigned count = 0;

    while (count < FILLERS_MAX && (fillers[count] = dup(shared_fd)) >= 0)
        count++;
    assert_int_equal(errno, EMFILE);
    return count;
}

/* A forked child's copies keep the exporter's sockets open, and in its epoll set, when the exporter has
 * closed them. */
static void the_exporter_forgets_a_peer_that_a_child_keeps_open(void **state) {
    void *memory = allocate(2 * MIB);
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = start_peer();
    int fds[64], hold[2];
    unsigned before = open_fds();
    pid_t child;

    (void)state;
    for (unsigned i = 0; i < 64; i++)
        fds[i] = connect_to(&handle);
    WAIT_UNTIL(open_fds() == before + 2 * 64);
    assert_int_equal(pipe(hold), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char byte;

        close(hold[1]);
        _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1); /* until the test closes its end */
    }
    close(hold[0]);
    /* Each is ended for what it sends first, and goes on sending. */
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(send(fds[i], "x", 1, MSG_NOSIGNAL), 1);
    WAIT_UNTIL(open_fds() == before + 1 + 64);
    for (unsigned i = 0; i < 64; i++) {
        send(fds[i], "x", 1, MSG_NOSIGNAL);
        close(fds[i]);
    }
    assert_int_equal(peer_open(&peer, &handle), 0);
    assert_int_equal(peer_ask(&peer, "close 0"), 0);
    close(hold[1]);
    TEST_REAP(child, NULL);
    WAIT_UNTIL(open_fds() == before);
    peer_end(&peer, 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
}

/* The descriptors when the exporter's thread has finished what it had begun: the same number three times. */
static unsigned settled_fds(void) {
    unsigned fds = open_fds();

    for (unsigned same = 0; same < 3;) {
        test_pause();
        unsigned now = open_fds();
        same = now == fds ? same + 1 : 0;
        fds = now;
    }
    return fds;
}

static void the_exporter_survives_descriptor_exhaustion(void **state) {
    void *memory = allocate(2 * MIB), *second = NULL;
    struct gpu_ipc_handle handle = export(memory);
    struct peer peer = start_peer();
    struct rlimit before, low;
    struct sim_handle parts;
    struct sockaddr_un address;
    int fillers[FILLERS_MAX], fresh[8], late;
    unsigned count, fds;
    socklen_t length;

    (void)state;
    memcpy(&parts, &handle, sizeof(parts));
    length = sim_handle_address(&parts, &address);
    late = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(late >= 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);

    /* With no descriptor left, a peer is refused, and not left waiting. */
    fds = settled_fds();
    count = fill_descriptors(fillers);
    assert_int_equal(gpu->memory_allocate(0, 2 * MIB, &second), GPU_ERROR_MEMORY_ALLOCATION);
    assert_null(second);
    assert_int_equal(connect(late, (struct sockaddr *)&address, length), 0);
    WAIT_UNTIL(socket_is_at_end(late));
    assert_int_equal(peer_open(&peer, &handle), GPU_ERROR_MAP_BUFFER_OBJECT_FAILED);
    while (count > 0)
        close(fillers[--count]);
    WAIT_UNTIL(open_fds() == fds); /* the exporter has its spare one back */

    /* Peers that have said nothing make room for new ones. */
    for (unsigned i = 0; i < 8; i++)
        fresh[i] = connect_to(&handle);
    WAIT_UNTIL(open_fds() == fds + 16); /* both ends */
    count = fill_descriptors(fillers);
    /* At the first try, except under valgrind, whose accept() drops the connection that it has no descriptor
     * for. */
    WAIT_UNTIL(peer_open(&peer, &handle) == 0);
    assert_true(socket_is_at_end(fresh[0]));
    assert_false(socket_is_at_end(fresh[7]));
    while (count > 0)
        close(fillers[--count]);

    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(gpu->memory_allocate(0, 2 * MIB, &second), 0);
    for (unsigned i = 0; i < 8; i++)
        close(fresh[i]);
    close(late);
    peer_end(&peer, 0);
    assert_int_equal(gpu->memory_free(0, memory), 0);
    assert_int_equal(gpu->memory_free(0, second), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        AT_REST(memory_is_shared_by_handle),
        AT_REST(opening_again_gives_the_same_pointer_and_counts),
        AT_REST(the_exporter_cannot_open_its_own),
        AT_REST(only_own_device_memory_is_exported),
        AT_REST(a_handle_is_good_under_any_uid),
        AT_REST(what_is_not_a_handle_is_refused),
        AT_REST(a_mapping_outlives_its_exporter),
        AT_REST(those_who_have_memory_mapped_are_listed),
        AT_REST(words_order_streams_of_two_processes),
        AT_REST(a_dead_client_writes_on_and_stays_listed),
        AT_REST(a_dead_clients_work_ends_by_itself),
        AT_REST(a_dead_client_that_closed_everything_is_gone),
        AT_REST(a_forked_childs_descriptors_outlive_the_client),
        AT_REST(the_exporter_survives_hostile_packets),
        AT_REST(silent_connections_are_bounded),
        AT_REST(the_exporter_forgets_a_peer_that_a_child_keeps_open),
        AT_REST(the_exporter_survives_descriptor_exhaustion),
    };

    return cmocka_run_group_tests_name("gpu_sim_ipc", tests, start_exporter, sim_teardown);
}
