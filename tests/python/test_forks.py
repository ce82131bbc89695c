# SPDX-License-Identifier: Apache-2.0
"""Forked children: the objects of their parent there, and a client of their own."""
import faulthandler
import multiprocessing
import os
import pickle
import resource
import signal
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

    def test_the_parents_memory_is_refused_in_a_forked_child(self):
        """Each way to a new view over it, for a buffer and an array, of host and device."""
        buffers = [self.host.acquire(4096), self.device.acquire(4096)]
        arrays = [buffer.view((1024,), "float32") for buffer in buffers]
        ways = [lambda memory, name=name: getattr(memory, name)()
                for name in ("__dlpack__", "__dlpack_device__", "__array__", "view", "share", "send", "reuse", "query", "close",
                             "__enter__")]
        ways += [lambda memory, name=name: getattr(memory, name) for name in ("ptr", "__cuda_array_interface__")]
        ways += [memoryview, bytes, pickle.dumps, lambda memory: memory.view((4,), "uint8", 8), lambda memory: memory.record_stream(1)]

        def use():
            results = set()
            for memory in buffers + arrays:
                for way in ways:
                    try:
                        results.add(f"{way(memory)!r}")
                    except gpupool.ForkedError as error:
                        results.add("spawn" in str(error))
                    except AttributeError:
                        results.add(isinstance(memory, gpupool.Array))  # which has fewer methods
            return results

        self.assertEqual(self.in_child(use), "{True}")
        for memory in buffers + arrays:
            self.assertEqual(len(bytes(memory)), 4096)

    def test_an_access_to_the_parents_memory_ends_the_child(self):
        """Also when the child has memory of its own of the same sizes, and in a child of the child."""
        for pool in self.host, self.device:
            for mebibytes in 1, 15, 62:
                memory = memoryview(pool.acquire(mebibytes << 20))
                memory[:] = b"\7" * len(memory)
                for depth in 1, 2:
                    pid = os.fork()
                    if pid == 0:
                        faulthandler.disable()
                        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                        if depth == 2 and (child := os.fork()) != 0:
                            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 256)
                        own = gpupool.host_pool().acquire(mebibytes << 20)
                        with memoryview(own) as view:
                            view[:] = b"\1" * len(view)
                        memory[len(memory) // 2] = 9
                        os._exit(0)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    self.assertEqual(status, -signal.SIGSEGV if depth == 1 else 256 - signal.SIGSEGV)
                self.assertEqual(set(memory[::4096]), {7})

    @scene.needs_torch_2
    def test_a_forked_worker_with_a_data_set_in_memory_of_its_parent_is_told(self):
        import torch
        import gpupool.torch
        data = torch.from_dlpack(self.host.acquire(1 << 20).view((64, 4096), "float32")).fill_(7)
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork", collate_fn=gpupool.torch.collate)
        with self.assertRaisesRegex(Exception, "ForkedError.*not mapped in a forked child.*spawn"):
            list(loader)
        loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=gpupool.torch.collate)
        self.assertTrue(all((batch == 7).all() for batch in loader))

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
