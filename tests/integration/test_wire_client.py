# SPDX-License-Identifier: Apache-2.0
"""The example `wire_client.py`, which knows the daemon from docs/wire.md alone: what it prints, what it says where something is
wrong, and the exchanges of that page, against a daemon without a GPU."""
import contextlib
import fcntl
import mmap
import os
import pathlib
import re
import resource
import select
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["GPUPOOL_SOURCE"])
EXAMPLE = SOURCE / "client/examples/wire_client.py"
sys.path[:0] = [str(SOURCE / "tests/system"), str(EXAMPLE.parent)]
import gpupool_system  # noqa: E402
import wire_client  # noqa: E402
from wire_client import DaemonError, ProtocolError, Session  # noqa: E402

WAIT_S = 120
ASK_BOARD, ASK_HOLDERS, SEND, REVOKE, ASK_ALIVE, HOLDERS = 19, 21, 22, 23, 27, 76
CANCEL, WRITE_DIRECTORY, PUBLISH, OPEN_NAME, READ_DIRECTORY, LIST_NAMES = 24, 28, 29, 31, 32, 33
PUBLISHED, NAMED, DIRECTORY, NAMES = 78, 79, 80, 81
OPEN_NAME_BUILD = 1
UNHEARD_MAX, HOLDERS_ASKS = 32, 8  # the page's, which docs/wire compares with the sources
MIB = 1 << 20
CONFIG = "[host]\nlimit = 16MiB\nlow_water = 0\n"


def run_example(*arguments, environment=None):
    variables = {name: value for name, value in os.environ.items() if name != "GPUPOOL_SOCKET"}
    return subprocess.run([sys.executable, EXAMPLE, *arguments], check=False, capture_output=True, text=True,
                          env={**variables, **(environment or {})}, timeout=WAIT_S)


class Program(unittest.TestCase):
    def test_it_borrows_shares_and_gives_back(self):
        with gpupool_system.Daemon(CONFIG, gpu="none") as daemon:
            done = run_example(daemon.socket)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = done.stdout.splitlines()
            self.assertIn("the other session reads: hello", lines)
            self.assertIn("gave back 524288 bytes of 1048576", lines)
            self.assertEqual(lines[-1], "farewell")
            stats = daemon.ask("stats")
            self.assertEqual(stats["sessions"], [])
            self.assertEqual([pool["leased_bytes"] for pool in stats["pools"]], [0] * len(stats["pools"]))
            by_variable = run_example(environment={"GPUPOOL_SOCKET": str(daemon.socket)})
            self.assertEqual(by_variable.returncode, 0, by_variable.stderr)

    def test_no_daemon_is_said_with_what_to_look_at(self):
        with tempfile.TemporaryDirectory(prefix="gpupool-wire-") as directory:
            done = run_example(f"{directory}/none.sock")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("none.sock: No such file or directory; is gpupoold running?", done.stderr)

    def test_a_refusal_is_said_with_the_daemons_words(self):
        with gpupool_system.Daemon("[host]\nlimit = 0\n", gpu="none") as daemon:
            done = run_example(daemon.socket)
        self.assertEqual(done.returncode, 1)
        self.assertIn("TOO_LARGE: ", done.stderr)


def exchange(number):
    """A test of an exchange of docs/wire.md."""
    def note(test):
        test.exchange = number
        return test
    return note


