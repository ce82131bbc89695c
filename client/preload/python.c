/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/python.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "client/preload/lending.h"

/* Runs in a namespace of its own. While PyTorch is being imported it may not have these names yet. Freed
 * device memory and freed pinned memory are cached apart. */
static const char empty_cache[] =
    "exec('''\n"
    "import sys\n"
    "torch = sys.modules.get(\"torch\")\n"
    "try:\n"
    "    if torch and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():\n"
    "        torch.cuda.empty_cache()\n"
    "        getattr(torch._C, \"_host_emptyCache\", lambda: None)()\n"
    "except Exception:\n"
    "    pass\n"
    "''', {})\n";

static atomic_bool scheduled;

void python_after_fork(void) {
    atomic_store(&scheduled, false);
}

/* On Python's main thread, which has the interpreter's lock. */
static int on_main_thread(void *argument) {
    int (*run)(const char *command);
    struct gpupool_client *client = lend_client_if_open();

    (void)argument;
    atomic_store(&scheduled, false);
    *(void **)&run = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    if (run == NULL || client == NULL)
        return 0;
    (void)run(empty_cache);
    bool before = lend_enter();
    uint64_t bytes = 0;
    (void)gpupool_trim(client, &bytes);
    lend_leave(before);
    lend_say("others need memory: %llu bytes went back", (unsigned long long)bytes);
    return 0;
}

static bool is_initialized(void) {
    int (*ask)(void);
    *(void **)&ask = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    return ask != NULL && ask() != 0;
}

/* Before Python 3.13, a call that another thread schedules is noticed with the next reason to look up from
 * the program, and a program with one thread may have none for long. A thread that wants the interpreter's
 * lock is one. It is a thread of its own because the main thread may hold the lock while it waits for memory.
 * When the interpreter ends meanwhile, Python ends the thread. */
static void *wake_main_thread(void *argument) {
    int (*ensure)(void);
    void (*release)(int state);

    *(void **)&ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    *(void **)&release = dlsym(RTLD_DEFAULT, "PyGILState_Release");
    if (ensure != NULL && release != NULL && is_initialized())
        release(ensure());
    return argument;
}

void python_reclaim(void *argument) {
    int (*add_pending_call)(int (*function)(void *), void *argument);
    pthread_t thread;

    (void)argument;
    *(void **)&add_pending_call = dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
    if (add_pending_call == NULL || !is_initialized() || atomic_exchange(&scheduled, true))
        return;
    if (add_pending_call(on_main_thread, NULL) != 0) {
        atomic_store(&scheduled, false); /* the queue is full: the daemon asks again */
        return;
    }
    if (pthread_create(&thread, NULL, wake_main_thread, NULL) == 0)
        pthread_detach(thread);
}
