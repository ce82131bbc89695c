/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_NAMES_H
#define GPUPOOL_NAMES_H
/**
 * Names: buffers that other processes of the user find by a text. A process publishes up to 64 buffers as one
 * set, with a *directory*: up to 64 KiB that the library does not read, such as keys and places of tensors.
 * Other processes open the name, and have the same memory; nothing is copied. So a restarted worker has its
 * weights in milliseconds.
 *
 *     gpupool_publish("weights/llama") ──▶ generation 7 ──▶ gpupool_open_name("weights/llama")
 *
 * Each publication is a *generation*, a number above all before. Publishing a name again replaces what it
 * stands for: processes that have opened the former generation keep that until they close it, or change to
 * the new one at the addresses of the old (gpupool_wake_name()). A set is published whole or not at all.
 *
 * A publisher makes one of two promises:
 * - contents fixed: it does not write to the buffers any more. Readers have them mapped read-only where the
 *   pool can (device pools with export = vmm), as a guard against mistakes;
 * - contents live (GPUPOOL_NAME_LIVE): it goes on writing. Sizes and places stay. When a reader sees which
 *   value is a matter of the two programs.
 *
 * A name is gone when its publisher's client ends, unless it was published with GPUPOOL_NAME_KEEP. Then it
 * stays until it is unpublished or the daemon's state is given up; the operator limits and sees what is kept
 * ('kept' in gpupoold.conf(5), gpupoolctl names). If the publisher dies before the GPU work is done that
 * writes the buffers, the generation is withdrawn, also with KEEP: processes that have opened it learn of it
 * as gpupool_attach() says (LOST).
 *
 * Names are the user's, and the scope's where the daemon has scopes: other users neither see nor open them. A
 * restart of the daemon leaves names, their memory and their readers as they are; memory of pools with export
 * = ipc is an exception: its names end there.
 *
 * Calls are thread-safe; one opened name is used by one thread at a time. They return 0 or a negative
 * GPUPOOL_E_…, and need a daemon that knows names (else VERSION).
 */
#include <gpupool/gpupool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Of a set's buffers, and of a directory's bytes. */
#define GPUPOOL_NAME_BUFFERS_MAX   64u
#define GPUPOOL_NAME_DIRECTORY_MAX 65536u
/** Of a name's text, its NUL included. Printable UTF-8; '/' parts it for people. */
#define GPUPOOL_NAME_TEXT_SIZE 128u

/** Flags of gpupool_publish(). */
#define GPUPOOL_NAME_KEEP 1u /**< it stays when this client ends */
#define GPUPOOL_NAME_LIVE 2u /**< contents live; else they are fixed */
/** Only in the place of a generation with the same layout: sizes of the buffers, and directory. Else
 * INVALID. For new weights of a model whose readers have captured graphs. */
#define GPUPOOL_NAME_SAME_LAYOUT 4u

/** Flags of gpupool_open_name() and gpupool_open_or_build(). */
/** Map it for writing too. Only where the contents are live (else INVALID). */
#define GPUPOOL_NAME_WRITE 8u
/** The buffers have addresses of their own, at which the name can sleep, and another generation can take the place of
 * this one: see gpupool_sleep_name(). Only for a set whose buffers were all acquired with GPUPOOL_CAN_SLEEP (else
 * INVALID: other buffers share their segments with other memory). */
#define GPUPOOL_NAME_CAN_SLEEP 16u

/** More of a publication. Start from GPUPOOL_PUBLICATION_INIT. */
struct gpupool_publication {
    size_t struct_size;     /**< sizeof(struct gpupool_publication), set by the initialiser */
    uint32_t flags;         /**< GPUPOOL_NAME_… */
    uint32_t reserved;      /**< 0 */
    const void *directory;  /**< borrowed for the call; may be NULL where it has no bytes */
    size_t directory_bytes; /**< up to GPUPOOL_NAME_DIRECTORY_MAX */
};
#define GPUPOOL_PUBLICATION_INIT                                                                             \
    { sizeof(struct gpupool_publication), 0, 0, NULL, 0 }

/** A name that was opened. */
struct gpupool_name;

/**
 * Publishes buffers under a name. The buffers stay the caller's, who releases them as ever: the memory stays
 * with the name. Some exchanges with the daemon: one for each buffer that was not shared before, and two or
 * more.
 * @param name the text, NUL-terminated
 * @param buffers of this client, whole ones; of any pools. Each counts as a lease of the user
 * @param count 1 to GPUPOOL_NAME_BUFFERS_MAX
 * @param stream the stream that writes the contents: a process that opens the name waits, on the GPU, for
 * what was enqueued on it before this call. GPUPOOL_NO_STREAM: the contents are there already. For buffers of
 * several devices: have their work done, and say GPUPOOL_NO_STREAM
 * @param publication NULL: no flags, no directory
 * @param ret_generation may be NULL
 * @return 0; INVALID, STALE, LIMIT (names, leases or kept bytes of the user: the text says which), CAPTURING,
 * DRIVER, VERSION, DISCONNECTED, TIMED_OUT (then it may be published, or not), FORKED, NO_MEMORY, LOST
 */
