/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/command_line.h"
#include "client/ctl/moment.h"
#include "client/ctl/record_names.h"
#include "client/ctl/records.h"
#include "client/ctl/text.h"
#include "client/ctl/user.h"

void history_add(struct proto_hour *sum, const struct proto_hour *hour) {
    if (sum->hour == 0 || hour->leased_peak_bytes > sum->leased_peak_bytes) {
        sum->leased_peak_bytes = hour->leased_peak_bytes;
        sum->leased_peak_ns = hour->leased_peak_ns;
        sum->user = hour->user;
        sum->scope = hour->scope;
        sum->user_bytes = hour->user_bytes;
        sum->process_pid = hour->process_pid;
        sum->process_bytes = hour->process_bytes;
        memcpy(sum->process_name, hour->process_name, sizeof sum->process_name);
    }
    sum->hour = sum->hour == 0 ? hour->hour : sum->hour;
    if (hour->reserved_peak_bytes > sum->reserved_peak_bytes)
        sum->reserved_peak_bytes = hour->reserved_peak_bytes;
    if (hour->quarantined_peak_bytes > sum->quarantined_peak_bytes)
        sum->quarantined_peak_bytes = hour->quarantined_peak_bytes;
    if (hour->wait_longest_ns > sum->wait_longest_ns)
        sum->wait_longest_ns = hour->wait_longest_ns;
    sum->wait_sum_ns += hour->wait_sum_ns;
    sum->n_waits += hour->n_waits;
    sum->n_refused += hour->n_refused;
    sum->n_timeouts += hour->n_timeouts;
    sum->n_quota += hour->n_quota;
    sum->n_grow_fails += hour->n_grow_fails;
    sum->n_deaths += hour->n_deaths;
}

static void print_row(const struct record_names *names, const char *when, unsigned pool,
                      const struct proto_hour *hour) {
    char user[96] = "-", process[64] = "-", name[PROTO_RECORD_NAME_SIZE], scope[RECORD_SCOPE_SIZE];

    snprintf(name, sizeof name, "%.*s", (int)sizeof hour->process_name, hour->process_name);
    char *printable = text_printable(name, NULL);
    if (hour->user_bytes > 0)
        snprintf(user, sizeof user, "%.30s%s%s: %s", user_text(hour->user), hour->scope != 0 ? " of " : "",
                 hour->scope != 0 ? record_names_scope(names, hour->scope, scope) : "",
                 BYTES_TEXT(hour->user_bytes));
    if (hour->process_bytes > 0)
        snprintf(process, sizeof process, "%" PRIu32 " %.20s: %s", hour->process_pid,
                 printable != NULL ? printable : "?", BYTES_TEXT(hour->process_bytes));
    free(printable);
    printf("%-16s  %4u  %9s  %-5s  %-24s  %-30s  %5" PRIu32 "  %8s  %7" PRIu32 "  %7" PRIu32 "  %6" PRIu32
           "\n",
           when, pool, BYTES_TEXT(hour->leased_peak_bytes),
           hour->leased_peak_ns == 0 ? "-" : MOMENT_TEXT(hour->leased_peak_ns, MOMENT_MINUTE), user, process,
           hour->n_waits, hour->n_waits == 0 ? "-" : NS_TEXT(hour->wait_longest_ns), hour->n_refused,
           hour->n_grow_fails, hour->n_deaths);
}

static void print_heading(const char *when) {
    printf("%-16s  %4s  %9s  %-5s  %-24s  %-30s  %5s  %8s  %7s  %7s  %6s\n", when, "POOL", "PEAK LENT", "AT",
           "OF THAT, A USER", "OF THAT, ITS PROCESS", "WAITS", "LONGEST", "REFUSED", "NO GROW", "DEATHS");
}

