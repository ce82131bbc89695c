#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes first inputs for the fuzz targets, made of real encodings: seeds.py DIRECTORY, which gets a directory for each
target. The corpora in the tree began with these inputs. When the wire format, the commands or the configuration get something
new, the inputs are merged into the corpora again, with the target's -merge=1 (see docs/fuzzing.md)."""

import pathlib
import struct
import sys

MIB = 1 << 20
MAGIC = 0x4C505047


def packet(operation, request, body=b""):
    return struct.pack("<HHIQ", operation, 0, 16 + len(body), request) + body


def pool(number, kind):
    name = b"NVIDIA H200" if kind == 1 else b"host memory, node 0"
    uuid = bytes(range(16)) if kind == 1 else bytes(16)
    device = 0 if kind == 1 else -1
    return struct.pack("<IIii16s6Q64s", number, kind, device, 0, uuid, 1 << 30, 64 * MIB, MIB, MIB, 0, MIB, name)


def release(lease, generation, offset=0, size=0, fence=0, value=0, board_word=0, board_value=0):
    return struct.pack("<4QIIQQ", lease, generation, offset, size, fence, board_word, value, board_value)


def lease(kind):
    handle = bytes(range(64)) if kind == 1 else bytes(64)
    segment = struct.pack("<QQII64s", 9, 2 * MIB, 1, kind, handle) if kind else bytes(88)
    return struct.pack("<6QII", 1, 2, 9, 512, 1000, 1024, 1, 0) + segment


def leases(count, n_described, n_left):
    names = [value for i in range(count) for value in (1 + i, 2 + i, 9 + i)]
    return struct.pack("<4IQ192Q", 1, count, n_described, n_left, 2 * MIB, *names, *([0] * (192 - len(names))))


