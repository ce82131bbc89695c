# SPDX-License-Identifier: Apache-2.0
"""Programs whose CUDA runtime is static, and programs that call the driver, on a GPU: each runs natively and under gpupoolctl run,
with equal results, and its memory is the pool's.

    driver_api.py GPUPOOLCTL PROGRAMS

PROGRAMS: the folder of the two programs that are built of driver_api.cu. CuPy, whose wheels have a static runtime, is run
where it is installed. Connects to the daemon that GPUPOOL_SOCKET names. GPUPOOLCTL_LIBRARY_PATH: where gpupoolctl, and it alone,
finds its libraries. One line a program. Exit status 0: all hold; 1.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

WAIT_S = 120

CUPY = """
import ctypes, sys
import cupy

def is_lent(array):
    lookup = getattr(ctypes.CDLL(None), "gpupool_lookup", None)
    return lookup is not None and lookup(ctypes.c_void_p(array.data.mem.ptr), None, ctypes.create_string_buffer(256)) == 0

random = cupy.random.RandomState(1)
values = random.random_sample(3 << 20).astype(cupy.float64)
assert is_lent(values) == (sys.argv[1] == "lent"), "whose memory is it?"
twice = cupy.RawKernel('extern "C" __global__ void twice(double *v, int n) {'
                       'int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) v[i] *= 2; }', "twice")
sums = []
for number in range(20):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        part = values[number << 10:].copy()
        twice(((part.size + 255) // 256,), (256,), (part, part.size))
        part.sort()
        sums.append(float(cupy.abs(cupy.fft.fft(part[::3])).sum()) + float(part[::7].sum()))
        stream.synchronize()
pinned = cupy.cuda.alloc_pinned_memory(1 << 20)
try:
    cupy.empty(1 << 46, dtype=cupy.uint8)
    sys.exit("no error")
except cupy.cuda.memory.OutOfMemoryError:
    pass
del values, part
cupy.get_default_memory_pool().free_all_blocks()
print("sum", *(f"{value:.9g}" for value in sums))
"""


def output(command, environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=WAIT_S, check=False,
                          env=environment)
    if done.returncode != 0:
        return f"exit status {done.returncode}: {done.stdout}{done.stderr}".strip()
    return done.stdout.strip()


def main():
    ctl, programs = sys.argv[1], pathlib.Path(sys.argv[2])
    commands = {kind: [programs / f"driver_api_{kind}"] for kind in ("static", "shared")}
    if importlib.util.find_spec("cupy") is not None:
        commands["cupy"] = [sys.executable, "-c", CUPY]
    native = {name: value for name, value in os.environ.items() if name != "GPUPOOL_SOCKET"}
    # env sets the program's variable back, which is for gpupoolctl alone
    libraries = os.environ.get("GPUPOOLCTL_LIBRARY_PATH")
    back = ["env", f"LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH', '')}"] if libraries is not None else []
    under = dict(os.environ, LD_LIBRARY_PATH=libraries) if libraries is not None else dict(os.environ)
    failed = False
    for name, command in commands.items():
        alone = output([*command, "native"], native)
        lent = output([ctl, "run", "--", *back, *command, "lent"], under)
        holds = alone == lent and lent.startswith("sum ")
        failed = failed or not holds
        print(f"{name}: " + ("results equal, memory of the pool" if holds else f"natively {alone!r}, with gpupool {lent!r}"))
    return 1 if failed else 0


sys.exit(main())
