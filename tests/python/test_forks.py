# SPDX-License-Identifier: Apache-2.0
"""Forked children: the objects of their parent there, and a client of their own."""
import multiprocessing
import os
import unittest

import gpupool
import scene


def add_one(connection):
    """In another process: adds 1 to each byte of a buffer."""
    with memoryview(connection.recv()) as memory:
        for i in range(len(memory)):
            memory[i] += 1
    connection.send("done")


class Forks(scene.Scene):
    def in_child(self, function):
        """Returns the function's result in a forked child, as text."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.write(writing, str(function()).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        with open(reading, "rb") as answer:
            text = answer.read().decode()
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        return text

    def test_the_parents_client_tells_a_forked_child_what_to_do(self):
        buffer = self.host.acquire(100)

        def use():
            texts = []
            for call in (lambda: self.host.acquire(100), buffer.share, self.host.info, buffer.close, self.client.trim):
                try:
                    call()
                except gpupool.ForkedError as error:
                    texts.append(str(error))
            return f"{len(texts)}: {texts[0]}"

        text = self.in_child(use)
        self.assertRegex(text, "^5: .*belongs to the parent.*spawn.*forkserver")
        memoryview(buffer)[0] = 1

    def test_the_parents_objects_die_quietly_in_a_forked_child(self):
        output, errors = self.run_program(
            "import warnings\nwarnings.simplefilter('ignore')\nimport gpupool, os\nbuffer = gpupool.host_pool().acquire(1 << 20)\nclient = gpupool.Client()\n"
            "stream = gpupool.Stream(0)\nother = gpupool.device_pool(0).acquire(100, stream)\n"
            "pid = os.fork()\nif pid == 0:\n    del buffer, other, stream, client\n    print('child', flush=True)\nelse:\n"
            "    assert os.waitpid(pid, 0)[1] == 0\n    memoryview(buffer)[0] = 1\n    buffer.close()\n    print('parent')\n")
        self.assertEqual((output, errors), ("child\nparent\n", ""))

    def test_a_forked_child_has_a_default_client_of_its_own(self):
        mine = gpupool.default_client()

        def use():
            pool = gpupool.host_pool()
            with pool.acquire(100) as buffer:
                memoryview(buffer)[:] = b"x" * 100
            return pool.client is not mine and gpupool.default_client() is pool.client

        self.assertEqual(self.in_child(use), "True")
        gpupool.host_pool().acquire(100).close()
        self.assertIs(gpupool.default_client(), mine)

    def test_a_forked_process_of_multiprocessing_attaches(self):
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=add_one, args=(theirs,), daemon=True)
        process.start()
        buffer = self.host.acquire(10, zero=True)
        ours.send(buffer)
        self.assertTrue(ours.poll(scene.WAIT_S))
        ours.recv()
        process.join(scene.WAIT_S)
        self.assertEqual((process.exitcode, bytes(buffer)), (0, b"\1" * 10))


if __name__ == "__main__":
    unittest.main()
