# SPDX-License-Identifier: Apache-2.0
"""A program without a GPU, to try programs.py: simulated.py good|skipped|crashes|differs [alone ROUNDS]."""
import os
import sys

import turns

count = [0]


def step():
    count[0] += 1
    if "crashes" in sys.argv and count[0] > 25:
        os.abort()


if "skipped" in sys.argv:
    turns.skip("there is no such module")
IS_OTHER = "differs" in sys.argv and "libgpupool-preload" in os.environ.get("LD_PRELOAD", "")
turns.converse(step, lambda: 0, lambda: [count[0] / 3 + IS_OTHER])
