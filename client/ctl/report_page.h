/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_REPORT_PAGE_H
#define CLIENT_CTL_REPORT_PAGE_H
/* The page of "gpupoolctl report": HTML that needs nothing from elsewhere, and has no program. */
#include <stdio.h>

struct records;
struct report;

void report_page_print(FILE *stream, const struct report *report, const struct records *records);

#endif
