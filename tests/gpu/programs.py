# SPDX-License-Identifier: Apache-2.0
"""Unchanged programs on a GPU, natively and under gpupoolctl run on pools of both kinds: results, memory in the pool, times of steps.

    programs.py GPUPOOLD GPUPOOLCTL [--out FOLDER] [--kind KIND] [--only EXPRESSION] [--programs FOLDER] [--seconds N]
    programs.py --build FOLDER      builds the programs of CUDA and C++, and no more

The programs are in the folder programs/. With --programs, those are run that were built there; missing ones are built. The three
processes of a program, one natively and one on each kind of pool, warm up side by side with those of other programs. Then one
process at a time works. A program whose module or tool is missing is skipped. Tables go to the standard output, and
rows as JSON to FOLDER (by default $OUT). GPUPOOLCTL_LIBRARY_PATH: where the daemon and gpupoolctl, and they alone, find their
libraries. Exit status 0: all hold; 1: a program crashed, hung, or had other results, or a bar is missed; 77: there is no GPU.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent / "programs"
BUILD_S, READY_S, ROUND_S, RUN_S, BACK_S = 150, 90, 30, 60, 60
ROUNDS, BATCH, TOLERANCE, SHARE_BAR = 3, 4, 1e-4, 0.95
LIMIT_MIB = 20 << 10
ARCHITECTURES = ["-gencode", "arch=compute_80,code=compute_80", "-gencode", "arch=compute_90,code=sm_90"]
TOOLKIT = pathlib.Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1]
NVCC = ["nvcc", "-std=c++17", "-O2", *ARCHITECTURES, "-Xlinker", f"-rpath={TOOLKIT}/lib64", "-Xlinker", f"-rpath={TOOLKIT}/targets/x86_64-linux/lib"]
COMMON = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONDONTWRITEBYTECODE": "1"}

# --- the programs -------------------------------------------------------------------------------------------------------


def torch_flags():
    """Of g++, or why not."""
    done = subprocess.run([sys.executable, "-c", "import torch, torch.utils.cpp_extension as extension, json;"
                           "print(json.dumps([extension.include_paths(), extension.library_paths(), torch.compiled_with_cxx11_abi()]))"],
                          capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError("there is no PyTorch")
    includes, libraries, abi = json.loads(done.stdout.splitlines()[-1])
    return [*(f"-I{path}" for path in [*includes, TOOLKIT / "include"]), f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}",
            *(f"-L{path}" for path in libraries), *(f"-Wl,-rpath,{path}" for path in libraries), "-Wl,--allow-shlib-undefined",
            "-Wl,--no-as-needed", "-ltorch", "-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda", "-lc10", "-ldl"]


def stubs():
    """The folder of a libcuda.so to link to, of the toolkit."""
    found = [path.parent for path in TOOLKIT.glob("**/stubs/libcuda.so")]
    return found[0] if found else TOOLKIT


# Of a built program: what builds it, without -o.
BUILT = {
    "runtime_static": lambda: [*NVCC, "-cudart", "static", "runtime.cu", "-ldl"],
    "runtime_shared": lambda: [*NVCC, "-cudart", "shared", "runtime.cu", "-ldl"],
    "runtime_static_per_thread": lambda: [*NVCC, "-cudart", "static", "--default-stream", "per-thread", "runtime.cu", "-ldl"],
    "runtime_shared_per_thread": lambda: [*NVCC, "-cudart", "shared", "--default-stream", "per-thread", "runtime.cu", "-ldl"],
    "libraries_static": lambda: [*NVCC, "-cudart", "static", "libraries.cu", "-lcublas", "-lcufft", "-ldl"],
    "libraries_shared": lambda: [*NVCC, "-cudart", "shared", "libraries.cu", "-lcublas", "-lcufft", "-ldl"],
    "memory_nodes": lambda: [*NVCC, "memory_nodes.cu", "-ldl"],
    "forks": lambda: [*NVCC, "forks.cu", "-ldl"],
    "plugins": lambda: [*NVCC, "plugins.cu", "-ldl"],
    "libplugin.so": lambda: [*NVCC, "-x", "c++", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "plugin.cu", f"-L{stubs()}", "-lcuda"],
    "libtorch": lambda: ["g++", "-std=c++17", "-O1", "libtorch.cpp", *torch_flags()],
}
# Programs of turns.py: their words and variables. A built program begins with its name.
PROGRAMS = {
    "JAX": (["use_jax.py"], {"XLA_CLIENT_MEM_FRACTION": "0.15"}),
    "JAX, eager": (["use_jax.py", "eager"], {"XLA_CLIENT_MEM_FRACTION": "0.15"}),
    "JAX, bfc": (["use_jax.py"], {"XLA_PYTHON_CLIENT_ALLOCATOR": "bfc", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "JAX, platform": (["use_jax.py"], {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "CuPy": (["use_cupy.py", "pool"], {}),
    "CuPy, MemoryAsyncPool": (["use_cupy.py", "async"], {}),
    "Numba": (["use_numba.py"], {}),
    "RMM": (["use_rmm.py", "cuda"], {}),
    "RMM, pool": (["use_rmm.py", "pool"], {}),
    "cuda-python": (["use_cuda_python.py"], {}),
    "static runtime": (["runtime_static"], {}),
    "shared runtime": (["runtime_shared"], {}),
    "static runtime, streams per thread": (["runtime_static_per_thread"], {}),
    "shared runtime, streams per thread": (["runtime_shared_per_thread"], {}),
    "Thrust, cuBLAS, cuFFT, static runtime": (["libraries_static"], {}),
    "Thrust, cuBLAS, cuFFT, shared runtime": (["libraries_shared"], {}),
    "graph with memory nodes": (["memory_nodes"], {}),
    "libtorch, C++": (["libtorch"], {}),
    "PyTorch, CUDA graph": (["use_torch.py", "graph"], {}),
    "PyTorch, cuDNN": (["use_torch.py", "conv"], {}),
    "PyTorch, reduce-overhead": (["use_torch.py", "compiled"], {}),
    "Triton": (["use_triton.py"], {}),
}
# Programs of which a part of the memory is a graph's own, or that map their memory themselves (cuMemCreate).
PARTLY = {"PyTorch, CUDA graph", "PyTorch, reduce-overhead", "JAX, bfc", "JAX, platform"}
# Programs that print their sum and end. MODE: "native" or "lent".
PLAIN = {
    "fork before CUDA, a child killed": ["forks"],
    "RTLD_DEEPBIND, handles, versions": ["plugins", "libplugin.so", "MODE"],
    "DDP over gloo": ["use_ddp.py", "gloo"],
    "DDP over NCCL": ["use_ddp.py", "nccl"],
}
# Tools, each before a program that they run. MPS is a variable instead.
TOOLS = {
    "cuda-gdb": ["cuda-gdb", "-batch", "-ex", "run", "--args", "runtime_static", "alone", "1"],
    "cuda-gdb, shared runtime": ["cuda-gdb", "-batch", "-ex", "run", "--args", "runtime_shared", "alone", "1"],
    "compute-sanitizer": ["compute-sanitizer", "--tool", "memcheck", "runtime_static", "alone", "1"],
    "Nsight Compute": ["ncu", "--clock-control", "none", "--launch-skip", "20", "--launch-count", "3", "runtime_static", "alone", "1"],
    "MPS": ["runtime_static", "alone", "1"],
}
# With --gpu sim, to try the script itself.
SIMULATED = {name: (["simulated.py", name], {}) for name in ("good", "skipped", "crashes", "differs")}
SIMULATED_PLAIN = {"good, plain": ["simulated.py", "good", "alone", "1"], "skipped, plain": ["simulated.py", "skipped"]}
SIMULATED_TOOLS = {"a tool": ["env", "simulated.py", "good", "alone", "1"], "none": ["no-such-tool"]}


def build(folder, names=None):
    """Returns for each name why it is not there; no entry: it is."""
    folder = folder.resolve()  # compilers run elsewhere
    folder.mkdir(parents=True, exist_ok=True)

    def one(name):
        target = folder / name
        if target.exists():
            return None
        try:
            command = BUILT[name]()
            done = subprocess.run([*command, "-o", str(target)], cwd=HERE, capture_output=True, text=True, timeout=BUILD_S, check=False)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            return str(error).splitlines()[0][:150]
        if done.returncode != 0 or not target.exists():
            lines = [line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line] or done.stderr.splitlines()
            return f"does not build: {(lines or ['no message'])[0][:150]}"
        return None

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        results = dict(zip(names or BUILT, pool.map(one, names or BUILT)))
    return {name: why for name, why in results.items() if why is not None}


# --- daemons and processes ----------------------------------------------------------------------------------------------


def with_libraries(*command):
    path = os.environ.get("GPUPOOLCTL_LIBRARY_PATH")
    return [*(["env", f"LD_LIBRARY_PATH={path}"] if path else []), *map(str, command)]


class Daemon:
    def __init__(self, gpupoold, ctl, kind, gpu):
        self.ctl, self.kind, self.folder = ctl, kind, tempfile.TemporaryDirectory(prefix="gpupool-programs-")
        work = pathlib.Path(self.folder.name)
        (work / "conf").write_text(f"[device]\nexport = {kind}\nlimit = {LIMIT_MIB}MiB\n[host]\nlimit = 2GiB\n")
        self.socket, self.admin = work / "gpupool.sock", work / "admin.sock"
        self.log = open(work / "log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(with_libraries(gpupoold, "--gpu", gpu, "--config", work / "conf", "--socket", self.socket,
                                                       "--admin-socket", self.admin), stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log)
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.ask("ping")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the daemon with {kind} does not start: {self.last_lines()}")

    def last_lines(self):
        return " | ".join(pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace").splitlines()[-3:])

    def ask(self, command):
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(20)
            admin.connect(str(self.admin))
            admin.sendall(json.dumps({"command": command}).encode() + b"\n")
            return json.loads(admin.makefile().readline())

    def device_pools(self):
        return [pool for pool in self.ask("pools")["pools"] if pool["kind"] == "device"]

    def in_use(self, pid):
        """Device memory of a process, in bytes."""
        devices = {pool["id"] for pool in self.device_pools()}
        return sum(part["in_use_bytes"] for session in self.ask("sessions")["sessions"] if session["pid"] == pid
                   for part in session["pools"] if part["id"] in devices)

    def all_is_back(self):
        """Waits for it. Returns the bytes that processes which have ended still hold, 0 at best."""
        deadline, left = time.monotonic() + BACK_S, 0
        while time.monotonic() < deadline:
            left = sum(pool["leased_bytes"] + pool["quarantined_bytes"] for pool in self.device_pools())
            if left == 0:
                break
            time.sleep(0.05)
        return left

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        self.folder.cleanup()


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def command_of(words, folder, daemon):
    """Words that are files of programs/ or built ones are replaced by what runs them. daemon: None for a native run."""
    full = []
    for word in words:
        if word.endswith(".py"):
            full += [sys.executable, str(HERE / word)]
        elif word in BUILT:
            full.append(str(folder / word))
        else:
            full.append({"native": "native", "lent": "lent", "MODE": "lent" if daemon else "native"}.get(word, word))
    if daemon is None:
        return full
    before = os.environ.get("LD_LIBRARY_PATH")
    back = ([f"LD_LIBRARY_PATH={before}"] if before else ["-u", "LD_LIBRARY_PATH"]) if "GPUPOOLCTL_LIBRARY_PATH" in os.environ else None
    return with_libraries(daemon.ctl, "run", "--socket", daemon.socket, "--", *(["env", *back] if back else []), *full)


class Process:
    """One process, in a group of its own. Each answer has a bound."""

    def __init__(self, words, variables, folder, daemon):
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL_")}
        self.process = subprocess.Popen(command_of(words, folder, daemon), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, errors="replace", start_new_session=True, env={**environment, **COMMON, **variables})
        self.lines, self.daemon, self.said = queue.Queue(), daemon, []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def error_text(self):
        """By a descriptor of its own: the process writes at the offset of the other one."""
        with open(f"/proc/self/fd/{self.errors.fileno()}", encoding="utf-8", errors="replace") as file:
            return file.read()

    def note(self):
        text = [line for line in self.error_text().splitlines() if line.strip() and "simulates its GPU" not in line]
        return " | ".join([*self.said[-1:], *text[-2:]])[-300:]

    def answer(self, word, seconds):
        """The rest of the next line that begins with the word."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                self.close()
                raise Failed(f"hangs before \"{word}\": {self.note()}") from None
            if line is None:
                code = self.process.wait(20)
                raise Failed(f"ended with {code} before \"{word}\": {self.note()}")
            if line.startswith("skip "):
                raise Skipped(line[5:])
            if line == word or line.startswith(word + " "):
                return line[len(word):].split()
            self.said.append(line)

    def ask(self, question, word, seconds):
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the answer tells how it ended
        return self.answer(word, seconds)

    def finish(self, seconds):
        """It has said all. Raises Failed unless it ends well."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.close()
            raise Failed(f"hangs at its end: {self.note()}") from None
        if code != 0:
            raise Failed(f"ended with {code}: {self.note()}")

    def close(self):
        """Ends it and its children."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait(20)


