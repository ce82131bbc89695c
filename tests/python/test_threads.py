# SPDX-License-Identifier: Apache-2.0
"""Each method beside each other one, in two threads, and arguments whose own code closes what the call uses. No memory is lent twice,
no call sees contents of another buffer, nothing crashes: a call works, or it is refused. AddressSanitizer watches it in its build."""
import contextlib
import itertools
import sys
import tempfile
import threading
import time
import unittest

import gpupool
import scene
from gpupool import _gpupool, channels, names
from scene import numpy

SIZE = 5000
OTHER = 0xEE  # the contents of buffers that are not the round's
ROUNDS = 4  # of each pair
REFUSED = (gpupool.Error, BufferError)  # and RuntimeError, of Client.close()


class Stream:
    """A stream of another package. Its code lets the other thread run, or does something else."""

    def __init__(self, code, number=2):
        self.code, self.number = code, number

    def __cuda_stream__(self):
        self.code()
        return 0, self.number


class Number:
    def __init__(self, code, number):
        self.code, self.number = code, number

    def __index__(self):
        self.code()
        return self.number

    def __float__(self):
        self.code()
        return float(self.number)

    def __bool__(self):
        self.code()
        return bool(self.number)


class Bytes:
    """A sequence, and where Python knows __buffer__, its contents."""

    def __init__(self, code, items):
        self.code, self.items = code, items

    def __iter__(self):
        self.code()
        return iter(self.items)

    def __buffer__(self, flags):
        self.code()
        return memoryview(self.items)


class Things:
    """The objects that two methods use. code: run by the arguments."""

    def __init__(self, client, is_device, is_shared, stamp, code):
        self.client, self.code, self.stamp = client, code, stamp
        self.pool = client.device_pool(0) if is_device else client.host_pool()
        self.stream = gpupool.Stream(0, client=client)
        self.buffer = self.pool.acquire(SIZE)
        memoryview(self.buffer)[:] = bytes([stamp]) * SIZE
        self.view = self.buffer.view()
        self.token = self.buffer.share() if is_shared else bytes(64)
        self.sent = [self.buffer.send()] if is_shared else []
        self.kept, self.wrong = [], []
        self.may_be_refused = True

    def look(self, memory):
        """Whether the contents are the buffer's."""
        found = set(bytes(memory)[::500])
        if found != {self.stamp}:
            self.wrong.append(f"contents {found}, not {self.stamp}")

    def take(self, *arguments):
        """Another buffer, with other contents."""
        buffer = self.pool.acquire(*arguments)
        with memoryview(buffer) as memory:
            memory[:] = bytes([OTHER]) * len(memory)
        self.kept.append(buffer)

    def from_dlpack(self, capsule):
        if numpy is None:
            return
        source = type("Source", (), {"__dlpack__": lambda self, **_: capsule, "__dlpack_device__": lambda self: (1, 0)})()
        self.look(numpy.from_dlpack(source).tobytes())

    def upload(self):
        """Reads the buffer's contents into it, from a file."""
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(bytes([self.stamp]) * SIZE)
            _gpupool._upload_file(self.buffer, Number(self.code, 0), Number(self.code, file.fileno()), Number(self.code, 0),
                                  Number(self.code, SIZE))

    def close_and_take(self):
        self.buffer.close(Stream(self.code))
        self.take(SIZE)

    def note(self, token):
        self.sent.append(token)

    def revoke(self):
        if self.sent:
            gpupool.revoke(Bytes(self.code, self.sent[0]) if sys.version_info >= (3, 12) else self.sent[0], client=self.client)


