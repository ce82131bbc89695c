/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/top_sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/ctl/command_line.h"
#include "client/ctl/json.h"
#include "client/ctl/question.h"

static int compare_sessions(const void *a, const void *b) {
    const struct top_process *left = a, *right = b;
    return (left->session > right->session) - (left->session < right->session);
}

static const struct top_process *find(const struct top_sample *sample, uint64_t session) {
    const struct top_process key = {.session = session};
    return sample->n_processes == 0
               ? NULL
               : bsearch(&key, sample->processes, sample->n_processes, sizeof key, compare_sessions);
}

double top_sample_rate(const struct top_sample *sample, uint64_t session) {
    const struct top_process *process = find(sample, session);
    return process != NULL ? process->rate : 0;
}

/* Notes the processes, whose sessions the reply has in the order of their ids, and how they have grown. */
static void note_processes(struct top_sample *sample, const struct cJSON *root, double seconds) {
    size_t count = 0;

    reply_each(session, root, "sessions") count++;
    struct top_process *processes = calloc(count + 1, sizeof *processes);
    if (processes == NULL)
        return;
    count = 0;
    reply_each(session, root, "sessions") {
        struct top_process *process = &processes[count++];
        process->session = reply_count(session, "id");
        process->leased_bytes = reply_count(session, "leased_bytes");
        const struct top_process *before = find(sample, process->session);
        if (before != NULL && seconds > 0)
            process->rate = ((double)process->leased_bytes - (double)before->leased_bytes) / seconds;
    }
    free(sample->processes);
    sample->processes = processes;
    sample->n_processes = count;
}

static void note_trends(struct top_sample *sample, const struct cJSON *root) {
    if (sample->n_trend == TOP_TREND_SIZE)
        for (unsigned i = 0; i < TOP_POOLS_MAX; i++)
            memmove(sample->trends[i], sample->trends[i] + 1,
                    sizeof sample->trends[i] - sizeof sample->trends[i][0]);
    else
        sample->n_trend++;
    reply_each(pool, root, "pools") {
        uint64_t id = reply_count(pool, "id"), limit = reply_count(pool, "limit_bytes");
        if (id == 0 || id > TOP_POOLS_MAX)
            continue;
        double share = limit > 0 ? (double)reply_count(pool, "leased_bytes") / (double)limit : 0;
        sample->trends[id - 1][sample->n_trend - 1] = (unsigned short)(share > 1 ? 1000 : share * 1000);
    }
}

static void note_events(struct top_sample *sample, const struct options *options) {
    if (sample->records.file != NULL && records_are_replaced(&sample->records))
        records_close(&sample->records);
    if (sample->records.file == NULL && !records_try(&sample->records, options))
        return;
    events_last(&sample->records, TOP_EVENTS, sample->events);
}

void top_sample_take(struct top_sample *sample, const struct options *options) {
    struct reply *reply = NULL;

    int r = question_ask(&options->address, options->timeout_ns, "stats", &reply);
    if (r == 0 && reply->error_code != NULL) {
        snprintf(sample->error, sizeof sample->error, "gpupoold refused: %s", reply->error_message);
        reply_free(reply);
        return;
    }
    if (r < 0) {
        snprintf(sample->error, sizeof sample->error, "gpupoold at %.160s does not answer: %s",
                 options->address.paths[0], strerror(-r));
        return;
    }
    note_events(sample, options);
    uint64_t now_ns = clock_now_ns();
    double seconds = sample->reply != NULL ? (double)(now_ns - sample->taken_ns) / (double)NS_PER_S : 0;
    note_processes(sample, reply->root, seconds);
    note_trends(sample, reply->root);
    reply_free(sample->reply);
    sample->reply = reply;
    sample->taken_ns = now_ns;
    sample->error[0] = '\0';
}

void top_sample_deinit(struct top_sample *sample) {
    if (sample->records.file != NULL)
        records_close(&sample->records);
    sample->reply = reply_free(sample->reply);
    free(sample->processes);
    sample->processes = NULL;
    sample->n_processes = 0;
}