def difference(native, ours):
    """The largest one of two lists of numbers, relative. Infinity: they have not as many."""
    if len(native) != len(ours) or not native:
        return float("inf")
    return max(0.0 if a == b else abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in zip(map(float, native), map(float, ours)))


# --- the parts ----------------------------------------------------------------------------------------------------------


class Results:
    def __init__(self):
        self.rows, self.lock = [], threading.Lock()

    def add(self, name, kind, state, note="", **figures):
        """state: ok, FAILED, skipped."""
        with self.lock:
            self.rows.append({"program": name, "kind": kind, "state": state, "note": note, **figures})
            print(f"{state:8}{kind:7}{name}{': ' if note else ''}{note}", flush=True)

    def compare(self, name, kind, native, ours, **figures):
        """Lists of numbers as words."""
        worst = difference(native, ours)
        note = "" if worst == 0 else f"results differ by {worst:.2g}"
        self.add(name, kind, "ok" if worst <= TOLERANCE else "FAILED", note, difference=worst, **figures)

    def figure(self, name, kind, member):
        return next((row.get(member) for row in self.rows if row["program"] == name and row["kind"] == kind), None)

    def table(self):
        print("\n| program | kind | state | results differ by | device memory in the pool | step, ms | native | ratio | note |\n"
              "|---|---|---|---|---|---|---|---|---|")
        show = lambda value, form: "" if value is None else format(value, form)  # noqa: E731
        for row in self.rows:
            print(f"| {row['program']} | {row['kind']} | {row['state']} | {show(row.get('difference'), '.2g')} | {show(row.get('share'), '.1%')} | "
                  f"{show(row.get('step_ms'), '.3f')} | {show(row.get('native_ms'), '.3f')} | {show(row.get('ratio'), '.2f')} | "
                  f"{row['note'].replace('|', '/')} |")