METHODS = {
    "Buffer.close": lambda t: t.close_and_take(),
    "Buffer.close(own)": lambda t: t.buffer.close(t.stream),
    "Buffer.__exit__": lambda t: t.buffer.__exit__(None, None, None),
    "Buffer.view": lambda t: t.buffer.view(Bytes(t.code, [Number(t.code, SIZE)]), "uint8", Number(t.code, 0)),
    "Buffer.share": lambda t: t.buffer.share(Stream(t.code)),
    "Buffer.send": lambda t: t.note(t.buffer.send(Stream(t.code), takers=Number(t.code, 1), lifetime=Number(t.code, 60))),
    "Buffer.reuse": lambda t: t.buffer.reuse(Stream(t.code)),
    "Buffer.record_stream": lambda t: t.buffer.record_stream(Stream(t.code)),
    "Buffer.record_stream(own)": lambda t: t.buffer.record_stream(t.stream),
    "Buffer.query": lambda t: [t.buffer.query() for _ in range(3)],
    "Buffer.__reduce__": lambda t: t.note(t.buffer.__reduce__()[1][0]),
    "Buffer.__dlpack__": lambda t: t.from_dlpack(t.buffer.__dlpack__(
        stream=Stream(t.code, -1), max_version=(Number(t.code, 0), 0), dl_device=Bytes(t.code, (1, 0)))),
    "Buffer.__dlpack__(copy)": lambda t: t.from_dlpack(t.buffer.__dlpack__(copy=Number(t.code, 1))),
    "memoryview(Buffer)": lambda t: t.look(memoryview(t.buffer)),
    "Buffer.ptr": lambda t: (t.buffer.ptr, t.buffer.nbytes, t.buffer.capacity, t.buffer.stream, t.buffer.device, repr(t.buffer)),
    "Array.__dlpack__": lambda t: t.from_dlpack(t.view.__dlpack__(stream=Stream(t.code, -1))),
    "Array.__dlpack__(copy)": lambda t: t.from_dlpack(t.view.__dlpack__(copy=Number(t.code, 1))),
    "memoryview(Array)": lambda t: t.look(memoryview(t.view)),
    "Array.ptr": lambda t: (t.view.ptr, t.view.shape, t.view.__dlpack_device__(), repr(t.view)),
    "Pool.acquire": lambda t: t.take(Number(t.code, SIZE), Stream(t.code), Number(t.code, 10)),
    "Pool.acquire(zero)": lambda t: t.take(SIZE, t.stream, 10, True),
    "Pool.prepare": lambda t: t.pool.prepare(Number(t.code, 1)),
    "Pool.info": lambda t: (t.pool.info(), repr(t.pool)),
    "Client.pools": lambda t: (t.client.pools(), t.client.device_pool(Number(t.code, 0)), t.client.host_pool(), repr(t.client)),
    "Client.trim": lambda t: t.client.trim(),
    "Client.close": lambda t: t.client.close(),
    "Stream.wait": lambda t: (t.stream.wait(Stream(t.code)), t.stream.synchronize(), t.stream.handle),
    "Stream.close": lambda t: t.stream.close(),
    "gpupool.attach": lambda t: t.kept.append(gpupool.attach(t.token, Stream(t.code), read_only=Number(t.code, 0), client=t.client)),
    "gpupool.revoke": lambda t: t.revoke(),
    "gpupool._is_captured": lambda t: (_gpupool._is_captured(t.client, Number(t.code, 0), Stream(t.code)),
                                       _gpupool._wait_for_device(t.client, Number(t.code, 0)), _gpupool._alloc_timeout(t.client)),
    "gpupool._upload_file": lambda t: t.upload(),
}
if numpy is not None:
    METHODS["Pool.empty"] = lambda t: t.pool.empty(Bytes(t.code, [Number(t.code, 10)]), "float32", timeout=Number(t.code, 10)).fill(1)
    METHODS["Array.__array__"] = lambda t: t.look(t.view.__array__().tobytes())


