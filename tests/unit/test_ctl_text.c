/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of gpupoolctl's text: where they end, and how a name is cut. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/ctl/text.h"
#include "unit.h"

/* Breaks a text into lines, with a bar between them. */
static void lines_of(const char *text, size_t columns, char *ret_lines) {
    const char *rest = text;

    *ret_lines = '\0';
    do {
        size_t width, length = text_line(rest, columns, &width);
        snprintf(ret_lines + strlen(ret_lines), 256 - strlen(ret_lines), "%s%.*s", rest == text ? "" : "|",
                 (int)length, rest);
        rest = text_next_line(rest, length);
    } while (*rest != '\0');
}

static void a_line_ends_before_a_word_that_does_not_fit(void **state) {
    static const struct {
        const char *text;
        size_t columns;
        const char *lines;
    } cases[] = {
        {"", 10, ""},
        {"one", 3, "one"},
        {"one two", 7, "one two"},
        {"one two", 6, "one|two"},
        {"one  two three", 8, "one  two|three"},
        {"  one two", 5, "  one|two"},
        {"a-word-that-is-longer than this", 5, "a-word-that-is-longer|than|this"},
        {"and a-word-that-is-longer", 5, "and|a-word-that-is-longer"},
        {"it has 12 MiB in use", 9, "it has|12 MiB in|use"}, /* not between a number and its unit */
        {"it has 12 of 13", 9, "it has|12 of 13"},
        {"12 MiB", 3, "12 MiB"},
        {"\u00e9\u00e9\u00e9 \u00e9", 3, "\u00e9\u00e9\u00e9|\u00e9"},
        {"\u4e2d\u6587 \u4e2d", 5, "\u4e2d\u6587|\u4e2d"},
    };
    char lines[256];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lines_of(cases[i].text, cases[i].columns, lines);
        assert_string_equal(lines, cases[i].lines);
    }
}

static void check_cut(const char *text, size_t columns, const char *expected, size_t expected_width) {
    size_t width;
    _cleanup_(freep) char *cut = text_cut(text, columns, &width);

    assert_string_equal(cut, expected);
    assert_int_equal(width, expected_width);
}

static void a_name_that_is_cut_ends_with_an_ellipsis(void **state) {
    (void)state;
    check_cut("trainer", 5, "trai\u2026", 5);
    check_cut("\u00e9\u00e9\u00e9\u00e9\u00e9", 4, "\u00e9\u00e9\u00e9\u2026", 4);
    check_cut("\u4e2d\u6587\u4e2d", 4, "\u4e2d\u2026", 3); /* half a character is none */
    setlocale(LC_CTYPE, "C");
    check_cut("trainer", 5, "tr...", 5);
    setlocale(LC_CTYPE, "C.UTF-8");
}

static void further_lines_are_indented(void **state) {
    char *text = NULL;
    size_t size;

    (void)state;
    FILE *stream = open_memstream(&text, &size);
    assert_non_null(stream);
    fputs("head ", stream);
    text_wrap(stream, "one two three four", 5, 12);
    assert_int_equal(fclose(stream), 0);
    assert_string_equal(text, "head one two\n     three\n     four\n");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_ends_before_a_word_that_does_not_fit),
        cmocka_unit_test(a_name_that_is_cut_ends_with_an_ellipsis),
        cmocka_unit_test(further_lines_are_indented),
    };
    if (setlocale(LC_CTYPE, "C.UTF-8") == NULL)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
