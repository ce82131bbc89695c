/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/export.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/command_line.h"
#include "client/ctl/text.h"

int export_run(const struct options *options) {
    struct records records;

    if (options->export_format == EXPORT_NONE)
        return complain(EXIT_USAGE, "record export: name the format, --perfetto or --memory-viz");
    if (isatty(STDOUT_FILENO))
        return complain(EXIT_USAGE, "record export: this is not for a terminal; write it to a file: > FILE");
    int code = records_open(&records, options, EXIT_UNREACHABLE);
    if (code != 0)
        return code;
    struct export export = {.records = &records};
    if (options->export_format == EXPORT_PERFETTO)
        export_perfetto(&export, &options->filter);
    else
        export_memory_viz(&export, &options->filter);
    record_names_deinit(&export.names);
    records_close(&records);
    return finish_output(export.failed ? complain(EXIT_REFUSED, "%s", strerror(ENOMEM)) : EXIT_SUCCESS);
}