class Exchanges(unittest.TestCase):
    """Each has a daemon of its own, with a pool of 16 MiB, and a session A."""

    def setUp(self):
        self.daemon = gpupool_system.Daemon(CONFIG, gpu="none")
        self.addCleanup(self.daemon.close)
        self.a = self.connect()
        self.pool = self.a.host_pool()

    def connect(self, **arguments):
        session = Session(str(self.daemon.socket), timeout_s=WAIT_S, **arguments)
        self.addCleanup(session.close)
        return session

    def limit_bytes(self):
        return self.a.pools()[0]["limit_bytes"]

    def leased_bytes(self, session):
        return session.pools()[0]["leased_bytes"]

    @contextlib.contextmanager
    def refused(self, error):
        with self.assertRaises(DaemonError) as raised:
            yield
        self.assertEqual(wire_client.ERRORS[raised.exception.code], error)
        self.assertNotEqual(raised.exception.text, "")

    def expect_end_of_file(self, session):
        with self.assertRaisesRegex(ProtocolError, "closed the connection"):
            session.receive()

    def query(self, lease):
        body = lease.session.ask(wire_client.QUERY, struct.pack("<QQ", lease.id, lease.generation), wire_client.INFO)
        return dict(zip(("segment", "offset", "size", "capacity", "pool", "holders", "shared"), struct.unpack("<4Q4I", body)))

    def acquire_packet(self, size, timeout_ns):
        return struct.pack("<IIQQQ", self.pool, 0, size, 0, timeout_ns)

    @exchange(1)
    def test_greeting(self):
        self.assertEqual((self.a.version, self.a.gpu), (2, 0))
        self.assertEqual(self.connect(version=1).version, 1)
        self.assertEqual(self.a.daemon_pid, self.daemon.process.pid)

    @exchange(2)
    def test_pools(self):
        pools = self.a.pools()
        self.assertGreaterEqual(len(pools), 1)
        self.assertEqual({(pool["kind"], pool["device"], pool["uuid"]) for pool in pools}, {(2, -1, bytes(16))})

    @exchange(3)
    def test_first_lease(self):
        self.a.send(wire_client.ACQUIRE, 77, self.acquire_packet(1000, wire_client.FOREVER))
        operation, request, body, descriptor = self.a.receive()
        self.addCleanup(os.close, descriptor)
        self.assertEqual((operation, request, len(body)), (wire_client.LEASE, 77, 144))
        _, _, segment, offset, size, capacity, pool, _ = wire_client.LEASE_BODY.unpack_from(body)
        self.assertEqual((size, capacity, pool), (1000, 1024, self.pool))
        described, segment_size, described_pool, kind, handle = wire_client.DESCRIPTION.unpack_from(body, 56)
        self.assertEqual((described, described_pool, kind, handle), (segment, self.pool, 2, bytes(64)))
        self.assertEqual(segment_size % (2 * MIB), 0)
        self.assertEqual(os.fstat(descriptor).st_size, segment_size)
        self.assertEqual(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & wire_client.SEALS, wire_client.SEALS)
        self.a.send(wire_client.OPENED, 0, struct.pack("<Q", segment))
        with mmap.mmap(descriptor, segment_size) as memory:
            self.assertEqual(memory[offset:offset + size], bytes(size))
            memory[offset:offset + 5] = b"hello"
            self.assertEqual(memory[offset:offset + 5], b"hello")

    @exchange(4)
    def test_second_lease(self):
        first, second = self.a.acquire(self.pool, 1000), self.a.acquire(self.pool, 1000)
        self.assertEqual(first.segment, second.segment)
        self.assertEqual(len(self.a.segments), 1)  # a second description would have been a second mapping
        self.assertGreaterEqual(abs(first.offset - second.offset), 1024)
        self.assertNotEqual((first.id, first.generation), (second.id, second.generation))

    @exchange(5)
    def test_opened_lets_replies_go(self):
        self.a.send(wire_client.ACQUIRE, 1000, self.acquire_packet(1000, wire_client.FOREVER))
        operation, _, body, descriptor = self.a.receive()
        self.assertEqual(operation, wire_client.LEASE)
        os.close(descriptor)
        self.a.send(wire_client.LIST_POOLS, 1001)
        with self.connect() as other:  # the daemon has dealt with what was sent before
            other.pools()
        self.assertEqual(select.select([self.a.socket], [], [], 0)[0], [])
        self.a.send(wire_client.OPENED, 0, body[16:24])
        operation, request, _, _ = self.a.receive()
        self.assertEqual((operation, request), (wire_client.POOLS, 1001))

    @exchange(6)
    def test_parts(self):
        lease = self.a.acquire(self.pool, 4096)
        with self.refused("INVALID"):
            self.a.release(lease, 1, 512)
        self.a.release(lease, 512, 512)
        with self.refused("INVALID"):
            self.a.release(lease, 512, 512)
        self.assertEqual(self.query(lease)["capacity"], 4096)
        self.assertEqual(self.leased_bytes(self.a), 4096 - 512)

    @exchange(7)
    def test_release(self):
        lease = self.a.acquire(self.pool, 4096)
        self.a.release(lease)
        with self.refused("STALE"):
            self.a.release(lease)

    @exchange(8)
    def test_sharing(self):
        b = self.connect()
        lease = self.a.acquire(self.pool, 4096)
        lease.memory[:5] = b"hello"
        token = self.a.share(lease)
        self.assertEqual(self.a.share(lease), token)
        attached = b.attach(token)
        self.assertEqual(bytes(attached.memory[:5]), b"hello")
        with self.refused("SHARED"):
            self.a.release(lease, 0, 512)
        self.a.release(lease)
        self.assertEqual(bytes(attached.memory[:5]), b"hello")
        info = self.query(attached)
        self.assertEqual((info["holders"], info["shared"]), (1, 1))
        with self.refused("SHARED"):
            b.release(attached, 0, 512)
        b.release(attached)
        with self.refused("NO_TOKEN"):
            b.attach(token)

    @exchange(9)
    def test_no_room(self):
        limit = self.limit_bytes()
        with self.refused("TOO_LARGE"):
            self.a.acquire(self.pool, limit + 1)
        self.a.acquire(self.pool, limit)
        with self.refused("EXHAUSTED"):
            self.a.acquire(self.pool, 512, timeout_ns=0)

    @exchange(10)
    def test_waiting(self):
        lease = self.a.acquire(self.pool, self.limit_bytes())
        self.a.send(wire_client.ACQUIRE, 5000, self.acquire_packet(512, wire_client.FOREVER))
        self.a.send(wire_client.LIST_POOLS, 5001)
        self.assertEqual(self.a.receive()[:2], (wire_client.POOLS, 5001))
        self.a.send(wire_client.RELEASE, 5002, struct.pack("<QQQQIIQQ", lease.id, lease.generation, 0, 0, 0, 0, 0, 0))
        self.assertEqual({self.a.receive()[:2] for _ in range(2)}, {(wire_client.OK, 5002), (wire_client.LEASE, 5000)})

    @exchange(11)
    def test_split_and_merge(self):
        lease = self.a.acquire(self.pool, 8192)
        body = self.a.ask(wire_client.SPLIT, struct.pack("<QQQQIIQQ", lease.id, lease.generation, 4096, 4096, 0, 0, 0, 0), wire_client.LEASE)
        upper, generation, segment, offset, size, capacity = wire_client.LEASE_BODY.unpack_from(body)[:6]
        self.assertEqual((segment, offset, size, capacity), (lease.segment, lease.offset + 4096, 4096, 4096))
        self.assertEqual(self.query(lease)["capacity"], 4096)
        self.a.ask(wire_client.MERGE, struct.pack("<4Q", lease.id, lease.generation, upper, generation), wire_client.OK)
        with self.refused("STALE"):
            self.a.ask(wire_client.QUERY, struct.pack("<QQ", upper, generation), wire_client.INFO)
        self.assertEqual(self.query(lease)["capacity"], 8192)
        later, b = self.connect(), self.connect()
        lease = later.acquire(self.pool, 8192)
        lease.memory[4096:4101] = b"hello"
        reply = later.ask(wire_client.SHARE, struct.pack("<5Q", lease.id, lease.generation, 4096, 4096, 0), wire_client.TOKEN)
        token, upper, generation = struct.unpack("<32sQQ", reply)
        self.assertEqual(bytes(b.attach(token).memory[:5]), b"hello")
        later.ask(wire_client.QUERY, struct.pack("<QQ", upper, generation), wire_client.INFO)

    @exchange(12)
    def test_one_way(self):
        lease = self.a.acquire(self.pool, 4096)
        before = self.leased_bytes(self.a)
        self.a.send(wire_client.RELEASE, 0, struct.pack("<QQQQIIQQ", lease.id, lease.generation, 0, 0, 0, 0, 0, 0))
        self.assertEqual(self.leased_bytes(self.a), before - 4096)  # the next message was POOLS

    @exchange(13)
    def test_fence(self):
        self.a.send(wire_client.ASK_PAGE, 6000)
        operation, request, body, descriptor = self.a.receive()
        self.addCleanup(os.close, descriptor)
        self.assertEqual((operation, request, body), (wire_client.PAGE, 6000, struct.pack("<II", 65536, 0)))
        self.assertEqual(os.fstat(descriptor).st_size, 65536)
        self.assertEqual(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & wire_client.SEALS, wire_client.SEALS)
        lease = self.a.acquire(self.pool, self.limit_bytes())
        behind = struct.pack("<QQQQIIQQ", lease.id, lease.generation, 0, 0, 1, 0, 1, 0)
        self.a.ask(wire_client.RELEASE, behind, wire_client.OK)
        with self.refused("STALE"):
            self.a.ask(wire_client.RELEASE, behind, wire_client.OK)
        with self.refused("EXHAUSTED"):
            self.a.acquire(self.pool, 512, timeout_ns=0)
        with mmap.mmap(descriptor, 65536) as page:
            page[0:8] = struct.pack("<Q", 1)
        self.assertEqual(self.a.acquire(self.pool, 512, timeout_ns=0).size, 512)

    @exchange(14)
    def test_broken_packet(self):
        with self.assertRaisesRegex(DaemonError, r"^INVALID: ACQUIRE\.size_bytes: .*; the session ends$"):
            self.a.acquire(self.pool, 0)
        self.expect_end_of_file(self.a)

    @exchange(15)
    def test_farewell(self):
        other = self.connect()
        before = self.leased_bytes(other)
        lease = self.a.acquire(self.pool, 4096)
        self.assertEqual(self.leased_bytes(other), before + 4096)
        lease.memory.release()
        self.a.unmap()
        self.a.ask(wire_client.BYE, b"", wire_client.OK)
        self.expect_end_of_file(self.a)
        self.assertEqual(self.leased_bytes(other), before)

    @exchange(17)
    def test_sending(self):
        def send(session, lease):
            body = struct.pack("<6QII", lease.id, lease.generation, 0, 0, 0, 60_000_000_000, 1, 0)
            return session.ask(SEND, body, wire_client.TOKEN)[:32]

        a, b = self.connect(), self.connect()
        lease = a.acquire(self.pool, 4096)
        lease.memory[:5] = b"hello"
        token = send(a, lease)
        a.release(lease)
        a.bye()
        attached = b.attach(token)
        self.assertEqual(bytes(attached.memory[:5]), b"hello")
        with self.refused("NO_TOKEN"):
            b.attach(token)
        token, other = send(b, attached), self.connect()
        other.ask(REVOKE, token, wire_client.OK)
        with self.refused("NO_TOKEN"):
            other.ask(REVOKE, token, wire_client.OK)
        with self.refused("NO_TOKEN"):
            other.attach(token)
        b.release(attached)

    @exchange(18)
    def test_releases_in_order(self):
        a, b = self.connect(), self.connect()
        leases = [a.acquire(self.pool, 4096) for _ in range(UNHEARD_MAX)]
        attached = [b.attach(a.share(lease)) for lease in leases]
        b.send(ASK_BOARD, 9001)
        operation, _, body, board = b.receive()
        self.addCleanup(os.close, board)
        self.assertEqual((operation, struct.unpack_from("<I", body)[0]), (wire_client.BOARD, 1 << 20))
        self.assertEqual((os.fstat(board).st_size, fcntl.fcntl(board, fcntl.F_GET_SEALS) & wire_client.SEALS),
                         (1 << 20, wire_client.SEALS))
        for lease in attached:
            lease.memory.release()
            b.send(wire_client.RELEASE, 0, struct.pack("<QQQQIIQQ", lease.id, lease.generation, 0, 0, 0, 1, 0, 0))
        name = struct.pack("<QQ", leases[-1].id, leases[-1].generation)
        holding = [struct.unpack_from("<I", a.ask(ASK_HOLDERS, name, HOLDERS))[0] for _ in range(HOLDERS_ASKS)]
        self.assertEqual(holding[-1], 0, holding)

    @exchange(19)
    def test_alive(self):
        self.a.send(ASK_ALIVE, 9001)
        operation, request, body, pipe = self.a.receive()
        self.addCleanup(os.close, pipe)
        self.assertEqual((operation, request, body), (wire_client.ALIVE, 9001, b""))
        self.assertTrue(stat.S_ISFIFO(os.fstat(pipe).st_mode))
        end = select.poll()
        end.register(pipe, 0)
        self.assertEqual(end.poll(0), [])
        with self.assertRaises(PermissionError) if os.geteuid() != 0 else contextlib.nullcontext():
            os.close(os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK))
        old = self.connect(version=1)
        with self.refused("INVALID"):
            old.ask(ASK_ALIVE, b"", wire_client.ALIVE)
        self.expect_end_of_file(old)
        self.daemon.close()
        self.assertEqual(end.poll(WAIT_S * 1000), [(pipe, select.POLLHUP)])

    @exchange(20)
    def test_names(self):
        def name(text):
            return text.encode().ljust(128, b"\0")

        def open_name(session, text, timeout_ns, flags=0):
            return session.ask(OPEN_NAME, name(text) + struct.pack("<QQII", 0, timeout_ns, flags, 0), NAMED)

        a, b = self.connect(version=3), self.connect(version=3)
        self.assertEqual(struct.unpack_from("<I", open_name(a, "data", 0, OPEN_NAME_BUILD))[0], 2)
        b.send(OPEN_NAME, 9001, name("data") + struct.pack("<QQII", 0, wire_client.FOREVER, 0, 0))
        b.pools()
        directory = os.urandom(20_000)
        for offset in (0, 10_000):
            a.ask(WRITE_DIRECTORY, struct.pack("<II", offset, 10_000) + directory[offset:offset + 10_000], wire_client.OK)
        lease = a.acquire(self.pool, 4096)
        lease.memory[:5] = b"hello"
        buffer = struct.pack("<QQQIIQII", lease.id, lease.generation, 4096, 0, 0, 0, 0, 0)
        body = name("data") + struct.pack("<IIIIQ", 0, 1, len(directory), 0, 7) + buffer + bytes(48 * 63)
        generation, = struct.unpack("<Q", a.ask(PUBLISH, body, PUBLISHED))
        operation, request, named, _ = b.receive()
        self.assertEqual((operation, request), (NAMED, 9001))
        self.assertEqual(struct.unpack_from("<IIQQQII", named), (1, 0, generation, 7, a.id, 1, len(directory)))
        read = b""
        while len(read) < len(directory):
            part = b.ask(READ_DIRECTORY, name("data") + struct.pack("<QII", generation, len(read), 0), DIRECTORY)
            self.assertEqual(struct.unpack_from("<II", part), (len(read), len(part) - 8))
            read += part[8:]
        self.assertEqual(read, directory)
        attached = b.attach(named[40:72])
        self.assertEqual(bytes(attached.memory[:5]), b"hello")
        names = b.ask(LIST_NAMES, struct.pack("<Q", 0), NAMES)
        self.assertEqual((struct.unpack_from("<II", names), names[56:56 + 128]), ((1, 0), name("data")))
        lease.memory.release()
        a.bye()
        with self.refused("NO_NAME"):
            open_name(b, "data", 0)
        self.assertEqual(bytes(attached.memory[:5]), b"hello")
        b.send(OPEN_NAME, 9002, name("data") + struct.pack("<QQII", 0, wire_client.FOREVER, 0, 0))
        b.send(CANCEL, 0, struct.pack("<Q", 9002))
        operation, request, body, _ = b.receive()
        self.assertEqual((operation, request, struct.unpack_from("<I", body)[0]), (wire_client.ERROR, 9002, 13))
        old = self.connect(version=2)
        with self.refused("INVALID"):
            old.ask(LIST_NAMES, struct.pack("<Q", 0), NAMES)
        self.expect_end_of_file(old)

    @exchange(16)
    def test_lost_descriptor(self):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        first_free = os.dup(self.a.socket.fileno())
        os.close(first_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, limits[1]))
        try:
            with self.assertRaisesRegex(ProtocolError, "a descriptor was cut"):
                self.a.acquire(self.pool, 1000)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.a.close()
        self.assertEqual(self.connect().acquire(self.pool, 1000).size, 1000)


