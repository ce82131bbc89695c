# SPDX-License-Identifier: Apache-2.0
"""Common parts of the four programs of this folder: the daemon and its pools, the video, processes that are watched, tables.

No heavy package is imported at the top: a process that a program starts imports this file too.
"""
import argparse
import json
import multiprocessing.connection
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

VIDEO = pathlib.Path("/usr/share/doc/opencv-doc/examples/data/vtest.avi")  # of Debian's package opencv-doc: people cross a street
WAIT_S = 300  # the bound of a wait for another process


def fail(message):
    raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def now():
    """Seconds on the clock that all processes of the machine share."""
    return time.monotonic_ns() / 1e9


# --- options ---


def parser_of(description, ways):
    """An ArgumentParser with the options that all programs have. ways: the names of what is compared, the first one gpupool's."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(ways), help="what to compare, separated by commas: %(default)s")
    parser.add_argument("--simulate", action="store_true",
                        help="run without a GPU: start a daemon that simulates one. Tensors are on the CPU then, and times mean nothing")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    return parser


def add_video_options(parser):
    parser.add_argument("--video", metavar="PATH", type=pathlib.Path, default=VIDEO, help="default: %(default)s, of Debian's package opencv-doc")
    parser.add_argument("--ffmpeg", metavar="PATH", help="default: the one in PATH, else the one of the package imageio-ffmpeg")


def parse(parser, ways):
    options = parser.parse_args()
    options.ways = options.ways.split(",")
    for way in options.ways:
        if way not in ways:
            parser.error(f"there is no way {way!r}: choose from {', '.join(ways)}")
    return options


# --- packages, the daemon, a video ---


def need(*packages):
    """Imports packages, or says which one to install."""
    for package in packages:
        try:
            __import__(package)
        except ImportError as error:
            fail(f"needs the package {package.split('.')[0]}, which cannot be imported ({error})")


class Place:
    """The pools, and the device on which a process computes: the GPU, or the CPU where the daemon simulates a GPU, or where the process
    is kept from CUDA."""

    def __init__(self):
        import torch

        import gpupool.torch

        client = gpupool.default_client()
        may_use_gpu = os.environ.get("GPUPOOL_NO_CUDA") != "1"
        self.host, self.gpu = client.host_pool(), client.device_pool(0) if may_use_gpu else None
        self.is_real = may_use_gpu and client.gpu_kind == "cuda"
        if self.is_real and not torch.cuda.is_available():
            fail("the daemon has a GPU, and this PyTorch has no CUDA. With --simulate the program runs on the CPU")
        self.device = torch.device("cuda", 0) if self.is_real else torch.device("cpu")

    def synchronize(self):
        if self.is_real:
            import torch
            torch.cuda.synchronize()

    def name(self):
        import torch
        return torch.cuda.get_device_name() if self.is_real else "simulated GPU"


def connect(simulate):
    """Finds the daemon, or starts one for this program and the processes that it starts. Returns the Place."""
    need("torch", "gpupool.torch")
    import gpupool

    if simulate:
        os.environ["GPUPOOL_SOCKET"] = "private"
        os.environ.setdefault("GPUPOOL_DAEMON_ARGS", "--gpu sim --log-level error")
    try:
        place = Place()
    except gpupool.Error as error:
        fail(f"{error}. Start gpupoold, set GPUPOOL_SOCKET, or run with --simulate")
    os.environ["GPUPOOL_SOCKET"] = gpupool.default_client().socket_path  # of the processes to come
    return place


def find_ffmpeg(path):
    """The path of an ffmpeg that runs."""
    if path is None:
        path = shutil.which("ffmpeg")
    if path is None:
        try:
            import imageio_ffmpeg
            path = imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            fail("needs ffmpeg: install it (apt-get install ffmpeg, or pip install imageio-ffmpeg), or name it with --ffmpeg PATH")
    try:
        subprocess.run([path, "-version"], check=True, capture_output=True, timeout=WAIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        fail(f"{path} does not run: {error}")
    return path


def need_video(path):
    if not path.is_file():
        hint = ". It is in Debian's package opencv-doc; --video PATH names another one" if path == VIDEO else ""
        fail(f"there is no video {path}{hint}")


def find_video(options):
    """Finds what the options of add_video_options() name: options.video is a file then, and options.ffmpeg runs."""
    need_video(options.video)
    options.ffmpeg = find_ffmpeg(options.ffmpeg)


# --- processes that are watched ---


class Watched:
    """Processes that work together. A process that ends before its time ends the program, with a word on which one it was."""

    def __init__(self):
        self.processes = {}  # by name

    def start(self, context, name, function, *arguments):
        self.processes[name] = process = context.Process(target=function, args=arguments, daemon=True)
        process.start()
        return process

    def receive(self, connection, what, seconds=WAIT_S):
        """The next object from a connection, while all processes live. seconds: the bound of the wait."""
        by_sentinel = {process.sentinel: process for process in self.processes.values()}
        ready = multiprocessing.connection.wait([connection, *by_sentinel], seconds)
        if connection in ready:
            try:
                return connection.recv()
            except (EOFError, OSError):
                ready = multiprocessing.connection.wait(list(by_sentinel), WAIT_S)
        for sentinel in ready:
            by_sentinel[sentinel].join(WAIT_S)  # for its exit code
        # The exit code of a process that was killed is negative. Others only lost their connection to it.
        codes = {name: process.exitcode for name, process in self.processes.items() if process.exitcode is not None}
        self.end(0)
        if not codes:
            fail(f"{what}: no answer in {seconds} s")
        name = min(codes, key=lambda name: codes[name] >= 0)
        fail(f"{what}: the process '{name}' ended before its time, with exit code {codes[name]}")

    def end(self, seconds=WAIT_S):
        """Waits for the processes, and ends those that are still there after the time."""
        deadline = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0, deadline - time.monotonic()))
        for process in self.processes.values():
            if process.is_alive():
                process.terminate()
                process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def memory_of(pids, *names):
    """Bytes that processes have of some kinds of memory, such as "Pss_Anon" and "Pss_Shmem" (proc(5), smaps_rollup). Pages that several
    processes share are counted once in all."""
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in names:
                total += int(rest.split()[0]) * 1024
    return total


# --- figures ---


def table(title, unit_of_rows, columns, rows):
    """Prints a table of Markdown. rows: a list of cells, the first one a name; numbers are rounded to three digits."""
    def text(cell):
        if not isinstance(cell, float):
            return str(cell)
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"

    print(f"\n{title}\n\n| {' | '.join([unit_of_rows, *columns])} |\n|{'---|' * (len(columns) + 1)}")
    for row in rows:
        print(f"| {' | '.join(text(cell) for cell in row)} |")
    sys.stdout.flush()


def median(values):
    values = list(values)
    return statistics.median(values) if values else float("nan")


def write_json(path, figures):
    if path:
        pathlib.Path(path).write_text(json.dumps(figures, indent=1) + "\n")
