/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_CALIBRATION_H
#define TESTS_BENCH_CALIBRATION_H
/*
 * Whether a processor was itself slow when something was measured on it. In a virtual machine another may use
 * the other half of a core, for seconds, on one processor and then another: the same 17 ns then take 28. So a
 * piece of work that is always the same is timed before and after each sample. Where that took a fifth longer
 * than at best in this run, the sample is marked slow, set aside and repeated, for each allocator.
 * A figure has both: the median of the samples as they came, and that of those that were not slow.
 *
 * The work is a chain of loads that wait for one another, then a hundred instructions that do nothing, over
 * and over. How many chains overlap is a matter of how many instructions the core holds at once, and that it
 * halves as soon as its other half is in use. Seen on an EPYC, whose other halves were in use most of the
 * time: beside work that took up to 1.1 times its best a pair took 19.8 ns, beside 1.5 times and more 33 ns,
 * and hardly any was between. A chain of dependent additions took the same to 1% all the while. It is C and
 * C++ alike.
 */
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define CALIBRATION_ROUNDS      1000u /* some 10 us: little against a sample of 0.1 ms */
#define CALIBRATION_SLOW        1.2   /* times the best; a core that is shared makes it 1.5 and more */
#define CALIBRATION_SCANS       8u    /* for each processor, at first */
#define CALIBRATION_HOP_NS      (2 * NS_PER_MS) /* to warm up on another processor */
#define CALIBRATION_REPEAT      3u   /* times as long as the samples took, repeating them may take */
#define CALIBRATION_SAMPLES_MAX 201u /* that are wanted; with repeated ones three times as many */
#define CALIBRATION_FEW         5u   /* accepted samples: fewer say nothing */

/* The best times of processors, of the run so far. */
struct calibration {
    double best_ns; /* 0: nothing is known */
};

/* The result of a measurement. */
struct figure {
    double ns; /* median of the samples that were not slow; of all as they came, where there are too few */
    double raw_ns;    /* median of as many samples as were wanted, as they came */
    unsigned samples; /* that were not slow, 0 where ns is raw_ns */
    unsigned slow;    /* set aside */
};

/* One sample: nanoseconds of whatever is measured. */
typedef double figure_sample(void *context);

/* The work is the same in every program that includes this, so its instructions are no compiler's choice. */
static inline double calibration_time(struct calibration *calibration) {
    uint64_t left = CALIBRATION_ROUNDS;
    void *memory = &memory, *at = memory;
    uint64_t start = clock_now_ns();
#if defined(__x86_64__)
    __asm__ volatile(".p2align 6\n"
                     "1:\n\t"
                     "mov %2, %1\n\t"
                     ".rept 16\n\tmov (%1), %1\n\t.endr\n\t"
                     ".rept 100\n\tnop\n\t.endr\n\t"
                     "dec %0\n\t"
                     "jnz 1b"
                     : "+r"(left), "+r"(at)
                     : "r"(memory)
                     : "cc", "memory");
#else
    for (void *volatile *chain; left > 0; left--) {
        chain = (void *volatile *)memory;
        for (unsigned i = 0; i < 16; i++)
            chain = (void *volatile *)*chain;
        for (unsigned i = 0; i < 100; i++)
            __asm__ volatile("" ::"r"(i));
        at = (void *)chain;
    }
#endif
    (void)at;
    double ns = (double)(clock_now_ns() - start);
    if (calibration->best_ns == 0 || ns < calibration->best_ns)
        calibration->best_ns = ns;
    return ns;
}

/* Goes on on the next of the processors that the thread may use, and may go elsewhere from there. */
static inline void calibration_hop(void) {
    cpu_set_t allowed, one;
    int cpu = sched_getcpu();

    if (cpu < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
        return;
    do
        cpu = (cpu + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(cpu, &allowed));
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0)
        (void)sched_setaffinity(0, sizeof allowed, &allowed);
}

/* Looks at every processor, to know the best before anything is measured. */
static inline void calibration_scan(struct calibration *calibration) {
    cpu_set_t allowed;
    int count = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    for (int i = 0; i < count; i++, calibration_hop())
        for (unsigned scan = 0; scan < CALIBRATION_SCANS; scan++)
            calibration_time(calibration);
}

