# SPDX-License-Identifier: Apache-2.0
"""Channels: frames from one process to others, without a copy and without a message to the daemon.

    gpupool.channels.make("camera", 1920 * 1080 * 3)

    with gpupool.channels.Producer("camera") as producer:          # in one process
        with producer.loan() as frame:
            camera.read_into(frame.array((1080, 1920, 3)))
            frame.send()

    with gpupool.channels.Consumer("camera") as consumer:          # in another one
        for frame in consumer:
            look_at(frame.array((1080, 1920, 3)))

A channel has slots of one size, in host or device memory. The producer loans a free slot, writes it and sends it. Each consumer receives
each frame in order, and releases it. docs/python.md tells the rest.
"""
import asyncio
import collections

import gpupool
from gpupool import _gpupool
from gpupool._gpupool import Frame

__all__ = ["ChannelInfo", "Consumer", "Frame", "PlaceInfo", "Producer", "make"]

_POLICIES = {"wait": 1, "drop_oldest": 2, "fail": 3}  # as in <gpupool/channel.h>
_STATES = ("empty", "taken", "dying", "vacant", "left")

PlaceInfo = collections.namedtuple("PlaceInfo", "state session received")
PlaceInfo.__doc__ = """A place of a channel. state: "empty": no process was in it yet; "taken"; "dying": its process died, and may have
work on the GPU; "vacant": its process died, and the next one goes on; "left". session is that of its process in the daemon's stats.
received is the sequence that a consumer has received last."""
ChannelInfo = collections.namedtuple("ChannelInfo", "sent places lost last_lost")
ChannelInfo.__doc__ = """A channel. sent counts the frames of all producers. places: PlaceInfo of the producer, then of the consumers. Of a
consumer: lost counts the frames whose producer died before its GPU work on them was done, and last_lost is a range with the sequences of the
last ones in a row."""


def make(name, slot_bytes, *, pool=None, slots=8, consumers=1, metadata_bytes=0, policy="wait", keep=False, client=None):
    """Makes a channel under a name. Processes then join it, this one too.

    pool: whose memory the slots are; None: the host pool. consumers: how many places of consumers there are, each of which receives all
    frames. policy: what loan() does when no slot is free: "wait"; "drop_oldest" takes the slot of the oldest frame that no consumer has
    received yet; "fail" raises ExhaustedError. keep: the channel stays when no process is in it and the client of this call is closed,
    until gpupool.names.unpublish(name). Raises InvalidError where the name stands for something.
    """
    if policy not in _POLICIES:
        raise ValueError(f"policy is {policy!r}: it must be one of {', '.join(_POLICIES)}")
    if pool is None:
        pool = gpupool.host_pool() if client is None else client.host_pool()
    elif client is not None and pool.client is not client:
        raise ValueError("pool and client: the pool is of another client")
    _gpupool._make_channel(name, pool, slot_bytes, slots, consumers, metadata_bytes, _POLICIES[policy], keep)


class _Place:
    """The parts of a Producer and of a Consumer that are written in Python."""

    def __init__(self, *arguments, **keywords):
        self._waiters = []  # futures of tasks that wait in get()

    def look(self):
        """Returns a ChannelInfo. Sends no message."""
        sent, places, lost, first, last = self._describe()
        places = tuple(PlaceInfo(_STATES[state], session, received) for state, session, received in places)
        return ChannelInfo(sent, places, lost, range(first, last + 1) if lost else range(0))

    def close(self):
        """Leaves the place. Frames that are open go back, behind their streams; the call waits for that work. Raises BufferError while an
        array uses a frame, or another thread or a task waits."""
        if self._waiters:
            raise BufferError("a task waits for the channel: cancel it before")
        super().close()

    def _wake(self):
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self, loop, fd):
        waiter = loop.create_future()
        if not self._waiters:
            loop.add_reader(fd, self._wake)
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            if not self._waiters:
                loop.remove_reader(fd)

    async def get(self, stream=None):
        """As loan() of a producer, and receive() of a consumer, in a task of asyncio. The first wait starts a thread."""
        frame = self._look(stream)
        if frame is None:
            loop, fd = asyncio.get_running_loop(), self.fileno()
            while (frame := self._look(stream)) is None:
                await self._change(loop, fd)
        return frame


class Producer(_Place, _gpupool._Producer):
    """Producer(name, *, timeout=None, client=None)

    Takes the producer's place of a channel. Waits until the channel is made and the place is free; timeout: seconds, else NoNameError;
    None: for ever. A place whose process died is free when that process's GPU work is over, and the new producer goes on.

    It is left by close(), at the end of a with statement, or when the object dies: consumers receive what was sent, and their
    iterations end. One that a process dies in becomes vacant.
    """


class Consumer(_Place, _gpupool._Consumer):
    """Consumer(name, place=None, *, timeout=None, wait_for_producer=False, client=None)

    Takes a consumer's place of a channel, from 1 on; None: any one. Waits until the channel is made and the place is free; timeout:
    seconds, else NoNameError; None: for ever. The next process in a place whose process died receives first what that one had received
    and not released: Frame.again tells. One behind a process that left begins with the frames that are sent from then on.

    Iterating yields Frames, and ends when the producer has left and all is received. When the producer died, it raises VacantError, or
    waits for the next producer (wait_for_producer). "async for" does so in tasks of asyncio.

    The place is left by close(), at the end of a with statement, or when the object dies.
    """

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self.get()
        except gpupool.EndedError:
            raise StopAsyncIteration from None
