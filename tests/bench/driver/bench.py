# SPDX-License-Identifier: Apache-2.0
"""The surroundings of the cases: where the programs are, on what GPU, how thoroughly, and where results go."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

from daemon import Daemon

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PROGRAM_S = 150  # a program that takes longer hangs
SKIPPED = 77     # the exit status of a program that cannot run here
ERROR_BYTES = 600
PEERS = pathlib.Path(__file__).resolve().parents[1] / "peers"
TRACES = PEERS.parents[1] / "traces"
EXPORTS = {kind: PEERS.parents[1] / f"export_{kind}.conf" for kind in ("ipc", "vmm")}
SIM_MEMORY = "64GiB"  # untouched memory of the simulation takes none of the machine's


class Thoroughness:
    """How much is measured. Quick: enough to see that everything works; the figures mean nothing."""

    def __init__(self, quick):
        self.quick = quick
        self.sizes = [512, MIB] if quick else [512, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB]
        self.pinned_sizes = [4 * KIB, MIB] if quick else [4 * KIB, MIB, 64 * MIB]
        self.threads = [1, 2] if quick else [1, 2, 4, 8, 16]
        self.figure_ms = 5 if quick else 200
        self.mix_largest = 64 * KIB if quick else 32 * MIB
        self.mix_steps = 2000 if quick else 100000
        self.traces = 1 if quick else 100  # the smallest
        self.hand_pairs = 2000 if quick else 100000
        self.round_trips = 400 if quick else 20000

    def options(self, pinned=False):
        """As ../workload.h takes them."""
        return ["--sizes", ",".join(map(str, self.pinned_sizes if pinned else self.sizes)), "--figure-ms",
                str(self.figure_ms)]

    def mix_options(self):
        return ["--mix-largest", str(self.mix_largest), "--mix-steps", str(self.mix_steps)]

    def thread_options(self):
        return ["--threads", ",".join(map(str, self.threads)), "--hand-pairs", str(self.hand_pairs)]


class Absent(Exception):
    """The subject of a measurement is not there."""


class Failed(Exception):
    pass


class Bench:
    def __init__(self, results, directories, libraries, gpu, quick, python, plugins=(), export="ipc"):
        """libraries: the folder with the libraries of this project's programs; plugins: folders with libraries for other
        programs; export: the kind of the daemons' device pools."""
        self.results, self.gpu, self.python, self.export = results, gpu, python, export
        self.directories = [pathlib.Path(directory) for directory in directories]
        self.plugins = [pathlib.Path(directory) for directory in (libraries, *plugins) if directory]
        self.program_rounds, self.program_seconds = (1, 0.1) if quick else (24, 0.4)
        self.trace_rounds = 1 if quick else 3
        self.quick, self.thoroughness = quick, Thoroughness(quick)
        self.temporary = tempfile.TemporaryDirectory(prefix="gpupool-bench-")
        self.work = pathlib.Path(self.temporary.name)
        self.outside = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET", "GPUPOOL_DAEMON_ARGS"):
            self.outside.pop(name, None)
        self.inside = dict(self.outside)  # for programs of this project
        if libraries:
            path = [str(libraries), *filter(None, [self.outside.get("LD_LIBRARY_PATH")])]
            self.inside["LD_LIBRARY_PATH"] = ":".join(path)
        if quick:  # the simulated driver need not take its time
            self.inside["GPUPOOL_SIM_LATENCY"] = "0"
        self.repetition = 0
        self.compiled = {}
        self.calibrations = {}  # by language: what the processors were at their best in this run

    def close(self):
        self.temporary.cleanup()

    @property
    def has_gpu(self):
        return self.gpu == "cuda"

    def program(self, name):
        for directory in self.directories:
            if (directory / name).is_file():
                return directory / name
        raise Absent(f"{name} was not built")

    def library(self, name):
        """A library for another program."""
        for directory in self.plugins:
            if (directory / name).is_file():
                return (directory / name).resolve()
        raise Absent(f"{name} was not built")

    def configuration(self, config):
        """A configuration, with the kind of the device pools at its end."""
        return config + EXPORTS[self.export].read_text()

    def daemon(self, config=""):
        return Daemon(self.program("gpupoold"), self.inside, self.gpu, self.configuration(config), SIM_MEMORY)

    def private_daemons(self, config=""):
        """The environment of a program that starts its own."""
        path = self.work / "private.conf"
        path.write_text(self.configuration(config))
        return {**self.inside, "GPUPOOL_SOCKET": "private", "GPUPOOL_DAEMON": str(self.program("gpupoold").resolve()),
                "GPUPOOL_DAEMON_ARGS": f"--gpu {self.gpu} --config {path}"
                                       + (f" --sim-memory {SIM_MEMORY}" if self.gpu == "sim" else "")}

    def add(self, case, subject, parameters, values):
        self.results.add(self.repetition, case, subject, parameters, values)

    def calibration(self, language="C"):
        """The option that tells a program what the processors were at their best."""
        best_ns = self.calibrations.get(language)
        return ["--calibration-ns", best_ns] if best_ns else []

    def _calibrated(self, language, best_ns):
        self.calibrations[language] = min(best_ns, self.calibrations.get(language, best_ns))
        self.add("calibration", language, {}, {"ns": self.calibrations[language]})

    def run(self, command, environment, on_mark=None, timeout_s=PROGRAM_S):
        """Runs a program to its end and returns the objects that it printed, one a line. A line {"mark": TEXT} is an
        occasion: on_mark(TEXT) is called, and the program goes on with the number that it returns. A line {"calibration": …}
        is kept for the programs that come."""
        command = [str(argument) for argument in command]
        found = []
        with tempfile.TemporaryFile() as errors, subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment,
                text=True) as process:
            limit = threading.Timer(timeout_s, process.kill)
            limit.start()
            try:
                for line in process.stdout:
                    if not line.startswith("{"):
                        continue
                    row = json.loads(line)
                    if "calibration" in row:
                        self._calibrated(row["calibration"], row["best_ns"])
                    elif "mark" in row:
                        process.stdin.write(f"{on_mark(row['mark']) if on_mark else 0}\n")
                        process.stdin.flush()
                    else:
                        found.append(row)
                status = process.wait()
            finally:
                limit.cancel()
                if process.poll() is None:
                    process.kill()
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()[-ERROR_BYTES:]
        name = pathlib.Path(command[0]).name
        if status == SKIPPED:
            raise Absent(text or f"{name} cannot run here")
        if status != 0:
            raise Failed(f"{name} ended with {status}: {text}")
        return found

    def add_rows(self, rows):
        for row in rows:
            self.add(row["case"], row["subject"], row["parameters"], row["values"])
        return rows

    def compile_peers(self, peers):
        """Peers in C++, compiled at the same time, before anything is measured."""
        peers = list(peers) if self.has_gpu else []
        if peers:
            with concurrent.futures.ThreadPoolExecutor(len(peers)) as pool:
                self.compiled = dict(zip(peers, pool.map(self._compile, peers)))

    def _compile(self, peer):
        source, *options = peer
        program = self.work / "-".join([pathlib.Path(source).stem, *options])
        done = subprocess.run([self.python, str(PEERS / "build"), str(PEERS / source), str(program), *options], check=False,
                              capture_output=True, text=True, env=self.outside)
        if done.returncode == SKIPPED:
            return Absent(done.stderr.strip())
        if done.returncode != 0:
            return Failed(f"{source} does not compile: {done.stderr.strip()[:ERROR_BYTES]}")
        return program

    def peer(self, peer):
        """A compiled peer's program, or raises why there is none."""
        found = self.compiled[peer]
        if isinstance(found, Exception):
            raise found
        return found


def say(text):
    print(text, file=sys.stderr, flush=True)
