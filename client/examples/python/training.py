#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training on images, with the batches of a DataLoader's workers in pinned memory of the pool.

ffmpeg makes images (JPEG) of a video's frames, a class for each part of the video. Workers of a DataLoader decode and augment them as
is usual for ImageNet: a random part of the image, a random flip, other colours, float32. A ResNet-50 is trained on them. The program
does so in turns, with one loader each, and compares the whole step, and what it costs the trainer and the workers:

  collate         collate_fn=gpupool.torch.collate: workers write batches into pinned memory, and send tokens
  collate-pin     the same with pin_memory=True, which copies nothing then, and has a thread of its own
  pin             pin_memory=True: a thread of the trainer copies each batch into pinned memory (not without a GPU)
  plain           neither: the copy to the GPU is from pageable memory

All ways have to give the trainer the same batches. A worker draws its random numbers from a seed that all loaders begin with.
"""
import multiprocessing
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time

from common import add_video_options, connect, fail, find_video, median, need, now, parse, parser_of, table, write_json

WAYS = ("collate", "collate-pin", "pin", "plain")
CLASSES = 10
TICKS = os.sysconf("SC_CLK_TCK")


# --- images ---


def make_images(options, folder):
    """Has ffmpeg write the video's frames as files; returns their paths."""
    command = [options.ffmpeg, "-v", "error", "-nostdin", "-i", options.video, "-frames:v", str(options.images), "-q:v", "3", folder / "%05d.jpg"]
    if subprocess.run(command, check=False).returncode != 0:
        fail(f"ffmpeg cannot make images of {options.video}")
    paths = sorted(folder.glob("*.jpg"))
    if len(paths) < CLASSES:
        fail(f"{options.video} has {len(paths)} frames, and {CLASSES} are needed")
    return paths


