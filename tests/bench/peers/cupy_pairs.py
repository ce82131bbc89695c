#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory pool, from Python as its users call it: warm pairs by size and the random mix of ../workload.h (the same sizes
in the same order), on a stream: --warm, --mix. The output is that of ../workload.h. Ends with 77 where there is no CuPy with a GPU."""
import sys

import python_workload


def main():
    options = python_workload.parse("cupy")
    try:
        import cupy
        stream = cupy.cuda.Stream(non_blocking=True)
    except Exception as error:  # pylint: disable=broad-except  # whatever a broken installation raises
        print(f"no CuPy with a GPU: {error}", file=sys.stderr)
        return 77
    pool = cupy.cuda.MemoryPool()
    calibration = python_workload.Calibration(options.calibration_ns)
    with stream:
        if options.warm:
            python_workload.warm_pairs(options, calibration, pool.malloc, stream.synchronize)
        if options.mix:
            python_workload.random_mix(options, calibration, pool.malloc, stream.synchronize, pool.total_bytes)
    calibration.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