class SimulatedHandles(unittest.TestCase):
    """Device memory of a simulated GPU, opened as docs/wire.md says."""

    def open_handle(self, handle):
        magic, pid, _, _, reserved, nonce = struct.unpack_from("<QIIQQ16s", handle)
        self.assertEqual((magic, reserved), (0x3149504D49535047, 0))
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(link.close)
        link.settimeout(WAIT_S)
        link.connect(f"\0gpupool-sim/{pid}/{nonce.hex()}".encode())
        link.send(handle)
        answer, descriptors, _, _ = socket.recv_fds(link, 64, 1)
        error, reserved, size = struct.unpack("<IIQ", answer)
        self.assertEqual((error, reserved, len(descriptors)), (0, 0, 1))
        memory = mmap.mmap(descriptors[0], size)
        self.addCleanup(memory.close)
        os.close(descriptors[0])
        return memory

    def lease_and_memory(self, session, operation, body):
        reply = session.ask(operation, body, wire_client.LEASE)
        segment, size, _, kind, handle = wire_client.DESCRIPTION.unpack_from(reply, wire_client.LEASE_BODY.size)
        lease = wire_client.LEASE_BODY.unpack_from(reply)
        self.assertEqual((segment, kind), (lease[2], 1))
        memory = self.open_handle(handle)
        self.assertEqual(len(memory), size)
        return lease, memory

    def test_two_sessions_see_the_same_device_memory(self):
        with gpupool_system.Daemon() as daemon, Session(str(daemon.socket), WAIT_S, flags=0) as a, \
                Session(str(daemon.socket), WAIT_S, flags=0) as b:
            self.assertEqual(a.gpu, 2)
            pool = next(pool["id"] for pool in a.pools() if pool["kind"] == 1)
            lease, memory = self.lease_and_memory(
                a, wire_client.ACQUIRE, struct.pack("<IIQQQ", pool, 0, 4096, 0, wire_client.FOREVER))
            token = a.ask(wire_client.SHARE, struct.pack("<5Q", lease[0], lease[1], 0, 0, 0), wire_client.TOKEN)[:32]
            attached, seen = self.lease_and_memory(b, wire_client.ATTACH, token)
            self.assertEqual(attached[2:4], lease[2:4])
            memory[lease[3]:lease[3] + 5] = b"hello"
            self.assertEqual(seen[attached[3]:attached[3] + 5], b"hello")


class Page(unittest.TestCase):
    def test_each_exchange_of_the_page_is_played(self):
        text = (SOURCE / "docs/wire.md").read_text().split("## Exchanges\n", 1)[1].split("\n## ", 1)[0]
        titles = {int(number): title for number, title in re.findall(r"^(\d+)\. \*\*(.*?)\.\*\*", text, re.MULTILINE)}
        tests = {test.exchange: name.removeprefix("test_").replace("_", " ")
                 for name, test in vars(Exchanges).items() if hasattr(test, "exchange")}
        self.assertEqual({number: title.lower().replace("-", " ") for number, title in titles.items()}, tests)


if __name__ == "__main__":
    unittest.main()