GPUPOOL_API int gpupool_publish(struct gpupool_client *client, const char *name,
                                const struct gpupool_buffer *buffers, size_t count, void *stream,
                                const struct gpupool_publication *publication, uint64_t *ret_generation);

/**
 * Opens a name: takes a lease on each of its buffers, and maps them.
 * @param generation at least this one; 0: any
 * @param flags 0, or GPUPOOL_NAME_WRITE and GPUPOOL_NAME_CAN_SLEEP
 * @param stream the stream that reads: it waits, on the GPU, for the publisher's work. GPUPOOL_NO_STREAM: this
 * call waits for it
 * @param timeout_ns how long to wait until it is published; GPUPOOL_NOW, GPUPOOL_FOREVER
 * @param ret_name the caller's, until gpupool_close_name(); untouched on failure
 * @return 0; NO_NAME: it was not published in the time; INVALID; LIMIT; and as gpupool_attach()
 */
GPUPOOL_API int gpupool_open_name(struct gpupool_client *client, const char *name, uint64_t generation,
                                  uint32_t flags, void *stream, uint64_t timeout_ns,
                                  struct gpupool_name **ret_name);

/**
 * Opens a name, or has this process build it: of the processes that ask while nothing is published, one is
 * told to build, and the others wait. The builder makes the contents and calls gpupool_publish(), or gives up
 * (gpupool_abandon_name()). If its client ends before, the next one that waits is told to build.
 * @param ret_name NULL is stored where this process is to build; otherwise as gpupool_open_name()
 * @param ret_builds 1: this process is to build; 0: *ret_name is open
 * @return 0; NO_NAME: another process builds, and did not publish in the time; and as gpupool_open_name()
 */
GPUPOOL_API int gpupool_open_or_build(struct gpupool_client *client, const char *name, uint32_t flags,
                                      void *stream, uint64_t timeout_ns, struct gpupool_name **ret_name,
                                      int *ret_builds);

/** Gives up what this client was told to build. @return 0; NO_NAME: it was not; INVALID, VERSION, … */
GPUPOOL_API int gpupool_abandon_name(struct gpupool_client *client, const char *name);

/**
 * Releases the buffers of an opened name, and frees it. Accepts NULL.
 * @param stream the one that used them last, as in gpupool_release()
 * @return 0; or what gpupool_release() says: then the rest is open still, and the call may be made again.
 * Of a client that has closed nothing is released, and the object is freed: say so by client NULL
 */
