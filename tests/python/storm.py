# SPDX-License-Identifier: Apache-2.0
"""Tensors go from process to process while processes are killed: contents are right, nothing is leaked, nothing hangs.

    storm.py [--messages N] [--seed N] [--device cuda|sim|host]

Four workers write tensors of all sizes and send them by token. This process passes each message, unread, to another worker, which
looks at every element, writes other values into the same tensor or a new one, and sends that on. Now and then a worker is killed
with its messages, and another one takes its place. In the end all memory is back in the pools. The daemon is the one that
GPUPOOL_SOCKET and GPUPOOL_ADMIN_SOCKET name. Needs PyTorch.
"""
import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import socket
import sys
import time
from multiprocessing.reduction import ForkingPickler

WORKERS = 4
UNDER_WAY = 4  # tensors that each worker begins with
WAIT_S = 60


def work(connection, device, seed):
    import torch

    import gpupool
    import gpupool.torch

    chance = random.Random(seed)

    def make(value):
        size = chance.choice((1, 100, 4096, 70_000, 1 << 20, 3 << 20))
        pool = gpupool.device_pool(0) if device == "sim" else None
        keywords = {"pool": pool} if pool else {"device": "cpu" if device == "host" else "cuda"}
        return gpupool.torch.empty(size, dtype=torch.uint8, **keywords).fill_(value)

    def send(tensor, value):
        connection.send_bytes(ForkingPickler.dumps((tensor, value)))

    try:
        for _ in range(UNDER_WAY):
            value = chance.randrange(256)
            send(make(value), value)
        while message := connection.recv_bytes():
            try:
                tensor, value = pickle.loads(message)
            except gpupool.LostError:  # its writer was killed before the GPU had written it
                connection.send_bytes(b"lost")
                continue
            except gpupool.NoTokenError:
                connection.send_bytes(b"no token")
                continue
            if not bool((tensor == value).all()):
                connection.send_bytes(b"wrong")
                return
            value = chance.randrange(256)
            if chance.random() < 0.5:
                tensor = make(value)
            else:
                tensor.fill_(value)
            send(tensor, value)
            del tensor
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass


class Storm:
    def __init__(self, device, seed):
        self.context = multiprocessing.get_context("spawn")
        self.device, self.chance = device, random.Random(seed)
        self.workers = {}  # by connection
        self.counts = dict.fromkeys(("messages", "lost", "kills", "cut"), 0)
        for _ in range(WORKERS):
            self.start()

    def start(self):
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=work, args=(theirs, self.device, self.chance.randrange(1 << 30)), daemon=True)
        process.start()
        theirs.close()
        self.workers[ours] = process

    def drop(self, connection):
        process = self.workers.pop(connection)
        connection.close()
        process.kill()
        process.join(WAIT_S)
        self.start()

    def take(self, connection):
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):  # it was killed while it wrote
            self.counts["cut"] += 1
            self.drop(connection)
            return
        if message in (b"lost", b"no token"):
            self.counts["lost"] += 1
            if message == b"no token":
                raise SystemExit("a token of a message that was read once has ended")
            message = b""
        if message == b"wrong":
            raise SystemExit("a tensor has other contents than were sent")
        self.counts["messages"] += 1
        others = [other for other in self.workers if other is not connection]
        target = self.chance.choice(others)
        if message:
            try:
                target.send_bytes(message)
            except OSError:
                self.drop(target)

    def run(self, n_messages, kill_every):
        while self.counts["messages"] < n_messages:
            ready = multiprocessing.connection.wait(list(self.workers), WAIT_S)
            if not ready:
                raise SystemExit(f"nothing was sent for {WAIT_S} s: {self.counts}")
            for connection in ready:
                if connection in self.workers:
                    self.take(connection)
            if self.counts["messages"] // kill_every > self.counts["kills"]:
                self.counts["kills"] += 1
                self.drop(self.chance.choice(list(self.workers)))

    def end(self):
        for connection, process in self.workers.items():
            connection.close()
            process.join(WAIT_S)
            if process.is_alive():
                process.kill()
                raise SystemExit("a worker does not end")


def ask(command):
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(WAIT_S)
        admin.connect(os.environ["GPUPOOL_ADMIN_SOCKET"])
        admin.sendall(json.dumps({"command": command}).encode() + b"\n")
        return json.loads(admin.makefile().readline())


def held():
    ask("parcels-revoke")  # of messages that were cut
    names = ("leased_bytes", "fenced_bytes", "quarantined_bytes", "parcels")
    return sum(pool[name] for pool in ask("pools")["pools"] for name in names)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kill-every", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "sim", "host"), default="cuda")
    options = parser.parse_args()
    storm = Storm(options.device, options.seed)
    began = time.monotonic()
    storm.run(options.messages, options.kill_every)
    took = time.monotonic() - began
    storm.end()
    end = time.monotonic() + WAIT_S
    while held() != 0:
        if time.monotonic() > end:
            raise SystemExit(f"memory is still held: {ask('pools')}")
        time.sleep(0.05)
    print(f"{storm.counts}, {took:.1f} s: contents right, nothing held")


if __name__ == "__main__":
    sys.exit(main())
