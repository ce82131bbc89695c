/* SPDX-License-Identifier: Apache-2.0 */
/*
 * classifier [--gpu auto|cuda|sim] [--streams N] [--repeat N] [--model FILE] [--check] [--labels] IMAGE…
 *
 * An inference worker: says which digit each image shows. For each stream there is a thread that takes the
 * next image, decodes it while the GPU computes the one before, and has the GPU copy it in, compute, and copy
 * the scores out. An image that is missing or broken ends its own request with a message, and no other; then
 * the exit status is 1.
 *
 * Where the daemon's GPU is a simulated one, the CPU computes in its place, on the same device memory.
 */
#include <getopt.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "request.h"

#define DEVICE            0 /* the first GPU that this process sees */
#define STREAMS_DEFAULT   4u
#define STREAMS_MAX       64u
#define REPEAT_MAX        1000000u
#define REQUESTS_A_STREAM 2u /* one is under way while the next one is prepared */
#define PATH_SIZE         4096u
#define MODEL_NAME        "digits.model"

struct arguments {
    const char *gpu; /* "auto", "cuda" or "sim" */
    const char *model_path;
    unsigned streams, repeat;
    bool check, labels;
    char **paths;
    size_t n_paths;
};

enum state {
    STATE_FAILED,
    STATE_DONE,
    STATE_DIFFERS, /* the CPU path says something else */
};

struct result {
    enum state state;
    int32_t scores[MODEL_CLASSES];
};

/* All images, each as often as was asked, and the number of the next one. */
struct work {
    const struct arguments *arguments;
    struct result *results; /* [repetition][path] */
    size_t count;
    atomic_size_t next;
};

/* A thread with its stream. */
struct lane {
    struct work *work;
    void *stream;
    pthread_t thread;
    bool started;
    struct request requests[REQUESTS_A_STREAM];
};

