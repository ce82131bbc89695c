#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A video's frames go through three processes: a decoder, a model, a writer.

The decoder has ffmpeg decode a video into frames, as a camera's driver fills its buffers. The model, a segmentation network of
torchvision, looks at each frame and paints the classes that it finds into it. The writer reads the painted frame. With gpupool a
frame is one buffer all the way: each process sends the next one a token, and the model paints into the frame itself. The program
does the same by channels, and in the ways that there are without gpupool, in turns, and compares latency, rate and memory:

  gpupool       frames in pinned host memory of the pool; gpupool.torch sends tokens
  torch         frames in shared memory; torch.multiprocessing sends descriptors
  pickle        frames are arrays of NumPy, which a pipe carries
  gpupool-gpu   the decoder puts the frame into GPU memory of the pool, where it stays until the writer reads it
  torch-gpu     the same with PyTorch's own memory, sent by CUDA's IPC handles (not without a GPU)
  channels      frames in pinned host memory, in the slots of a channel between each two processes (gpupool.torch.TensorProducer)
  channels-gpu  the same with slots in GPU memory

By channels the model paints into a slot of the second one, because a received frame is read-only. Each way has three processes of its own. All ways have to paint the same frames. The network's weights are random unless --weights
names a file of a trained state_dict.
"""
import math
import multiprocessing
import os
import struct
import subprocess
import sys
import threading
import zlib

from common import (WAIT_S, Watched, add_video_options, connect, fail, find_video, median, memory_of, need, now, parse, parser_of,
                    table, write_json)

WAYS = ("gpupool", "torch", "pickle", "gpupool-gpu", "torch-gpu", "channels", "channels-gpu")
ROLES = ("decoder", "model", "writer")
FRAME_S = 10  # that each frame of a round adds to the bound of the wait for the round, so that a slow machine comes to its end
ROWS_CHECKED = 16  # the writer reads each 16th row of a frame


# --- one way to make frames and to pass them on ---


class Sender:
    """The end of a channel that frames are sent into, with the methods of a connection."""

    def __init__(self, name, shape, pool, in_flight):
        from gpupool.torch import TensorProducer

        self.shape, self.slot, self.times = shape, None, bytearray()
        self.producer = TensorProducer(name, max_bytes=math.prod(shape), pool=pool, slots=in_flight + 2, metadata_bytes=TIMES.size)

    def new_frame(self):
        import torch

        self.slot = self.producer.loan(self.shape, torch.uint8, metadata=self.times, timeout=WAIT_S)
        return self.slot.__enter__()

    def send(self, message):
        """Sends the frame that new_frame() returned last, which has no pixels then, and its times."""
        *times, _ = message
        self.times[:] = TIMES.pack(*times, *[0.0] * (3 - len(times)))
        self.slot.__exit__(None, None, None)


class Receiver:
    """The other end. A frame's slot is free again when its tensor is gone."""

    def __init__(self, name, n_times):
        from gpupool.torch import TensorConsumer

        self.consumer, self.n_times = TensorConsumer(name, timeout=WAIT_S), n_times

    def recv(self):
        frame = self.consumer.receive_frame(timeout=WAIT_S)
        return *TIMES.unpack(frame.metadata)[:self.n_times], frame.tensor


TIMES = struct.Struct("<3d")  # at most so many times go with a frame


