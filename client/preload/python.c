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
 * that ends waits for that, at most for two seconds, and keeps the lock. A forked child's is free.
 *
 * `caches` names the module of each framework with a cache, and the function that empties it. A module that
 * is being imported may not have its names yet: what such a function raises has no effect. `kept` is what
 * stays idle in the cache, by device. */
static const char prepare[] =
    "import _thread, atexit, os, sys\n"
    "running = _thread.allocate_lock()\n"
    "if hasattr(running, '_at_fork_reinit'):\n"
    "    os.register_at_fork(after_in_child=running._at_fork_reinit)\n"
    "atexit.register(running.acquire, True, 2)\n"
    "def keep(device, size):\n"
    "    kept[device] = kept.get(device, 0) + size\n"
    /* Freed device memory and freed pinned memory are cached apart. */
    "def empty_torch(torch):\n"
    "    if torch.cuda.is_initialized():\n"
    "        torch.cuda.empty_cache()\n"
    "        getattr(torch._C, '_host_emptyCache', lambda: None)()\n"
    "        for device in range(torch.cuda.device_count()):\n"
    "            stats = torch.cuda.memory_stats_as_nested_dict(device)\n"
    "            keep(device, stats['reserved_bytes']['all']['current'] -\n"
    "                         stats['allocated_bytes']['all']['current'])\n"
    /* A pool has a part for each device, and speaks of the current one's. To make an unused device current
     * would make a context there. */
    "def empty_cupy(cupy):\n"
    "    pools = {id(pool): pool for pool in (cupy.get_default_memory_pool(),\n"
    "             getattr(cupy.cuda.get_allocator(), '__self__', None))}\n"
    "    for device in used:\n"
    "        with cupy.cuda.Device(device):\n"
    "            for pool in pools.values():\n"
    "                if hasattr(pool, 'free_all_blocks'):\n"
    "                    pool.free_all_blocks()\n"
    "                    keep(device, pool.free_bytes())\n"
    "    cupy.get_default_pinned_memory_pool().free_all_blocks()\n"
    /* Numba puts frees off. */
    "def empty_numba(module):\n"
    "    for device in list(module.driver.devices.values()):\n"
    "        if device.primary_context is not None:\n"
    "            device.primary_context.memory_manager.deallocations.clear()\n"
    "caches = {'torch': empty_torch, 'cupy': empty_cupy,\n"
    "          'numba.cuda.cudadrv.driver': empty_numba}\n";

/* `used`: the devices on which memory was lent. */
static const char empty[] = "kept = {}\n"
                            "if running.acquire(False):\n"
                            "    try:\n"
                            "        for name in caches:\n"
                            "            try:\n"
                            "                if name in sys.modules:\n"
                            "                    caches[name](sys.modules[name])\n"
                            "            except Exception:\n"
                            "                pass\n"
                            "    finally:\n"
                            "        running.release()\n"
                            "kept = [kept.get(device, 0) for device in range(max(kept, default=-1) + 1)]\n";

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
    X(PyList_Append, int, (void *, void *))                                                                  \
    X(PyList_GetItem, void *, (void *, long))                                                                \
    X(PyList_New, void *, (long))                                                                            \
    X(PyList_Size, long, (void *))                                                                           \
    X(PyLong_AsLongLong, long long, (void *))                                                                \
    X(PyLong_FromLong, void *, (long))

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

/* Tells the text of the devices on which memory was lent. False: an exception is pending. */
static bool tell_devices(const struct python *python) {
    uint64_t devices = lend_devices();
    void *list = python->PyList_New(0);
    bool good = list != NULL;

    for (; good && devices != 0; devices &= devices - 1) {
        void *number = python->PyLong_FromLong(__builtin_ctzll(devices));
        good = number != NULL && python->PyList_Append(list, number) == 0;
        if (number != NULL)
            python->Py_DecRef(number);
    }
    good = good && python->PyDict_SetItemString(namespace, "used", list) == 0;
    if (list != NULL)
        python->Py_DecRef(list);
    return good;
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
    if (!tell_devices(python) || !run_text(python, empty))
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
