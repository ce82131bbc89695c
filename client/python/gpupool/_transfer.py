# SPDX-License-Identifier: Apache-2.0
"""The other end of a pickled buffer: finds the client of the sender's daemon, and attaches."""
import os
import threading

from gpupool._gpupool import Client, attach, default_client

DEFAULT_PATH = "/run/gpupool/gpupool.sock"

_lock = threading.Lock()
_clients = {}  # by process and path: of daemons that are not the default client's


def _client_of(path):
    configured = os.environ.get("GPUPOOL_SOCKET") or DEFAULT_PATH
    if path == configured or (configured == "private" and path == default_client().socket_path):
        return default_client()
    key = os.getpid(), path
    with _lock:
        if key not in _clients or not _clients[key].connected:
            _clients[key] = Client(path)
        return _clients[key]


def _renew_lock():
    """Another thread of the parent may have had it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def attach_sent(token, path, read_only):
    """A Buffer over the memory that was pickled."""
    return attach(token, read_only=read_only, client=_client_of(path))


def view_of_other(buffer, shape, dtype, offset):
    """An Array over the memory that was pickled."""
    return buffer.view(shape, dtype, offset)