class Way:
    """How a frame is made, painted and read. Sending is the same in all ways: connection.send(frame)."""

    def __init__(self, name, place, shape):
        import gpupool.torch
        import numpy
        import torch

        self.name, self.place = name, place
        self.is_on_gpu = name.endswith("-gpu")
        self.sender = None  # of a channel
        self.new_frame = {
            "gpupool": lambda: gpupool.torch.empty(shape, dtype=torch.uint8, pool=place.host),
            "torch": lambda: torch.empty(shape, dtype=torch.uint8).share_memory_(),
            "pickle": lambda: numpy.empty(shape, numpy.uint8),
            "gpupool-gpu": lambda: gpupool.torch.empty(shape, dtype=torch.uint8, pool=place.gpu),
            "torch-gpu": lambda: torch.empty(shape, dtype=torch.uint8, device=place.device),
            "channels": lambda: self.sender.new_frame(),
            "channels-gpu": lambda: self.sender.new_frame(),
        }[name]
        # Frames on a GPU go there from pinned memory, and come back to it.
        self.staging = torch.empty(shape, dtype=torch.uint8, pin_memory=place.is_real) if self.is_on_gpu else None

    def open(self, receiving, sending, shape, in_flight):
        """Returns what a process receives from and sends into: connections, or the ends of channels in the place of their names."""
        if isinstance(sending, str):
            sending = self.sender = Sender(sending, shape, self.place.gpu if self.is_on_gpu else self.place.host, in_flight)
        if isinstance(receiving, str):
            receiving = Receiver(receiving, 3 if self.sender is None else 1)
        return receiving, sending

    def fill(self, read):
        """The decoder: a new frame, written by read(memory)."""
        frame = self.new_frame()
        if self.is_on_gpu:
            self.place.synchronize()  # the copy of the last frame is over
            read(memoryview(self.staging.numpy()))
            frame.copy_(self.staging, non_blocking=True)
        else:
            read(memoryview(frame if self.name == "pickle" else frame.numpy()))
        return frame

    def paint(self, frame, draw):
        """The model: what goes to the writer. draw(pixels, out) paints on the GPU."""
        import torch

        if self.name == "gpupool-gpu":
            return draw(frame, frame)
        if self.name == "torch-gpu":  # which cannot pass on what it received
            return draw(frame, None)
        if self.name == "channels-gpu":
            return draw(frame, self.new_frame())
        pixels = (torch.from_numpy(frame) if self.name == "pickle" else frame).to(self.place.device, non_blocking=True)
        painted = draw(pixels, None)
        if self.name == "pickle":
            return painted.cpu().numpy()
        return (self.new_frame() if self.name == "channels" else frame).copy_(painted)

    def read(self, frame):
        """The writer: the frame in memory of the host, as an array."""
        if not self.is_on_gpu:
            return frame if self.name == "pickle" else frame.numpy()
        self.staging.copy_(frame, non_blocking=True)
        self.place.synchronize()
        return self.staging.numpy()


# --- the three processes ---


