/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_SCOPE_H
#define CLIENT_CTL_SCOPE_H
/* "gpupoolctl scope": sockets of their own for pods and jobs. */
#include <stdbool.h>

/* More than the daemon takes of each: it says so. */
#define SCOPE_OPTIONS_MAX 32u

struct options;

enum scope_verb {
    SCOPE_LIST,
    SCOPE_ADD,
    SCOPE_SET,
    SCOPE_DROP,
};

/* The command line's words and options for it; borrowed. */
struct scope_options {
    enum scope_verb verb;
    const char *name;
    const char *uids[SCOPE_OPTIONS_MAX], *quotas[SCOPE_OPTIONS_MAX], *labels[SCOPE_OPTIONS_MAX];
    unsigned n_uids, n_quotas, n_labels;
    bool end, no_wait;
};

/* Returns the code to exit with. */
int scope_run(const struct options *options);

#endif