static int fail(const char *what, const char *why) {
    fprintf(stderr, "classifier: %s: %s\n", what, why);
    return -1;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* --- threads --- */

static void finish(struct work *work, struct request *request, size_t number) {
    struct result *result = &work->results[number];
    int32_t expected[MODEL_CLASSES];

    if (request_finish(request, result->scores) < 0)
        return;
    result->state = STATE_DONE;
    if (!work->arguments->check)
        return;
    request_compute_on_cpu(request, expected);
    if (memcmp(expected, result->scores, sizeof expected) != 0) {
        result->state = STATE_DIFFERS;
        fail(request->path, "the scores are not those of the CPU path");
    }
}

static void *lane_main(void *data) {
    struct lane *lane = data;
    struct work *work = lane->work;
    struct request *under_way = NULL;
    size_t number, number_under_way = 0;

    for (unsigned i = 0; (number = atomic_fetch_add(&work->next, 1)) < work->count;) {
        struct request *request = &lane->requests[i];
        bool prepared =
            request_prepare(request, work->arguments->paths[number % work->arguments->n_paths]) == 0;
        if (under_way != NULL)
            finish(work, under_way, number_under_way);
        under_way = NULL;
        if (!prepared || request_submit(request) < 0)
            continue;
        under_way = request;
        number_under_way = number;
        i = (i + 1) % REQUESTS_A_STREAM;
    }
    if (under_way != NULL)
        finish(work, under_way, number_under_way);
    return NULL;
}

static int lane_init(struct lane *lane, struct work *work, struct worker *worker) {
    lane->work = work;
    if (gpupool_stream_create(worker->client, worker->device, &lane->stream) < 0)
        return fail("creating a stream", gpupool_error_text());
    for (unsigned i = 0; i < REQUESTS_A_STREAM; i++)
        if (request_init(&lane->requests[i], worker, lane->stream) < 0)
            return -1;
    return 0;
}

static void lane_deinit(struct lane *lane, struct worker *worker) {
    for (unsigned i = 0; i < REQUESTS_A_STREAM; i++)
        request_deinit(&lane->requests[i]);
    if (lane->stream != NULL && gpupool_stream_destroy(worker->client, worker->device, lane->stream) < 0)
        fail("destroying a stream", gpupool_error_text());
}

static int run_lanes(struct lane *lanes, unsigned count) {
    int r = 0;

    for (unsigned i = 0; i < count; i++) {
        int error = pthread_create(&lanes[i].thread, NULL, lane_main, &lanes[i]);
        lanes[i].started = error == 0;
        if (error != 0)
            r = fail("starting a thread", strerror(error));
    }
    for (unsigned i = 0; i < count; i++)
        if (lanes[i].started)
            pthread_join(lanes[i].thread, NULL);
    return r;
}

/* --- what all requests share --- */

static int open_private(const char *gpu, struct gpupool_client **ret_client) {
    const char *automatic[] = {"--log-level", "error", NULL};
    const char *wanted[] = {"--log-level", "error", "--gpu", gpu, NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    options.socket = "private";
    options.daemon_arguments = gpu != NULL ? wanted : automatic;
    if (gpupool_open(&options, ret_client) < 0)
        return fail("opening a client with a daemon of its own", gpupool_error_text());
    return 0;
}

/* The machine's daemon where the environment names one, else one of this program's own. */
static int open_daemon(const char *gpu, struct gpupool_client **ret_client) {
    const char *socket = getenv("GPUPOOL_SOCKET");
    bool automatic = strcmp(gpu, "auto") == 0;

    if (socket != NULL && strcmp(socket, "private") != 0) {
        if (gpupool_open(NULL, ret_client) < 0)
            return fail("connecting to the daemon", gpupool_error_text());
        enum gpupool_gpu kind = gpupool_gpu_kind(*ret_client);
        if (!automatic && kind != (strcmp(gpu, "cuda") == 0 ? GPUPOOL_GPU_CUDA : GPUPOOL_GPU_SIM))
            return fail(socket, "the daemon serves another kind of GPU than --gpu says");
        return 0;
    }
    if (open_private(automatic ? NULL : gpu, ret_client) < 0)
        return -1;
    if (!automatic || gpupool_gpu_kind(*ret_client) != GPUPOOL_GPU_NONE)
        return 0;
    gpupool_close(*ret_client);
    *ret_client = NULL;
    return open_private("sim", ret_client);
}

static int choose_compute(struct worker *worker) {
    switch (gpupool_gpu_kind(worker->client)) {
    case GPUPOOL_GPU_SIM:
        worker->compute = &compute_on_cpu;
        return 0;
    case GPUPOOL_GPU_CUDA:
        worker->compute = compute_on_cuda();
        return worker->compute != NULL
                   ? 0
                   : fail("CUDA", "this program was built without nvcc: it has no kernels");
    default:
        return fail("choosing a GPU", "the daemon has none; --gpu sim simulates one");
    }
}

/* Puts the model into the array's host copy. The first stream that wants it on the device has it copied. */
static int weights_init(struct worker *worker) {
    void *memory;

    if (gpupool_synced_create(worker->client, worker->device, sizeof *worker->model, &worker->weights) < 0 ||
        gpupool_synced_host(worker->weights, GPUPOOL_OVERWRITE, &memory, GPUPOOL_PER_THREAD) < 0)
        return fail("memory for the weights", gpupool_error_text());
    memcpy(memory, worker->model, sizeof *worker->model);
    return 0;
}

static int worker_init(struct worker *worker, const struct arguments *arguments, const struct model *model) {
    worker->device = DEVICE;
    worker->model = model;
    if (open_daemon(arguments->gpu, &worker->client) < 0 || choose_compute(worker) < 0)
        return -1;
    return weights_init(worker);
}

/* --- results --- */

/* The digit that a file's name begins with: what it shows, by the custom of this folder's images. */
static bool is_as_labelled(const char *path, unsigned class_index) {
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    return name[0] == (char)('0' + class_index);
}

/* Prints the classes of the first repetition, and counts them all. Returns the exit status. */
static int report(const struct work *work, const struct worker *worker, double seconds) {
    const struct arguments *arguments = work->arguments;
    size_t done = 0, failed = 0, differ = 0, right = 0, classified = 0;
    struct gpupool_synced_info weights;

    for (size_t i = 0; i < work->count; i++) {
        const struct result *result = &work->results[i];
        done += result->state != STATE_FAILED;
        failed += result->state == STATE_FAILED;
        differ += result->state == STATE_DIFFERS;
        if (i >= arguments->n_paths || result->state == STATE_FAILED)
            continue;
        unsigned best = model_class(result->scores);
        printf("%s: %u (%.1f %%)\n", arguments->paths[i], best,
               100 * model_probability(worker->model, result->scores, best));
        classified++;
        right += is_as_labelled(arguments->paths[i], best);
    }
    if (arguments->labels && classified > 0)
        printf("right: %zu of %zu (%.2f %%)\n", right, classified,
               100.0 * (double)right / (double)classified);
    if (arguments->check)
        printf("compared with the CPU path: %zu of %zu have the same scores\n", done - differ, done);
    printf("%zu images in %.3f s: %.0f a second; streams: %u, computed by: %s\n", done, seconds,
           (double)done / seconds, arguments->streams, worker->compute->name);
    if (gpupool_synced_query(worker->weights, &weights) == 0)
        printf("copies of the weights (%llu bytes) to the device: %llu\n",
               (unsigned long long)weights.size_bytes, (unsigned long long)weights.copies_to_device);
    if (failed > 0)
        fprintf(stderr, "classifier: %zu of %zu requests failed\n", failed, work->count);
    return failed > 0 || differ > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int classify(const struct arguments *arguments, const struct model *model) {
    struct worker worker = {.weights_lock = PTHREAD_MUTEX_INITIALIZER};
    struct work work = {.arguments = arguments, .count = arguments->n_paths * arguments->repeat};
    struct lane *lanes = calloc(arguments->streams, sizeof *lanes);
    int status = EXIT_FAILURE, r = 0;

    work.results = calloc(work.count, sizeof *work.results);
    if (lanes == NULL || work.results == NULL)
        r = fail("starting", "no memory");
    if (r == 0)
        r = worker_init(&worker, arguments, model);
    for (unsigned i = 0; i < arguments->streams && r == 0; i++)
        r = lane_init(&lanes[i], &work, &worker);
    double begin = seconds_now();
    if (r == 0)
        r = run_lanes(lanes, arguments->streams);
    if (r == 0)
        status = report(&work, &worker, seconds_now() - begin);

    /* The streams end before the array that they used: it has to forget them first. */
    if (worker.weights != NULL && gpupool_synced_settle(worker.weights) < 0)
        fail("waiting for the weights' streams", gpupool_error_text());
    for (unsigned i = 0; lanes != NULL && i < arguments->streams; i++)
        lane_deinit(&lanes[i], &worker);
    if (worker.weights != NULL)
        gpupool_synced_destroy(worker.weights, GPUPOOL_PER_THREAD);
    gpupool_close(worker.client);
    pthread_mutex_destroy(&worker.weights_lock);
    free(work.results);
    free(lanes);
    return status;
}

/* --- the command line --- */

static int usage(FILE *file, int status) {
    fprintf(
        file,
        "usage: classifier [OPTION]... IMAGE.png...\n"
        "Says which digit each image shows, computed on a GPU with memory of the pools.\n"
        "  --gpu auto|cuda|sim  auto: a real one, else a simulated one\n"
        "  --streams N          so many requests at the same time (%u)\n"
        "  --repeat N           each image so often; its class is printed once\n"
        "  --model FILE         (" MODEL_NAME " beside this program)\n"
        "  --check              compare each image's scores with those of the CPU path: they are equal, bit "
        "for bit\n"
        "  --labels             file names begin with the digit that they show: print how many are right\n"
        "The daemon is that of $GPUPOOL_SOCKET, else one of the program's own, by $GPUPOOL_DAEMON.\n"
        "Exit status: 0, or 1 where a request failed, or scores differ; 2: wrong options.\n",
        STREAMS_DEFAULT);
    return status;
}

static bool parse_number(const char *text, unsigned largest, unsigned *ret_number) {
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || number == 0 || number > largest)
        return false;
    *ret_number = (unsigned)number;
    return true;
}

static bool parse_arguments(int argc, char **argv, struct arguments *arguments) {
    enum {
        GPU = 1,
        STREAMS,
        REPEAT,
        MODEL,
        CHECK,
        LABELS
    };
    static const struct option options[] = {{"gpu", required_argument, NULL, GPU},
                                            {"streams", required_argument, NULL, STREAMS},
                                            {"repeat", required_argument, NULL, REPEAT},
                                            {"model", required_argument, NULL, MODEL},
                                            {"check", no_argument, NULL, CHECK},
                                            {"labels", no_argument, NULL, LABELS},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    bool good = true;
    int option;

    while (good && (option = getopt_long(argc, argv, "h", options, NULL)) != -1)
        switch (option) {
        case GPU:
            arguments->gpu = optarg;
            good = strcmp(optarg, "auto") == 0 || strcmp(optarg, "cuda") == 0 || strcmp(optarg, "sim") == 0;
            break;
        case STREAMS:
            good = parse_number(optarg, STREAMS_MAX, &arguments->streams);
            break;
        case REPEAT:
            good = parse_number(optarg, REPEAT_MAX, &arguments->repeat);
            break;
        case MODEL:
            arguments->model_path = optarg;
            break;
        case CHECK:
            arguments->check = true;
            break;
        case LABELS:
            arguments->labels = true;
            break;
        case 'h':
            exit(usage(stdout, EXIT_SUCCESS));
        default:
            good = false;
        }
    arguments->paths = argv + optind;
    arguments->n_paths = (size_t)(argc - optind);
    return good && optind < argc;
}

/* Beside this program. */
static const char *default_model(char path[PATH_SIZE]) {
    ssize_t length = readlink("/proc/self/exe", path, PATH_SIZE - sizeof MODEL_NAME);
    while (length > 0 && path[length - 1] != '/')
        length--;
    memcpy(path + (length > 0 ? length : 0), MODEL_NAME, sizeof MODEL_NAME);
    return path;
}

int main(int argc, char **argv) {
    struct arguments arguments = {.gpu = "auto", .streams = STREAMS_DEFAULT, .repeat = 1};
    char path[PATH_SIZE];
    struct model model;

    if (!parse_arguments(argc, argv, &arguments))
        return usage(stderr, 2);
    if (model_read(arguments.model_path != NULL ? arguments.model_path : default_model(path), &model) < 0)
        return EXIT_FAILURE;
    int status = classify(&arguments, &model);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("classifier: writing the output");
        return EXIT_FAILURE;
    }
    return status;
}
