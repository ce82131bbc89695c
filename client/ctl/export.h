/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_EXPORT_H
#define CLIENT_CTL_EXPORT_H
/* "gpupoolctl record export": the flight recorder's records for programs that draw them. */
#include "client/ctl/record_names.h"
#include "client/ctl/records.h"

struct options;

enum export_format {
    EXPORT_NONE,
    EXPORT_PERFETTO,
    EXPORT_MEMORY_VIZ,
};

/* The state of an export, which goes through all records in order. */
struct export {
    const struct records *records;
    struct record_names names;
    bool failed; /* out of memory */
};

/* Each prints the records that the filter chooses to standard output. Sums are of all records that are there,
 * those before the filter's time included. */
void export_perfetto(struct export *export, const struct records_filter *filter);
void export_memory_viz(struct export *export, const struct records_filter *filter);

/* Returns the code to exit with. */
int export_run(const struct options *options);

#endif
