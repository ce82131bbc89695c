# SPDX-License-Identifier: Apache-2.0
"""The daemon's figures, from its admin socket."""
import json
import os
import socket as sockets

from gpupool._gpupool import ConnectError, DisconnectedError, Error, ProtocolError, TimedOutError

DEFAULT_PATH = "/run/gpupool/admin.sock"


def stats(socket=None, *, timeout=10.0):
    """Returns what `gpupoolctl stats --json` shows, as a dictionary.

    socket: the path of the admin socket. None: $GPUPOOL_ADMIN_SOCKET, else /run/gpupool/admin.sock.
    timeout: seconds for the answer; None: for ever.
    """
    path = os.fspath(socket) if socket is not None else os.environ.get("GPUPOOL_ADMIN_SOCKET") or DEFAULT_PATH
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
            connection.sendall(b'{"command":"stats"}\n')
            with connection.makefile("rb") as answers:
                line = answers.readline()
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
        raise Error(f"the daemon at {path} refuses: {answer['error'].get('message')}")
    return answer
