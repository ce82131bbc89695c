/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_THREAD_SANITIZED_H
#define TESTS_INTEGRATION_THREAD_SANITIZED_H
/* Whether the test runs under ThreadSanitizer, which wants no threads in a forked child. */
#if defined(__SANITIZE_THREAD__)
#define TEST_IS_THREAD_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_IS_THREAD_SANITIZED true
#endif
#endif
#ifndef TEST_IS_THREAD_SANITIZED
#define TEST_IS_THREAD_SANITIZED false
#endif

#endif
