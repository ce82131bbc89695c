# SPDX-License-Identifier: Apache-2.0
"""The daemon of a test program, on simulated GPUs, and the programs that it starts. Each wait has WAIT_S as its bound."""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

WAIT_S = 60

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

needs_numpy = unittest.skipIf(numpy is None, "NumPy cannot be imported")
needs_torch_2 = unittest.skipIf(not hasattr(getattr(torch, "float32", None), "itemsize"), "PyTorch 2.1 or newer cannot be imported")
needs_torch = unittest.skipIf(torch is None, "PyTorch cannot be imported")


class Daemon:
    """A gpupoold with two simulated GPUs. Ready when the constructor returns."""

    def __init__(self, config=""):
        self.folder = tempfile.TemporaryDirectory(prefix="gpupool-python-")
        base = pathlib.Path(self.folder.name)
        self.config = base / "gpupoold.conf"
        self.config.write_text(config)
        self.socket, self.admin_socket, self.log = str(base / "data"), str(base / "admin"), base / "log"
        self.environment = {**os.environ, "GPUPOOL_SIM_LATENCY": "0", "GPUPOOL_SOCKET": self.socket,
                            "GPUPOOL_ADMIN_SOCKET": self.admin_socket}
        self.start()

    def start(self):
        ready, daemons = os.pipe()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [os.environ["GPUPOOLD"], "--config", self.config, "--socket", self.socket, "--admin-socket", self.admin_socket,
                 "--gpu", "sim", "--sim-gpus", "2", "--sim-memory", "1GiB", "--log-level", "warning", "--ready-fd", str(daemons)],
                pass_fds=[daemons], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        os.close(daemons)
        is_ready = select.select([ready], [], [], WAIT_S)[0] and os.read(ready, 1) != b""
        os.close(ready)
        if not is_ready:
            self.kill()
            raise AssertionError("the daemon did not become ready:\n" + self.log.read_text(errors="replace"))

    def kill(self):
        """Ends the daemon as a crash does. start() starts another one on the same sockets."""
        self.process.kill()
        self.process.wait()

    def ask(self, command):
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(WAIT_S)
            admin.connect(self.admin_socket)
            admin.sendall(json.dumps({"command": command}).encode() + b"\n")
            return json.loads(admin.makefile().readline())

    def leases(self):
        """Bytes of all pools that clients have, or had."""
        names = ("leased_bytes", "quarantined_bytes", "fenced_bytes")
        return sum(pool[name] for pool in self.ask("pools")["pools"] for name in names)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = "no end"
        log = self.log.read_text(errors="replace")
        self.folder.cleanup()
        if status != 0:
            raise AssertionError(f"the daemon ended with {status}:\n{log}")


def wait_until(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in {WAIT_S} s: {what}")
        time.sleep(0.01)


def read_line(pipe, seconds=WAIT_S):
    """The next line that a program writes into a pipe, or what there is of it at the end. Later ones stay in the pipe, also for
    communicate()."""
    end, line = time.monotonic() + seconds, bytearray()
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0, end - time.monotonic()))[0]:
            raise AssertionError(f"no line in {seconds} s, only {bytes(line)}")
        byte = os.read(pipe.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode(errors="replace")


@contextlib.contextmanager
def capture(stream, device=0):
    """The simulated GPU captures a stream meanwhile, as for a CUDA graph. Ends with the number of operations that the graph got."""
    import gpupool
    sim = ctypes.CDLL(pathlib.Path(gpupool.__file__).parent / "libgpupool-sim.so.0")
    handle, operations = ctypes.c_void_p(stream.__cuda_stream__()[1]), ctypes.c_uint(0)
    assert sim.gpu_sim_capture_begin(device, handle) == 0
    try:
        yield operations
    finally:
        assert sim.gpu_sim_capture_end(device, handle, ctypes.byref(operations)) in (0, 901)


class Gate:
    """A stream of a simulated GPU that stands until open()."""

    def __init__(self, client, device=0):
        import gpupool
        header = (pathlib.Path(os.environ["GPUPOOL_SOURCE"]) / "gpu/gpu.h").read_text()
        members = re.findall(r"^    \w+ \(\*(\w+)\)\(", header.split("\nstruct gpu {")[1].split("\n};")[0], re.MULTILINE)
        sim = ctypes.CDLL(pathlib.Path(gpupool.__file__).parent / "libgpupool-sim.so.0")
        table = ctypes.POINTER(ctypes.c_void_p)()
        assert sim.gpu_sim_open(None, ctypes.byref(table)) == 0
        wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)(
            table[1 + members.index("stream_wait64")])
        self.word = client.host_pool().acquire(8, zero=True)
        self.stream, self.is_open = gpupool.Stream(device, client=client), False
        assert wait(device, self.stream.handle, self.word.ptr, 1) == 0

    def open(self):
        self.is_open = True
        ctypes.c_uint64.from_address(self.word.ptr).value = 1

    def open_late(self):
        """Opens the gate after a while: a call that does not wait for the stream is back before."""
        timer = threading.Timer(0.1, self.open)
        timer.start()
        return timer


class Scene(unittest.TestCase):
    """Tests with a daemon. The default client of this process is the daemon's, so a program has one such class in use at a time."""

    config = ""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(cls.config)
        cls.addClassCleanup(cls.daemon.close)
        os.environ.update({name: cls.daemon.environment[name]
                           for name in ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET", "GPUPOOL_SIM_LATENCY")})
        import gpupool
        cls.client = gpupool.Client()
        cls.addClassCleanup(cls.client.close)
        cls.host, cls.device = cls.client.host_pool(), cls.client.device_pool(0)

    def run_program(self, text, *arguments, status=0):
        """Runs a program in Python; returns (stdout, stderr)."""
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", text, *arguments], check=False, capture_output=True,
                              text=True, timeout=WAIT_S, env={**os.environ, "GPUPOOL_SOCKET": self.daemon.socket})
        self.assertEqual(done.returncode, status, f"{text}\n{done.stdout}{done.stderr}")
        return done.stdout, done.stderr

    def wait_until_nothing_is_leased(self):
        self.client.trim()
        wait_until(lambda: self.daemon.leases() == 0, "all memory went back")