def frames():
    text = "the pool has no room: €".encode()
    yield packet(1, 1, struct.pack("<IHHII", MAGIC, 1, 1, 1, 0))
    yield packet(1, 1, struct.pack("<IHHII", MAGIC, 3, 3, 4, 0))  # QUESTION
    yield packet(2, 2)
    yield packet(3, 3, struct.pack("<IIQQQ", 1, 0, MIB, 0, 2**64 - 1))
    for operation, request in ((4, 4), (4, 0), (10, 5)):
        yield packet(operation, request, release(1, 2, 512, 1024))
    yield packet(4, 4, release(1, 2))
    yield packet(4, 4, release(1, 2, fence=512, value=7))
    yield packet(5, 5, struct.pack("<QQQ", 1, 2, 1000))
    yield packet(6, 6, bytes(range(32)))
    yield packet(7, 7, struct.pack("<QQ", 1, 2))
    yield packet(8, 0, struct.pack("<Q", 9))
    yield packet(9, 9)
    yield packet(24, 0, struct.pack("<Q", 3))
    yield packet(11, 11)
    yield packet(13, 13, struct.pack("<IIQ", 1, 0, MIB))
    yield packet(13, 13, struct.pack("<IIQ", 1, 1, 0))
    yield packet(14, 14, struct.pack("<QQ", 9, 1000))
    yield packet(72, 13, struct.pack("<II64Q", 2, 0, 9, 10, *([0] * 62)))
    yield packet(3, 3, struct.pack("<IIQQQ", 1, 1, MIB, 4096, 0))
    yield packet(12, 12, struct.pack("<4Q", 1, 2, 3, 4))
    yield packet(64, 1, struct.pack("<IHHQII", MAGIC, 1, 2, 3, 4, 1))
    yield packet(65, 2, struct.pack("<II", 0, 0))
    yield packet(65, 2, struct.pack("<II", 2, 0) + pool(1, 1) + pool(2, 2))
    for kind in (0, 1, 2):
        yield packet(66, 3, lease(kind))
    yield packet(67, 4)
    yield packet(68, 5, bytes(range(32)))
    yield packet(69, 6, struct.pack("<4Q4I", 9, 512, 1000, 1024, 1, 2, 1, 0))
    yield packet(70, 7, struct.pack("<II", 5, len(text)) + text)
    yield packet(70, 0, struct.pack("<II", 11, 0))
    yield packet(71, 8, struct.pack("<II", 65536, 0))
    for operation in (15, 16):
        yield packet(operation, 15, struct.pack("<QQII", 1, 2, 1, 0))
    yield packet(73, 15, struct.pack("<II8Q", 2, 2, 9, 2 * MIB, MIB, MIB, 10, 2 * MIB, 0, 512) + bytes(62 * 32))
    for count, size_bytes in ((1, 2 * MIB), (2, 16 * MIB), (4096, 2**44), (3, 2**56)):
        yield packet(17, 17, struct.pack("<IIQIIQ", 1, 0, size_bytes, count, 0, 2**64 - 1))
    yield packet(27, 18)
    for again in (1, 2):
        yield struct.pack("<HHIQ", 77, again, 16, 18)
    name = "models/€".encode().ljust(128, b"\0")
    yield packet(28, 19, struct.pack("<II", 15360, 6) + b"w0\0\1\2\3")
    buffers = struct.pack("<QQQIIQII", 1, 2, 4096, 7, 2, 5, 1, 0) + struct.pack("<QQQIIQII", 3, 4, 1000, 0, 0, 0, 0, 0)
    for flags, count in ((1, 2), (6, 2), (0, 1)):
        yield packet(29, 20, name + struct.pack("<IIIIQ", flags, count, 6, 0, 7) + buffers + bytes(62 * 48))
    for flags in (0, 1):
        yield packet(30, 21, name + struct.pack("<QII", 5, flags, 0))
    for flags in (0, 1, 2, 3):
        yield packet(31, 22, name + struct.pack("<QQII", 5, 2**64 - 1, flags, 0))
    yield packet(32, 23, name + struct.pack("<QII", 5, 15360, 0))
    yield packet(33, 24, struct.pack("<Q", 5))
    yield packet(78, 20, struct.pack("<Q", 5))
    buffer = bytes(range(32)) + struct.pack("<QIIQII", 4096, 7, 2, 5, 1, 1)
    for state, count in ((1, 1), (1, 2)):
        yield packet(79, 22, struct.pack("<IIQQQII", state, 1, 5, 7, 3, count, 6) + buffer + bytes(63 * 64))
    for state in (2, 3):
        yield packet(79, 22, struct.pack("<I", state) + bytes(36 + 64 * 64))
    yield packet(80, 23, struct.pack("<II", 0, 6) + b"w0\0\1\2\3")
    listed = struct.pack("<QQQQQII", 9, 5, 5096, 7, 3, 1, 2) + name
    yield packet(81, 24, struct.pack("<II", 1, 3) + listed + bytes(63 * 176))
    for n in ((1, 1, 0), (2, 0, 0), (3, 2, 70), (64, 64, 4032), (2, 3, 0)):
        yield packet(74, 17, leases(*n))


def configurations():
    yield "# nothing\n\n[daemon]\n"
    yield (
        "[daemon]\nsocket = /run/gpupool/gpupool.sock\nadmin_socket = /run/gpupool-admin/admin.sock\ngpu = auto\nsim_gpus = 2\n"
        "sim_memory = 8GiB\nsessions_limit = 1024\nsession_leases_limit = 65536\nrecords = 1MiB\nhistory_hours = 48\nlog_level = info\n"
    )
    yield "[device]\nlimit = 90%\nstep = 512MiB\nreserve = 0\nlow_water = 256MiB\nenabled = yes\n"
    yield "[host]\nlimit=50%\nstep=64MiB\nreserve=1GiB\nlow_water=0\nhuge_pages=auto\nenabled=no\n"
    yield "[device 0]\nlimit = 1TiB ; a comment\n[device 0]\nstep = 2MiB\n"
    yield "[device GPU-01234567-89ab-cdef-0123-456789abcdef]\nlimit = 10%\n[host 1]\nhuge_pages = require\n"
    yield "[quota]\ndevice = 50%\nhost = unlimited\nsessions = 3\nleases = 5\nwaiting = 7\nreplies = 64MiB\nkept = 24GiB\n"
    yield "[quota user:inference]\ndevice = 1GiB\n[quota group:training]\nhost = 10%\n[daemon]\ngroup = gpupool\n"
    yield "[device 3]\nallow = group:training, user:inference\nallow = user:1000\n[host]\nallow = all\n"
    yield "\ufeff[daemon]\nlog_level: debug\n"
    yield "[daemon]\nsocket =\n  /run/a\n"
    yield "socket = /run/a\n"
    yield "[daemon]\n; " + 300 * "x" + "\nlog_level = error\n"
    yield "[daemon]\nsocket = /" + 300 * "x" + "\n"
    yield "[daemon\nnothing\n"
    yield "[device]\nlimit = 4GB # half\nlimt = 1\n[devcie 0]\nlimit = 1GiB\n[daemon] gpu = sim\nsocket =\n"