def batch(names, folder, missing, daemons, results):
    """Starts all processes of some programs, and lets one at a time work."""
    started = {}
    try:
        for name in names:
            words, variables = PROGRAMS[name]
            if words[0] in missing:
                results.add(name, "", "skipped", missing[words[0]])
                continue
            started[name] = {mode: Process(words, variables, folder, daemon) for mode, daemon in (("native", None), *daemons.items())}
        waits, deadline = {}, time.monotonic() + READY_S  # of all of them together
        for name, processes in started.items():
            for mode, process in processes.items():
                try:
                    process.answer("ready", max(deadline - time.monotonic(), 1))
                except (Failed, Skipped) as error:
                    waits[name, mode] = error
        for name, processes in started.items():
            turns(name, processes, waits, results)
    finally:
        for processes in started.values():
            for process in processes.values():
                process.close()


def turns(name, processes, waits, results):
    """The rounds of one program. A mode that fails does not stop the others."""
    steps, held, sums = {mode: [] for mode in processes}, {}, {}
    failed = {mode: waits[name, mode] for mode in processes if (name, mode) in waits}

    def work(mode, call):
        if mode not in failed:
            try:
                return call(processes[mode])
            except (Failed, Skipped) as error:
                failed[mode] = error
        return None

    for number in range(ROUNDS):
        for mode in [*processes][::-1 if number % 2 else 1]:
            answer = work(mode, lambda process: process.ask("round", "step", ROUND_S))
            if answer:
                steps[mode].append(float(answer[0]))
    for mode, process in processes.items():
        answer = work(mode, lambda process: process.ask("hold", "bytes", ROUND_S))
        if answer and process.daemon is not None:
            held[mode] = (process.daemon.in_use(process.process.pid), int(answer[0]))
        sums[mode] = work(mode, lambda process: process.ask("end", "sum", ROUND_S))
        work(mode, lambda process: process.finish(ROUND_S))
    if isinstance(failed.get("native"), Skipped):
        results.add(name, "", "skipped", str(failed["native"]))
        return
    if "native" in failed:
        results.add(name, "native", "FAILED", str(failed["native"]))
    for mode in processes:
        if mode == "native":
            continue
        if mode in failed:
            results.add(name, mode, "FAILED", str(failed[mode]))
            continue
        if "native" in failed:
            results.add(name, mode, "skipped", "there is no native result")
            continue
        in_use, asked = held[mode]
        share = min(in_use / asked, 1) if asked else None
        ours, native = statistics.median(steps[mode]), statistics.median(steps["native"])
        results.compare(name, mode, sums["native"], sums[mode], share=share, in_use_bytes=in_use, held_bytes=asked, step_ms=ours,
                        native_ms=native, ratio=ours / native, rounds_ms=steps)
        if share is not None and share < SHARE_BAR and name not in PARTLY:
            results.add(f"{name}: memory in the pool", mode, "FAILED", f"{in_use >> 20} of {asked >> 20} MiB")


