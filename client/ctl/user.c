/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/user.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/units.h"

const char *user_text(uint64_t uid) {
    static char text[128] = "-"; /* of the last one: rows of one user often follow each other */
    static uint64_t last_uid = USER_NONE;

    if (uid == last_uid)
        return text;
    const struct passwd *user = uid < USER_NONE ? getpwuid((uid_t)uid) : NULL;
    if (uid == USER_NONE)
        snprintf(text, sizeof text, "-");
    else if (user != NULL)
        snprintf(text, sizeof text, "%.100s (%" PRIu64 ")", user->pw_name, uid);
    else
        snprintf(text, sizeof text, "%" PRIu64, uid);
    last_uid = uid;
    return text;
}

int user_find(const char *user, uint64_t *ret_uid) {
    const struct passwd *found = getpwnam(user);

    if (found != NULL) {
        *ret_uid = found->pw_uid;
        return 0;
    }
    return units_parse_number(user, USER_NONE - 1, ret_uid) == 0 ? 0 : -ENOENT;
}
