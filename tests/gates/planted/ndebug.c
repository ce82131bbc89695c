/* SPDX-License-Identifier: Apache-2.0 */
/* For builds without assertions: only an assertion looks at the result. */
#include <assert.h>

int planted(int value);

int planted(int value) {
    int doubled = value * 2;

    assert(doubled >= value);
    return 0;
}
