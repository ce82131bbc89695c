# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs under gpupoolctl run on one pool that is smaller than what they keep: idle memory of one serves the other,
whatever the main thread of the first one does.

    torch_idle.py GPUPOOLD GPUPOOLCTL [--kind vmm] [--kind ipc] [--limit MIB] [PART...]

Starts daemons of its own. GPUPOOLCTL_LIBRARY_PATH: where gpupoold and gpupoolctl, and they alone, find their libraries. One line a
result. Exit status 0: all hold; 1; 77: there is no PyTorch, or no GPU for it.
"""
import argparse
import contextlib
import json
import os
import pathlib
import queue
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
WAIT_S = 90
SERVED_MS = {"vmm": 20, "ipc": 50}  # by a process in read(): of the median request


# --- a program: it does what its standard input says ------------------------------------------------------------------------


class Program:
    def __init__(self):
        import torch
        self.torch, self.held, self.model = torch, [], None
        torch.empty(1, device="cuda")

    def reserved(self):
        return self.torch.cuda.memory_reserved() // MIB

    def fill(self, mebibytes):
        """Memory that is idle from then on: blocks of 2 to 200 MiB."""
        sizes, sizes_left = [2, 20, 200, 64, 10, 120], int(mebibytes)
        blocks = []
        while sizes_left > 0:
            size = min(sizes[len(blocks) % len(sizes)], sizes_left)
            blocks.append(self.torch.empty(size * MIB, dtype=self.torch.uint8, device="cuda"))
            sizes_left -= size
        del blocks
        return self.reserved()

    def take(self, mebibytes, pieces=1):
        size, times = int(mebibytes) * MIB // int(pieces), []
        for _ in range(int(pieces)):
            start = time.monotonic()
            try:
                self.held.append(self.torch.empty(size, dtype=self.torch.uint8, device="cuda"))
            except self.torch.cuda.OutOfMemoryError as error:
                return {"error": str(error).splitlines()[0][:120], "ms": round((time.monotonic() - start) * 1000, 1)}
            times.append((time.monotonic() - start) * 1000)
        self.torch.cuda.synchronize()
        return {"ms": round(sum(times), 2), "worst_ms": round(max(times), 2)}

    def drop(self):
        self.held.clear()
        self.torch.cuda.empty_cache()
        return self.reserved()

    # --- where a main thread can stand

    def sleep(self, seconds):
        time.sleep(float(seconds))
        return self.reserved()

    def lock(self, seconds):
        lock = threading.Lock()
        lock.acquire()
        threading.Timer(float(seconds), lock.release).start()
        lock.acquire()
        return self.reserved()

    def loader(self, seconds):
        """The queue of a DataLoader, whose worker is slow."""
        class Slow(self.torch.utils.data.Dataset):
            def __len__(self):
                return 1

            def __getitem__(self, index):
                time.sleep(float(seconds))
                return index

        next(iter(self.torch.utils.data.DataLoader(Slow(), num_workers=1)))
        return self.reserved()

    def queue(self, seconds):
        waiting = queue.Queue()
        threading.Timer(float(seconds), waiting.put, (1,)).start()
        waiting.get()
        return self.reserved()

    def busy(self, seconds):
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            pass
        return self.reserved()

    def c_call(self, seconds):
        import ctypes
        ctypes.CDLL(None).usleep(int(float(seconds) * 1e6))
        return self.reserved()

    def holds_the_lock(self, seconds):
        """A C extension that does not give the interpreter's lock up."""
        import ctypes
        ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))
        return self.reserved()

    def capture(self, seconds):
        """A stream is captured, in a thread of its own. Returns how far its graph's result is off."""
        torch, result = self.torch, []

        def work():
            inputs = torch.ones(1 << 20, device="cuda")
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="global"):
                    output = inputs * 2
                    time.sleep(float(seconds))
                    output = output + 1
                inputs.fill_(20)
                graph.replay()
                torch.cuda.synchronize()
                result.append(abs(output.mean().item() - 41))
            except Exception as error:
                result.append(str(error).splitlines()[0][:150])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return result[0]

    # --- work

    def step(self, generator):
        torch = self.torch
        if self.model is None:
            import torchvision
            self.model = torchvision.models.resnet50(weights=None).cuda().eval()
        size = (int(torch.randint(8, 65, (1,), generator=generator)), 3, *[32 * int(torch.randint(5, 11, (1,), generator=generator))] * 2)
        start = time.monotonic()
        with torch.no_grad():
            value = self.model(torch.randn(size, device="cuda")).float().mean().item()
        assert value == value
        return (time.monotonic() - start) * 1000

    def steps(self, seed, count):
        """ResNet-50 on batches of varying shapes."""
        generator, times, errors = self.torch.Generator().manual_seed(int(seed)), [], []
        for _ in range(int(count)):
            try:
                times.append(round(self.step(generator), 1))
            except self.torch.cuda.OutOfMemoryError as error:
                errors.append(str(error).splitlines()[0][:120])
        return {"times": times, "errors": errors, "reserved": self.reserved()}

    def trees(self, seconds):
        """torch.compile's graph trees, while others ask. Returns how far the worst result is off, and the rounds."""
        torch = self.torch
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)).cuda()
        fast, worst, rounds = torch.compile(model, mode="reduce-overhead"), 0.0, 0
        end = time.monotonic() + float(seconds)
        with torch.no_grad():
            while time.monotonic() < end or rounds < 10:
                inputs = torch.randn(32 * (1 + rounds % 3), 256, device="cuda")
                torch.compiler.cudagraph_mark_step_begin()
                worst = max(worst, (fast(inputs) - model(inputs)).abs().max().item())
                idle = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
                del idle
                rounds += 1
        return {"worst": worst, "rounds": rounds, "reserved": self.reserved()}


