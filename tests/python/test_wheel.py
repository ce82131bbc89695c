# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed into a virtual environment without a network, and the programs of docs/python.md as they stand there."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import scene

SOURCE, WHEEL, VERSION = pathlib.Path(os.environ["GPUPOOL_SOURCE"]), pathlib.Path(os.environ["GPUPOOL_WHEEL"]), os.environ["GPUPOOL_VERSION"]
PAGE = (SOURCE / "docs/python.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
INSTALL_S = 300


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.daemon = scene.Daemon()
        cls.addClassCleanup(cls.daemon.close)
        cls.environment = {name: value for name, value in cls.daemon.environment.items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", cls.folder / "venv"], check=True, capture_output=True,
                       timeout=INSTALL_S, env=cls.environment)
        cls.python = cls.folder / "venv/bin/python"
        subprocess.run([cls.python, "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", WHEEL],
                       check=True, capture_output=True, timeout=INSTALL_S, env=cls.environment)

    def run_program(self, text):
        path = self.folder / "program.py"
        path.write_text(text)
        done = subprocess.run([self.python, path], check=False, capture_output=True, text=True, timeout=scene.WAIT_S, cwd=self.folder,
                              env=self.environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"{text}\n{done.stdout}{done.stderr}")
        return done.stdout

    def test_the_name_says_which_pythons_it_is_for(self):
        self.assertRegex(WHEEL.name, rf"^gpupool-{re.escape(VERSION)}-cp311-abi3-linux_\w+\.whl$")
        with zipfile.ZipFile(WHEEL) as wheel:
            names = {name for name in wheel.namelist() if ".dist-info/" not in name}
            metadata = wheel.read(f"gpupool-{VERSION}.dist-info/METADATA").decode()
        self.assertEqual(names, {"gpupool/" + name for name in (
            "__init__.py", "__init__.pyi", "_errors.py", "_farewell.py", "_gpupool.abi3.so", "_model_loaders.py", "_private.py", "_safetensors.py",
            "_stats.py", "_tensors.py", "_torch_channels.py", "_torch_handles.py", "_torch_load.py", "_torch_memory.py", "_torch_names.py", "_torch_set.py", "_transfer.py",
            "channels.py", "channels.pyi", "cuda_core.py", "libgpupool-sim.so.0", "names.py", "numba.py", "py.typed", "sglang.py", "torch.py",
            "triton.py", "vllm.py")})
        self.assertIn(f"\nVersion: {VERSION}\n", metadata)
        self.assertIn("\nRequires-Python: >=3.11\n", metadata)

    def test_it_works_alone(self):
        """The simulated GPU is the wheel's, and no library of the build tree is loaded."""
        output = self.run_program(
            "import gpupool\nwith gpupool.device_pool(0).acquire(100, zero=True) as buffer:\n    print(bytes(buffer) == bytes(100))\n"
            "print([line.split()[-1] for line in open('/proc/self/maps') if 'gpupool' in line and '.so' in line])\n")
        found, libraries = output.splitlines()
        self.assertEqual(found, "True")
        self.assertEqual({pathlib.Path(path).name for path in eval(libraries)}, {"_gpupool.abi3.so", "libgpupool-sim.so.0"})
        for path in eval(libraries):
            self.assertTrue(path.startswith(str(self.folder)), path)

    @scene.needs_numpy
    def test_the_first_program_of_the_page_shares_an_array(self):
        self.assertLessEqual(len(PROGRAMS[0].splitlines()), 15)
        self.assertEqual(self.run_program(PROGRAMS[0]), "[[2. 2. 2.]\n [2. 2. 2.]]\n")

    @scene.needs_torch
    def test_the_second_program_of_the_page_shares_a_tensor(self):
        self.assertEqual(self.run_program(PROGRAMS[1]), "tensor([[2., 2., 2.],\n        [2., 2., 2.]])\n")

    @scene.needs_torch_2
    def test_the_program_with_gpupool_torch_shares_a_tensor(self):
        program, = [text for text in PROGRAMS if "gpupool.torch" in text]
        simulated = program.replace('device="cuda"', "pool=gpupool.device_pool(0)")
        self.assertEqual(self.run_program(simulated), "tensor([[2., 2., 2.],\n        [2., 2., 2.]])\n")

    @scene.needs_numpy
    def test_the_other_programs_of_the_page_run(self):
        for program in [text for text in PROGRAMS[2:] if "gpupool.torch" not in text]:
            with self.subTest(program):
                self.run_program("import gpupool, numpy\n" + program)


if __name__ == "__main__":
    unittest.main()
