# SPDX-License-Identifier: Apache-2.0
"""The conversation of a program with programs.py, by its standard input and output. turns.h is its other implementation.

    ready               the program has warmed up
    < round             runs one round of steps, and answers:
    step MILLISECONDS   the median of the round's steps
    < hold              answers:
    bytes NUMBER        device memory that the program holds
    < end               answers, and ends:
    sum NUMBER...       results, which are those of the seed and of the number of rounds

With the arguments "alone ROUNDS" the program needs no conversation. It prints the sums.
"""
import importlib.util
import statistics
import sys
import time

SKIPPED = 77


def need(*modules):
    for name in modules:
        if importlib.util.find_spec(name) is None:
            print(f"skip there is no {name}", flush=True)
            sys.exit(SKIPPED)


def skip(why):
    print("skip " + " ".join(str(why).split())[:200], flush=True)
    sys.exit(SKIPPED)


def median_ms(step, steps):
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def converse(step, held, sums, steps=20):
    """step(): one step, to its end on the GPU. held(): bytes. sums(): a list of numbers."""
    if sys.argv[-2:-1] == ["alone"]:
        for _ in range(int(sys.argv[-1])):
            median_ms(step, steps)
        print("sum", *(f"{value:.9g}" for value in sums()), flush=True)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "round\n":
            print(f"step {median_ms(step, steps):.6f}", flush=True)
        elif line == "hold\n":
            print(f"bytes {int(held())}", flush=True)
        elif line == "end\n":
            print("sum", *(f"{value:.9g}" for value in sums()), flush=True)
            return
    sys.exit("the conversation was cut")
