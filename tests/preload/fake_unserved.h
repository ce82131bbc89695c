/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_FAKE_UNSERVED_H
#define TESTS_PRELOAD_FAKE_UNSERVED_H
/* The part of the fake driver (fake_libcuda.h) that gpupool counts and does not serve. */

/* The function of a name, for cuGetProcAddress(); NULL: it is none of these. */
void *fake_unserved_find(const char *name, int version);

#endif
