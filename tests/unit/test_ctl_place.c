/* SPDX-License-Identifier: Apache-2.0 */
/* The place of a process by its control group, as container runtimes, schedulers and systemd name groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/array.h"
#include "client/ctl/place.h"

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
    const char *groups, *place; /* NULL: none */
} cases[] = {
    {"0::/system.slice/docker-" ID ".scope\n", "docker 0123456789ab"},
    {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-" ID
     ".scope\n",
     "containerd 0123456789ab"},
    {"0::/kubepods.slice/kubepods-pod1.slice/crio-" ID ".scope/container\n", "cri-o 0123456789ab"},
    {"0::/machine.slice/libpod-" ID ".scope/container\n", "podman 0123456789ab"},
    {"12:pids:/docker/" ID "\n11:cpu:/docker/" ID "\n", "docker 0123456789ab"},
    {"12:pids:/kubepods/besteffort/pod1/" ID "\n", "container 0123456789ab"},
    {"0::/lxc.payload.web/system.slice/nginx.service\n", "nginx.service"},
    {"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_1\n", "slurm job 42"},
    {"9:memory:/slurm/uid_1000/job_7/step_batch\n0::/\n", "slurm job 7"},
    {"0::/system.slice/trainer.service\n", "trainer.service"},
    {"0::/user.slice/user-1000.slice/user@1000.service/app.slice/notebook.service\n", "notebook.service"},
    {"0::/user.slice/user-1000.slice/session-3.scope\n", NULL},
    {"0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", NULL},
    {"1:name=systemd:/\n0::/\n", NULL},
    {"0::/docker-\n", NULL},
    {"0::/job_\n", NULL},
    {"0::/.service\n", NULL},
    {"", NULL},
    {"\n\n", NULL},
    {"nonsense", NULL},
    {"0:", NULL},
    {"0::", NULL},
    {"0::////\n", NULL},
};

static void groups_name_places(void **state) {
    char place[PLACE_SIZE];
    (void)state;

    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        print_message("%s", cases[i].groups);
        assert_int_equal(place_parse(cases[i].groups, place), cases[i].place != NULL);
        if (cases[i].place != NULL)
            assert_string_equal(place, cases[i].place);
    }
}

static void a_long_name_is_cut(void **state) {
    char groups[1024] = "0::/", place[PLACE_SIZE];
    (void)state;

    memset(groups + 4, 'x', 500);
    memcpy(groups + 504, ".service\n", 10);
    assert_true(place_parse(groups, place));
    assert_int_equal(strlen(place), PLACE_SIZE - 1);
}

/* Of a number that is another process by now nothing is told. */
static void only_the_process_itself_is_looked_at(void **state) {
    char place[PLACE_SIZE];
    (void)state;

    assert_false(place_of_process(0, getuid(), 0, place));
    assert_false(place_of_process((uint64_t)getpid(), getuid() + 1, 0, place));
    assert_false(place_of_process((uint64_t)getpid(), getuid(), UINT64_MAX / 2, place));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_name_places),
        cmocka_unit_test(a_long_name_is_cut),
        cmocka_unit_test(only_the_process_itself_is_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