def output(words, variables, folder, daemon, seconds=RUN_S):
    """A program that prints its sum and ends: the sum's words, and all that it wrote. Raises Failed or Skipped."""
    process = Process(words, variables, folder, daemon)
    try:
        found = process.answer("sum", seconds)
        process.process.stdin.close()
        rest = []
        while (line := process.lines.get(timeout=seconds)) is not None:
            rest.append(line)
        process.finish(seconds)
        return found, "\n".join([*process.said, *rest, process.error_text()])
    except queue.Empty:
        raise Failed(f"hangs at its end: {process.note()}") from None
    finally:
        process.close()


def plain(name, words, variables, folder, missing, daemons, results, check=None):
    """check(native's output, ours): what is wrong, or None."""
    for word in words:
        if word in missing:
            results.add(name, "", "skipped", missing[word])
            return
    try:
        native, text = output(words, variables, folder, None)
    except Skipped as why:
        results.add(name, "", "skipped", str(why))
        return
    except Failed as why:
        results.add(name, "native", "FAILED", str(why))
        return
    for kind, daemon in daemons.items():
        try:
            ours, our_text = output(words, variables, folder, daemon)
            wrong = check(text, our_text) if check else None
            if wrong:
                results.add(name, kind, "FAILED", wrong)
            else:
                results.compare(name, kind, native, ours)
        except (Failed, Skipped) as why:
            results.add(name, kind, "FAILED", str(why))


