# SPDX-License-Identifier: Apache-2.0
"""The farewell of a process that ends.

As a rule it comes when the interpreter has ended, by a function of the module in C: until then the program may use its buffers, in
functions of atexit and in threads. A process that multiprocessing has forked ends by os._exit(), and its interpreter does not end. Its
farewell is a finalizer of multiprocessing, the last one. Up to Python 3.12 threads run longer than finalizers, so it waits for them. A
daemon thread that still runs then has memory of its own in the place of the buffers.
"""
import atexit
import os
import sys
import threading

from gpupool._gpupool import _note_end, _say_farewell

LAST = -100  # behind the queues of multiprocessing, whose threads pickle
_FORKERS = ("multiprocessing.popen_fork", "multiprocessing.forkserver")  # which call os._exit()


def _ends_by_exit():
    """Whether this process was forked by multiprocessing. One of the start method spawn ends with its interpreter."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") not in _FORKERS:
        frame = frame.f_back
    return frame is not None


def _others():
    """The threads that the process waits for before it ends."""
    own = (threading.current_thread(), threading.main_thread())
    return [thread for thread in threading.enumerate() if thread not in own and not thread.daemon]


def _say_farewell_behind_threads():
    while others := _others():
        for thread in others:
            thread.join()
    _say_farewell()


def _say_farewell_of_forked():
    if not _ends_by_exit():
        return
    if _others():  # a pool of threads may end only when the main thread waits for threads: so this is one, too
        threading.Thread(target=_say_farewell_behind_threads, name="gpupool-farewell").start()
    else:
        _say_farewell()


def _in_process_of_multiprocessing(_):
    sys.modules["multiprocessing.util"].Finalize(None, _say_farewell_of_forked, exitpriority=LAST)


def _prepare():
    """A process of multiprocessing forgets all finalizers at its beginning, and then calls what is registered here."""
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"].register_after_fork(_say_farewell, _in_process_of_multiprocessing)


atexit.register(_note_end)
os.register_at_fork(after_in_child=_prepare)
_prepare()  # this may be such a process, which imports the module to unpickle what it runs
