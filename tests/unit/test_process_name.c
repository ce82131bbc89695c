/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the name that a process gives itself: the telling part of its command line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/array.h"
#include "client/session/process_name.h"

static void the_script_or_module_of_an_interpreter_tells(void **state) {
    static const struct {
        const char *line;
        size_t size;
        const char *name; /* NULL: there is none */
    } cases[] = {
#define LINE(text) text, sizeof(text)
        {LINE("/usr/bin/python3.11\0-u\0/home/a/train.py\0--epochs\0003"), "train.py"},
        {LINE("python\0-X\0dev\0-W\0error\0-m\0torch.distributed.run\0x.py"), "torch.distributed.run"},
        {LINE("python3\0-c\0import os"), NULL},
        {LINE("python3\0-"), NULL},
        {LINE("python3\0-uc\0import os"), NULL},
        {LINE("perl\0-e\0print 1"), NULL},
        {LINE("bash\0-lc\0secret/word"), NULL},
        {LINE("python3\0-mhttp.server\0x"), "http.server"},
        {LINE("python3"), NULL},
        {LINE("python3\0-m"), NULL},
        {LINE("python3\0-X"), NULL},
        {LINE("bash\0./run.sh"), "run.sh"},
        {LINE("./trainer\0-m\0x"), "trainer"},
        {LINE("pythonic\0x.py"), "pythonic"},
        {LINE("python3\0/"), NULL},
        {LINE("/"), NULL},
        {LINE(""), NULL},
        {NULL, 0, NULL},
#undef LINE
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        const char *name = process_name_of(cases[i].line, cases[i].size);
        if (cases[i].name == NULL)
            assert_null(name);
        else
            assert_string_equal(name, cases[i].name);
    }
}

static void a_wanted_name_is_made_fit_to_be_sent(void **state) {
    struct proto_name name;
    (void)state;

    assert_true(process_name("worker 7", &name));
    assert_string_equal(name.name, "worker 7");
    assert_true(process_name("a\033[31m\xff", &name));
    assert_null(strchr(name.name, '\033'));
    assert_null(strchr(name.name, 0xff));
    char longer[100];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    memcpy(longer + PROTO_PROCESS_NAME_SIZE - 2, "\xc3\xa4", 2); /* is not cut in the middle */
    assert_true(process_name(longer, &name));
    assert_int_equal(strlen(name.name), PROTO_PROCESS_NAME_SIZE - 2);
    assert_false(process_name("", &name));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_script_or_module_of_an_interpreter_tells),
        cmocka_unit_test(a_wanted_name_is_made_fit_to_be_sent),
    };
    return cmocka_run_group_tests_name("process_name", tests, NULL, NULL);
}
