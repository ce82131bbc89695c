/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_UNPUBLISH_H
#define CLIENT_CTL_UNPUBLISH_H
/* "gpupoolctl unpublish": has a name stand for nothing any more, after a question. */

struct options;

/* Returns the code to exit with. */
int unpublish_run(const struct options *options);

#endif
