/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_WORKLOAD_MIX_H
#define TESTS_BENCH_WORKLOAD_MIX_H
/* A part of workload.h, which includes it: the random mix. */

#define WORKLOAD_MIX_PASSES 5u

struct workload_mix {
    struct subject_block *blocks; /* live */
    uint64_t *block_bytes;
    uint64_t *sizes; /* of each step */
    unsigned *slots; /* which block gives way to it */
    uint64_t peak_live, peak_reserved, peak_leased;
};

/* Sizes of every power of two as likely as those of another, and any within it. */
static inline uint64_t workload_mix_size(const struct workload *work, uint64_t *state) {
    unsigned powers = (unsigned)(63 - __builtin_clzll(work->mix_largest_bytes / work->mix_smallest_bytes));
    uint64_t base = work->mix_smallest_bytes << workload_random(state) % powers;
    return base + workload_random(state) % base;
}

static inline void *workload_allocate(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL)
        abort();
    return memory;
}

/* From nothing to all live, and then as many replacements as are timed later: after each the memory is looked
 * at. */
static inline void workload_mix_cold(const struct workload *work, struct workload_mix *mix, void *stream) {
    uint64_t state = UINT64_C(88172645463325252), live = 0, reserved, leased;
    for (unsigned i = 0; i < work->mix_live + work->mix_steps; i++) {
        unsigned slot = i < work->mix_live ? i : mix->slots[i - work->mix_live];
        uint64_t size = i < work->mix_live ? workload_mix_size(work, &state) : mix->sizes[i - work->mix_live];
        if (i >= work->mix_live) {
            subject_give(&mix->blocks[slot], stream);
            live -= mix->block_bytes[slot];
        }
        subject_take(&mix->blocks[slot], size, stream);
        mix->block_bytes[slot] = size;
        live += size;
        mix->peak_live = live > mix->peak_live ? live : mix->peak_live;
        subject_memory(&reserved, &leased);
        mix->peak_reserved = reserved > mix->peak_reserved ? reserved : mix->peak_reserved;
        mix->peak_leased = leased > mix->peak_leased ? leased : mix->peak_leased;
    }
}

struct workload_mix_pass {
    const struct workload *work;
    const struct workload_mix *mix;
    void *stream;
};

/* All steps once. */
static inline double workload_mix_sample(void *context) {
    const struct workload_mix_pass *pass = (const struct workload_mix_pass *)context;
    uint64_t start = clock_now_ns();
    for (unsigned i = 0; i < pass->work->mix_steps; i++) {
        struct subject_block *block = &pass->mix->blocks[pass->mix->slots[i]];
        subject_give(block, pass->stream);
        subject_take(block, pass->mix->sizes[i], pass->stream);
    }
    double ns = (double)(clock_now_ns() - start) / pass->work->mix_steps;
    subject_settle(pass->stream);
    return ns;
}

static inline void workload_random_mix(struct workload *work, void *stream) {
    struct workload_mix mix;
    struct workload_mix_pass pass = {work, &mix, stream};
    uint64_t state = UINT64_C(2463534242);
    struct figure figure;

    memset(&mix, 0, sizeof mix);
    mix.blocks = (struct subject_block *)workload_allocate(work->mix_live * sizeof *mix.blocks);
    mix.block_bytes = (uint64_t *)workload_allocate(work->mix_live * sizeof *mix.block_bytes);
    mix.sizes = (uint64_t *)workload_allocate(work->mix_steps * sizeof *mix.sizes);
    mix.slots = (unsigned *)workload_allocate(work->mix_steps * sizeof *mix.slots);
    for (unsigned i = 0; i < work->mix_steps; i++) {
        mix.sizes[i] = workload_mix_size(work, &state);
        mix.slots[i] = (unsigned)(workload_random(&state) % work->mix_live);
    }
    subject_empty();
    workload_mix_cold(work, &mix, stream);
    subject_settle(stream);
    figure = figure_take(&work->calibration, 0, WORKLOAD_MIX_PASSES, workload_mix_sample, &pass);
    workload_begin(work, "mix");
    printf("\"live\": %u, \"largest_bytes\": %llu}, \"values\": {", work->mix_live,
           (unsigned long long)work->mix_largest_bytes);
    workload_print_figure(&figure);
    printf(", \"peak_live_bytes\": %llu, \"peak_reserved_bytes\": %llu", (unsigned long long)mix.peak_live,
           (unsigned long long)mix.peak_reserved);
    if (mix.peak_leased > 0)
        printf(", \"peak_leased_bytes\": %llu", (unsigned long long)mix.peak_leased);
    printf("}}\n");
    fflush(stdout);
    for (unsigned i = 0; i < work->mix_live; i++)
        subject_give(&mix.blocks[i], stream);
    free(mix.blocks);
    free(mix.block_bytes);
    free(mix.sizes);
    free(mix.slots);
}

#endif
