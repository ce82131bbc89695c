/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of an installation, by the place of its daemon. */
#include <stdio.h>
#include <string.h>

#include "daemon/config/config_place.h"
#include "unit.h"

#define CONFIGURED "/configured/etc/gpupool/gpupoold.conf"

static void a_daemon_in_a_prefix_has_its_configuration_there(void **state) {
    static const struct {
        const char *program, *sbin, *etc, *path;
    } cases[] = {
        {"/usr/sbin/gpupoold", "sbin", "etc", "/etc/gpupool/gpupoold.conf"},
        {"/sbin/gpupoold", "sbin", "etc", "/etc/gpupool/gpupoold.conf"},
        {"/usr/local/sbin/gpupoold", "sbin", "etc", "/usr/local/etc/gpupool/gpupoold.conf"},
        {"/opt/gpupool/sbin/gpupoold", "sbin", "etc", "/opt/gpupool/etc/gpupool/gpupoold.conf"},
        {"/home/usr/sbin/gpupoold", "sbin", "etc", "/home/usr/etc/gpupool/gpupoold.conf"},
        {"/usrs/sbin/gpupoold", "sbin", "etc", "/usrs/etc/gpupool/gpupoold.conf"},
        {"/opt/gpupool/libexec/gpupool/gpupoold", "libexec/gpupool", "conf",
         "/opt/gpupool/conf/gpupool/gpupoold.conf"},
        /* elsewhere than below a prefix */
        {"/build/daemon/gpupoold", "sbin", "etc", CONFIGURED},
        {"/opt/mysbin/gpupoold", "sbin", "etc", CONFIGURED},
        {"sbin/gpupoold", "sbin", "etc", CONFIGURED},
        {"gpupoold", "sbin", "etc", CONFIGURED},
        {"", "sbin", "etc", CONFIGURED},
        /* folders with full names */
        {"/opt/gpupool/sbin/gpupoold", "sbin", "/etc/opt", CONFIGURED},
        {"/opt/gpupool/sbin/gpupoold", "/opt/gpupool/sbin", "etc", CONFIGURED},
    };
    char path[PATH_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(config_place_of(cases[i].program, cases[i].sbin, cases[i].etc, CONFIGURED, path),
                            cases[i].path);
}

/* A path that is not whole would name another file. */
static void a_path_that_is_too_long_is_not_cut(void **state) {
    char program[PATH_MAX], path[PATH_MAX];
    const char tail[] = "/sbin/gpupoold";

    (void)state;
    memset(program, 'x', sizeof program);
    program[0] = '/';
    memcpy(program + sizeof program - sizeof tail, tail, sizeof tail);
    assert_string_equal(config_place_of(program, "sbin", "etc", CONFIGURED, path), CONFIGURED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_daemon_in_a_prefix_has_its_configuration_there),
        cmocka_unit_test(a_path_that_is_too_long_is_not_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