class ChannelThings:
    """A channel, and a frame in each place, which two methods use."""

    numbers = itertools.count()

    def __init__(self, client, is_device, stamp, code):
        self.client, self.code, self.stamp, self.wrong, self.kept = client, code, stamp, [], []
        self.stream, self.may_be_refused = gpupool.Stream(0, client=client), True
        name = f"threads/{next(self.numbers)}"
        channels.make(name, SIZE, slots=3, metadata_bytes=8, pool=client.device_pool(0) if is_device else client.host_pool(), client=client)
        self.producer, self.consumer = channels.Producer(name, client=client), channels.Consumer(name, client=client)
        for _ in range(2):
            self.write_and_send(self.producer.loan())
        self.received, self.loaned = self.consumer.receive(), self.producer.loan()

    def write_and_send(self, frame):
        with memoryview(frame) as memory:
            memory[:SIZE] = bytes([self.stamp]) * SIZE
        frame.send(Number(self.code, SIZE), bytes([self.stamp]), Stream(self.code))

    def look(self, memory):
        found = set(bytes(memory)[::500])
        if found != {self.stamp}:
            self.wrong.append(f"contents {found}, not {self.stamp}")

    def receive(self, *arguments):
        with self.consumer.receive(*arguments) as frame:
            self.look(memoryview(frame))
            if frame.metadata != bytes([self.stamp]):
                self.wrong.append(f"metadata {frame.metadata}")


METHODS_OF_CHANNELS = {
    "Producer.loan": lambda t: t.write_and_send(t.producer.loan(Stream(t.code), Number(t.code, 0))),
    "Producer.loan(own)": lambda t: t.write_and_send(t.producer.loan(t.stream, 0)),
    "Producer.close": lambda t: t.producer.close(),
    "Producer.look": lambda t: (t.producer.look(), t.producer.fileno(), repr(t.producer)),
    "Consumer.receive": lambda t: t.receive(Stream(t.code), Number(t.code, 0)),
    "Consumer.receive(own)": lambda t: t.receive(t.stream, 0),
    "Consumer.close": lambda t: t.consumer.close(),
    "Consumer.look": lambda t: (t.consumer.look(), t.consumer.fileno(), repr(t.consumer)),
    "Frame.send": lambda t: t.write_and_send(t.loaned),
    "Frame.release": lambda t: t.received.release(Stream(t.code)),
    "Frame.release(loaned)": lambda t: t.loaned.release(t.stream),
    "Frame.__exit__": lambda t: t.received.__exit__(None, None, None),
    "Frame.view": lambda t: t.look(memoryview(t.received.view(Bytes(t.code, [Number(t.code, SIZE)]), "uint8", Number(t.code, 0)))),
    "Frame.record_stream": lambda t: (t.received.record_stream(Stream(t.code)), t.received.record_stream(t.stream)),
    "Frame.__dlpack__(copy)": lambda t: t.received.__dlpack__(copy=Number(t.code, 1), max_version=(1, 0)),
    "memoryview(Frame)": lambda t: t.look(memoryview(t.received)),
    "Frame.ptr": lambda t: (t.received.ptr, t.received.nbytes, t.received.metadata, t.received.stream, repr(t.received), repr(t.loaned)),
    "_gpupool._lend": lambda t: _gpupool._lend(t.received.view(), Stream(t.code)),
    "Client.close": lambda t: t.client.close(),
    "Stream.close": lambda t: t.stream.close(),
}
if numpy is not None:
    METHODS_OF_CHANNELS["Frame.array"] = lambda t: t.look(t.received.array(Bytes(t.code, [Number(t.code, SIZE)])).tobytes())


