/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/python.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "client/preload/lending.h"
#include "client/preload/reclaim.h"

/* Run once in the namespace in which `empty` runs. The lock is held while caches are emptied: an interpreter
 * that ends waits for that, at most for two seconds, and keeps the lock. A forked child's is free. */
static const char prepare[] = "import _thread, atexit, os, sys\n"
                              "running = _thread.allocate_lock()\n"
                              "if hasattr(running, '_at_fork_reinit'):\n"
                              "    os.register_at_fork(after_in_child=running._at_fork_reinit)\n"
                              "atexit.register(running.acquire, True, 2)\n";

/* While PyTorch is being imported it may not have these names yet. Freed device memory and freed pinned
 * memory are cached apart. */
static const char empty[] = "kept = []\n"
                            "torch = sys.modules.get('torch')\n"
                            "try:\n"
                            "    if torch and torch.cuda.is_initialized() and running.acquire(False):\n"
                            "        try:\n"
                            "            torch.cuda.empty_cache()\n"
                            "            getattr(torch._C, '_host_emptyCache', lambda: None)()\n"
                            "            for device in range(torch.cuda.device_count()):\n"
                            "                stats = torch.cuda.memory_stats_as_nested_dict(device)\n"
                            "                kept.append(stats['reserved_bytes']['all']['current'] -\n"
                            "                            stats['allocated_bytes']['all']['current'])\n"
                            "        finally:\n"
                            "            running.release()\n"
                            "except Exception:\n"
                            "    pass\n";

#define FILE_INPUT 257 /* Py_file_input */

/* The interpreter's functions: name, result, parameters. All are in its stable binary interface. */
#define PYTHON_CALLS(X)                                                                                      \
    X(Py_AddPendingCall, int, (int (*)(void *), void *))                                                     \
    X(Py_CompileString, void *, (const char *, const char *, int))                                           \
    X(Py_DecRef, void, (void *))                                                                             \
    X(Py_IsInitialized, int, (void))                                                                         \
    X(PyDict_GetItemString, void *, (void *, const char *))                                                  \
    X(PyDict_New, void *, (void))                                                                            \
    X(PyDict_SetItemString, int, (void *, const char *, void *))                                             \
    X(PyErr_Clear, void, (void))                                                                             \
    X(PyEval_EvalCode, void *, (void *, void *, void *))                                                     \
    X(PyEval_GetBuiltins, void *, (void))                                                                    \
    X(PyGILState_Ensure, int, (void))                                                                        \
    X(PyGILState_Release, void, (int))                                                                       \
    X(PyList_GetItem, void *, (void *, long))                                                                \
    X(PyList_Size, long, (void *))                                                                           \
    X(PyLong_AsLongLong, long long, (void *))

#define MEMBER(name, result, parameters) result(*name) parameters;
struct python {
    PYTHON_CALLS(MEMBER)
    int (*Py_IsFinalizing)(void); /* NULL: the interpreter has none */
};

enum work {
    IDLE,
    WANTED,
    RUNNING,
    OVER,
};

static _Atomic int work;
static atomic_bool is_queued; /* in the interpreter's queue for the main thread is an entry of ours */
static atomic_bool presses;   /* a thread waits for the interpreter's lock, or has it */
static bool presser_works;    /* that thread's: it does the work */
static uint64_t kept_bytes[PYTHON_DEVICES_MAX]; /* the work's */
static void *namespace;                         /* a dict; NULL: not prepared yet. The work's */

void python_after_fork(void) {
    atomic_store(&work, IDLE);
    atomic_store(&is_queued, false); /* an entry may be in the queue, and finds nothing to do */
    atomic_store(&presses, false);
}