def lines():
    yield '{"command":"ping"}\n{"command":"stats"}\n{"command":"pools"}\n{"command":"sessions"}\n{"command":"quota"}\n{"command":"config"}\n{"command":"reload"}\n'
    yield '{"command":"trim"}\n{"command":"trim","pool":1}\n{"command":"trim","pool":7}\n'
    yield '{"command":"names"}\n{"command":"unpublish","name":"kept"}\n{"command":"names"}\n{"command":"channels"}\n{"command":"sharing"}\n{"command":"leases"}\n'
    yield '{"command":"unpublish","name":"kept","uid":1}\n{"command":"unpublish","name":"kept","scope":"a"}\n{"command":"unpublish"}\n'
    yield '{"command":"stats","pool":1}\n{"command":"nothing"}\n{"command":1}\n{"pool":1}\n[]\n{}\n\n'
    yield '{"command":"st\\u0061ts"}\n{"command":"trim","pool":01}\n{"command":"trim","pool":1e400}\n'
    yield '{"command":"ping","command":"ping"}\n{"Command":"ping"}\n{"command":"ping"} x\n{"command":"ping\\u0000"}\n'
    yield '{"command":"trim","pool":9007199254740993}\n{"command":"trim","pool":-1}\n{"command":"trim","pool":1.5}\n'
    yield '{"a":[[[[[[1]]]]]]}\n \t{ "command" :\t"ping" }\r\n'
    yield b'{"command":"\xff"}\n{"command":"\xed\xa0\x80"}\n{"comm\x01and":"ping"}\n'


# Steps of operations.c, as it reads them.


def connect(client, process, flags=0, user=0):
    return bytes([0, client, process, flags + 32 * user])


def acquire(client, pool, blocks, timeout=1):
    return bytes([2, client, 0, 0, pool - 1, 1]) + struct.pack("<H", blocks) + bytes([timeout])


def give_back(client, name, part=None, fence=None, one_way=False):
    steps = bytes([2, client, 1, (1 if part else 0) + (2 if fence else 0) + (16 if one_way else 0), name])
    if part:
        steps += bytes([1, part[0], part[1], 1])
    if fence:
        steps += bytes([fence[0], fence[1]])
    return steps


def split(client, name, offset, size):
    return bytes([2, client, 8, 0, name, 1, offset, size, 1])


def merge(client, one, other):
    return bytes([2, client, 9, one, other])


def share(client, name):
    return bytes([2, client, 4, name, 0, 0])


def plain(client, index, *more):
    return bytes([2, client, index, *more])


ASK_PAGE, LIST, BYE, ATTACH, QUERY, OPENED, IDLE, CLOSED, ACQUIRE_SEGMENTS, OFFER = 10, 12, 11, 5, 6, 7, 15, 16, 19, 20
ASK_BOARD, CANCEL = 21, 26
WRITE_DIRECTORY, PUBLISH, UNPUBLISH, OPEN_NAME, READ_DIRECTORY, LIST_NAMES = 30, 31, 32, 33, 34, 35
MAKE_CHANNEL, JOIN_CHANNEL, LEAVE_CHANNEL, ASK_CHANNEL_MEMORY = 36, 37, 38, 39
DEVICE, HOST = 1, 2


def behave(client):
    return bytes([10, client])


def jobs():
    return bytes([12, 3])


def word(client, number, value):
    return bytes([18, client, 0, number, 0, value])


def passes(which):
    return bytes([17, which])


def admin(line):
    return bytes([21, 0, 0]) + bytes([22, 0, line]) + bytes([23, 1, 0, 1])


