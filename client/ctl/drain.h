/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_DRAIN_H
#define CLIENT_CTL_DRAIN_H
/* "gpupoolctl drain": takes pools out of use, and waits until nothing of them is held. */
struct options;

/* Returns the code to exit with. */
int drain_run(const struct options *options);

#endif