/* False: no interpreter runs here, or it is ending. */
static bool find_python(struct python *python) {
    *python = (struct python){0};
#define FIND(name, result, parameters)                                                                       \
    *(void **)&python->name = dlsym(RTLD_DEFAULT, #name);                                                    \
    if (python->name == NULL)                                                                                \
        return false;
    PYTHON_CALLS(FIND)
    *(void **)&python->Py_IsFinalizing = dlsym(RTLD_DEFAULT, "Py_IsFinalizing"); /* of 3.13 */
    if (python->Py_IsFinalizing == NULL)
        *(void **)&python->Py_IsFinalizing = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return python->Py_IsInitialized() != 0 &&
           (python->Py_IsFinalizing == NULL || python->Py_IsFinalizing() == 0);
}

/* Runs a text in the namespace. False: it raised an exception, which is pending. */
static bool run_text(const struct python *python, const char *text) {
    void *code = python->Py_CompileString(text, "<gpupool>", FILE_INPUT);
    void *result = code != NULL ? python->PyEval_EvalCode(code, namespace, namespace) : NULL;

    if (code != NULL)
        python->Py_DecRef(code);
    if (result != NULL)
        python->Py_DecRef(result);
    return result != NULL;
}

/* With the interpreter's lock. False: an exception is pending (the program's KeyboardInterrupt). */
static bool empty_caches(const struct python *python) {
    if (namespace == NULL) {
        namespace = python->PyDict_New();
        if (namespace == NULL)
            return false;
        /* Python 3.9 does not find the built-in names by itself where no program runs. */
        if (python->PyDict_SetItemString(namespace, "__builtins__", python->PyEval_GetBuiltins()) < 0 ||
            !run_text(python, prepare)) {
            python->Py_DecRef(namespace);
            namespace = NULL;
            return false;
        }
    }
    if (!run_text(python, empty))
        return false;
    void *kept = python->PyDict_GetItemString(namespace, "kept"); /* borrowed, as each of its items is */
    long count = kept != NULL ? python->PyList_Size(kept) : 0;
    for (long i = 0; i < count && i < PYTHON_DEVICES_MAX; i++) {
        long long bytes = python->PyLong_AsLongLong(python->PyList_GetItem(kept, i));
        kept_bytes[i] = bytes > 0 ? (uint64_t)bytes : 0;
    }
    return true;
}

static bool begin_running(void) {
    int wanted = WANTED;
    return atomic_compare_exchange_strong(&work, &wanted, RUNNING);
}

static void end_running(void) {
    atomic_store(&work, OVER);
    reclaim_changed();
}

/* On Python's main thread, which has the interpreter's lock. -1: the program's exception is to be raised. */
static int on_main_thread(void *argument) {
    struct python python;
    bool good = true;

    (void)argument;
    atomic_store(&is_queued, false);
    if (!find_python(&python) || !begin_running())
        return 0;
    struct reclaim_collecting collecting = reclaim_collect_begin(false);
    good = empty_caches(&python);
    reclaim_collect_end(collecting);
    end_running();
    return good ? 0 : -1;
}

/* Also if the interpreter ends the thread. */
static void end_pressing(void *argument) {
    (void)argument;
    if (presser_works)
        end_running();
    atomic_store(&presses, false);
    reclaim_changed();
}

static void *press(void *argument) {
    struct python python;

    presser_works = false;
    pthread_cleanup_push(end_pressing, NULL);
    if (find_python(&python)) {
        int state = python.PyGILState_Ensure(); /* an interpreter that ends does not come back from it */
        presser_works = begin_running();
        if (presser_works) {
            struct reclaim_collecting collecting = reclaim_collect_begin(true);
            if (!empty_caches(&python))
                python.PyErr_Clear();
            reclaim_collect_end(collecting);
        }
        python.PyGILState_Release(state);
    }
    pthread_cleanup_pop(true);
    return argument;
}

bool python_begin(void) {
    struct python python;

    if (!find_python(&python))
        return false;
    memset(kept_bytes, 0, sizeof kept_bytes);
    atomic_store(&work, WANTED);
    if (!atomic_exchange(&is_queued, true) && python.Py_AddPendingCall(on_main_thread, NULL) != 0)
        atomic_store(&is_queued, false); /* the queue is full */
    return true;
}

void python_press(void) {
    if (atomic_load(&work) == WANTED && !atomic_exchange(&presses, true) && !reclaim_start_thread(press))
        atomic_store(&presses, false);
}

bool python_is_over(uint64_t ret_kept_bytes[PYTHON_DEVICES_MAX]) {
    struct python python;
    int wanted = WANTED;

    if (atomic_load(&work) != OVER &&
        (find_python(&python) || !atomic_compare_exchange_strong(&work, &wanted, OVER)))
        return false;
    memcpy(ret_kept_bytes, kept_bytes, sizeof kept_bytes);
    atomic_store(&work, IDLE);
    return true;
}
