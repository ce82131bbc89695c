/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_SANITIZED_H
#define TESTS_INTEGRATION_SANITIZED_H
/* Whether the test runs under ThreadSanitizer, which wants no threads in a forked child, or under
 * AddressSanitizer. */
#ifdef __has_feature /* clang; gcc defines the macros */
#if __has_feature(thread_sanitizer)
#define TEST_IS_THREAD_SANITIZED true
#endif
#if __has_feature(address_sanitizer)
#define TEST_IS_ADDRESS_SANITIZED true
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define TEST_IS_THREAD_SANITIZED true
#endif
#ifdef __SANITIZE_ADDRESS__
#define TEST_IS_ADDRESS_SANITIZED true
#endif
#ifndef TEST_IS_THREAD_SANITIZED
#define TEST_IS_THREAD_SANITIZED false
#endif
#ifndef TEST_IS_ADDRESS_SANITIZED
#define TEST_IS_ADDRESS_SANITIZED false
#endif

#endif
