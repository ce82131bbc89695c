/* SPDX-License-Identifier: Apache-2.0 */
/* Which settings of the driver's kernel module tell that it does not clear memory. */
#include "gpu/driver_settings.h"
#include "unit.h"

#include <unistd.h>

static const char *unclean(const char *text, bool is_host) {
    char path[] = "/tmp/gpupool-settings-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    const char *setting = driver_settings_unclean(path, is_host);
    unlink(path);
    return setting;
}

#define USUAL                                                                                                \
    "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nInitializeSystemMemoryAllocations: 1\n"             \
    "UsePageAttributeTable: 4294967295\nRegistryDwords: \"\"\nRegistryDwordsPerDevice: \"\"\n"

static void the_usual_settings_clear_memory(void **state) {
    (void)state;
    assert_null(unclean(USUAL, false));
    assert_null(unclean(USUAL, true));
    assert_null(unclean("", false));
    assert_null(driver_settings_unclean("/nonexistent/params", false));
    assert_null(driver_settings_unclean("/nonexistent/params", true));
}

static void host_memory_may_be_left_as_it_was(void **state) {
    static const char text[] = "EnableMSI: 1\nInitializeSystemMemoryAllocations: 0\nRegistryDwords: \"\"\n";

    (void)state;
    assert_string_equal(unclean(text, true), "InitializeSystemMemoryAllocations");
    assert_null(unclean(text, false));
}

static void device_memory_may_be_left_as_it_was(void **state) {
    static const char *const texts[] = {
        "RegistryDwords: \"RMDisableScrubOnFree=1\"\n",
        "RegistryDwords: \"RmForceEnableGen2=1;RmDisableScrubOnFree=0x1;RMPcieLinkSpeed=0x1\"\n",
        "RegistryDwords: \"\"\nRegistryDwordsPerDevice: \"pci=0000:3d:00.0;RMDisableScrubOnFree=1\"\n",
        "RegistryDwords: \"RMDisableScrubOnFree=0;RMDisableScrubOnFree=1\"\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_string_equal(unclean(texts[i], false), "RMDisableScrubOnFree");
        assert_null(unclean(texts[i], true));
    }
    assert_null(unclean("RegistryDwords: \"RMDisableScrubOnFree=0\"\n", false));
    assert_null(unclean("SomethingElse: \"RMDisableScrubOnFree=1\"\n", false));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_usual_settings_clear_memory),
        cmocka_unit_test(host_memory_may_be_left_as_it_was),
        cmocka_unit_test(device_memory_may_be_left_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
