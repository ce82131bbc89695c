#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's pinned memory, from Python as its users call it: warm pairs by size. The output is that of ../workload.h.
Ends with 77 where there is no PyTorch with a GPU."""
import sys

import python_workload


def main():
    options = python_workload.parse("torch_python")
    try:
        import torch
    except ImportError as error:
        print(f"no PyTorch: {error}", file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU", file=sys.stderr)
        return 77
    torch.cuda.init()
    calibration = python_workload.Calibration(options.calibration_ns)
    python_workload.warm_pairs(options, calibration, lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True),
                               torch.cuda.synchronize, name="pinned_warm_pair")
    calibration.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
