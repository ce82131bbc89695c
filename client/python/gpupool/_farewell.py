# SPDX-License-Identifier: Apache-2.0
"""Closes the default client when the process ends: its GPU work is done then, and its memory returns at once.

A client with open buffers is left alone, because threads may use them to the very end. Their memory returns when the daemon knows
that the process is over.
"""
import atexit
import os
import sys

from gpupool._gpupool import _end_default_client

LAST = -100  # behind the queues of multiprocessing, whose threads pickle


def _in_process_of_multiprocessing(_):
    """Such a process ends without atexit's functions, unless its start method is spawn."""
    sys.modules["multiprocessing.util"].Finalize(None, _end_default_client, exitpriority=LAST)


def _prepare():
    """A process of multiprocessing forgets all finalizers at its beginning, and then calls what is registered here."""
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"].register_after_fork(_end_default_client, _in_process_of_multiprocessing)


atexit.register(_end_default_client)
os.register_at_fork(after_in_child=_prepare)
_prepare()  # this may be such a process, which imports the module to unpickle what it runs
