# SPDX-License-Identifier: Apache-2.0
"""A daemon for one measurement, in a temporary directory: no other clients, nothing left of the measurement before."""
import json
import os
import pathlib
import select
import socket
import subprocess
import tempfile

READY_S, STOP_S, ANSWER_S = 60, 60, 60


class DaemonError(Exception):
    pass


class Daemon:
    """Ready when the constructor returns. To be used in a with statement, which stops it."""

    def __init__(self, program, environment, gpu, config, sim_memory):
        self.directory = tempfile.TemporaryDirectory(prefix="gpupool-bench-")
        base = pathlib.Path(self.directory.name)
        base.chmod(0o711)  # an attack on the admin socket is another user's
        self.socket, self.admin_socket, self.log_path = base / "gpupool.sock", base / "admin.sock", base / "log"
        (base / "gpupoold.conf").write_text(config)
        ready, ready_end = os.pipe()
        command = [str(program), "--gpu", gpu, "--config", str(base / "gpupoold.conf"), "--socket", str(self.socket),
                   "--admin-socket", str(self.admin_socket), "--ready-fd", str(ready_end)]
        if gpu == "sim":
            command += ["--sim-memory", sim_memory]
        try:
            with open(self.log_path, "wb") as log:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                pass_fds=[ready_end], env=environment)
            os.close(ready_end)
            readable, _, _ = select.select([ready], [], [], READY_S)
            if not readable or os.read(ready, 1) == b"":
                self.close()
                raise DaemonError("the daemon does not start")
        finally:
            os.close(ready)

    def environment(self, environment):
        """The environment of a client."""
        return {**environment, "GPUPOOL_SOCKET": str(self.socket), "GPUPOOL_ADMIN_SOCKET": str(self.admin_socket)}

    def stats(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(self.admin_socket))
            connection.sendall(b'{"command":"stats"}\n')
            with connection.makefile() as file:
                return json.loads(file.readline())

    def requests(self):
        """How many acquires and releases it has answered so far."""
        return sum(pool["acquires"] + pool["releases"] for pool in self.stats()["pools"])

    def close(self):
        self.process.terminate()
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        log = self.log_path.read_text(errors="replace")
        self.directory.cleanup()
        if status != 0:
            raise DaemonError(f"the daemon ended with {status}: {log[-2000:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