static void print_json(unsigned pool, const struct proto_hour *hour) {
    printf("{\"hour_ns\":%" PRIu64 ",\"pool\":%u,\"leased_peak_bytes\":%" PRIu64
           ",\"leased_peak_ns\":%" PRIu64 ",\"reserved_peak_bytes\":%" PRIu64
           ",\"quarantined_peak_bytes\":%" PRIu64 ",\"uid\":%" PRIu32 ",\"scope\":%u,\"user_bytes\":%" PRIu64
           ",\"pid\":%" PRIu32 ",\"process_bytes\":%" PRIu64 ",\"waits\":%" PRIu32
           ",\"wait_longest_ns\":%" PRIu64 ",\"wait_sum_ns\":%" PRIu64 ",\"refused\":%" PRIu32
           ",\"timeouts\":%" PRIu32 ",\"quota_refusals\":%" PRIu32 ",\"failed_growths\":%" PRIu32
           ",\"deaths\":%" PRIu32 "}\n",
           hour->hour * NS_PER_HOUR, pool, hour->leased_peak_bytes, hour->leased_peak_ns,
           hour->reserved_peak_bytes, hour->quarantined_peak_bytes, hour->user, hour->scope, hour->user_bytes,
           hour->process_pid, hour->process_bytes, hour->n_waits, hour->wait_longest_ns, hour->wait_sum_ns,
           hour->n_refused, hour->n_timeouts, hour->n_quota, hour->n_grow_fails, hour->n_deaths);
}

bool history_next_hour(const struct records *records, uint64_t since_ns, unsigned pool, uint64_t *hour,
                       uint64_t end, struct proto_hour *ret_hour) {
    uint64_t oldest = end > records->file->hours_count ? end - records->file->hours_count : 0,
             since = since_ns / NS_PER_HOUR;

    for (*hour = *hour == 0 ? (since > oldest ? since : oldest) : *hour + 1; *hour < end; (*hour)++) {
        *ret_hour = *proto_records_hour(records->file, *hour, pool);
        if (ret_hour->hour == *hour)
            return true;
    }
    return false;
}

/* By day, where with the local day of an hour a new sum begins. */
static void print_days(const struct records *records, const struct record_names *names,
                       const struct records_filter *filter, unsigned pool, uint64_t end) {
    char day[MOMENT_TEXT_SIZE] = "", of_hour[MOMENT_TEXT_SIZE];
    struct proto_hour sum = {0}, hour;
    uint64_t number = 0;

    while (history_next_hour(records, filter->since_ns, pool, &number, end, &hour)) {
        moment_text(number * NS_PER_HOUR, MOMENT_DAY, of_hour);
        if (strcmp(day, of_hour) != 0) {
            if (sum.hour != 0)
                print_row(names, day, pool, &sum);
            sum = (struct proto_hour){0};
            snprintf(day, sizeof day, "%s", of_hour);
        }
        history_add(&sum, &hour);
    }
    if (sum.hour != 0)
        print_row(names, day, pool, &sum);
}

static void print_hours(const struct records *records, const struct record_names *names,
                        const struct records_filter *filter, unsigned pool, uint64_t end, bool json) {
    struct proto_hour hour;
    uint64_t number = 0;

    while (history_next_hour(records, filter->since_ns, pool, &number, end, &hour)) {
        if (json)
            print_json(pool, &hour);
        else
            print_row(names, MOMENT_TEXT(number * NS_PER_HOUR, MOMENT_DAY_MINUTE), pool, &hour);
    }
}

int history_run(const struct options *options) {
    const struct records_filter *filter = &options->filter;
    struct record_names names = {0};
    struct records records;

    int code = records_open(&records, options, EXIT_UNREACHABLE);
    if (code != 0)
        return code;
    uint64_t now_ns = moment_now_ns(),
             until_ns = filter->until_ns != 0 && filter->until_ns < now_ns ? filter->until_ns : now_ns,
             end = (until_ns + NS_PER_HOUR - 1) / NS_PER_HOUR;
    unsigned n_pools = records.file->pools_count;
    record_names_learn_all(&names, &records);
    if (!options->json)
        print_heading("DAY");
    for (unsigned pool = 1; pool <= n_pools && !options->json; pool++)
        if (filter->pool == 0 || filter->pool == pool)
            print_days(&records, &names, filter, pool, end);
    if (!options->json) {
        putchar('\n');
        print_heading("HOUR");
    }
    for (unsigned pool = 1; pool <= n_pools; pool++)
        if (filter->pool == 0 || filter->pool == pool)
            print_hours(&records, &names, filter, pool, end, options->json);
    record_names_deinit(&names);
    records_close(&records);
    return finish_output(EXIT_SUCCESS);
}
