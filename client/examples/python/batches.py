#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batches of a data set come from worker processes through channels.

Each worker has a channel. It writes a batch of images into a slot in pinned memory, with the labels as the frame's metadata, and sends
it: nothing is copied or pickled, and no message goes to the daemon. The trainer takes the batches of all workers in turn, as tensors over
the slots. A worker that is far ahead waits for a free slot. The program compares this loader with others, in turns:

  channels      class ChannelLoader of this file
  collate       torch.utils.data.DataLoader with gpupool.torch.collate: batches in pinned memory of the pool, which go by token
  plain         torch.utils.data.DataLoader

All have to give the same batches.
"""
import array
import math
import multiprocessing
import os
import time

from common import WAIT_S, connect, fail, median, need, parse, parser_of, table, write_json

WAYS = ("channels", "collate", "plain")
LOOK_S = 1  # between two looks whether the other side is still there


class Images:
    """A data set: images of noise, which depend on their number alone."""

    def __init__(self, count, side):
        self.count, self.shape = count, (3, side, side)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        import torch

        return torch.rand(self.shape, generator=torch.Generator().manual_seed(index)), index % 10


# --- the loader ---


def is_wanted(producer):
    """Whether the trainer is there."""
    return producer.place.look().places[1].state == "taken"


def fill(producer, data, indices):
    """Writes a batch into a slot, and sends it. Returns whether the trainer was there to leave a slot free."""
    import torch

    import gpupool

    labels = bytearray()
    while is_wanted(producer):
        try:
            with producer.loan((len(indices), *data.shape), torch.float32, metadata=labels, timeout=LOOK_S) as batch:
                for place, index in enumerate(indices):
                    batch[place], label = data[index]
                    labels += array.array("q", [label]).tobytes()
            return True
        except gpupool.ExhaustedError:
            pass
    return False


def work(name, data, batches):
    """A worker: sends its batches until there are no more, or the trainer has gone."""
    import torch

    from gpupool.torch import TensorProducer

    torch.set_num_threads(1)
    with TensorProducer(name, timeout=LOOK_S) as producer:  # the channel is there, unless the trainer has gone
        for indices in batches:
            if not fill(producer, data, indices):
                return


class ChannelLoader:
    """Yields (images, labels) of each batch, in order. images is a tensor over a slot: it is not written, and what is to be kept longer
    than some batches is cloned. batches: lists of indices."""

    def __init__(self, data, batches, workers, prefetch=2):
        from gpupool.torch import TensorConsumer, make_channel

        size = max(len(indices) for indices in batches)
        context = multiprocessing.get_context("spawn")
        self.names = [f"batches.py/{os.getpid()}/{time.monotonic_ns()}/{number}" for number in range(min(workers, len(batches)))]
        self.n_batches, self.consumers = len(batches), []
        for name in self.names:
            # Two slots are those that the trainer and the worker have at the moment.
            make_channel(name, max_bytes=4 * size * math.prod(data.shape), slots=prefetch + 2, metadata_bytes=8 * size)
            self.consumers.append(TensorConsumer(name))
        self.workers = [context.Process(target=work, args=(name, data, batches[number::len(self.names)]), daemon=True)
                        for number, name in enumerate(self.names)]
        for worker in self.workers:
            worker.start()

    def receive(self, which):
        """The next frame of a worker."""
        import gpupool

        while True:
            is_alive = self.workers[which].is_alive()  # before the look: a worker that ends has sent all
            try:
                return self.consumers[which].receive_frame(timeout=LOOK_S)
            except (gpupool.EndedError, gpupool.VacantError):
                is_alive = False
            except gpupool.TimedOutError:
                pass
            if not is_alive:
                fail(f"worker {self.workers[which].pid} ended before its last batch")

    def __iter__(self):
        import torch

        for number in range(self.n_batches):
            frame = self.receive(number % len(self.consumers))
            images, labels = frame.tensor, torch.frombuffer(bytearray(frame.metadata), dtype=torch.int64)
            del frame
            yield images, labels
            del images  # the trainer's own name is the last one

    def close(self):
        """Ends the channels, and so the workers. The tensors of batches have to be gone."""
        from gpupool.names import unpublish

        for name, consumer in zip(self.names, self.consumers):
            consumer.close()
            unpublish(name)
        for worker in self.workers:
            worker.join(WAIT_S)


# --- the comparison ---


def make_loader(way, data, batches, workers):
    if way == "channels":
        return ChannelLoader(data, batches, workers)
    import torch.utils.data

    import gpupool.torch
    return torch.utils.data.DataLoader(data, batch_sampler=batches, num_workers=workers, multiprocessing_context="spawn",
                                       collate_fn=gpupool.torch.collate if way == "collate" else None)


def measure(way, data, batches, workers, place):
    """Returns the seconds from the first batch to the last one, and a checksum of all batches."""
    loader, began, total = make_loader(way, data, batches, workers), None, 0.0
    if way == "channels":
        print("workers", *(worker.pid for worker in loader.workers), flush=True)
    for images, labels in loader:
        began = began or time.monotonic()
        on_gpu = images.to(place.device, non_blocking=True)
        total += float((on_gpu.double().sum(dim=(1, 2, 3)) * labels.to(place.device)).sum())
        del images, on_gpu  # one tensor, where there is no GPU
    took = time.monotonic() - began
    if way == "channels":
        loader.close()
    return took, total


def main():
    parser = parser_of(__doc__, WAYS)
    parser.add_argument("--workers", type=int, default=4, help="worker processes: %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch: %(default)s")
    parser.add_argument("--side", type=int, default=224, help="of an image, in pixels: %(default)s")
    parser.add_argument("--images", type=int, default=6400, help="images in the data set: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each way: %(default)s")
    options = parse(parser, WAYS)
    if min(options.workers, options.batch, options.side, options.images, options.rounds) < 1:
        parser.error("all numbers are at least 1")
    place = connect(options.simulate)
    need("torch")
    import torch

    data, figures, checksums = Images(options.images, options.side), {way: [] for way in options.ways}, {}
    for number in range(options.rounds):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(number)).tolist()
        batches = [order[begin:begin + options.batch] for begin in range(0, len(order), options.batch)]
        for way in options.ways:
            took, checksum = measure(way, data, batches, options.workers, place)
            figures[way].append(took)
            if checksums.setdefault(number, checksum) != checksum:
                fail(f"the batches differ: {way}")
    n_bytes = options.batch * 3 * options.side ** 2 * 4
    table(f"{options.images} images in batches of {options.batch} ({n_bytes / 1e6:.1f} MB), {options.workers} workers, {place.name()}: medians of "
          f"{options.rounds} rounds", "way", ["seconds"], [[way, median(figures[way])] for way in options.ways])
    write_json(options.json, {"device": place.name(), "figures": figures})


if __name__ == "__main__":
    main()
