/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_REPORT_H
#define CLIENT_CTL_REPORT_H
/* "gpupoolctl report": a page for the browser, from the flight recorder's file. */
struct options;

/* Prints the page of the time that the options choose. Returns the code to exit with. */
int report_run(const struct options *options);

#endif