class Decoder:
    """ffmpeg, and the frames that it writes into a pipe."""

    def __init__(self, options, shape):
        size = f"scale={shape[1]}:{shape[0]}"
        command = [options.ffmpeg, "-v", "error", "-nostdin", "-stream_loop", "-1", "-i", options.video, "-vf", size, "-f", "rawvideo",
                   "-pix_fmt", "rgb24", "pipe:1"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def read(self, memory):
        """Fills memory with the next frame."""
        memory = memory.cast("B")
        done = 0
        while done < len(memory):
            n = self.process.stdout.readinto(memory[done:])
            if not n:
                raise SystemExit("ffmpeg ended before the last frame")
            done += n

    def close(self):
        self.process.kill()
        self.process.stdout.close()
        self.process.wait()


def decode(way, options, shape, control, taken, frames):
    """The decoder, in a round: sends frames, of which some at most are under way."""
    while (command := control.recv()) is not None:
        n_frames, in_flight, _ = command
        decoder = Decoder(options, shape)
        first = way.fill(decoder.read)  # ffmpeg has started
        for number in range(n_frames):
            if number >= in_flight:
                taken.recv_bytes()
            frame = first if number == 0 else way.fill(decoder.read)
            frames.send((now(), frame))
            first = frame = None
        for _ in range(min(in_flight, n_frames)):
            taken.recv_bytes()
        decoder.close()
        control.send(gpu_memory(way.place))


class Painter:
    """A segmentation network, which paints each class of pixels in a colour."""

    def __init__(self, options, place):
        import torch
        import torchvision

        torch.manual_seed(0)
        torch.backends.cudnn.deterministic = True  # all ways have the same result
        network = torchvision.models.get_model(options.model, weights=None, weights_backbone=None)
        if options.weights:
            network.load_state_dict(torch.load(options.weights, weights_only=True))
        self.network = network.eval().to(place.device)
        self.colours = torch.randint(0, 128, (256, 3), dtype=torch.uint8, device="cpu").to(place.device)
        self.mean, self.scale = (torch.tensor(values, device=place.device).reshape(1, 3, 1, 1) * 255
                                 for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def draw(self, pixels, out):
        import torch

        with torch.no_grad():
            inputs = (pixels.permute(2, 0, 1).unsqueeze(0).float() - self.mean) / self.scale
            classes = self.network(inputs)["out"][0].argmax(0)
            return torch.add(pixels // 2, self.colours[classes], out=out)


def infer(way, options, shape, control, frames, results):
    """The model, in a round."""
    painter = Painter(options, way.place)
    way.paint(way.fill(lambda memory: None), painter.draw)  # the libraries have started
    control.send("ready")
    while (command := control.recv()) is not None:
        for _ in range(command[0]):
            made, frame = frames.recv()
            got = now()
            painted = way.paint(frame, painter.draw)
            way.place.synchronize()  # so that the time of the model is known; sending needs no such wait
            results.send((made, got, now(), painted))
            del frame, painted
        control.send(gpu_memory(way.place))


def write(way, options, shape, control, results, taken):
    """The writer, in a round: notes when each frame was there, and a checksum of it."""
    while (command := control.recv()) is not None:
        encoder = start_encoder(options, shape) if command[2] else None
        times, checksum = [], 0
        for _ in range(command[0]):
            made, got, ready, frame = results.recv()
            array = way.read(frame)
            times.append((made, got, ready, now()))
            checksum = zlib.adler32(array[::ROWS_CHECKED].tobytes(), checksum)
            if encoder:
                encoder.stdin.write(memoryview(array).cast("B"))
            del frame, array
            taken.send_bytes(b"x")
        if encoder:
            encoder.stdin.close()
            if encoder.wait(WAIT_S) != 0:
                raise SystemExit("ffmpeg could not write the video")
        control.send((gpu_memory(way.place), times, checksum))


def start_encoder(options, shape):
    return subprocess.Popen([options.ffmpeg, "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{shape[1]}x{shape[0]}", "-r",
                             "10", "-i", "pipe:0", "-pix_fmt", "yuv420p", options.output], stdin=subprocess.PIPE)


def gpu_memory(place):
    """Bytes that PyTorch's own allocator has of the GPU in this process."""
    import torch
    return torch.cuda.max_memory_reserved() if place.is_real and torch.cuda.is_initialized() else 0


def run_role(role, way_name, options, shape, control, receiving, sending):
    """A process."""
    import gpupool
    import torch

    from common import Place

    if options.threads:
        torch.set_num_threads(options.threads)
    if role != "model" and not way_name.endswith("-gpu"):
        os.environ["GPUPOOL_NO_CUDA"] = "1"  # it uses host memory alone, and needs no CUDA context
    try:
        way = Way(way_name, Place(), shape)
        receiving, sending = way.open(receiving, sending, shape, options.in_flight)
        if role != "model":
            control.send("ready")
        {"decoder": decode, "model": infer, "writer": write}[role](way, options, shape, control, receiving, sending)
    except (EOFError, BrokenPipeError, ConnectionResetError, gpupool.VacantError):  # another process has ended
        sys.exit(1)


# --- the whole ---


class Pipeline:
    """The three processes of a way."""

    def __init__(self, way, options, shape):
        # Sending tensors works in processes of any start method but fork, which CUDA does not survive.
        context = multiprocessing.get_context("spawn")
        self.way, self.watched, self.controls = way, Watched(), {}
        frames, results, taken = (context.Pipe(duplex=False) for _ in range(3))
        pipes = frames, results
        if way.startswith("channels"):
            frames, results = ([f"frames.py/{os.getpid()}/{way}/{which}"] * 2 for which in ("frames", "results"))
        ends = {"decoder": (taken[0], frames[1]), "model": (frames[0], results[1]), "writer": (results[0], taken[1])}
        for role in ROLES:
            self.controls[role], theirs = context.Pipe()
            self.watched.start(context, role, run_role, role, way, options, shape, theirs, *ends[role])
            theirs.close()
        for end in (pipes[0][1], pipes[1][1], *taken):
            end.close()
        self.unread = pipes[0][0], pipes[1][0]  # kept for messages that a process leaves behind which is killed
        self.pids = [process.pid for process in self.watched.processes.values()]
        self.memory_at_start = None

    def receive(self, role, seconds=WAIT_S):
        try:
            return self.watched.receive(self.controls[role], self.way, seconds)
        except SystemExit:
            for connection in self.unread:
                drain(connection)
            raise

    def wait_until_ready(self):
        for role in ROLES:
            self.receive(role)
        self.memory_at_start = self.host_memory()

    def host_memory(self):
        """Bytes that the processes have of their own and share. Neither libraries nor memory of PyTorch that is pinned are counted."""
        return memory_of(self.pids, "Pss_Anon", "Pss_Shmem")

    def round(self, n_frames, in_flight, encode=False):
        """Returns the times of the frames, the checksum, and the bytes of GPU memory that PyTorch has in the processes."""
        for role in reversed(ROLES):
            self.controls[role].send((n_frames, in_flight, encode))
        seconds = WAIT_S + n_frames * FRAME_S
        on_gpu = self.receive("decoder", seconds) + self.receive("model", seconds)
        writers, times, checksum = self.receive("writer", seconds)
        return times, checksum, on_gpu + writers

    def peak_of_round(self, n_frames, in_flight):
        """A round in which memory is measured, which takes time."""
        peak, over = 0, threading.Event()

        def watch():
            nonlocal peak
            while not over.wait(0.02):
                peak = max(peak, self.host_memory())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            on_gpu = self.round(n_frames, in_flight)[2]
        finally:
            over.set()
            watcher.join()
        return peak - self.memory_at_start, on_gpu

    def close(self):
        for control in self.controls.values():
            control.send(None)
        self.watched.end()


def drain(connection):
    """Receives and drops what no process will receive: each message holds its frame, for ten minutes. All writers have ended."""
    try:
        while True:
            connection.recv()
    except Exception:  # the end, or what is left of a message that was cut
        connection.close()


def measure(pipelines, options):
    """Rounds of all ways, in turns."""
    figures = {way: {"latency": [], "to_model": [], "model": [], "to_writer": [], "rate": []} for way in pipelines}
    checksums = {}
    for number in range(options.rounds + 1):  # the first one is not counted
        for way, pipeline in pipelines.items():
            encode = bool(options.output) and number == 0 and way == options.ways[0]
            times, checksum, _ = pipeline.round(options.frames, 1, encode)
            checksums.setdefault(checksum, way)
            if len(checksums) > 1:
                fail(f"the frames that arrive differ: {' and '.join(checksums.values())}")
            at_rate = pipeline.round(options.frames, options.in_flight)[0]
            if number == 0:
                continue
            of_way = figures[way]
            for made, got, ready, there in times:
                for name, seconds in zip(("latency", "to_model", "model", "to_writer"), (there - made, got - made, ready - got, there - ready)):
                    of_way[name].append(seconds * 1e3)
            of_way["rate"].append(options.frames / (at_rate[-1][3] - at_rate[0][0]))
    return figures


def report(figures, memory, options, place, shape):
    size, base = f"{shape[1]}x{shape[0]}", figures[options.ways[0]]
    rows = []
    for way, of_way in figures.items():
        ordered = sorted(of_way["latency"])
        latency, rate = median(ordered), median(of_way["rate"])
        rows.append([way, latency, ordered[int(len(ordered) * 0.99)], *(median(of_way[name]) for name in ("to_model", "model", "to_writer")),
                     latency / median(base["latency"]), rate, rate / median(base["rate"]), memory[way]["host"] / 1e6, memory[way]["gpu"] / 1e6])
    table(f"Frames of {size} ({shape[0] * shape[1] * 3 / 1e6:.1f} MB) through {options.model}, {place.name()}: medians of {options.rounds} "
          f"rounds of {options.frames} frames. Latency with one frame under way, the rate with {options.in_flight}.", "way",
          ["latency (ms)", "its 99 %", "to the model", "model and copies", "to the writer", f"latency / {options.ways[0]}'s", "frames a second",
           f"rate / {options.ways[0]}'s", "host memory (MB)", "GPU memory (MB)"], rows)


def size_of(text):
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) >= 32 and int(height) >= 32):
        raise ValueError(text)
    return int(height), int(width), 3


def main():
    parser = parser_of(__doc__, WAYS)
    add_video_options(parser)
    parser.add_argument("--size", type=size_of, default="768x576", help="of the frames, to which the video is scaled: %(default)s")
    parser.add_argument("--model", default="lraspp_mobilenet_v3_large", help="of torchvision.models.segmentation: %(default)s")
    parser.add_argument("--weights", metavar="FILE", help="a state_dict of the model")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each way, after one that is not counted: %(default)s")
    parser.add_argument("--frames", type=int, default=200, help="frames in a round: %(default)s")
    parser.add_argument("--in-flight", type=int, default=4, help="frames that are under way at once, where the rate is measured: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="threads of PyTorch on the CPU, in each process")
    parser.add_argument("--output", metavar="FILE", help="write the painted frames of the first round as a video")
    options = parse(parser, WAYS)
    if min(options.rounds, options.frames, options.in_flight) < 1:
        parser.error("--rounds, --frames and --in-flight are at least 1")
    find_video(options)
    place = connect(options.simulate)
    need("torchvision")
    import torchvision
    if options.model not in torchvision.models.list_models(module=torchvision.models.segmentation):
        fail(f"torchvision has no segmentation model {options.model}")
    if not place.is_real:
        options.ways = [way for way in options.ways if way != "torch-gpu"] or fail("torch-gpu needs a GPU")

    pipelines = {way: Pipeline(way, options, options.size) for way in options.ways}
    for way, pipeline in pipelines.items():
        pipeline.wait_until_ready()
        print(f"{way}: {', '.join(f'{role} {pid}' for role, pid in zip(ROLES, pipeline.pids))}", flush=True)
    figures, memory = measure(pipelines, options), {}
    for way, pipeline in pipelines.items():
        on_host, on_gpu = pipeline.peak_of_round(options.frames, options.in_flight)
        of_pool = place.gpu.info().reserved_bytes if way in ("gpupool-gpu", "channels-gpu") and place.is_real else 0
        memory[way] = {"host": on_host, "gpu": on_gpu + of_pool}
    for pipeline in pipelines.values():
        pipeline.close()
    report(figures, memory, options, place, options.size)
    write_json(options.json, {"device": place.name(), "size": options.size, "model": options.model, "figures": figures, "memory": memory})


if __name__ == "__main__":
    main()
