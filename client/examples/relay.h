/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_RELAY_H
#define EXAMPLES_RELAY_H
/*
 * The example `relay`, in parts: relay.c is the program that people start, and starts the workers; the
 * workers are the same program again, executed with --worker, so that they are strangers to it as any two
 * programs on a machine are. They send each other the structs below, through pipes, and hand over memory of
 * the pools by its tokens.
 *
 * Functions return 0 or more on success, and -1 on failure, after a message on standard error.
 */
#include <gpupool/gpupool.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB             UINT64_C(1024)
#define MIB             (UINT64_C(1024) * KIB)
#define NS_PER_S        UINT64_C(1000000000)
#define CHUNK_BYTES     (4 * MIB)       /* what is read, copied and handed over at a time */
#define CHUNKS_UNDERWAY 4u              /* how many of them the loader has in hand */
#define ROOM_NS         (30 * NS_PER_S) /* how long an acquire may wait for the pool to grow */

/* Loader to writer: the device buffer named by the token holds this piece of this file. */
struct parcel {
    uint64_t number;
    uint64_t offset_bytes;
    uint64_t size_bytes;
    uint32_t file;
    uint32_t reserved;
    struct gpupool_token token;
};

/* Writer to loader: the number of a parcel whose contents have been taken. Loader and writer to relay, at the
 * end: */
struct work_report {
    uint64_t begin_ns, end_ns;
    uint64_t size_bytes;
    uint64_t parcels;
};

/* Holder to relay: what it holds. */
struct holdings {
    uint64_t device_bytes, host_bytes;
    struct gpupool_token device, host;
};

/* --- relay.c: what all of them use --- */

extern const char *relay_role; /* "relay", "relay loader" …: how messages begin */

/* Says what failed and the client library's own words on it. Returns -1. */
int fail_gpupool(const char *what);
/* Says what failed and why, by errno. Returns -1. */
int fail_system(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what is wrong. Returns -1. */
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t now_ns(void);
/* Writes or reads everything. read_whole returns 1, or 0 at the end of file before the first byte. */
int write_whole(int fd, const void *bytes, size_t size);
int read_whole(int fd, void *bytes, size_t size);

/* Starts this program again as a worker with the file descriptors, ended by -1, that it inherits. arguments,
 * ended by NULL, come after the role. Returns its pid. */
int spawn_worker(const char *role, const int *descriptors, char *const *arguments);
/* Waits for it; its failure is the caller's. */
int wait_for_worker(int pid, const char *role);

/* --- relay_workers.c --- */

/* The program as a worker: argv after "--worker". Returns the exit status. */
int worker_main(int argc, char **argv);

/* --- relay_files.c --- */

#define DIRECTORY_SIZE 4064u
#define COPY_PATH_SIZE (DIRECTORY_SIZE + 16u)

/* Where in the directory the copy of a file lies. Returns path. */
const char *copy_path(const char *directory, uint32_t file, char path[COPY_PATH_SIZE]);

struct file_list {
    char **paths;
    size_t count;
    uint64_t size_bytes;
};

/* Adds a regular file; paths are copied. */
int files_add(struct file_list *files, const char *path);
/* Chooses some tens of MiB: the largest files of a moderate size under /usr/bin and /usr/lib. */
int files_choose(struct file_list *files);
void files_deinit(struct file_list *files);
/* Compares each file with its copy, the file in the directory that has its number as name. */
int files_compare(const struct file_list *files, const char *directory);

/* --- relay_measure.c --- */

/* Measures acquire and release beside plain allocation, and prints the times. */
int measure_and_print(struct gpupool_client *client);
/* Times what mapping a segment costs: by fresh clients that attach what the holder holds. To be called before
 * the client that measures has mapped anything itself. */
int measure_first_maps(struct gpupool_client *client, const struct holdings *held);

#endif