class Images:
    """A data set: images of files, augmented, and the part of the video that each one is of."""

    def __init__(self, paths, side):
        import torchvision.transforms as transforms

        self.paths = paths
        self.augment = transforms.Compose([
            transforms.RandomResizedCrop(side),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        from PIL import Image
        with Image.open(self.paths[index]) as image:
            return self.augment(image.convert("RGB")), index * CLASSES // len(self.paths)


class Loader:
    """A DataLoader of one way. Its workers live as long as it does."""

    def __init__(self, way, options, paths):
        import torch

        import gpupool.torch

        self.way, data = way, Images(paths, options.side)
        self.generator = torch.Generator()
        sampler = torch.utils.data.RandomSampler(data, True, options.batch * options.steps, self.generator)
        keywords = {"pin_memory": way in ("pin", "collate-pin")}
        if way.startswith("collate"):
            keywords["collate_fn"] = gpupool.torch.collate
        before = set(multiprocessing.active_children())
        self.loader = torch.utils.data.DataLoader(data, options.batch, sampler=sampler, num_workers=options.workers, generator=self.generator,
                                                  persistent_workers=True, multiprocessing_context=options.start, **keywords)
        self.epoch(0)  # starts the workers
        self.pids = [process.pid for process in set(multiprocessing.active_children()) - before]

    def epoch(self, seed):
        """Batches of a seed: images and augmentation depend on the seed, not on the way."""
        self.generator.manual_seed(seed)
        return iter(self.loader)

    def cpu_seconds(self):
        """Of the workers, by /proc/PID/stat: utime and stime, in ticks."""
        total = 0
        for pid in self.pids:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS


# --- training ---


class Trainer:
    """A network, and a step of its training."""

    def __init__(self, options, place):
        import torch
        import torchvision

        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True  # the shapes are the same in all steps
        self.device, self.half = place.device, options.half
        network = torchvision.models.get_model(options.model, weights=None, num_classes=CLASSES)
        self.network = network.to(self.device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.01, momentum=0.9)

    def step(self, images, labels):
        """Enqueues a step; returns the loss, on the GPU."""
        import torch

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            output = self.network(images.to(memory_format=torch.channels_last))
            loss = torch.nn.functional.cross_entropy(output.float(), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def shared_memory():
    """Bytes of shared memory of the whole machine: what processes have in memfds and in /dev/shm."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


class Memory:
    """Host memory that batches are in during a round: shared memory, PyTorch's pinned memory, and what the pool has lent."""

    def __init__(self, place, way):
        import torch

        self.place, self.uses_pool = place, way.startswith("collate")
        self.has_pinned = place.is_real and hasattr(torch.cuda, "host_memory_stats")
        self.at_start = self.shared()
        self.peak_shared = self.peak_leased = 0
        if self.has_pinned:
            torch.cuda.reset_peak_host_memory_stats()

    def shared(self):
        # The pool's own memory is shared memory too, and stays reserved between rounds.
        return shared_memory() - self.place.host.info().reserved_bytes

    def look(self):
        self.peak_shared = max(self.peak_shared, self.shared() - self.at_start)
        if self.uses_pool:
            self.peak_leased = max(self.peak_leased, self.place.host.info().leased_bytes)

    def figures(self):
        import torch

        pinned = torch.cuda.host_memory_stats().get("active_bytes.peak", 0) if self.has_pinned else 0
        return {"shared": self.peak_shared, "pinned": pinned, "pool": self.peak_leased}


def train_round(loader, trainer, place, options, seed):
    """A round. Figures are those of the steps after the first ones, in which the workers have no lead yet."""
    import torch

    memory = Memory(place, loader.way)
    iterator = loader.epoch(seed)
    waits, copies, sums, losses, began = [], [], [], [], None
    for number in range(options.steps):
        if number == options.first:
            place.synchronize()
            began, cpu, workers_cpu, usage = now(), time.process_time(), loader.cpu_seconds(), resource.getrusage(resource.RUSAGE_SELF)
        start = now()
        images, labels = next(iterator)
        got = now()
        images_there, labels_there = (tensor.to(place.device, non_blocking=True) for tensor in (images, labels))
        copied = now()
        losses.append(trainer.step(images_there, labels_there))
        sums.append((images_there.sum(dtype=torch.float64), labels_there.sum()))
        del images, labels, images_there, labels_there
        if number >= options.first:
            waits.append(got - start)
            copies.append(copied - got)
        if number % 5 == 0:
            memory.look()
    place.synchronize()
    took, n = now() - began, options.steps - options.first
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - usage.ru_nvcsw
    figures = {"step": took / n, "loader": sum(waits) / n, "copy": sum(copies) / n, "trainer_cpu": (time.process_time() - cpu) / n,
               "workers_cpu": (loader.cpu_seconds() - workers_cpu) / n, "switches": switches / n, **memory.figures()}
    for _ in iterator:
        raise AssertionError("a round has more batches than steps")
    return figures, [(images.item(), labels.item()) for images, labels in sums], float(losses[-1])


def measure(options, place, paths):
    trainer = Trainer(options, place)
    loaders = {}
    for way in options.ways:
        loaders[way] = Loader(way, options, paths)
        print(f"{way}: trainer {os.getpid()}, workers {', '.join(str(pid) for pid in sorted(loaders[way].pids))}", flush=True)
    figures = {way: [] for way in options.ways}
    for seed in range(options.rounds + 1):  # the first round is not counted
        expected = None
        for way, loader in loaders.items():
            of_round, sums, loss = train_round(loader, trainer, place, options, seed)
            if loss != loss:
                fail(f"{way}: the loss is not a number")
            expected = expected or sums
            for step, (mine, others) in enumerate(zip(sums, expected)):
                if mine[1] != others[1] or abs(mine[0] - others[0]) > 1e-6 * abs(others[0]) + 1e-3:
                    fail(f"round {seed}, step {step}: {way} has another batch than {options.ways[0]}")
            if seed > 0:
                figures[way].append(of_round)
    return figures


def report(figures, options, place):
    columns = {"step": ("step (ms)", 1e3), "loader": ("in the loader (ms)", 1e3), "copy": ("in the copy (ms)", 1e3),
               "trainer_cpu": ("CPU of the trainer (ms)", 1e3), "workers_cpu": ("CPU of the workers (ms)", 1e3),
               "switches": ("trainer's switches", 1), "pool": ("pool (MB)", 1e-6), "pinned": ("PyTorch's pinned (MB)", 1e-6),
               "shared": ("other shared (MB)", 1e-6)}
    base = median(one["step"] for one in figures[options.ways[0]])
    rows = [[way, median(one["step"] for one in rounds) / base,
             *(median(one[name] for one in rounds) * scale for name, (_, scale) in columns.items())] for way, rounds in figures.items()]
    table(f"A step of {options.model}, {options.batch} images of {options.side}x{options.side}, {options.workers} workers, {place.name()}: "
          f"medians of {options.rounds} rounds of {options.steps - options.first} steps. Times of a step; memory at its most",
          "way", [f"step / {options.ways[0]}'s", *(title for title, _ in columns.values())], rows)


def main():
    parser = parser_of(__doc__, WAYS)
    add_video_options(parser)
    parser.add_argument("--model", default="resnet50", help="a classifier of torchvision: %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch: %(default)s")
    parser.add_argument("--side", type=int, default=224, help="of an image, in pixels: %(default)s")
    parser.add_argument("--workers", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)), help="of a loader: %(default)s")
    parser.add_argument("--start", choices=("fork", "spawn", "forkserver"), default="fork", help="how workers start: %(default)s")
    parser.add_argument("--steps", type=int, default=60, help="of a round: %(default)s")
    parser.add_argument("--first", type=int, default=20, help="steps at the begin of a round that are not counted: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of each way, after one that is not counted: %(default)s")
    parser.add_argument("--images", type=int, default=2000, help="images to be made of the video at most: %(default)s")
    parser.add_argument("--half", action="store_true", help="compute in bfloat16")
    options = parse(parser, WAYS)
    if min(options.workers, options.batch, options.side, options.rounds, options.first) < 1 or options.steps <= options.first:
        parser.error("--workers, --batch, --side, --rounds and --first are at least 1, and --steps is above --first")
    find_video(options)
    place = connect(options.simulate)
    need("torchvision", "PIL")
    import torchvision
    if options.model not in torchvision.models.list_models(module=torchvision.models):
        fail(f"torchvision has no classifier {options.model}")
    if not place.is_real:
        options.ways = [way for way in options.ways if way not in ("pin", "collate-pin")] or fail("memory is pinned with a GPU only")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gpupool-training-"))
    try:
        figures = measure(options, place, make_images(options, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(figures, options, place)
    write_json(options.json, {"device": place.name(), "model": options.model, "batch": options.batch, "workers": options.workers, "figures": figures})


if __name__ == "__main__":
    main()
