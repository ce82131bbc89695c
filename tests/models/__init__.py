# SPDX-License-Identifier: Apache-2.0
"""Models of ordinary shape for the trace recorder (../traces) and the benchmark's programs (../bench/programs). Plain PyTorch
modules with random weights: their results mean nothing, and they allocate as such models do."""