def operations():
    begin = connect(0, 0, 2) + jobs() + behave(0)
    two = begin + connect(1, 1, 2) + behave(1)

    def lease(client, pool, blocks):
        return acquire(client, pool, blocks) + jobs() + behave(client)

    for pool in (DEVICE, HOST):
        yield begin + lease(0, pool, 8) + plain(0, QUERY, 0) + give_back(0, 0) + plain(0, BYE)
        yield begin + lease(0, pool, 64) + give_back(0, 0, part=(8, 8)) + behave(0) + give_back(0, 0, part=(16, 4)) + behave(0)
        yield begin + lease(0, pool, 64) + split(0, 0, 32, 32) + behave(0) + merge(0, 0, 1) + behave(0) + give_back(0, 0)
        yield begin + lease(0, pool, 8) + lease(0, pool, 8) + lease(0, pool, 8) + merge(0, 0, 1) + merge(0, 0, 2) + behave(0)
        yield two + lease(0, pool, 8) + share(0, 0) + behave(0) + plain(1, ATTACH, 0) + behave(1) + give_back(0, 0) + give_back(1, 0)
        yield two + lease(0, pool, 8) + share(0, 0) + behave(0) + plain(1, ATTACH, 0) + behave(1) + bytes([15, 0, 1, 16, 0])
        yield (
            begin + plain(0, ASK_PAGE) + behave(0) + lease(0, pool, 8) + give_back(0, 0, fence=(0, 3)) + behave(0)
            + lease(0, pool, 8) + word(0, 0, 3) + passes(1) + lease(0, pool, 8)
        )  # fmt: skip
        yield (
            begin + plain(0, ASK_PAGE) + behave(0) + lease(0, pool, 64) + give_back(0, 0, part=(0, 8), fence=(1, 1))
            + give_back(0, 0, part=(16, 8), fence=(1, 2), one_way=True) + give_back(0, 0, fence=(2, 1)) + behave(0)
            + word(0, 1, 1) + passes(0) + word(0, 1, 2) + word(0, 2, 1) + plain(0, LIST) + passes(2) + behave(0)
        )  # fmt: skip
        for user in (0, 1):
            full = begin + 9 * lease(0, pool, 4096) + connect(1, 1, 2, user=user) + acquire(1, pool, 4096, timeout=1) + passes(2)
            yield full + give_back(0, 0) + give_back(0, 1) + give_back(0, 2) + passes(2) + jobs() + behave(1)
            yield full + bytes([15, 0, 1]) + passes(2) + jobs() + behave(1) + bytes([16, 0]) + passes(2) + jobs() + behave(1)
            yield full + plain(0, BYE) + jobs() + passes(3) + jobs() + behave(1)
            yield full + bytes([14, 0]) + passes(3) + jobs() + behave(1)
        yield begin + bytes([19, 0]) + lease(0, pool, 8) + passes(3) + jobs() + behave(0)
        yield begin + lease(0, pool, 8) + give_back(0, 0) + admin(1) + jobs() + admin(0) + lease(0, pool, 8)
    # The device's pool at its limit, and one waits: for a session to close what it has idle, without GPU work or with.
    for busy in (0, 3):
        kept = begin + lease(0, DEVICE, 16384) + lease(0, DEVICE, 16384) + connect(1, 1, 2, user=1) + behave(1)
        waits = kept + acquire(1, DEVICE, 8192) + give_back(0, 0) + give_back(0, 1) + passes(2) + behave(0)
        told = waits + plain(0, IDLE, busy, 0, 0) + behave(0) + plain(0, IDLE, busy, 0, 0) + behave(0)
        yield told + plain(0, CLOSED, 0) + jobs() + plain(0, CLOSED, 0) + jobs() + passes(2) + jobs() + behave(1)
        yield told + bytes([15, 0, 1]) + passes(2) + jobs() + bytes([16, 0]) + passes(2) + jobs() + behave(1)
    for pool in (0, 1, 2):
        yield begin + plain(0, ACQUIRE_SEGMENTS, pool, 2, 0) + behave(0) + plain(0, ACQUIRE_SEGMENTS, pool, 2, 7, 2, 9) + behave(0)
        yield begin + lease(0, DEVICE, 64) + give_back(0, 0) + plain(0, OFFER, pool) + behave(0) + plain(0, OFFER, pool + 63) + behave(0)
    idle = begin + lease(0, DEVICE, 64) + give_back(0, 0) + behave(0) + plain(0, IDLE, 0, 1, 0, 0x70) + behave(0)
    yield idle + plain(0, CLOSED, 0) + jobs() + lease(0, DEVICE, 0x6000)
    yield idle + lease(0, DEVICE, 0x2000) + plain(0, CLOSED, 0) + plain(0, CLOSED, 0) + behave(0)
    yield idle + acquire(0, DEVICE, 0x2000, timeout=4) + behave(0) + acquire(0, DEVICE, 8, timeout=4) + behave(0)
    no_gpu = connect(0, 0, 192) + jobs() + behave(0) + lease(0, HOST, 64) + give_back(0, 0, part=(0, 8)) + behave(0)
    yield no_gpu + bytes([15, 0, 1]) + passes(2) + connect(1, 1, 2) + behave(1) + lease(1, HOST, 64)
    yield no_gpu + lease(0, DEVICE, 8) + bytes([15, 0, 1]) + passes(2) + connect(1, 1, 2) + behave(1) + lease(1, HOST, 64)
    two_parts = begin + lease(0, DEVICE, 8) + lease(0, DEVICE, 8) + lease(0, DEVICE, 8) + lease(0, DEVICE, 8)
    yield two_parts + merge(0, 0, 1) + merge(0, 2, 3) + behave(0) + merge(0, 3, 2) + behave(0)
    hasty = begin + acquire(0, HOST, 4096) + jobs() + acquire(0, HOST, 4096) + jobs() + plain(0, LIST)
    yield hasty + bytes([9, 0, 15]) + passes(0)
    yield hasty + bytes([9, 0, 15]) + plain(0, OPENED, 0) + bytes([9, 0, 15]) + plain(0, OPENED, 0) + bytes([9, 0, 15])
    # Names a, b, c; the byte that chooses one chooses flags and timeout, too.
    built, awaited, changed, kept, withdrawn, given_up = 6, 18, 24, 4, 0, 66
    for pool in (DEVICE, HOST):
        published = two + plain(0, OPEN_NAME, built) + behave(0) + plain(1, OPEN_NAME, awaited) + lease(0, pool, 8)
        published += plain(0, WRITE_DIRECTORY, 0) + plain(0, PUBLISH, 0, 1, 0, 0) + behave(0) + behave(1)
        read = published + plain(1, READ_DIRECTORY, 0) + plain(1, READ_DIRECTORY, 12) + plain(1, ATTACH, 0) + behave(1)
        yield read + plain(1, LIST_NAMES, 0) + give_back(0, 0) + plain(1, OPEN_NAME, changed) + plain(0, BYE) + behave(1)
        yield read + plain(1, UNPUBLISH, withdrawn) + give_back(1, 0) + give_back(0, 0) + behave(1)
        yield read + bytes([15, 0, 1]) + passes(2) + behave(1) + bytes([16, 0]) + passes(2) + behave(1)
        yield published + plain(0, PUBLISH, kept, 0, 0, 5) + plain(0, ASK_BOARD) + behave(0) + plain(0, PUBLISH, kept, 0, 0, 4) + plain(0, BYE)
    yield two + plain(0, OPEN_NAME, built) + plain(1, OPEN_NAME, 22) + plain(0, UNPUBLISH, given_up) + behave(0) + behave(1)
    yield two + plain(0, OPEN_NAME, built) + plain(1, OPEN_NAME, 22) + bytes([15, 0, 1]) + behave(1)
    yield begin + plain(0, OPEN_NAME, 33) + passes(2) + passes(3) + plain(0, OPEN_NAME, awaited) + plain(0, CANCEL, 0) + behave(0)
    # A channel a of the first lease: one byte chooses name, place and timeout. Then pages, also of a stranger's asking.
    pages = b"".join(plain(client, ASK_CHANNEL_MEMORY, page) + behave(client) for client in (0, 1) for page in (0, 1, 2))
    for pool in (DEVICE, HOST):
        for kept in (0, 33):
            made = two + lease(0, pool, 64) + plain(0, MAKE_CHANNEL, 0, kept) + plain(0, JOIN_CHANNEL, 0) + behave(0)
            joined = made + plain(1, JOIN_CHANNEL, 6) + behave(1) + plain(1, ATTACH, 0) + behave(1)
            yield joined + pages + plain(1, LEAVE_CHANNEL, 1) + plain(0, LEAVE_CHANNEL, 0) + behave(0) + behave(1)
            yield joined + bytes([15, 0, 1]) + plain(1, JOIN_CHANNEL, 48) + passes(2) + behave(1) + bytes([16, 0]) + passes(2) + behave(1)
            yield joined + plain(1, UNPUBLISH, withdrawn) + pages + give_back(0, 0) + plain(0, BYE) + behave(1) + plain(1, BYE)
        yield two + plain(1, JOIN_CHANNEL, 18) + lease(0, pool, 64) + plain(0, MAKE_CHANNEL, 0, 0) + behave(1) + pages + plain(1, OPEN_NAME, 0)
    yield connect(0, 0, 1) + passes(4) + passes(4)
    yield connect(0, 0, 4) + 40 * plain(0, LIST) + behave(0)
    yield connect(0, 0, 8) + jobs() + lease(0, DEVICE, 8) + bytes([15, 0, 0])
    yield begin + bytes([8, 0, 7, 24]) + bytes(24) + behave(0)
    yield begin + bytes([20, 0, 4, 1, 2, 2]) + lease(0, DEVICE, 8192) + bytes([20, 0, 23, 1, 4, 4]) + jobs() + behave(0)