def worse(native, ours):
    """Errors that a tool reports under run and not natively."""
    def errors(text):
        found = re.findall(r"ERROR SUMMARY: (\d+) error", text)
        return int(found[-1]) if found else len(re.findall(r"==ERROR==|^Error: |received signal SIG", text, re.MULTILINE))

    if errors(ours) > errors(native):
        lines = [line for line in ours.splitlines() if re.search(r"=========.*\w|==ERROR==|SIG", line)]
        return f"{errors(ours)} errors, natively {errors(native)}: {' / '.join(lines[1:4])}"[:300]
    return None


def tools(folder, missing, daemons, results):
    for name, words in TOOLS.items():
        variables = {}
        if name == "MPS":
            continue
        if shutil.which(words[0]) is None:
            results.add(name, "", "skipped", f"there is no {words[0]}")
            continue
        plain(name, words, variables, folder, missing, daemons, results, worse)


def mps(folder, missing, daemons, results):
    """A server of its own: only programs that have the variable are its clients."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        results.add("MPS", "", "skipped", "there is no nvidia-cuda-mps-control")
        return
    with tempfile.TemporaryDirectory(prefix="gpupool-mps-", ignore_cleanup_errors=True) as pipes:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes}
        environment = {**os.environ, **variables}
        try:
            started = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, timeout=20, check=False, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
            if not started:
                results.add("MPS", "", "skipped", "its control daemon does not start")
                return
            plain("MPS", TOOLS["MPS"], variables, folder, missing, daemons, results)
        finally:
            try:
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, timeout=20, check=False,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            except (OSError, subprocess.TimeoutExpired):
                pass


def killed(folder, missing, daemons, results):
    """A program that is killed in the middle of a step. Nothing else runs on the daemon."""
    for kind, daemon in daemons.items():
        before = daemon.all_is_back()
        if before != 0:
            results.add("memory of all programs that ended", kind, "FAILED", f"{before >> 20} MiB are not back")
            continue
        results.add("memory of all programs that ended", kind, "ok", "is back")
        for words in (["runtime_static"], ["runtime_shared"], ["use_torch.py", "conv"]):
            name = f"killed: {' '.join(words)}"
            if words[0] in missing:
                results.add(name, kind, "skipped", missing[words[0]])
                continue
            process = Process(words, {}, folder, daemon)
            try:
                process.answer("ready", READY_S)
                held = daemon.in_use(process.process.pid)
                process.process.stdin.write("round\n" * 50)
                process.process.stdin.flush()
                process.answer("step", ROUND_S)
                process.close()
                left = daemon.all_is_back()
                state = "ok" if held > 0 and left == 0 else "FAILED"
                results.add(name, kind, state, f"held {held >> 20} MiB, {left >> 20} MiB are not back" if state != "ok" else "")
            except Skipped as why:
                results.add(name, kind, "skipped", str(why))
            except (Failed, OSError) as why:
                results.add(name, kind, "FAILED", str(why))
            finally:
                process.close()


def bars(results):
    """The times of JAX's steps under run, to those of the native platform allocator and of the native default."""
    for kind in ("ipc", "vmm"):
        ours = results.figure("JAX", kind, "step_ms")
        for other, bar in (("JAX, platform", 0.7), ("JAX", 1.05)):
            native = results.figure(other, kind, "native_ms")
            if ours and native:
                results.add(f"JAX, to native {other}", kind, "ok" if ours / native <= bar else "FAILED",
                            f"at most {bar}", step_ms=ours, native_ms=native, ratio=ours / native)


