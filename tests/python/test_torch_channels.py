# SPDX-License-Identifier: Apache-2.0
"""gpupool.torch: tensors through channels."""
import asyncio
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import unittest
from multiprocessing.reduction import ForkingPickler

import gpupool
import gpupool.channels
import scene
from scene import torch

if hasattr(getattr(torch, "float32", None), "itemsize"):
    import gpupool.torch
    import torch.multiprocessing
    from gpupool.torch import TensorConsumer, TensorProducer

SPAWN = multiprocessing.get_context("spawn")
MAX_BYTES = 64 << 10


def tensors_of(seed):
    """Tensors of random types and shapes, without end, and the same ones for each seed."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtypes = (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64)
    while True:
        shape = [chance.randrange(0, 7) for _ in range(chance.randrange(0, 5))]
        yield torch.randint(0, 100, shape, generator=generator).to(chance.choice(dtypes))


def bytes_of(tensor):
    """Its elements in C order. PyTorch does not copy tensors of all types, so those go as others of their size."""
    if not tensor.is_complex():
        tensor = tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    return tensor.resolve_conj().contiguous().flatten().view(torch.uint8)


def produce(connection, name, seed, count, dies):
    with TensorProducer(name, timeout=scene.WAIT_S) as producer:
        for number, tensor in zip(range(count), tensors_of(seed)):
            if number % 2:
                producer.send(tensor, metadata=bytes([number]))
            else:
                with producer.loan(tensor.shape, tensor.dtype, metadata=bytes([number])) as out:
                    out.copy_(tensor)
        connection.send("sent")
        connection.recv()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


def add_up(connection, name):
    with TensorConsumer(name, timeout=scene.WAIT_S) as consumer:
        connection.send([tensor.double().sum().item() for tensor in consumer])


@scene.needs_torch_2
class Tensors(scene.Scene):
    numbers = itertools.count()

    def pools(self):
        return gpupool.host_pool(), gpupool.device_pool(0)

    def pair(self, pool=None, **options):
        name = f"tensors/{next(self.numbers)}"
        options = {"max_bytes": MAX_BYTES, "metadata_bytes": 16, "pool": pool or gpupool.host_pool(), **options}
        producer, consumer = TensorProducer(name, **options), TensorConsumer(name)
        self.addCleanup(producer.close)
        self.addCleanup(consumer.close)
        return producer, consumer

    def start(self, function, *arguments):
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=function, args=(theirs, *arguments))
        process.start()
        theirs.close()
        self.addCleanup(process.kill)
        return process, ours

    def tells(self, connection):
        self.assertTrue(connection.poll(scene.WAIT_S))
        return connection.recv()

    def equal(self, one, other):
        self.assertEqual((one.dtype, one.shape, one.is_contiguous()), (other.dtype, other.shape, True))
        if one.numel() > 0:
            self.assertTrue(torch.equal(bytes_of(one), bytes_of(other)), f"contents of {one.dtype}")

    def test_every_type_and_shape_arrives(self):
        dtypes = {found for name in dir(torch) if isinstance(found := getattr(torch, name), torch.dtype)}
        for pool in self.pools():
            producer, consumer = self.pair(pool)
            for dtype in sorted(dtypes, key=str):
                if "q" in str(dtype):
                    continue  # quantised
                tensor = torch.randint(0, 256, (24 * dtype.itemsize,), dtype=torch.uint8)
                tensor = (tensor % 2 if dtype is torch.bool else tensor).view(dtype).reshape(4, 6)
                for part in tensor, tensor[2], tensor[1:3, ::2], tensor.t(), tensor[3, 3], tensor[:, :0], tensor[:1].expand(3, 6):
                    producer.send(part)
                    self.equal(consumer.receive(timeout=0), part)
            for n_dimensions in range(9):
                producer.send(torch.ones((2,) * n_dimensions))
                self.equal(consumer.receive(timeout=0), torch.ones((2,) * n_dimensions))
            lazy = torch.tensor([1 + 2j, 3 - 4j])
            for tensor in lazy.conj(), lazy.conj().imag, torch.ones(3, requires_grad=True) * 2:
                producer.send(tensor)
                received = consumer.receive(timeout=0)
                self.assertTrue(torch.equal(received, tensor) and not received.requires_grad)

    def test_wrong_tensors_are_refused_and_the_slot_goes_back(self):
        producer, consumer = self.pair(slots=2)
        too_large = torch.empty(MAX_BYTES + 1, dtype=torch.uint8)
        for error, tensor in ((ValueError, too_large), (ValueError, torch.ones((1,) * 9)), (TypeError, torch.ones(3).to_sparse()),
                              (TypeError, torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))):
            with self.assertRaises(error):
                producer.send(tensor)
        for error, shape in (ValueError, MAX_BYTES), (ValueError, (1,) * 9):
            with self.assertRaises(error), producer.loan(shape):
                self.fail("it was loaned")
        for metadata in 5, "text":
            with self.assertRaises(TypeError):
                producer.send(torch.ones(3), metadata=metadata)
        with self.assertRaises(gpupool.InvalidError):
            producer.send(torch.ones(3), metadata=bytes(300))
        for _ in range(2):
            producer.send(torch.ones(3), timeout=0)
        with self.assertRaises(gpupool.ExhaustedError):
            producer.send(torch.ones(3), timeout=0)
        for options in {"max_bytes": 5, "example": too_large}, {"pool": gpupool.host_pool(), "device": "cpu", "max_bytes": 5}:
            with self.assertRaises(ValueError):
                gpupool.torch.make_channel("bad", **options)
        with self.assertRaises(ValueError):
            gpupool.torch.make_channel("bad")
        with self.assertRaises(TypeError):
            TensorProducer("bad", slots=5)

    def test_an_example_gives_the_size_and_the_memory(self):
        for pool in self.pools():
            example = gpupool.torch.zeros((3, 1000), pool=pool)
            producer, consumer = self.pair(pool, example=example, max_bytes=None)
            self.assertEqual((producer.place.slot_bytes, producer.place.pool), (12288, pool))
            producer.send(example)
            self.equal(consumer.receive(timeout=0), example)
        with TensorProducer("tensors/example", torch.ones(3)) as producer:
            self.assertEqual(producer.place.pool.kind, "host")

    def test_a_tensor_is_written_in_place(self):
        for pool in self.pools():
            producer, consumer = self.pair(pool, slots=2)
            with producer.loan((3, 4), torch.int32, metadata=b"own") as tensor:
                address = tensor.data_ptr()
                tensor.fill_(7)
            self.assertEqual(tensor.numel(), 0)
            with consumer.receive_frame(timeout=0) as frame:
                self.assertEqual((frame.metadata, frame.sequence, frame.missed, frame.again), (b"own", 1, 0, False))
                self.equal(frame.tensor, torch.full((3, 4), 7, dtype=torch.int32))
                self.assertEqual(frame.tensor.device, tensor.device)
                received_at = frame.tensor.data_ptr()
            self.assertEqual(frame.tensor.numel(), 0)
            self.assertTrue(frame.frame.closed)
            with producer.loan(5) as tensor:
                self.assertEqual((tensor.dtype, tensor.data_ptr() == address, received_at % 512), (torch.get_default_dtype(), False, 0))
            with producer.loan(0) as tensor:
                pass
            self.assertEqual([tensor.numel() for tensor in (consumer.receive(), consumer.receive())], [5, 0])

    def test_what_fails_in_a_loan_sends_nothing(self):
        producer, consumer = self.pair(slots=2)
        for _ in range(4):
            with self.assertRaises(ZeroDivisionError), producer.loan(5, timeout=0) as tensor:
                tensor[0] = 1 // 0
            del tensor
        with self.assertRaises(BufferError):
            with producer.loan(5, timeout=0) as tensor:
                view = tensor.fill_(3)[1:]
        self.assertEqual(view.tolist(), [3] * 4)
        producer.send(torch.ones(3), timeout=0)
        with self.assertRaises(gpupool.ExhaustedError):
            producer.send(torch.ones(3), timeout=0)
        del view
        gc.collect()
        producer.send(torch.ones(3), timeout=0)
        self.assertEqual([consumer.receive(timeout=0).sum() for _ in range(2)], [3, 3])

    def is_full(self, producer):
        try:
            producer.send(torch.zeros(1), timeout=0)
        except gpupool.ExhaustedError:
            return True
        return False

    def test_a_slot_is_held_until_its_tensors_are_gone(self):
        for pool in self.pools():
            producer, consumer = self.pair(pool, slots=2)
            producer.send(torch.arange(10.0))
            tensor = consumer.receive(timeout=0)
            part = tensor.reshape(2, 5)[1]
            self.assertFalse(self.is_full(producer))
            self.assertTrue(self.is_full(producer))
            del tensor
            consumer.receive(timeout=0)
            self.assertFalse(self.is_full(producer))
            self.assertTrue(self.is_full(producer))
            with self.assertRaises(BufferError):
                consumer.close()
            self.assertEqual(part.tolist(), [5, 6, 7, 8, 9])
            del part
            self.assertFalse(self.is_full(producer))
            kept = [consumer.receive(timeout=0, copy=True) for _ in range(2)]
            self.assertFalse(self.is_full(producer))
            self.assertEqual([tensor.numel() for tensor in kept], [1, 1])
            frame = consumer.receive_frame(timeout=0)
            alias = frame.tensor[:]
            with self.assertRaises(BufferError):
                frame.release()
            del alias
            frame.release()
            frame.release()

    def test_a_received_tensor_is_sent_on_as_pytorch_sends_it(self):
        for pool in self.pools():
            producer, consumer = self.pair(pool, slots=2)
            producer.send(torch.arange(6.0))
            tensor = consumer.receive(timeout=0)
            gpupool.torch.record_stream(tensor, gpupool.Stream(0))
            with self.assertRaises(ValueError):
                gpupool.torch.reuse(tensor)
            self.equal(pickle.loads(ForkingPickler.dumps(tensor)), torch.arange(6.0))

    def test_frames_of_other_programs_are_refused(self):
        producer, consumer = self.pair()
        good = b"\1\1\7\0" + (4).to_bytes(8, "little") + b"float32"
        for size, metadata in ((16, b""), (16, b"\2" + good[1:]), (12, good), (16, good[:-1]), (16, good[:12] + b"no_grad"),
                               (16, good[:4] + b"\xff" * 8 + good[12:]), (16, b"\1\xff\7\0" + good[4:]), (16, good[:-7] + b"\xff" * 7)):
            with producer.place.loan(timeout=0) as frame:
                frame.send(size, metadata)
            with self.assertRaisesRegex(gpupool.ProtocolError, "no tensor of gpupool.torch", msg=str(metadata)):
                consumer.receive(timeout=0)
        with producer.place.loan(timeout=0) as frame:
            frame.send(16, good)
        self.assertEqual(consumer.receive(timeout=0).shape, (4,))

    def test_a_consumer_ends_with_its_producer(self):
        for pool in self.pools():
            producer, consumer = self.pair(pool)
            for number in range(3):
                producer.send(torch.full((number,), number))
            producer.close()
            self.assertEqual([tensor.tolist() for tensor in consumer], [[], [1], [2, 2]])
            with self.assertRaises(gpupool.EndedError):
                consumer.receive()

    def test_tasks_await_tensors(self):
        producer, consumer = self.pair(slots=2)

        async def produce():
            for number in range(20):
                while self.is_full(producer):
                    await asyncio.sleep(0)
            producer.close()

        async def main():
            task = asyncio.create_task(produce())
            self.equal(await consumer.get(), torch.zeros(1))
            self.assertEqual(len([tensor.shape async for tensor in consumer]), 19)
            await task

        asyncio.run(asyncio.wait_for(main(), scene.WAIT_S))

    def test_tensors_reach_another_process(self):
        for pool in self.pools():
            name = f"tensors/{next(self.numbers)}"
            with TensorProducer(name, max_bytes=MAX_BYTES, pool=pool, slots=3) as producer:
                process, connection = self.start(add_up, name)
                sums = []
                for number in range(20):
                    tensor = torch.arange(number * 100)
                    producer.send(tensor, timeout=scene.WAIT_S)
                    sums.append(tensor.double().sum().item())
            self.assertEqual(self.tells(connection), sums)
            process.join(scene.WAIT_S)
            self.assertEqual(process.exitcode, 0)

    def test_a_killed_producer_has_a_successor(self):
        for pool in self.pools():
            name = f"tensors/{next(self.numbers)}"
            gpupool.torch.make_channel(name, max_bytes=MAX_BYTES, pool=pool, metadata_bytes=1, slots=16)
            with TensorConsumer(name) as consumer:
                for seed, dies in (1, True), (2, False):
                    process, connection = self.start(produce, name, seed, 10, dies)
                    self.assertEqual(self.tells(connection), "sent")
                    connection.send("end")
                    process.join(scene.WAIT_S)
                    self.assertEqual(process.exitcode, -signal.SIGKILL if dies else 0)
                    for number, expected in zip(range(10), tensors_of(seed)):
                        with consumer.receive_frame(timeout=scene.WAIT_S) as frame:
                            self.assertEqual(frame.metadata, bytes([number]))
                            self.equal(frame.tensor, expected)
                    with self.assertRaises(gpupool.VacantError if dies else gpupool.EndedError):
                        consumer.receive(timeout=scene.WAIT_S)


if __name__ == "__main__":
    unittest.main()
