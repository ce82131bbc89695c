/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_UPGRADE_H
#define CLIENT_CTL_UPGRADE_H
/*
 * The estate, which outlives the daemon: "gpupoolctl estate" shows it or lets it go, "gpupoolctl upgrade" begins
 * another daemon with it.
 */
struct options;

/* Shows the estate, or with --drop lets it go. Returns the code to exit with. */
int estate_run(const struct options *options);

/* Asks the new program whether it can go on with the estate, restarts the daemon, and waits for the next one. Returns
 * the code to exit with. */
int upgrade_run(const struct options *options);

#endif
