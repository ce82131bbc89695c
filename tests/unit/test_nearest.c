/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the words that a misspelt word may mean. */
#include "base/nearest.h"
#include "unit.h"

static const char *const words[] = {"limit",   "low_water",      "off",      "auto",
                                    "require", "sessions_limit", "sessions", NULL};

static void one_mistake_in_three_letters_is_forgiven(void **state) {
    static const struct {
        const char *word, *meant;
    } cases[] = {
        {"limit", "limit"},
        {"LIMIT", "limit"},
        {"limti", "limit"}, /* two letters swapped */
        {"limits", "limit"},
        {"lmit", "limit"},
        {"limot", "limit"},
        {"low-water", "low_water"},
        {"lowwater", "low_water"},
        {"of", "off"},
        {"req", "require"},   /* the beginning */
        {"sess", "sessions"}, /* of two the nearer one */
        {"session_limits", "sessions_limit"},
        {"aaaa", NULL},
        {"no", NULL},
        {"", NULL},
        {"re", NULL},
        {"this_word_is_longer_than_any_word_that_is_looked_for_here", NULL},
    };
    (void)state;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *meant = nearest_word(cases[i].word, words);
        if ((meant == NULL) != (cases[i].meant == NULL) ||
            (meant != NULL && strcmp(meant, cases[i].meant) != 0))
            fail_msg("'%s' is taken for '%s'", cases[i].word, meant == NULL ? "nothing" : meant);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_mistake_in_three_letters_is_forgiven)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
