#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that uses an installed header for another library, by that library's own headers: cccl, tensorrt or thrust, the first
argument.

It is compiled with all warnings as errors, and run with the installed library against the installed daemon and the simulated GPU.
Exit status 77: the other library's headers are not there.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import test_package
from test_package import CXX, HERE, LIB, SANITIZE, SOURCE, gpupool_system, run

SKIPPED = 77
CUDA = os.environ.get("GPUPOOL_CUDA_INCLUDE_DIRS", "")
WARNINGS = "-Wall", "-Wextra", "-Wpedantic", "-Wold-style-cast", "-Wshadow", "-Werror"


class Missing(Exception):
    pass


def folders(names, what, header):
    """The folders of a list as CMake writes it. One of them has to have the header."""
    found = [folder for folder in names.split(";") if folder and not folder.endswith("-NOTFOUND")]
    if not any((pathlib.Path(folder) / header).exists() for folder in found):
        raise Missing(f"{header} was not found: {what}")
    return found


def compiler_of(includes, *options):
    return CXX, "-std=c++17", *WARNINGS, *SANITIZE, *(f"-isystem{include}" for include in includes), *options


def cccl():
    """The CUDA toolkit's CCCL. Another one: GPUPOOL_CCCL_INCLUDE_DIR in the environment."""
    toolkit = folders(CUDA, "CCCL's resources need the CUDA toolkit", "cuda_runtime_api.h")
    own = os.environ.get("GPUPOOL_CCCL_INCLUDE_DIR") or ";".join(f"{folder}/cccl" for folder in toolkit) + ";" + CUDA
    return compiler_of(folders(own, "install the CUDA toolkit 13", "cuda/memory_resource") + toolkit,
                       "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE")


def tensorrt():
    headers = folders(os.environ.get("GPUPOOL_TENSORRT_INCLUDE_DIR", ""),
                      "install TensorRT 10, or configure with -DGPUPOOL_TENSORRT_INCLUDE_DIR=…/include", "NvInferRuntime.h")
    return compiler_of(headers + folders(CUDA, "TensorRT's headers need the CUDA toolkit", "cuda_runtime_api.h"))


def thrust():
    nvcc = os.environ.get("GPUPOOL_NVCC", "")
    if not pathlib.Path(nvcc).is_file() or SANITIZE:
        raise Missing("nvcc was not found: install the CUDA toolkit" if not SANITIZE else "nvcc takes no sanitizer")
    return nvcc, "-std=c++17", "-Xcompiler=-Wall,-Wextra,-Werror", "-Werror=all-warnings"


LIBRARIES = {"cccl": cccl, "tensorrt": tensorrt, "thrust": thrust}


def main(name):
    try:
        compiler = LIBRARIES[name]()
    except Missing as missing:
        print(f"skipped: {missing}")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="gpupool-libraries-") as folder:
        prefix, program = pathlib.Path(folder) / "prefix", pathlib.Path(folder) / name
        test_package.install(prefix)
        source = next((HERE / "libraries").glob(f"{name}.c*"))
        run(*compiler, f"-I{prefix / 'include'}", f"-I{SOURCE}", source, "-o", program, f"-L{prefix / LIB}", "-lgpupool-client")
        gpupool_system.DAEMON, gpupool_system.CTL = str(prefix / "sbin/gpupoold"), str(prefix / "bin/gpupoolctl")
        daemon = gpupool_system.Daemon("[host]\nlimit = 256MiB\n")
        try:
            done = subprocess.run([program], env={**os.environ, "GPUPOOL_SOCKET": str(daemon.socket), "GPUPOOL_SIM_LATENCY": "0",
                                                  "LD_LIBRARY_PATH": str(prefix / LIB)}, check=False, timeout=test_package.WAIT_S)
            leased = sum(pool["leased_bytes"] for pool in daemon.ask("pools")["pools"])
        finally:
            daemon.close()
    print(f"{leased} bytes are leased")
    return 0 if done.returncode == 0 and leased == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
