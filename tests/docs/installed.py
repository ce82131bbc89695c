# SPDX-License-Identifier: Apache-2.0
"""An installation in a temporary prefix, against which the programs and commands of the pages are tried."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE, BUILD, CMAKE = (pathlib.Path(os.environ[name]) for name in ("GPUPOOL_SOURCE", "GPUPOOL_BUILD", "GPUPOOL_CMAKE"))
LIB = os.environ["GPUPOOL_LIBDIR"]
WAIT_S = 120


def blocks(text, language):
    """The blocks of a page that are marked as of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="gpupool-docs-")
        cls.work = pathlib.Path(cls.directory.name)
        cls.prefix = cls.work / "prefix"
        subprocess.run([CMAKE, "--install", BUILD, "--prefix", cls.prefix], check=True, capture_output=True,
                       timeout=WAIT_S)
        # The compiler, the loader and the shell find everything, as they do below /usr.
        unset = ("GPUPOOL_SOCKET", "GPUPOOL_DAEMON_ARGS", "DESTDIR")
        cls.environment = {
            **{name: value for name, value in os.environ.items() if name not in unset},
            "PATH": f"{cls.prefix}/bin:{cls.prefix}/sbin:{os.environ['PATH']}",
            "PKG_CONFIG_PATH": str(cls.prefix / LIB / "pkgconfig"),
            "LD_LIBRARY_PATH": str(cls.prefix / LIB),
            "CMAKE_PREFIX_PATH": str(cls.prefix),
            "GPUPOOL_DAEMON": str(cls.prefix / "sbin/gpupoold"),
        }

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def shell(self, commands, directory):
        done = subprocess.run(["/bin/sh", "-eu", "-c", commands], check=False, capture_output=True, text=True,
                              cwd=directory, env=self.environment, timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, f"{commands}\n{done.stdout}{done.stderr}")
        return done.stdout
