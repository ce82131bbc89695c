# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of the daemon: its log, its stats, what --check-config says, and the tool's hints."""
import unittest

from gpupool_system import Daemon

# Makes files of more than 1 MiB impossible, and so host memory: segments are memfds.
NO_HOST_MEMORY = ["env", "--ignore-signal=XFSZ", "prlimit", "--fsize=1048576:1048576"]


class Growth(unittest.TestCase):
    def test_host_memory_that_cannot_be_made_is_not_called_a_device(self):
        with Daemon("[host]\nreserve = 64MiB\n", arguments=["--gpu", "none"], prefix=NO_HOST_MEMORY) as daemon:
            warning, = [line for line in daemon.log_text().splitlines() if "growth by" in line]
            self.assertIn("host memory, node 0: growth by 64 MiB failed", warning)
            self.assertIn("lower the pool's limit, or free memory of the machine", warning)
            self.assertNotIn("device", warning)


if __name__ == "__main__":
    unittest.main()
