# SPDX-License-Identifier: Apache-2.0
"""The daemon's figures, from its admin socket."""
import json
import os
import socket as sockets
import time

from gpupool._gpupool import ConnectError, DisconnectedError, Error, ProtocolError, TimedOutError, _find_client, default_client


def stats(socket=None, *, timeout=10.0):
    """Returns what `gpupoolctl stats --json` shows, as a dictionary: the figures of the default client's daemon.

    socket: the path of an admin socket, whichever daemon it is of. None: that of the default client's daemon, at $GPUPOOL_ADMIN_SOCKET, or
    where the daemon says that it is, or beside the data socket. A program that can reach no daemon but $GPUPOOL_ADMIN_SOCKET asks there.
    timeout: seconds for the answer; None: for ever.
    """
    if socket is not None:
        return _ask(os.fspath(socket), timeout)
    named = os.environ.get("GPUPOOL_ADMIN_SOCKET")
    try:
        client = _find_client(None) or default_client()
    except ConnectError:
        if named and not os.environ.get("GPUPOOL_SOCKET"):  # the program watches a daemon, and uses none
            return _ask(named, timeout)
        raise
    return _ask_daemon(client, named, timeout)


def _ask_daemon(client, named, timeout):
    if not client.identity:
        raise Error(f"the daemon at {client.socket_path} is older than this package, and does not tell its admin socket: "
                    "pass the path of this socket to stats()")
    beside = os.path.join(os.path.dirname(client.socket_path), os.path.basename(client.admin_path) or "admin.sock")
    failed = []
    for path in dict.fromkeys(filter(None, (named, client.admin_path, beside))):
        try:
            answer = _ask(path, timeout, client.identity)
        except (ConnectError, DisconnectedError, ProtocolError) as error:
            failed.append(str(error))
            continue
        if answer is not None:
            return answer
        failed.append(f"another daemon answers at {path}")
    raise ConnectError(f"the daemon {client.identity}, which lends at {client.socket_path}, does not answer at its admin socket: "
                       f"{'; '.join(failed)}. Set GPUPOOL_ADMIN_SOCKET to where this process has it")


def _read_line(connection, timeout):
    """A line, or what there is of it where the connection ends. The time is for all of it: a daemon may send a byte now and then."""
    end = None if timeout is None else time.monotonic() + timeout
    parts = []
    while not (parts and parts[-1].endswith(b"\n")):
        if end is not None:
            connection.settimeout(max(end - time.monotonic(), 1e-6))  # 0 would mean: do not wait
        part = connection.recv(1 << 16)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _ask(path, timeout, identity=None):
    """The answer; None: it is for another daemon than that with this identity."""
    request = {"command": "stats"} if identity is None else {"command": "stats", "daemon": identity}
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = _read_line(connection, timeout)
        except TimeoutError:
            raise TimedOutError(f"the daemon at {path} did not answer in {timeout} s") from None
        except OSError as error:
            raise ConnectError(f"no daemon answers at the admin socket {path}: {error.strerror or error}. "
                               "GPUPOOL_ADMIN_SOCKET names another one") from error
    if not line.endswith(b"\n"):
        raise DisconnectedError(f"the daemon at {path} closed the connection. Is it the admin socket?")
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ProtocolError(f"the answer at {path} is no JSON object: is it the daemon's admin socket?")
    if "error" in answer:
        if answer["error"].get("code") == "other-daemon":
            return None
        raise Error(f"the daemon at {path} refuses: {answer['error'].get('message')}")
    return answer
