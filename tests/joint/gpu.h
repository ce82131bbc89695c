/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JOINT_GPU_H
#define TESTS_JOINT_GPU_H
/*
 * The parts of the simulated GPU, for each other: its streams (streams.c) and what addresses map
 * (mappings.c). Each fills in its calls of the table, which gpu.c makes.
 */
#include <stdbool.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "tests/joint/world.h"

#define CAPTURE_ERROR 900 /* cudaErrorStreamCaptureUnsupported */

/* Draws whether a call of the driver fails. */
bool gpu_fails(void);

/* --- streams.c */

void streams_fill_table(struct gpu *table);
/* The work that uses addresses does not go on once these are unmapped: there is none. */
void streams_check_unused(const char *address, uint64_t size_bytes);
bool streams_have_work_at(const char *address, uint64_t size_bytes);
/* A client's streams are gone. Their work goes on. */
void streams_forget(unsigned client);

/* --- mappings.c */

void mappings_fill_table(struct gpu *table);
void mappings_forget(unsigned client);

#endif