GPUPOOL_API int gpupool_close_name(struct gpupool_client *client, struct gpupool_name *name,
                                   void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * @name Sleep
 * A reader lets the memory of a name go, and has it again at the same addresses, of the same generation or of a newer
 * one: pointers stay good, and so do captured CUDA graphs that use them.
 *
 *     gpupool_open_name(client, "weights", 0, GPUPOOL_NAME_CAN_SLEEP, stream, GPUPOOL_FOREVER, &name);
 *     ...                                                    capture graphs that read the buffers
 *     gpupool_sleep_name(client, name, stream);              the publisher may have the memory
 *     gpupool_wake_name(client, name, next, stream, GPUPOOL_FOREVER);   waits for its next generation
 *
 * Without a sleep between them, gpupool_wake_name() exchanges the generations: the pool has room for both then.
 * While a name sleeps, its addresses stay reserved, and no access to them is allowed: one by a kernel or a copy ends the
 * process's CUDA context. Its buffers are a single thing: gpupool_sleep() and gpupool_wake() are not for them.
 * @{
 */
/**
 * Puts a name to sleep: unmaps its buffers, and gives the leases back. Waits for the GPU work on them, at most as long as
 * the option alloc_timeout_ns says. The memory is the publisher's and the name's alone then, as far as this process goes.
 * A name that sleeps already stays as it is.
 * @param name opened with GPUPOOL_NAME_CAN_SLEEP
 * @param stream the one with the last work on the buffers; further ones were noted by gpupool_record_stream(), or are
 * ordered before. GPUPOOL_NO_STREAM: the GPU is done with them
 * @return 0; INVALID: opened without GPUPOOL_NAME_CAN_SLEEP, or one of its buffers sleeps by itself; TIMED_OUT: the work
 * is not done; CAPTURING, DRIVER, DISCONNECTED, NO_MEMORY, FORKED. After a failure the name is awake and as it was, but
 * where the text says that it sleeps: the driver does not map the memory any more, or a lease did not go back. Then
 * another call of this function gives back the rest, and gpupool_wake_name() wakes the name as ever
 */
GPUPOOL_API int gpupool_sleep_name(struct gpupool_client *client, struct gpupool_name *name,
                                   void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Has a name be awake, with a generation that is new enough. One that sleeps gets the present generation. One that is
 * awake with an older generation than is asked for gets the present one in the place of its own: it keeps that while
 * the call waits and prepares, then waits for the GPU work on it, at most as long as the option alloc_timeout_ns says. One
 * that is awake with a new enough generation stays as it is. The addresses and the directory stay, and so does all that
 * gpupool_name_buffers() returned, but for lease and generation of the buffers: copies of the structs are stale.
 *
 * The new generation has the layout of the old one: sizes of the buffers, and directory (publish it with
 * GPUPOOL_NAME_SAME_LAYOUT where the old one stands). Its buffers were acquired with GPUPOOL_CAN_SLEEP from the same
 * pools, or others of the same devices with segments of the same size.
 * @param generation at least this one; 0: any
 * @param stream the one with the last work on the buffers, which uses them next: it waits, on the GPU, for the
 * publisher's work. Further ones as in gpupool_sleep_name(). GPUPOOL_NO_STREAM: the GPU is done with them, and this call
 * waits for the publisher's work
 * @param timeout_ns how long to wait until the generation is published; GPUPOOL_NOW, GPUPOOL_FOREVER
 * @return 0; NO_NAME: it was not published in the time; INVALID: opened without GPUPOOL_NAME_CAN_SLEEP; the generation has
 * another layout, or its buffers do not fit into the places of the old ones, or its contents are fixed and the name was
 * opened with GPUPOOL_NAME_WRITE; LIMIT, CAPTURING, and as gpupool_attach(). After a failure the name is as it was:
 * asleep, or awake with its former generation. Where the driver maps neither generation, it sleeps, and the text says so
 */
GPUPOOL_API int gpupool_wake_name(struct gpupool_client *client, struct gpupool_name *name,
                                  uint64_t generation, void *stream, uint64_t timeout_ns);
/** @} */

/** The buffers, in the publisher's order, and how many. They are the name's: not to be released. */
GPUPOOL_API const struct gpupool_buffer *gpupool_name_buffers(const struct gpupool_name *name,
                                                              size_t *ret_count);

/** The directory, and its bytes; NULL where it has none. It lives with the name. */
GPUPOOL_API const void *gpupool_name_directory(const struct gpupool_name *name, size_t *ret_bytes);

/** The generation that was opened, or that the last gpupool_wake_name() brought. */
GPUPOOL_API uint64_t gpupool_name_generation(const struct gpupool_name *name);

/** A number that the library makes of the buffers' sizes and the directory (FNV-1a, 64 bits): equal for equal
 * layouts. No guard against anybody who wants them to look equal. */
GPUPOOL_API uint64_t gpupool_name_layout(const struct gpupool_name *name);

/** The flags that this generation was published with. */
GPUPOOL_API uint32_t gpupool_name_flags(const struct gpupool_name *name);

/**
 * Waits until a name stands for another generation.
 * @param generation the one that the caller knows; 0: it knows of none
 * @param ret_generation the present one; 0: nothing is published any more
 * @return 0; NO_NAME: nothing changed in the time; INVALID, LIMIT, …
 */
GPUPOOL_API int gpupool_watch_name(struct gpupool_client *client, const char *name, uint64_t generation,
                                   uint64_t timeout_ns, uint64_t *ret_generation);

/**
 * Has a name stand for nothing any more. The memory goes back to the pool when no process has it open. Any
 * process of the user may, and so may root and the daemon's user (gpupoolctl unpublish).
 * @param generation only if it stands for this one; 0: whichever it is
 * @return 0; NO_NAME; INVALID, …
 */
GPUPOOL_API int gpupool_unpublish(struct gpupool_client *client, const char *name, uint64_t generation);

/** A name of the user. */
struct gpupool_name_info {
    uint64_t generation; /**< 0: nothing is published yet: a process builds it, or waits for it */
    uint64_t bytes;      /**< of its buffers */
    uint64_t layout;     /**< gpupool_name_layout() */
    uint64_t session;    /**< that published or builds it, in the daemon's stats; 0: none */
    uint32_t flags;      /**< GPUPOOL_NAME_… */
    uint32_t buffers;
    char name[GPUPOOL_NAME_TEXT_SIZE];
};

/**
 * Lists the names of the user, the oldest first. One exchange for each 64 names; a name that comes or goes
 * meanwhile may be missing.
 * @param names room for capacity names; may be NULL when capacity is 0
 * @param ret_count how many there are, which may be more than capacity
 */
GPUPOOL_API int gpupool_names(struct gpupool_client *client, struct gpupool_name_info *names, size_t capacity,
                              size_t *ret_count);

#ifdef __cplusplus
}
#endif
#endif
