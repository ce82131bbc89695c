/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_COMMAND_LINE_H
#define CLIENT_CTL_COMMAND_LINE_H
/*
 * gpupoolctl's command line: the tables of its commands and options, by which the command line is read and
 * help is printed. "run" has options of its own (run.h).
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/ctl/address.h"
#include "client/ctl/export.h"
#include "client/ctl/records.h"
#include "client/ctl/scope.h"
#include "client/ctl/table.h"

enum exit_code {
    EXIT_REFUSED = 1, /* the daemon refused, or the answer could not be written */
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
};

struct options;

struct command {
    const char *name;
    void (*view)(struct output *output, const struct cJSON *reply); /* NULL: there is none */
    const char *summary;
    const char *text; /* of its own help; NULL where the daemon is not asked */
    int (*run)(const struct options *options); /* NULL: the daemon is asked the command's name */
    bool is_metrics;  /* prints metrics of several replies, and has no view */
    bool is_of_records;                 /* run() reads the flight recorder's file, and needs no daemon */
    /* Reads the words that follow it. Returns -1 to go on, or the code to exit with. */
    int (*read_words)(int count, char **words, struct options *options);
    const char *words; /* these, for its help; NULL: none follow */
    const char *since; /* of such a command: from when on it shows, where the options do not say */
};

#define ALL_SENDERS UINT64_MAX

enum color_when {
    COLOR_AUTO,
    COLOR_ALWAYS,
    COLOR_NEVER,
};

struct options {
    const struct command *command;
    const char *admin_socket; /* NULL: not named */
    struct address address;   /* which command_line_read() leaves alone */
    uint64_t timeout_ns;
    uint64_t pool;    /* 0: all */
    uint64_t release; /* a session in quarantine; 0: none */
    uint64_t session; /* of which leases are shown, or that is to end; 0: all, none */
    const char *name; /* to be unpublished; NULL: none */
    uint64_t revoke;  /* the session whose parcels are to end, ALL_SENDERS, or 0: none */
    const char *records; /* the flight recorder's file; NULL: not named */
    struct records_filter filter;
    struct scope_options scope;
    bool drop;          /* the estate */
    bool off;           /* the drain */
    const char *daemon; /* the program that an upgrade starts; NULL: not named */
    enum export_format export_format;
    bool follow;
    uint64_t interval_ns;
    bool once, batch;
    bool yes;
    bool json;
    enum color_when color;
};

/* Reads the command line. Options that are not given keep their values. Returns -1 to go on with
 * options->command, which asks the daemon, or the code to exit with: help was printed, or a mistake was told.
 */
int command_line_read(int argc, char **argv, struct options *options);

/* Flushes the output. Returns code, or EXIT_REFUSED after a complaint: a full disk must not look like
 * success. */
int finish_output(int code);

#endif
