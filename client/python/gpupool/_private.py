# SPDX-License-Identifier: Apache-2.0
"""Hands the private daemon on: with GPUPOOL_SOCKET=private, the processes that this one starts use the same daemon as this one.

GPUPOOL_PRIVATE_SOCKET has the daemon's path, also before any of these processes has started it. The first one that needs the daemon
starts it. It ends with its last client, of whichever process; then the next client starts another one at the same path.
"""
import os

from gpupool._gpupool import _private_socket


def hand_on():
    if os.environ.get("GPUPOOL_SOCKET") == "private":
        path = _private_socket()
        if path is not None and os.environ.get("GPUPOOL_PRIVATE_SOCKET") != path:
            os.environ["GPUPOOL_PRIVATE_SOCKET"] = path


hand_on()
os.register_at_fork(before=hand_on)  # the program may have set GPUPOOL_SOCKET since
