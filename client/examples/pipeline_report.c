/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of a run: a table, and a file with the times of all steps, from which
 * tests/bench/pages/timeline.py draws the picture.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "pipeline.h"

#define MIB (1024.0 * 1024.0)

static const char *const step_names[STEPS] = {"copy in", "compute", "copy out"};
static const char *const memory_names[MEMORIES] = {"pageable", "pool"};

static double gb_per_s(const struct report *report, uint64_t ns) {
    return (double)report->plan.batch_bytes * report->plan.batches / (double)ns;
}

void report_print(const struct report *report) {
    const struct plan *plan = &report->plan;

    printf("%u batches of %.4g MiB are copied in, computed on (%u loops a word) and copied out;\n"
           "medians of %u rounds\n",
           plan->batches, (double)plan->batch_bytes / MIB, report->loops, plan->rounds);
    printf("\n  %-36s %12s %11s\n", "by itself", "time", "GB/s");
    for (unsigned i = 0; i < report->n_alone; i++)
        printf("  %-36s %9.2f ms %11.1f\n", report->alone[i].name,
               (double)report->alone[i].median_ns / (double)PIPELINE_NS_PER_MS,
               gb_per_s(report, report->alone[i].median_ns));
    printf("\n  %-36s %12s %11s %10s %13s\n", "all three steps", "time", "GB/s", "to (1)", "of the limit");
    for (unsigned i = 0; i < report->n_ways; i++) {
        const struct way *way = &report->ways[i];
        printf("  (%u) %-32s %9.2f ms %11.1f %9.2fx %12.1f%%\n", i + 1, way->name,
               (double)way->median_ns / (double)PIPELINE_NS_PER_MS, gb_per_s(report, way->median_ns),
               (double)report->ways[0].median_ns / (double)way->median_ns,
               100.0 * (double)report->limit_ns / (double)way->median_ns);
    }
    printf("\n  GB/s: of input. The limit is what the slowest of the three steps takes by itself: %.2f ms.\n",
           (double)report->limit_ns / (double)PIPELINE_NS_PER_MS);
}

static void write_way(FILE *file, const struct way *way, unsigned batches, bool last) {
    fprintf(file, "  {\"name\": \"%s\", \"memory\": \"%s\", \"streams\": %u, \"ns\": %llu", way->name,
            memory_names[way->memory], way->streams, (unsigned long long)way->median_ns);
    if (way->spans != NULL) {
        fprintf(file, ", \"traced_ns\": %llu, \"spans\": [", (unsigned long long)way->traced_ns);
        for (unsigned i = 0; i < batches * STEPS; i++)
            fprintf(file,
                    "%s\n   {\"batch\": %u, \"stream\": %u, \"step\": \"%s\", \"ready_ns\": %llu, "
                    "\"begin_ns\": %llu, \"end_ns\": %llu}",
                    i == 0 ? "" : ",", i / STEPS, i / STEPS % way->streams, step_names[i % STEPS],
                    (unsigned long long)way->spans[i].ready_ns, (unsigned long long)way->spans[i].begin_ns,
                    (unsigned long long)way->spans[i].end_ns);
        fprintf(file, "]");
    }
    fprintf(file, "}%s\n", last ? "" : ",");
}

int report_write(const struct report *report, const char *path) {
    const struct plan *plan = &report->plan;
    FILE *file = fopen(path, "we");

    if (file == NULL)
        return fail("%s: %s", path, strerror(errno));
    fprintf(file,
            "{\"gpu\": \"%s\", \"device\": \"%s\", \"batches\": %u, \"batch_bytes\": %llu, \"streams\": %u,\n"
            " \"rounds\": %u, \"compute_percent\": %u, \"loops\": %u, \"limit_ns\": %llu,\n \"alone\": [\n",
            report->gpu, report->device, plan->batches, (unsigned long long)plan->batch_bytes, plan->streams,
            plan->rounds, plan->compute_percent, report->loops, (unsigned long long)report->limit_ns);
    for (unsigned i = 0; i < report->n_alone; i++)
        write_way(file, &report->alone[i], plan->batches, i + 1 == report->n_alone);
    fprintf(file, " ],\n \"ways\": [\n");
    for (unsigned i = 0; i < report->n_ways; i++)
        write_way(file, &report->ways[i], plan->batches, i + 1 == report->n_ways);
    fprintf(file, " ]}\n");
    bool bad = ferror(file) != 0;
    if (fclose(file) != 0 || bad)
        return fail("%s: it could not be written", path);
    return 0;
}