# Calls of client.c, each with its answers. Answers that no call reads become the next calls.

WELL, DISTORTED, REFUSED, WRONG_FDS, BYTES, LATE = 0, 9, 12, 13, 14, 15


def take(slot, pool, blocks, stream=0, timeout=0, answers=bytes([WELL] * 2)):
    return bytes([0, slot, 0, pool - 1, 0]) + struct.pack("<H", blocks * 32) + bytes([timeout, stream]) + answers


def give(slot, stream=0, answers=b""):
    return bytes([4, slot, stream]) + answers


def clients():
    host, device = 1, 2
    for flags in (0, 1, 5):
        begin = bytes([flags] + [WELL] * (1 if flags & 1 else 2))
        for pool in (host, device):
            yield begin + take(0, pool, 8) + give(0) + take(1, pool, 8) + bytes([11]) + bytes([WELL] * 4)
            yield begin + take(0, pool, 8, 1) + give(0, 1) + take(1, pool, 8, 0) + give(1, 1) + bytes([11]) + bytes([WELL] * 4)
            yield begin + take(0, pool, 8) + take(1, pool, 16) + bytes([8, 0, WELL, WELL, 9, 2, 0, WELL, 10, 0, WELL, 7, 1, 0, 1, 1, WELL])
            yield begin + take(0, pool, 8) + bytes([12, WELL, WELL, 13, WELL, WELL])
            yield begin + bytes([14, 0, pool - 1, 0, 0, 1, 1, WELL, WELL, WELL, 15, 0, 1, 11, WELL, WELL])
            yield begin + take(0, pool, 8, answers=bytes([WELL, LATE, 1])) + take(1, pool, 8) + bytes([WELL] * 4)
            for manner in (DISTORTED, REFUSED, WRONG_FDS, BYTES):
                yield begin + take(0, pool, 8, answers=bytes([WELL, manner, 1, 1, 1])) + take(1, pool, 8)
                yield begin + take(0, pool, 8) + give(0, 1) + bytes([11, manner, 0, 1, 2, 3])
            yield begin + take(0, pool, 8, 1) + take(1, pool, 8, 1) + give(0, 0) + give(1, 0) + 9 * take(2, pool, 1000, 1) + bytes(16)
    yield bytes([2, WELL, WELL]) + take(0, host, 8) + take(1, device, 8)


def write(directory, inputs, prefix=b""):
    directory.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(inputs):
        content = content.encode() if isinstance(content, str) else content
        (directory / f"seed-{number:03}").write_bytes(prefix + content)


def main():
    root = pathlib.Path(sys.argv[1])
    write(root / "frames", frames(), prefix=b"\1")
    write(root / "configuration", configurations())
    write(root / "admin_json", lines())
    write(root / "operations", operations())
    write(root / "client", clients())


if __name__ == "__main__":
    main()
