# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/restarts.c against a daemon under a real systemd, with the units that are installed:

    restarts_systemd.py [OPTION...]     as restarts takes them, but for --gpu, --hold, --unit and --log

systemd is process 1 of a machine of its own (machine.py), in which the program runs, too. Exit status 77: there can be none here.
"""
import argparse
import contextlib
import os
import pathlib
import subprocess
import sys

from gpupool_system import CTL, DAEMON, WAIT_S, wait_until
from machine import Machine, NotPossible

UNIT = "gpupoold.service"
LOG = "/run/gpupoold.log"
GOOD = ["active", "running", "success"]
PROGRAMS = {"gpupoold": DAEMON, "gpupoolctl": CTL, "restarts": os.environ["GPUPOOL_RESTARTS"],
            "libgpupool-sim.so.0": os.environ["GPUPOOL_SIM_LIBRARY"], "libgpupool-client.so.0": os.environ["GPUPOOL_CLIENT_LIBRARY"]}
# TIGHT_MIB and ROOMY_MIB of restarts.c.
LIMITS_MIB = {"tight": 32, "roomy": 1024}
# The pools as restarts.c has them in a keeper's configuration.
CONFIG = """[device]
limit = {mib}MiB
step = 2MiB
low_water = 0
export = vmm
[host]
limit = {mib}MiB
step = 2MiB
low_water = 0
huge_pages = off
"""


def final_state(machine):
    """The last daemon may serve before systemd has read that it does."""
    state = []

    def is_good():
        state[:] = machine.show(UNIT, "ActiveState", "SubState", "Result")
        return state == GOOD
    with contextlib.suppress(AssertionError):
        wait_until(is_good, "the unit is active")
    return state


def play(machine, mib, arguments, seconds):
    """Returns what the program ended with."""
    machine.add_gpupool(os.environ["GPUPOOL_UNITS"], PROGRAMS, CONFIG.format(mib=mib), "--sim-gpus 1 --sim-memory 8GiB")
    machine.systemctl("start", UNIT)
    words = ["/opt/test/restarts", "--gpu", "sim", "--unit", UNIT, "--log", LOG, "--limit", mib, "--seconds", seconds, *arguments]
    status = subprocess.run(machine.command(*words, GPUPOOLCTL="/opt/test/gpupoolctl", LD_LIBRARY_PATH="/opt/test"), check=False,
                            stdin=subprocess.DEVNULL, timeout=seconds + 2 * WAIT_S).returncode
    state = final_state(machine)
    print(f"systemd {machine.version()}: {' '.join(state)}, restarted {machine.show(UNIT, 'NRestarts')} times", flush=True)
    if status == 0 and state == GOOD:
        return 0
    print(f"systemd's last words:\n{machine.log_text()[-4000:]}", file=sys.stderr)
    return status or 1


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--limit", default="tight")
    parser.add_argument("--seconds", type=int, default=300)
    options, arguments = parser.parse_known_args()
    try:
        machine = Machine()
    except NotPossible as reason:
        print(f"skipped: {reason}")
        return 77
    try:
        return play(machine, LIMITS_MIB.get(options.limit) or int(options.limit), arguments, options.seconds)
    finally:
        machine.close()


if __name__ == "__main__":
    sys.exit(main())
