/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_REPORT_CHART_H
#define CLIENT_CTL_REPORT_CHART_H
/* A pool over time as a drawing within a page: what it lent and had reserved, and below that its waits,
 * refusals and deaths. */
#include <stdio.h>

struct report;
struct report_pool;

/* Prints the drawing with its axes and its legend. */
void report_chart_print(FILE *stream, const struct report *report, const struct report_pool *pool);

#endif
