/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_DEATH_H
#define DAEMON_CORE_DEATH_H
/*
 * The rule by which a lost session's memory is safe to lend again. Pure: the shell finds out facts and asks
 * for a verdict after each new one; tests and simulations do the same.
 *
 * A closed socket does not mean that the GPU has stopped, and neither does the process's end (measured on
 * H200, driver 580: a killed process's kernel wrote on for 9 ms after the end of file; where a forked child
 * kept the driver's descriptors, for seconds after the pidfd had become readable). Three rules, and which of
 * them applies depends on what could be observed while the process lived:
 *
 * - DEATH_BY_END: no work on a GPU is possible. The machine has no driver, or the client said that it uses no
 *   GPU and was given no memory that needs one, or it had ended before it was given any memory. The process's
 * end is enough.
 *
 * - DEATH_BY_LISTING: the driver's list of processes (NVML's) had the process while it lived and had memory
 *   mapped. Then its absence after the process's end proves that nothing is left: the list kept the dead pid
 *   until after the last write in every case tried. Absence proves something only where presence was seen: a
 *   list that is asked in another PID namespace is empty and means nothing.
 *
 * - DEATH_BY_HOLDERS: everywhere else, and for clients of MPS, whose work another process does. Work goes on
 *   only while a process holds descriptors of the driver that came from the ended process. So: end of file,
 * the process's end, no process left that may hold such descriptors, and the list, where there is one, does
 * not have the process either. Where the holders cannot be found out, the memory stays until an operator
 * releases it.
 *
 * Never a timeout. Host memory follows the same rules: copies into it can be in flight.
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum death_rule {
    DEATH_BY_END,
    DEATH_BY_LISTING,
    DEATH_BY_HOLDERS,
};

/* The answer to the last question to the driver's list. Only questions that began after the process had ended
 * count. */
enum death_listing {
    LISTING_NOT_ASKED, /* or not answered yet */
    LISTING_PRESENT,
    LISTING_ABSENT,
    LISTING_UNKNOWN, /* no answer is possible: no NVML, or a pid that has no meaning here */
};

/* The result of the last look for holders of the driver's descriptors. Only looks that began after the
 * process had ended count. */
enum death_holders {
    HOLDERS_NOT_LOOKED,
    HOLDERS_NONE,
    HOLDERS_SOME,    /* one has a descriptor of the driver open */
    HOLDERS_HIDDEN,  /* one may not be looked into, and could be a child of the process */
    HOLDERS_UNKNOWN, /* /proc does not show the processes in question */
};

#define DEATH_PATH_SIZE 64u
#define DEATH_NAME_SIZE 16u /* of a process, as the kernel keeps it */

struct death_facts {
    bool no_gpu_work;  /* see DEATH_BY_END */
    bool seen;         /* listed, by an answer that came while it lived and had memory mapped */
    bool under_mps;    /* listed as a client of MPS */
    bool socket_over;  /* end of file: no process holds its end of the socket any more */
    bool process_over; /* its pidfd is readable */
    enum death_listing listing;
    enum death_holders holders;
    /* The process that the last look found, for the explanation; 0: none. The verdict does not need it: a
     * look can also be made to name the process that keeps the list or the socket from telling the end. */
    pid_t holder;
    char holder_name[DEATH_NAME_SIZE];
    char holder_path[DEATH_PATH_SIZE]; /* what it holds: "/dev/nvidia0". Empty: it may not be looked into */
};

enum death_verdict {
    DEATH_SAFE, /* the session's memory can be lent again */
    DEATH_AWAITS_PROCESS,
    DEATH_AWAITS_LISTING, /* the list is to be asked */
    DEATH_LISTED,         /* the list still has it: to be asked again */
    DEATH_AWAITS_SOCKET,
    DEATH_AWAITS_HOLDERS, /* holders are to be looked for */
    DEATH_HELD,           /* a process holds descriptors: to be looked for again */
    DEATH_HIDDEN,         /* a process may hold descriptors: to be looked for again */
    DEATH_UNKNOWABLE,     /* no fact will come: until an operator releases it */
};

/* Which rule applies. It can change while the process lives (it is seen; it is given device memory), and
 * afterwards only where a list stops answering. */
enum death_rule death_rule(const struct death_facts *facts);

enum death_verdict death_judge(const struct death_facts *facts);

/* "process-end", "listing", "descriptors". */
const char *death_rule_name(enum death_rule rule);

/* Why the memory is held, for an operator: "pid 123 is still listed by NVML; pid 124 (python3), which may be
 * a child of pid 123, holds /dev/nvidia0". list: what the list is called. Returns the text's length without
 * the NUL, as snprintf does. */
#define DEATH_TEXT_SIZE 256u
int death_explain(const struct death_facts *facts, pid_t pid, const char *list, char text[DEATH_TEXT_SIZE]);

#endif
