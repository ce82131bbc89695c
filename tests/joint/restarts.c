/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/joint/restarts.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/core/core.h"
#include "daemon/core/inherit.h"
#include "daemon/data/inheritance.h"
#include "daemon/data/kept_data.h"
#include "daemon/loop/die_here.h"
#include "tests/joint/world.h"
#include "tests/joint/wrapped.h"

#define MEMORY_BYTES (DESK_BYTES + 256 * ESTATE_CHUNK_BYTES)
#define IN_A_ROW     2u /* a session whose packet is there at three deaths ends (daemon/data/inheritance.c) */

struct desk joint_desk;

static struct estate_kind kinds[ESTATE_KINDS_MAX];
static char *memory; /* the desk's, then the estate's */
static size_t estate_bytes;
static struct estate estate;
static struct inheritance inheritance;
static jmp_buf death;
static bool is_mortal;   /* the daemon is at work, and dies */
static unsigned dies_in; /* at so many places from now on; 0: it does not */
static unsigned n_in_a_row;
static bool is_away;
static uint64_t died_ns;

/* --- deaths --- */

static bool has_come(void) {
    return is_mortal && dies_in > 0 && --dies_in == 0;
}

static _Noreturn void die(void) {
    is_mortal = false;
    longjmp(death, 1);
}

void die_here(void) {
    if (has_come())
        die();
}

static void before_store(void *argument, void *to, const void *from, size_t size_bytes) {
    (void)argument;
    if (!has_come())
        return;
    if (one_in(2))
        memcpy(to, from, size_bytes / 16 * 8);
    die();
}

static void draw_death(void) {
    if (world.daemon_dies == 0 || dies_in > 0 || world.is_calm || n_in_a_row >= IN_A_ROW)
        return;
    if (one_in(n_in_a_row > 0 ? 4 : world.daemon_dies))
        dies_in = 1 + (unsigned)random_below(one_in(2) ? 8 : 80);
}

static uint64_t draw_absence_ns(void) {
    return one_in(3) ? 0 : !world.daemon_sleeps ? random_below(50 * NS_PER_MS) : random_below(4 * NS_PER_S);
}

/* --- the estate --- */

static int grow(void *argument, size_t size_bytes) {
    (void)argument;
    must(size_bytes <= MEMORY_BYTES - DESK_BYTES, "the estate is larger than any daemon here needs");
    estate_bytes = size_bytes > estate_bytes ? size_bytes : estate_bytes;
    return 0;
}

static const struct estate_owner owner = {.grow = grow, .before_store = before_store};

void restarts_begin(void) {
    static const uint8_t identity[PROTO_IDENTITY_BYTES] = {1};

    memory = __real_mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(memory != MAP_FAILED, "an estate has memory");
    memcpy(kinds, kept_kinds, sizeof kept_kinds);
    kept_data_kinds(kinds);
    estate_bytes = ESTATE_CHUNK_BYTES;
    joint_daemon_make();
    must(estate_make(&estate, memory + DESK_BYTES, kinds, KEPT_DATA_KINDS - 1, &owner) == 0,
         "an estate can be made");
    desk_make(&joint_desk, memory, &estate, identity);
    must(core_keep(world.core, &estate) == 0, "a core keeps an estate");
    desk_end_step(&joint_desk);
    joint_daemon_ready();
}

void restarts_check(void) {
    static char text[80];
    unsigned kind;

    if (estate_is_valid(&estate, &kind))
        return;
    snprintf(text, sizeof text, "a record of kind %u agrees with what the daemon knows", kind);
    must(false, text);
}

/* --- successors --- */

static void note_what_was_in_hand(void) {
    uint8_t packet[PROTO_PACKET_MAX];
    const uint8_t *message;
    uint64_t session;
    unsigned n_deaths;

    world.tally->packets_again += desk_find_packet(&joint_desk, &session, &n_deaths, packet) > 0;
    world.tally->messages_again += desk_find_message(&joint_desk, &session, &message) > 0;
}

/* Reads what the one before has left. May die. */
static void begin_successor(void) {
    const char *reason = "";
    uint64_t away_ns = world.daemon_wakes_ns > died_ns ? world.daemon_wakes_ns - died_ns : 0;
    struct clients *clients = joint_daemon_make();
    const struct inherit_shell shell = {.take_segment = joint_take_segment,
                                        .take_session = inheritance_session,
                                        .argument = &inheritance,
                                        .away_ns = away_ns};

    must(estate_open(&estate, memory + DESK_BYTES, estate_bytes, kinds, KEPT_DATA_KINDS - 1, &owner,
                     &reason) == 0,
         reason);
    must(desk_open(&joint_desk, memory, &estate) == 0, "a desk is one");
    note_what_was_in_hand();
    must(inheritance_begin(&inheritance, clients) == 0, "clients are found");
    must(core_inherit(world.core, &estate, &shell, &reason) == 0, reason);
    must(inheritance_end(&inheritance) == 0, "clients are inherited");
    joint_store_settle();
    joint_drop_unknown_segments();
}

/* The daemon has died. */
static void succeed(void) {
    joint_daemon_bury();
    joint_store_pass_on();
    inheritance = (struct inheritance){0};
    estate = (struct estate){0};
    world.tally->deaths++;
    world.tally->deaths_in_a_row += n_in_a_row > 0;
    n_in_a_row++;
    world.has_died = true;
    died_ns = world.now_ns;
    uint64_t back_ns = world.now_ns + draw_absence_ns();
    if (back_ns > world.daemon_wakes_ns)
        world.daemon_wakes_ns = back_ns;
    dies_in = 0;
    draw_death();
    is_away = is_mortal = true;
    begin_successor();
    is_mortal = false;
}

static bool resume(void) {
    inheritance_resume(&inheritance);
    inheritance_free(&inheritance);
    joint_daemon_ready();
    is_away = false;
    n_in_a_row = 0;
    return true;
}

bool restarts_run(bool (*part)(void)) {
    draw_death();
    if (setjmp(death) != 0) { /* also if a successor dies while it reads */
        succeed();
        return true;
    }
    is_mortal = true;
    bool any = part();
    is_mortal = false;
    return any;
}

bool restarts_is_away(void) {
    return is_away;
}

bool restarts_come_back(void) {
    return restarts_run(resume);
}