static inline bool calibration_is_slow(const struct calibration *calibration, double ns) {
    return ns > CALIBRATION_SLOW * calibration->best_ns;
}

/* Looks for a processor that is not slow until then; the thread is on the last one tried. */
static inline void calibration_search(struct calibration *calibration, uint64_t until_ns) {
    do {
        calibration_hop();
        calibration_time(calibration); /* arrives */
    } while (calibration_is_slow(calibration, calibration_time(calibration)) && clock_now_ns() < until_ns);
}

static inline int figure_compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

/* Sorts the values. */
static inline double figure_median(double *values, unsigned count) {
    /* There is at least one: who calls this has measured. */
    /* cppcheck-suppress uninitvar */
    qsort(values, count, sizeof *values, figure_compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static inline unsigned figure_accepted(const struct calibration *calibration, const double *speeds,
                                       unsigned count) {
    unsigned accepted = 0;
    for (unsigned i = 0; i < count; i++)
        accepted += !calibration_is_slow(calibration, speeds[i]);
    return accepted;
}

/* Of samples and how slow the processor was at each: `wanted` that came first, then those that repeat. */
static inline struct figure figure_judge(const struct calibration *calibration, const double *ns,
                                         const double *speeds, unsigned wanted, unsigned count) {
    double came[CALIBRATION_SAMPLES_MAX], accepted[3 * CALIBRATION_SAMPLES_MAX];
    struct figure figure = {0, 0, 0, 0};

    memcpy(came, ns, wanted * sizeof *ns);
    figure.raw_ns = figure_median(came, wanted);
    for (unsigned i = 0; i < count; i++)
        if (!calibration_is_slow(calibration, speeds[i]))
            accepted[figure.samples++] = ns[i];
    figure.slow = count - figure.samples;
    if (figure.samples < CALIBRATION_FEW && figure.samples < wanted)
        figure.samples = 0;
    figure.ns = figure.samples > 0 ? figure_median(accepted, figure.samples) : figure.raw_ns;
    return figure;
}

/* One sample, and how slow the processor was at it: as before or after it, whichever was slower. before: what
 * the calibration's work took just now. Returns what it took after the sample. */
static inline double figure_add(struct calibration *calibration, double before, figure_sample *sample,
                                void *context, double *ret_ns, double *ret_speed) {
    *ret_ns = sample(context);
    double after = calibration_time(calibration);
    *ret_speed = before > after ? before : after;
    return after;
}

/*
 * Takes samples for that long, at least `least` and at most CALIBRATION_SAMPLES_MAX of them, then repeats
 * those that were slow, on another processor: for CALIBRATION_REPEAT times as long as it all took at most.
 * Samples are judged as slow when all are there, by the best that is known then.
 */
static inline struct figure figure_take(struct calibration *calibration, uint64_t for_ns, unsigned least,
                                        figure_sample *sample, void *context) {
    double ns[3 * CALIBRATION_SAMPLES_MAX], speeds[3 * CALIBRATION_SAMPLES_MAX];
    unsigned count = 0, wanted;
    uint64_t start = clock_now_ns(), end;
    double before = calibration_time(calibration);

    while (count < CALIBRATION_SAMPLES_MAX && (count < least || clock_now_ns() - start < for_ns)) {
        before = figure_add(calibration, before, sample, context, &ns[count], &speeds[count]);
        count++;
    }
    wanted = count;
    end = clock_now_ns() + CALIBRATION_REPEAT * (clock_now_ns() - start);
    while (count < 3 * wanted && figure_accepted(calibration, speeds, count) < wanted &&
           clock_now_ns() < end) {
        if (calibration_is_slow(calibration, speeds[count - 1])) {
            calibration_search(calibration, end);
            for (uint64_t hop = clock_now_ns(); clock_now_ns() - hop < CALIBRATION_HOP_NS;)
                (void)sample(context);
            before = calibration_time(calibration);
        }
        before = figure_add(calibration, before, sample, context, &ns[count], &speeds[count]);
        count++;
    }
    return figure_judge(calibration, ns, speeds, wanted, count);
}

#endif
