/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_MUST_H
#define TESTS_INTEGRATION_MUST_H
/* Calls of the library in the test's own process that have to give a certain result. */
#include "client/include/gpupool/gpupool.h"
#include "tests/integration/harness.h"

#define MUST(call) MUST_BE(call, 0)
#define MUST_BE(call, wanted)                                                                                \
    do {                                                                                                     \
        int result_ = (call);                                                                                \
        if (result_ != (wanted))                                                                             \
            fail_msg("%s: %s, not %s: %s", #call, gpupool_error_name(result_), gpupool_error_name(wanted),   \
                     result_ != 0 ? gpupool_error_text() : "");                                              \
    } while (0)

#endif
