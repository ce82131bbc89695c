# SPDX-License-Identifier: Apache-2.0
"""
Allocation traces as text, one event a line:

    # key: value            what was recorded, and what it took there
    a SLOT BYTES STREAM     allocates; SLOT names the allocation until it is freed, and is used again after that
    f SLOT                  frees

BYTES is what the program asked for, before any allocator's rounding. STREAM is a small number; 0 is the stream that
the program used first. Files are compressed by gzip.
"""
import gzip


class Converter:
    """Makes a trace of the events that torch.cuda.memory._snapshot()["device_traces"] lists for one device.

    The meaning of the events is that of c10/cuda/CUDACachingAllocator.cpp: an alloc and both frees carry the size that was
    requested, not the rounded one (alloc_found_block, free: block->requested_size); segment_alloc and segment_free
    carry what was taken from the driver. A block that other streams use too (record_stream) is free_requested first
    and free_completed when those streams are done; it takes memory until then, so that is where the trace frees it.
    """

    def __init__(self):
        self.lines = []
        self.allocations = 0
        self.peak_live_bytes = 0
        self.peak_segment_bytes = 0
        self.streams = {}
        self._live = {}  # address: (slot, bytes)
        self._live_bytes = 0
        self._segment_bytes = 0
        self._spare_slots = []  # last freed, first reused: iterations of a program look alike, and compress
        self._slots = 0
        self.unknown_frees = 0  # of what was allocated before the history began
        self.lost_frees = 0  # their addresses were allocated again

    def add(self, event):
        action = event.get("action")
        size = event.get("size", 0)
        if action == "alloc":
            self._alloc(event["addr"], size, event.get("stream", 0))
        elif action == "free_completed":
            self._free(event["addr"])
        elif action in ("segment_alloc", "segment_map"):
            self._segment_bytes += size
            self.peak_segment_bytes = max(self.peak_segment_bytes, self._segment_bytes)
        elif action in ("segment_free", "segment_unmap"):
            self._segment_bytes -= size

    def _alloc(self, address, size, stream):
        if size == 0:
            return
        if address in self._live:
            self.lost_frees += 1
            self._free(address)
        if self._spare_slots:
            slot = self._spare_slots.pop()
        else:
            slot = self._slots
            self._slots += 1
        self._live[address] = (slot, size)
        self._live_bytes += size
        self.peak_live_bytes = max(self.peak_live_bytes, self._live_bytes)
        self.allocations += 1
        number = self.streams.setdefault(stream, len(self.streams))
        self.lines.append(f"a {slot} {size} {number}\n")

    def _free(self, address):
        slot_and_size = self._live.pop(address, None)
        if slot_and_size is None:
            self.unknown_frees += 1
            return
        slot, size = slot_and_size
        self._live_bytes -= size
        self._spare_slots.append(slot)
        self.lines.append(f"f {slot}\n")


def convert(events):
    """The Converter after a device's events."""
    converter = Converter()
    for event in events:
        converter.add(event)
    return converter


def write(path, facts, lines):
    """Writes a trace, its facts (a dictionary) first. Returns the size of the file in bytes."""
    text = "# gpupool allocation trace 1\n" + "".join(f"# {key}: {value}\n" for key, value in facts.items())
    data = gzip.compress((text + "".join(lines)).encode(), compresslevel=9, mtime=0)
    with open(path, "wb") as file:
        file.write(data)
    return len(data)


def read(path):
    """Returns (facts, events); an event is ("a", slot, bytes, stream) or ("f", slot)."""
    facts, events = {}, []
    with gzip.open(path, "rt") as file:
        for line in file:
            if line.startswith("#"):
                key, separator, value = line[1:].strip().partition(": ")
                if separator:
                    facts[key] = value
                continue
            words = line.split()
            if words and words[0] == "a":
                events.append(("a", int(words[1]), int(words[2]), int(words[3])))
            elif words and words[0] == "f":
                events.append(("f", int(words[1])))
            elif words:
                raise ValueError(f"{path}: what is this: {line!r}")
    return facts, events