def program():
    this = Program()
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            result = getattr(this, name)(*arguments)
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"}
        print(json.dumps(result), flush=True)


# --- the other side ----------------------------------------------------------------------------------------------------------


def with_libraries(*command):
    path = os.environ.get("GPUPOOLCTL_LIBRARY_PATH")
    return ["env", f"LD_LIBRARY_PATH={path}", *command] if path else list(command)


class Conversation:
    def __init__(self, daemon, verbose=False):
        path = os.environ.get("GPUPOOLCTL_LIBRARY_PATH")
        command = with_libraries(daemon.ctl, "run", "--socket", daemon.socket,
                                 *(["env", "-u", "LD_LIBRARY_PATH"] if path else []), sys.executable, __file__, "--program")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **({"GPUPOOL_PRELOAD_VERBOSE": "1"} if verbose else {})})

    def ready(self):
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("a program did not start")
        return self

    def begin(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def end(self):
        if not select.select([self.process.stdout], [], [], WAIT_S)[0]:
            raise RuntimeError("a program hangs")
        return json.loads(self.process.stdout.readline())

    def ask(self, *words):
        self.begin(*words)
        return self.end()

    def close(self):
        self.process.kill()
        self.process.communicate()


class Daemon:
    def __init__(self, gpupoold, ctl, kind, limit, gpu):
        self.ctl, self.folder = ctl, tempfile.TemporaryDirectory(prefix="gpupool-idle-")
        work = pathlib.Path(self.folder.name)
        (work / "conf").write_text(f"[device]\nexport = {kind}\nlimit = {limit}MiB\n[host]\nlimit = 64MiB\n")
        self.socket, self.admin = work / "gpupool.sock", work / "admin.sock"
        self.process = subprocess.Popen(with_libraries(gpupoold, "--gpu", gpu, "--config", work / "conf", "--socket", self.socket,
                                                       "--admin-socket", self.admin))
        deadline = time.monotonic() + 30
        while not self.socket.exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self.folder.cleanup()


@contextlib.contextmanager
def programs(daemon, count):
    started = [Conversation(daemon) for _ in range(count)]
    try:
        yield [each.ready() for each in started]
    finally:
        for each in started:
            each.close()


class Results:
    def __init__(self):
        self.good = True

    def say(self, kind, name, holds, value):
        self.good = self.good and holds
        print(f"{'ok    ' if holds else 'FAILED'} {kind} {name}: {value}", flush=True)


def states(daemon, kind, limit, results):
    """Each time one program keeps three quarters of the pool idle, and another one asks for a half."""
    idle, wanted = limit * 3 // 4, limit // 2
    with programs(daemon, 2) as (holder, other):
        for pieces, pause_s in ((1, 0.3), (10, 0.3), (1, 0.02)):
            times = []
            for _ in range(5):
                holder.ask("fill", idle)
                time.sleep(pause_s)
                taken = other.ask("take", wanted, pieces)
                times.append(taken.get("ms") if "error" not in taken else taken["error"])
                other.ask("drop")
            good = all(not isinstance(each, str) for each in times)
            median = statistics.median(times) if good else None
            results.say(kind, f"in read() for {pause_s} s, {pieces} pieces", good and median <= SERVED_MS[kind], f"{times} ms")
        for state in ("sleep", "lock", "queue", "loader", "busy", "c_call", "holds_the_lock", "capture"):
            holder.ask("fill", idle)
            holder.begin(state, 1)
            time.sleep(0.3)
            taken = other.ask("take", wanted)
            after = holder.end()
            other.ask("drop")
            is_quick = taken.get("ms", 0) < (2000 if state in ("holds_the_lock", "capture") else 300)
            is_right = "error" not in taken and not isinstance(after, (str, dict)) and (state != "capture" or after < 1e-3)
            results.say(kind, state, is_right and is_quick, f"{taken}, afterwards {after}")


def table(daemon, kind, limit, results):
    """Three workers with a model each, one at a time, then two at a time."""
    with programs(daemon, 3) as workers:
        times, firsts, errors = [], [], []

        def collect(result):
            if "failed" in result:
                errors.append(result["failed"])
                return
            times.extend(result["times"])
            firsts.extend(result["times"][:1])
            errors.extend(result["errors"])

        for turn in range(2):
            for number, worker in enumerate(workers):
                collect(worker.ask("steps", 10 * turn + number, 16))
        alone = len(times)
        for first, second in ((0, 1), (1, 2), (2, 0)):
            workers[first].begin("steps", 50 + first, 16)
            workers[second].begin("steps", 60 + second, 16)
            collect(workers[first].end())
            collect(workers[second].end())
        results.say(kind, "three workers", not errors and bool(times) and max(times) < 1000,
                    f"{len(errors)} errors {errors[:2]}; median {statistics.median(times[:alone] or [0])} ms alone, "
                    f"{statistics.median(times[alone:] or [0])} by two; worst {sorted(times)[-5:]}; first steps {firsts}")


def trees(daemon, kind, limit, results):
    """Graph trees are compiled, recorded and launched while another program asks again and again."""
    with programs(daemon, 2) as (holder, other):
        holder.begin("trees", 10)
        taken = []
        while not select.select([holder.process.stdout], [], [], 0.2)[0] and len(taken) < 300:
            taken.append(other.ask("take", limit * 9 // 10))
            other.ask("drop")
        result = holder.end()
        served = [each["ms"] for each in taken if "error" not in each]
        results.say(kind, "graph trees", result.get("worst", 1) < 1e-2,
                    f"{result}; {len(served)} of {len(taken)} requests served, median {statistics.median(served or [0])} ms")


PARTS = {"states": states, "table": table, "trees": trees}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("gpupoold")
    arguments.add_argument("gpupoolctl")
    arguments.add_argument("--kind", action="append")
    arguments.add_argument("--limit", type=int, default=4000)
    arguments.add_argument("--gpu", default="cuda")
    arguments.add_argument("parts", nargs="*")
    options = arguments.parse_intermixed_args()
    try:
        import torch
    except ImportError:
        print("there is no PyTorch")
        return 77
    if not torch.cuda.is_available():
        print("PyTorch has no GPU")
        return 77
    results = Results()
    for kind in options.kind or ("vmm", "ipc"):
        for part in options.parts or PARTS:
            daemon = Daemon(options.gpupoold, options.gpupoolctl, kind, options.limit, options.gpu)
            try:
                PARTS[part](daemon, kind, options.limit, results)
            except Exception as error:
                results.say(kind, part, False, repr(error))
            finally:
                daemon.close()
    return 0 if results.good else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--program"]:
        program()
    else:
        sys.exit(main())
