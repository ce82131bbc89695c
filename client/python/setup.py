# SPDX-License-Identifier: Apache-2.0
"""Packages the extension module that CMake builds, and asks CMake to build it where that was not done.

The CMake target gpupool-wheel names the folder with the built files in GPUPOOL_PYTHON_BUILT. `pip install client/python` in a
checkout has no such folder: the same targets are then built in a temporary one, which needs the tools of docs/install.md.
CMAKE_ARGS in the environment has further options for CMake.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
BUILT = os.environ.get("GPUPOOL_PYTHON_BUILT")


def version():
    """CMake's. A copy of this folder without the tree around it has it from the target."""
    if "GPUPOOL_PYTHON_VERSION" in os.environ:
        return os.environ["GPUPOOL_PYTHON_VERSION"]
    project = (HERE.parents[1] / "CMakeLists.txt").read_text()
    return re.search(r"^project\(gpupool VERSION (\S+)", project, re.MULTILINE)[1]


class BuildByCMake(build_ext):
    def build_extension(self, ext):
        target = pathlib.Path(self.get_ext_fullpath(ext.name))
        built = pathlib.Path(BUILT) if BUILT else self.build_by_cmake(pathlib.Path(self.build_temp).resolve())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built / "_gpupool.abi3.so", target)
        # The simulated GPU is loaded from beside the module.
        for library in built.glob("libgpupool-sim.so.*"):
            shutil.copy2(library, target.parent / library.name)

    @staticmethod
    def build_by_cmake(folder):
        options = ["-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}", *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        subprocess.run(["cmake", "-S", HERE.parents[1], "-B", folder, *options], check=True)
        subprocess.run(["cmake", "--build", folder, "--target", "gpupool-python"], check=True)
        return folder / "client" / "python" / "package" / "gpupool"


setup(
    version=version(),
    ext_modules=[Extension("gpupool._gpupool", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildByCMake},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
