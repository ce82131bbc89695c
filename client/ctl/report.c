/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/report.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "client/ctl/command_line.h"
#include "client/ctl/moment.h"
#include "client/ctl/records.h"
#include "client/ctl/report_data.h"
#include "client/ctl/report_page.h"
#include "client/ctl/text.h"

/* Whether the daemon that wrote last is there: it has begun the hour that it is, and its process lives. */
static bool is_alive(const struct records *records, uint64_t now_ns) {
    uint64_t hour = now_ns / NS_PER_HOUR;
    pid_t pid = (pid_t)records->file->daemon_pid;

    if (records->file->pools_count == 0 || pid <= 0 ||
        proto_records_hour(records->file, hour, 1)->hour != hour)
        return false;
    return kill(pid, 0) == 0 || errno == EPERM;
}

int report_run(const struct options *options) {
    const struct records_filter *filter = &options->filter;
    uint64_t now_ns = moment_now_ns(),
             until_ns = filter->until_ns != 0 && filter->until_ns < now_ns ? filter->until_ns : now_ns;
    struct records records;
    struct report report;

    if (options->json)
        return complain(EXIT_USAGE, "report has a format of its own, HTML: leave --json out");
    if (filter->since_ns >= until_ns)
        return complain(EXIT_USAGE, "the time ends before it begins: see --since and --until");
    int code = records_open(&records, options, EXIT_UNREACHABLE);
    if (code != 0)
        return code;
    if (filter->pool > records.file->pools_count)
        code = complain(EXIT_REFUSED, "%s: the daemon has no pool of this number", records.path);
    else if (report_gather(&report, &records, filter->since_ns, until_ns, filter->pool,
                           is_alive(&records, now_ns)) < 0)
        code = complain(EXIT_REFUSED, "out of memory");
    if (code == 0) {
        report_page_print(stdout, &report, &records);
        report_deinit(&report);
        code = finish_output(EXIT_SUCCESS);
    }
    records_close(&records);
    return code;
}
