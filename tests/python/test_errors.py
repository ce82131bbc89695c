# SPDX-License-Identifier: Apache-2.0
"""Each error of the library is an exception, with the library's text."""
import os
import pathlib
import pickle
import re
import unittest

import gpupool
import scene

HEADER = pathlib.Path(os.environ["GPUPOOL_SOURCE"]) / "client/include/gpupool/gpupool.h"
PYTHONS = {"InvalidError": ValueError, "TooLargeError": MemoryError, "ExhaustedError": MemoryError, "NoMemoryError": MemoryError,
           "TimedOutError": TimeoutError, "ConnectError": ConnectionError, "DisconnectedError": ConnectionError,
           "StaleError": ValueError, "NoPoolError": LookupError, "NoTokenError": LookupError}


class Errors(scene.Scene):
    def test_each_number_of_the_header_has_a_class(self):
        numbers = {name: int(number) for name, number in re.findall(r"^ +(GPUPOOL_E_\w+) = (-\d+)", HEADER.read_text(), re.MULTILINE)}
        self.assertGreater(len(numbers), 15)
        classes = [value for value in vars(gpupool).values()
                   if isinstance(value, type) and issubclass(value, gpupool.Error) and value is not gpupool.Error]
        self.assertEqual({found.name: found.number for found in classes}, numbers)
        for found in classes:
            words = found.name.removeprefix("GPUPOOL_E_").split("_")
            self.assertEqual(found.__name__, "".join(word.capitalize() for word in words) + "Error")
            if found.__name__ in PYTHONS:
                self.assertTrue(issubclass(found, PYTHONS[found.__name__]))
            self.assertTrue(found.__doc__)

    def test_the_text_is_the_librarys(self):
        with self.assertRaises(gpupool.TooLargeError) as raised:
            self.host.acquire(1 << 50)
        self.assertIn("1 PiB asked of host memory", str(raised.exception))
        self.assertEqual((raised.exception.number, raised.exception.name), (-4, "GPUPOOL_E_TOO_LARGE"))
        again = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((type(again), str(again), again.number), (gpupool.TooLargeError, str(raised.exception), -4))
        with self.assertRaises(ConnectionError) as raised:
            gpupool.Client("/nowhere/socket")
        self.assertIn("/nowhere/socket", str(raised.exception))

    def test_tokens_that_name_nothing_are_refused(self):
        with self.assertRaises(gpupool.NoTokenError):
            gpupool.attach(bytes(64))
        with self.assertRaises(ValueError):
            gpupool.attach(b"short")
        with self.assertRaises(TypeError):
            gpupool.attach("x" * 64)
        with self.assertRaises(TypeError):
            gpupool.attach(bytes(64), client=1)

    def test_a_daemon_that_is_gone_is_reported_and_buffers_stay_usable(self):
        daemon = scene.Daemon()
        client = gpupool.Client(daemon.socket)
        pool = client.host_pool()
        buffer, other = pool.acquire(1 << 20), pool.acquire(1 << 20)
        daemon.close()
        memoryview(buffer)[:] = b"x" * (1 << 20)
        with self.assertRaises(ConnectionError):
            pool.info()
        with self.assertRaises(gpupool.DisconnectedError):
            pool.acquire(256 << 20)
        del other
        buffer.close()
        client.close()


if __name__ == "__main__":
    unittest.main()
