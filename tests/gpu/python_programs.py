# SPDX-License-Identifier: Apache-2.0
"""The programs of client/examples/python on a GPU: with a table each, in some five minutes.

    PYTHONPATH=... python3 tests/gpu/python_programs.py --out FOLDER [--ffmpeg PATH] [--video PATH] [--only frames|training|restart] [--simulate]

Each program writes its figures into FOLDER, as NAME.json, and its tables go to the standard output. The exit status is that of the
first program that failed, after all have run. The daemon is the one that GPUPOOL_SOCKET names. --simulate: small, without a GPU, to
try the script itself.
"""
import argparse
import pathlib
import subprocess
import sys
import time

PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "client/examples/python"
LIMIT_S = 240  # of one command
RUNS = {  # the command's name: its program and options
    "frames": ("frames.py", ["--rounds", "3", "--frames", "100"]),
    "frames-1080p": ("frames.py", ["--rounds", "2", "--frames", "60", "--size", "1920x1080"]),
    "training": ("training.py", ["--rounds", "2", "--steps", "60", "--half"]),
    "batches": ("batches.py", ["--rounds", "2"]),
    "restart": ("restart.py", ["--rounds", "2", "--models", "llama"]),
    "restart-resnet50": ("restart.py", ["--rounds", "2", "--models", "resnet50", "--ways", "gpupool,safetensors"]),
}
SMALL = {
    "frames": ("frames.py", ["--simulate", "--rounds", "1", "--frames", "10", "--size", "64x48", "--ways", "gpupool,torch"]),
    "training": ("training.py", ["--simulate", "--rounds", "1", "--steps", "6", "--first", "2", "--model", "resnet18", "--side", "32", "--batch", "4",
                                 "--images", "20", "--workers", "2"]),
    "batches": ("batches.py", ["--simulate", "--rounds", "1", "--images", "50", "--batch", "8", "--side", "16", "--workers", "2"]),
    "restart": ("restart.py", ["--simulate", "--rounds", "1", "--models", "resnet18"]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--ffmpeg")
    parser.add_argument("--video")
    parser.add_argument("--only", default="", help="the beginning of a name")
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for name, (program, arguments) in (SMALL if options.simulate else RUNS).items():
        if not name.startswith(options.only):
            continue
        command = [sys.executable, PROGRAMS / program, *arguments, "--json", options.out / f"{name}.json"]
        if program in ("frames.py", "training.py"):
            command += [part for key in ("ffmpeg", "video") if (value := getattr(options, key)) for part in (f"--{key}", value)]
        began = time.monotonic()
        print(f"\n# {name}: {program} {' '.join(arguments)}", flush=True)
        try:
            code = subprocess.run(command, check=False, timeout=LIMIT_S).returncode
        except subprocess.TimeoutExpired:
            code = 124
        print(f"\n{name}: {'done' if code == 0 else f'failed with status {code}'}, {time.monotonic() - began:.0f} s", flush=True)
        status = status or code
    return status


if __name__ == "__main__":
    sys.exit(main())
