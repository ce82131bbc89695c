/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sizes and times as people write and read them. */
#include <errno.h>
#include <locale.h>

#include "base/units.h"
#include "unit.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

struct reading {
    const char *text;
    int result;
    uint64_t value;
};

static void check_readings(int (*parse)(const char *, uint64_t *), const struct reading *readings,
                           size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint64_t untouched = UINT64_C(0xabcdef);
        uint64_t value = untouched;
        int r = parse(readings[i].text, &value);
        if (r != readings[i].result || value != (r == 0 ? readings[i].value : untouched))
            fail_msg("\"%s\" reads as %d, %llu", readings[i].text, r, (unsigned long long)value);
    }
}

static void sizes_are_read_as_people_mean_them(void **state) {
    (void)state;
    static const struct reading readings[] = {
        {"0", 0, 0},
        {"512", 0, 512},
        {" 512", 0, 512},
        {"007", 0, 7},
        {"512B", 0, 512},
        {"64MiB", 0, 64 * MIB},
        {"64 mib", 0, 64 * MIB},
        {"64\tM", 0, 64 * MIB},
        {"1K", 0, 1024},
        {"2G", 0, 2 * GIB},
        {"1.5 GiB", 0, 3 * GIB / 2},
        {"0.5TiB", 0, TIB / 2},
        {"1.0", 0, 1},
        {"0.1KiB", 0, 102},
        {"1.99999999999999999999999999KiB", 0, 2048},
        {"9007199254740993", 0, UINT64_C(9007199254740993)}, /* 2^53 + 1: a double cannot hold it */
        {"9007199254740993.0 B", 0, UINT64_C(9007199254740993)},
        {"18446744073709551615", 0, UINT64_MAX},
        {"16777215.5 TiB", 0, UINT64_MAX - TIB / 2 + 1},
        {"18446744073709551616", -ERANGE, 0},
        {"99999999999999999999999999", -ERANGE, 0},
        {"18446744073709551615.6", -ERANGE, 0},
        {"16777216 TiB", -ERANGE, 0},
        {"", -EINVAL, 0},
        {" ", -EINVAL, 0},
        {"MiB", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {".5G", -EINVAL, 0},
        {"1.", -EINVAL, 0},
        {"1.G", -EINVAL, 0},
        {"1,5G", -EINVAL, 0},
        {"1.5.5", -EINVAL, 0},
        {"1.5e3", -EINVAL, 0},
        {"1e3", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
        {"0x1.8p3", -EINVAL, 0},
        {"inf", -EINVAL, 0},
        {"nan", -EINVAL, 0},
        {"1 GB", -EINVAL, 0}, /* 10^9 or 2^30: a guess */
        {"1 GiB x", -EINVAL, 0},
        {"1 G iB", -EINVAL, 0},
        {"64ms", -EINVAL, 0},
    };
    check_readings(units_parse_bytes, readings, LENGTH(readings));
}

static void times_are_read_with_their_unit_only(void **state) {
    (void)state;
    static const struct reading readings[] = {
        {"80ns", 0, 80},
        {"80us", 0, 80000},
        {"250ms", 0, 250000000},
        {"10s", 0, UINT64_C(10000000000)},
        {"0 s", 0, 0},
        {"0.25 s", 0, 250000000},
        {"1.5us", 0, 1500},
        {"5min", 0, UINT64_C(300000000000)},
        {"2 h", 0, UINT64_C(7200000000000)},
        {"18446744073709551615ns", 0, UINT64_MAX},
        {"18446744074s", -ERANGE, 0},
        {"18446744073709551616ns", -ERANGE, 0},
        {"10", -EINVAL, 0},
        {"0", -EINVAL, 0},
        {"1.5", -EINVAL, 0},
        {"", -EINVAL, 0},
        {"s", -EINVAL, 0},
        {"-1s", -EINVAL, 0},
        {"10m", -EINVAL, 0}, /* minutes or milliseconds: a guess */
        {"1 d", -EINVAL, 0},
        {"10MiB", -EINVAL, 0},
    };
    check_readings(units_parse_ns, readings, LENGTH(readings));
}

struct writing {
    uint64_t value;
    const char *text;
};

static void sizes_are_written_in_four_digits(void **state) {
    (void)state;
    static const struct writing writings[] = {
        {0, "0 B"},
        {1, "1 B"},
        {512, "512 B"},
        {1023, "1023 B"},
        {1024, "1 KiB"},
        {1536, "1.5 KiB"},
        {1025, "1.001 KiB"},
        {10 * KIB, "10 KiB"},
        {100 * KIB, "100 KiB"},
        {1000 * KIB, "1000 KiB"},
        {12 * KIB + 256, "12.25 KiB"},
        {123 * KIB + 307, "123.3 KiB"},
        {MIB - 1, "1 MiB"}, /* not "1024 KiB" */
        {MIB, "1 MiB"},
        {10 * MIB - 1, "10 MiB"},
        {3 * GIB / 2, "1.5 GiB"},
        {139 * GIB + GIB / 16, "139.1 GiB"},
        {TIB, "1 TiB"},
        {UINT64_C(1) << 50, "1 PiB"},
        {UINT64_C(1) << 60, "1 EiB"},
        {UINT64_MAX, "16 EiB"},
    };
    for (size_t i = 0; i < LENGTH(writings); i++)
        assert_string_equal(BYTES_TEXT(writings[i].value), writings[i].text);
}

static void times_are_written_in_the_unit_that_suits(void **state) {
    (void)state;
    static const struct writing writings[] = {
        {0, "0 ns"},
        {80, "80 ns"},
        {999, "999 ns"},
        {1000, "1 us"},
        {8800, "8.8 us"},
        {999999, "1 ms"}, /* not "1000 us" */
        {1250000, "1.25 ms"},
        {336000000, "336 ms"},
        {UINT64_C(1000000000), "1 s"},
        {UINT64_C(59990000000), "59.99 s"},
        {UINT64_C(60000000000), "1 min 0 s"},
        {UINT64_C(125000000000), "2 min 5 s"},
        {UINT64_C(3600000000000), "1 h 0 min"},
        {UINT64_C(86399000000000), "23 h 59 min"},
        {UINT64_C(86400000000000), "1 d 0 h"},
        {UINT64_C(273600000000000), "3 d 4 h"},
        {UINT64_MAX, "213503 d 23 h"},
    };
    for (size_t i = 0; i < LENGTH(writings); i++)
        assert_string_equal(NS_TEXT(writings[i].value), writings[i].text);
}

static void what_is_written_reads_back_nearly(void **state) {
    (void)state;
    /* Within the rounding of four digits, one half of 1/1000. */
    for (unsigned shift = 0; shift < 60; shift++)
        for (uint64_t odd = 1; odd < 64; odd += 2) {
            uint64_t bytes = (UINT64_C(1) << shift) / 32 * odd, read = 0;
            if (bytes > TIB * 1023) /* the parser's units end at TiB */
                continue;
            assert_int_equal(units_parse_bytes(BYTES_TEXT(bytes), &read), 0);
            uint64_t error = read > bytes ? read - bytes : bytes - read;
            assert_true(error <= bytes / 2000 + 1);
        }
}

static void texts_are_cut_to_their_room(void **state) {
    (void)state;
    char text[8];
    memset(text, '#', sizeof text);
    assert_ptr_equal(units_format_bytes(3 * GIB / 2, text, 5), text);
    assert_string_equal(text, "1.5 ");
    assert_int_equal(text[5], '#');
    assert_ptr_equal(units_format_ns(1250000, text, 5), text);
    assert_string_equal(text, "1.25");
    assert_int_equal(text[5], '#');
}

static void the_locale_changes_nothing(void **state) {
    (void)state;
    static const char *const commas[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "fr_FR.utf8"};
    const char *set = NULL;
    for (size_t i = 0; i < LENGTH(commas) && set == NULL; i++)
        set = setlocale(LC_ALL, commas[i]);
    if (set == NULL)
        skip(); /* no locale with a decimal comma on this machine */
    sizes_are_read_as_people_mean_them(state);
    sizes_are_written_in_four_digits(state);
    times_are_written_in_the_unit_that_suits(state);
    setlocale(LC_ALL, "C");
}

static void a_noun_is_in_the_number_of_its_count(void **state) {
    (void)state;
    static const struct {
        uint64_t count;
        const char *noun, *text;
    } cases[] = {
        {0, "session", "0 sessions"},
        {1, "session", "1 session"},
        {2, "session", "2 sessions"},
        {1, "process", "1 process"},
        {12, "process", "12 processes"},
        {UINT64_MAX, "waiting request", "18446744073709551615 waiting requests"},
    };

    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_string_equal(COUNT_TEXT(cases[i].count, cases[i].noun), cases[i].text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_noun_is_in_the_number_of_its_count),
        cmocka_unit_test(sizes_are_read_as_people_mean_them),
        cmocka_unit_test(times_are_read_with_their_unit_only),
        cmocka_unit_test(sizes_are_written_in_four_digits),
        cmocka_unit_test(times_are_written_in_the_unit_that_suits),
        cmocka_unit_test(what_is_written_reads_back_nearly),
        cmocka_unit_test(texts_are_cut_to_their_room),
        cmocka_unit_test(the_locale_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
