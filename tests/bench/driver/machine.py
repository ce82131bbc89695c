# SPDX-License-Identifier: Apache-2.0
"""The description of the machine in the results document: the facts that figures depend on, and nothing that names it."""
import os
import pathlib
import platform
import re
import subprocess


def output(command, environment=None):
    """The output of a command, "" where it fails or does not exist."""
    try:
        return subprocess.run([str(argument) for argument in command], check=True, capture_output=True, text=True, timeout=60,
                              env=environment).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def found_in(path, pattern):
    try:
        match = re.search(pattern, pathlib.Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return match.group(1) if match else None


def has_gpu():
    return output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]) != ""


def describe():
    gpu = output(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"])
    name, driver, mib = gpu.splitlines()[0].split(", ") if gpu else (None, None, None)
    return {
        "processor": found_in("/proc/cpuinfo", r"^model name\s*: (.*)$") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "system": found_in("/etc/os-release", r'^PRETTY_NAME="?(.*?)"?$') or platform.system(),
        "gpu": name, "driver": driver, "gpu_memory_bytes": int(mib) << 20 if mib else None,
        "gpus": len(gpu.splitlines()),
    }


def daemon_version(bench):
    return {"gpupoold": output([bench.program("gpupoold"), "--version"], bench.inside).removeprefix("gpupoold ")}


def versions(bench):
    found = daemon_version(bench)
    if bench.has_gpu:
        for module, name in (("torch", "PyTorch"), ("cupy", "CuPy")):
            version = output([bench.python, "-c", f"import {module}; print({module}.__version__)"], bench.outside)
            if version:
                found[name] = version
    return found