# --- the whole ----------------------------------------------------------------------------------------------------------


def run_all(options, folder, daemons, results):
    deadline = time.monotonic() + options.seconds
    is_simulated = options.gpu == "sim"
    missing = dict.fromkeys(BUILT, "the GPU is simulated") if is_simulated else build(folder)
    for name, why in missing.items():
        print(f"{name}: {why}", flush=True)
    if is_simulated:
        for all_of, simulated in ((PROGRAMS, SIMULATED), (PLAIN, SIMULATED_PLAIN), (TOOLS, SIMULATED_TOOLS)):
            all_of.clear()
            all_of.update(simulated)
    wanted = lambda name: re.search(options.only, name) is not None  # noqa: E731
    names = [name for name in PROGRAMS if wanted(name)]

    def part(what, call, *arguments):
        """An error of one part does not stop the others."""
        if time.monotonic() > deadline:
            results.add(what, "", "FAILED", "no time was left for it")
            return
        start = time.monotonic()
        try:
            call(*arguments)
        except Exception as error:
            results.add(what, "", "FAILED", f"{type(error).__name__}: {error}"[:200])
        print(f"        {time.monotonic() - start:.1f} s", flush=True)

    for first in range(0, len(names), BATCH):
        part(", ".join(names[first:first + BATCH]), batch, names[first:first + BATCH], folder, missing, daemons, results)

    def all_plain():
        with concurrent.futures.ThreadPoolExecutor(len(PLAIN)) as pool:
            list(pool.map(lambda item: plain(*item, {}, folder, missing, daemons, results), [item for item in PLAIN.items() if wanted(item[0])]))

    part("plain programs", all_plain)
    if wanted("tools"):
        part("tools", tools, folder, missing, daemons, results)
    if wanted("MPS"):
        part("MPS", mps, folder, missing, daemons, results)
    if wanted("killed"):
        part("killed", killed, folder, missing, daemons, results)
    bars(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpupoold", nargs="?")
    parser.add_argument("gpupoolctl", nargs="?")
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", ".")))
    parser.add_argument("--kind", action="append", help="ipc or vmm; without it both")
    parser.add_argument("--only", default="", help="what is in the names")
    parser.add_argument("--programs", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=300, help="no part begins later")
    parser.add_argument("--gpu", default="cuda", help="sim: without a GPU, to try the script itself")
    options = parser.parse_args()
    if options.build:
        missing = build(options.build)
        for name, why in missing.items():
            print(f"{name}: {why}")
        return 1 if missing else 0
    if options.gpu == "cuda" and subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode != 0:
        print("there is no GPU")
        return 77
    results, daemons = Results(), {}
    with tempfile.TemporaryDirectory(prefix="gpupool-programs-") as work:
        try:
            for kind in options.kind or ("ipc", "vmm"):
                daemons[kind] = Daemon(options.gpupoold, options.gpupoolctl, kind, options.gpu)
            run_all(options, options.programs or pathlib.Path(work), daemons, results)
        except Exception as error:
            results.add("programs.py", "", "FAILED", f"{type(error).__name__}: {error}")
        finally:
            for daemon in daemons.values():
                daemon.close()
    results.table()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "programs.json").write_text(json.dumps(results.rows, indent=1) + "\n")
    count = {state: sum(row["state"] == state for row in results.rows) for state in ("ok", "FAILED", "skipped")}
    print(f"\n{count['ok']} ok, {count['FAILED']} failed, {count['skipped']} skipped")
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