class Pairs(scene.Scene):
    methods, closable = METHODS, ("buffer", "stream", "client")

    def setUp(self):
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        self.stamps = itertools.cycle(range(1, 200))

    def make(self, number, has_own_client=False, code=lambda: time.sleep(0)):
        client = gpupool.Client() if has_own_client else self.client
        return Things(client, number % 2 == 0, number % 4 < 2, next(self.stamps), code)

    def call(self, name, things):
        try:
            self.methods[name](things)
        except REFUSED as error:
            if not things.may_be_refused:
                things.wrong.append(f"{name}: {error!r}")
        except RuntimeError as error:
            if "under way" not in str(error):
                things.wrong.append(f"{name}: {error!r}")
        except Exception as error:
            things.wrong.append(f"{name}: {error!r}")

    def end(self, things, what):
        """Judges a round: all memory that is open is different memory, and the buffer has its contents."""
        for token in things.sent:
            try:
                gpupool.revoke(token, client=self.client)
            except gpupool.NoTokenError:
                pass
        if things.client.closed:
            self.assertEqual(things.wrong, [], what)
            return
        if not things.buffer.closed:
            things.look(memoryview(things.buffer))
            things.kept.append(things.buffer)
        else:
            for _ in range(4):
                things.take(SIZE)
        starts = sorted((buffer.ptr, buffer.nbytes) for buffer in things.kept if not buffer.closed)
        for (start, nbytes), (following, _) in itertools.pairwise(starts):
            if start + nbytes > following and things.token == bytes(64):  # an attached buffer is the same memory
                things.wrong.append(f"lent twice: {starts}")
        self.assertEqual(things.wrong, [], what)
        for buffer in things.kept:
            buffer.close()
        if things.client is not self.client:
            things.client.close()

    @contextlib.contextmanager
    def threads(self, count):
        """Gives a function that calls methods at the same time, each in a thread of its own."""
        names, place, barrier = [], [None], threading.Barrier(count + 1)

        def work(number):
            while True:
                barrier.wait(scene.WAIT_S)
                if place[0] is None:
                    return
                self.call(names[number], place[0])
                barrier.wait(scene.WAIT_S)

        def call_all(things, which):
            names[:], place[0] = which, things
            barrier.wait(scene.WAIT_S)
            barrier.wait(scene.WAIT_S)
            self.end(things, which)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        yield call_all
        place[0] = None
        barrier.wait(scene.WAIT_S)
        for thread in threads:
            thread.join(scene.WAIT_S)

    def test_each_pair_of_methods(self):
        with self.threads(2) as call_all:
            for pair in itertools.combinations_with_replacement(self.methods, 2):
                for number in range(ROUNDS):
                    call_all(self.make(number, "Client.close" in pair), pair)
        self.wait_until_nothing_is_leased()

    def test_calls_about_one_buffer_take_turns(self):
        names = ("Buffer.query", "Buffer.share", "Buffer.send", "Buffer.record_stream", "memoryview(Buffer)", "Buffer.__reduce__")
        with self.threads(len(names)) as call_all:
            for number in range(100):
                things = self.make(number, code=lambda: None)
                things.may_be_refused = False
                call_all(things, names)
        self.wait_until_nothing_is_leased()

    def test_arguments_that_close_what_the_call_uses(self):
        def close(things, *objects):
            for thing in objects:
                if not thing.closed:
                    try:
                        (thing.release if isinstance(thing, channels.Frame) else thing.close)()
                    except (*REFUSED, RuntimeError):
                        pass
            if not things.client.closed and self.methods is METHODS:
                things.take(SIZE)

        for name in self.methods:
            for number in range(ROUNDS):
                for what in self.closable:
                    things = self.make(number, what == "client" or name == "Client.close")
                    things.code = lambda: close(things, getattr(things, what))
                    self.call(name, things)
                    things.code = lambda: None
                    self.end(things, (name, what))
        self.wait_until_nothing_is_leased()


class PairsOfChannels(Pairs):
    methods, closable = METHODS_OF_CHANNELS, ("received", "loaned", "producer", "consumer", "stream", "client")
    test_calls_about_one_buffer_take_turns = None

    def make(self, number, has_own_client=False, code=lambda: time.sleep(0)):
        client = gpupool.Client() if has_own_client else self.client
        return ChannelThings(client, number % 2 == 0, next(self.stamps), code)

    def end(self, things, what):
        """Judges a round: what is open has its contents, and all of it can be closed."""
        if not things.client.closed:
            if not things.received.closed:
                things.look(memoryview(things.received))
                things.received.release()
            things.loaned.release()
            things.producer.close()
            if not things.consumer.closed:
                for frame in things.consumer:
                    things.look(memoryview(frame))
                    frame.release()
                things.consumer.close()
            things.stream.close()
            names.unpublish(things.producer.name, client=things.client)
            if things.client is not self.client:
                things.client.close()
        self.assertEqual(things.wrong, [], what)


if __name__ == "__main__":
    unittest.main()
