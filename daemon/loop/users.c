/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/users.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>

#include "base/units.h"

bool users_parse_id(const char *name, uint32_t *ret_id) {
    uint64_t id;

    /* No user has the last id: -1 means "as it is" to the kernel. */
    if (units_parse_number(name, UINT32_MAX - 1, &id) < 0)
        return false;
    *ret_id = (uint32_t)id;
    return true;
}

int users_find_user(const char *name, uid_t *ret_uid) {
    if (users_parse_id(name, ret_uid))
        return 0;
    const struct passwd *user = getpwnam(name);
    if (user == NULL)
        return -ENOENT;
    *ret_uid = user->pw_uid;
    return 0;
}

int users_find_group(const char *name, gid_t *ret_gid) {
    if (users_parse_id(name, ret_gid))
        return 0;
    const struct group *group = getgrnam(name);
    if (group == NULL)
        return -ENOENT;
    *ret_gid = group->gr_gid;
    return 0;
}
