/* SPDX-License-Identifier: Apache-2.0 */
/* For gcc's analyzer: on one way through, the memory is freed twice. */
#include <stdlib.h>

int planted(int fails);

int planted(int fails) {
    char *bytes = malloc(16);

    if (bytes == NULL)
        return -1;
    if (fails)
        free(bytes);
    free(bytes);
    return 0;
}
