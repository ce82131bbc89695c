# SPDX-License-Identifier: Apache-2.0
"""The common part of the system tests: the schemas, a scripted admin server, and a real daemon in a temporary directory.

Where things are built comes from the environment, which ctest sets: GPUPOOLCTL, GPUPOOLD and GPUPOOL_HOLDER (empty where the
daemon is not built), GPUPOOL_UNITS, GPUPOOL_SOURCE. Nothing here sleeps: each wait is for an event, with WAIT_S as bound.
"""
import contextlib
import fcntl
import functools
import json
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
import termios
import threading

import jsonschema

WAIT_S = 60

SOURCE = pathlib.Path(os.environ["GPUPOOL_SOURCE"])
CTL = os.environ.get("GPUPOOLCTL", "")
DAEMON = os.environ.get("GPUPOOLD", "")
HOLDER = os.environ.get("GPUPOOL_HOLDER", "")
SCHEMAS = SOURCE / "docs" / "schema"


@functools.cache
def validator(name):
    """Keeps the schemas that the schema refers to."""
    path = SCHEMAS / (name + ".json")
    schema = json.loads(path.read_text())
    return jsonschema.Draft202012Validator(schema, resolver=jsonschema.RefResolver(path.as_uri(), schema))


def check_schema(document, name):
    """Raises jsonschema.ValidationError unless the document is what docs/schema/NAME.json describes."""
    validator(name).validate(document)


def stride(short_run):
    """Loops over every case take each of them in a full run (GPUPOOL_TEST_FULL), else one of so many."""
    return 1 if os.environ.get("GPUPOOL_TEST_FULL") else short_run


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        raise ValueError(f"duplicate keys in {keys}")
    return dict(pairs)


class Admin:
    """A connection to an admin socket that asks and checks every answer against its schema."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.socket.sendall(data)

    def unread(self):
        """How much of what was sent the daemon has not read yet: what the kernel charges the sender for it."""
        return struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, b"\0\0\0\0"))[0]

    def receive(self):
        """One reply; None when the daemon has closed."""
        line = self.file.readline()
        if line == b"":
            return None
        if not line.endswith(b"\n"):
            raise AssertionError(f"the daemon closed in the middle of a line: {line!r}")
        return json.loads(line.decode("utf-8"), object_pairs_hook=no_duplicates)

    def ask(self, command, **arguments):
        """The reply to a command: checked against the command's schema, or error's."""
        self.send(json.dumps({"command": command, **arguments}).encode() + b"\n")
        reply = self.receive()
        check_schema(reply, "error" if "error" in reply else command)
        return reply


class FakeAdmin:
    """An admin server that does as it is told: for each connection it reads a line, remembers it, and calls
    answer(connection, line). Bytes instead of a function are sent as they are. Then it hangs up."""

    def __init__(self, answer):
        self.answer = answer if callable(answer) else lambda connection, line: connection.sendall(answer)
        self.requests = []
        self.directory = tempfile.TemporaryDirectory(prefix="gpupool-fake-")
        self.path = os.path.join(self.directory.name, "admin.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                line = connection.makefile("rb").readline()
                self.requests.append(line)
                try:
                    self.answer(connection, line)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the tool has heard enough

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(WAIT_S)
        self.directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Daemon:
    """A real gpupoold on simulated GPUs, or none, in a temporary directory. Ready when the constructor returns, unless start=False;
    close() stops it and expects that it ends well."""

    def __init__(self, config="", arguments=(), start=True, environment=None, prefix=(), gpu="sim"):
        self.prefix = list(prefix)  # a program that executes the daemon
        self.gpu = ["--gpu", gpu] + (["--sim-gpus", "2", "--sim-memory", "1GiB"] if gpu == "sim" else [])
        self.directory = tempfile.TemporaryDirectory(prefix="gpupool-daemon-")
        base = pathlib.Path(self.directory.name)
        base.chmod(0o755)
        self.config = base / "gpupoold.conf"
        self.config.write_text(config)
        self.socket, self.admin_socket, self.log = base / "gpupool.sock", base / "admin.sock", base / "log"
        self.arguments, self.environment = list(arguments), dict(environment or {})
        self.process = None
        if start:
            self.start()

    def command(self):
        return [*self.prefix, DAEMON, "--config", str(self.config), "--socket", str(self.socket), "--admin-socket",
                str(self.admin_socket), *self.gpu, *self.arguments]

    def variables(self):
        unset = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
        inherited = {key: value for key, value in os.environ.items() if key not in unset}
        return {**inherited, "GPUPOOL_SIM_LATENCY": "0", **self.environment}

    def start(self):
        ready, daemons = os.pipe()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.command(), "--ready-fd", str(daemons)], pass_fds=[daemons],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.variables())
        os.close(daemons)
        try:
            if not select.select([ready], [], [], WAIT_S)[0]:
                raise AssertionError("the daemon did not become ready:\n" + self.log_text())
            if os.read(ready, 1) == b"":
                raise AssertionError("the daemon ended instead of becoming ready:\n" + self.log_text())
        except AssertionError:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            os.close(ready)

    def log_text(self):
        return self.log.read_text(errors="replace")

    def processor_ticks(self):
        """The processor time that it has used so far, in clock ticks."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def admin(self):
        return Admin(self.admin_socket)

    def ask(self, command, **arguments):
        with self.admin() as admin:
            return admin.ask(command, **arguments)

    def kill(self):
        self.process.kill()
        self.process.wait(WAIT_S)
        self.process = None

    def stop(self):
        """Asks it to stop; returns how it ended."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process = None

    def close(self):
        code = self.stop() if self.process is not None else 0
        log = self.log_text() if self.log.exists() else ""
        self.directory.cleanup()
        if code != 0:
            raise AssertionError(f"the daemon ended with {code}:\n{log}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def wait_until(condition, what):
    """Asks again and again, with pauses in which the daemon has the processor."""
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("this did not come to pass: " + what)
        time.sleep(0.005)


@contextlib.contextmanager
def holding(daemon, **variables):
    """A process that has buffers of the daemon, until the end of its standard input. variables: further ones of its environment."""
    variables = {**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0", **variables}
    with subprocess.Popen([HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as holder:
        if not select.select([holder.stdout], [], [], WAIT_S)[0] or holder.stdout.readline() != b"holding\n":
            holder.kill()
            raise AssertionError("the holder got no buffers:\n" + daemon.log_text())
        yield holder


def ctl(*arguments, socket_path=None, environment=None, **keywords):
    """Runs gpupoolctl. Its output is text, unless the caller says otherwise."""
    variables = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", **(environment or {})}
    for name, value in os.environ.items():  # sanitizers' options
        if name.endswith("SAN_OPTIONS"):
            variables[name] = value
    option = [f"--admin-socket={socket_path}"] if socket_path is not None else []
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8",
                "timeout": WAIT_S, "env": variables, **keywords}
    return subprocess.run([CTL, *option, *arguments], check=False, stdin=subprocess.DEVNULL, **settings)
