#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of gpupoold without the client library: the wire format of docs/wire.md, in Python's standard library alone.

    wire_client.py [SOCKET]

The program borrows host memory, writes to it, shares it with a second session, which reads it, and gives everything back: a part
first, then the rest. SOCKET is the daemon's data socket, by default $GPUPOOL_SOCKET, else /run/gpupool/gpupool.sock.

As a module it is a small client for host memory: one request at a time, one thread, no cache and no fences."""
import array
import contextlib
import errno
import fcntl
import mmap
import os
import socket
import struct
import sys

HELLO, LIST_POOLS, ACQUIRE, RELEASE, SHARE, ATTACH, QUERY, OPENED, BYE, SPLIT, ASK_PAGE, MERGE = range(1, 13)
HELLO_REPLY, POOLS, LEASE, OK, TOKEN, INFO, ERROR, PAGE = range(64, 72)
BOARD, ALIVE = 75, 77
ERRORS = ("", "INVALID", "VERSION", "NO_POOL", "TOO_LARGE", "EXHAUSTED", "STALE", "NO_TOKEN", "SHARED", "LIMIT", "DRIVER", "SHUTDOWN",
          "NO_MEMORY", "CANCELLED", "NO_NAME")

MAGIC = 0x4C505047  # "GPPL"
VERSION = 2
AGAIN = 1  # of a header: the message may have been sent before, by a daemon that ended then
HELLO_NO_GPU = 2  # no GPU works on what this process borrows: its end is the end of its work
PACKET_MAX = 16384
GRANULE = 512  # parts of a lease are multiples of this
POOL_HOST = 2
KIND_MEMFD = 2
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
FOREVER = 2**64 - 1

HEADER = struct.Struct("<HHIQ")  # operation, flags, length, request
POOL = struct.Struct("<IIii16s6Q64s")
LEASE_BODY = struct.Struct("<6QII")  # and a description
DESCRIPTION = struct.Struct("<QQII64s")


class DaemonError(Exception):
    """The daemon refused a request: an ERROR message."""

    def __init__(self, code, text):
        super().__init__(f"{ERRORS[code] if code < len(ERRORS) else code}: {text}")
        self.code, self.text = code, text


class ProtocolError(Exception):
    """The daemon sent something that does not check out, or ended the session. There is no session any more."""


class Lease:
    """A block of a segment. memory is a view of it; part of what memory shows may be given back by release()."""

    def __init__(self, session, fields, memory):
        self.session, self.memory = session, memory
        self.id, self.generation, self.segment, self.offset, self.size, self.capacity = fields


class Session:
    """One connection to the daemon."""

    def __init__(self, path, timeout_s=60.0, flags=HELLO_NO_GPU, version=VERSION):
        self.segments = {}  # mappings, by segment id: each is described once in a session
        self.last_request = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(path)
            body = self.ask(HELLO, struct.pack("<IHHII", MAGIC, 1, version, flags, 0), HELLO_REPLY)
            magic, self.version, self.gpu, self.id, self.daemon_pid, _ = struct.unpack_from("<IHHQII", body)
            if magic != MAGIC or self.version not in range(1, version + 1):
                raise ProtocolError(f"HELLO_REPLY is of version {self.version}")
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the session without a farewell, if it still lives: what it holds returns when this process has ended."""
        self.socket.close()
        with contextlib.suppress(BufferError):
            self.unmap()

    def unmap(self):
        """Closes the mappings of all segments: before a farewell."""
        for memory in self.segments.values():
            memory.close()  # BufferError: the view of a lease was not released
        self.segments.clear()

    # --- packets ---

    def send(self, operation, request, body=b""):
        self.socket.send(HEADER.pack(operation, 0, HEADER.size + len(body), request) + body)

    def receive(self):
        """One packet: operation, request, body, descriptor or None."""
        descriptors = array.array("i")
        space = socket.CMSG_SPACE(descriptors.itemsize)
        try:
            packet, ancillary, flags, _ = self.socket.recvmsg(PACKET_MAX, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # said once of a socket that was closed with packets of ours unread: the rest comes still
            packet, ancillary, flags, _ = self.socket.recvmsg(PACKET_MAX, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[:len(data) - len(data) % descriptors.itemsize])
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolError("a packet or a descriptor was cut: this process may have no descriptor left")
            if packet == b"":
                raise ProtocolError("the daemon has closed the connection")
            if len(packet) < HEADER.size or HEADER.unpack_from(packet)[2] != len(packet):
                raise ProtocolError("a packet of another length than its header says")
            operation, again, _, request = HEADER.unpack_from(packet)
            body = packet[HEADER.size:]
            expected = operation in (PAGE, BOARD, ALIVE) or (operation == LEASE
                                                      and DESCRIPTION.unpack_from(body, LEASE_BODY.size)[3] == KIND_MEMFD)
            if len(descriptors) != expected:
                raise ProtocolError(f"{len(descriptors)} descriptors with operation {operation}")
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        if again & AGAIN and request != self.last_request:  # its first copy has come
            for descriptor in descriptors:
                os.close(descriptor)
            return self.receive()
        return operation, request, body, descriptors[0] if expected else None

    def ask(self, operation, body, wanted):
        """Sends a request and waits for its answer. Returns the answer's body; a segment that it describes is mapped then."""
        self.last_request += 1
        try:
            self.send(operation, self.last_request, body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the daemon may have said why before it closed: read on
        got, request, reply, descriptor = self.receive()
        if got == ERROR:
            code, length = struct.unpack_from("<II", reply)
            text = reply[8:8 + length].decode()
            if request == 0:
                raise ProtocolError(f"the daemon ended the session: {text}")
            raise DaemonError(code, text)
        fits = got == wanted and request == self.last_request
        if fits and got == LEASE and descriptor is not None:
            self._open_segment(reply, descriptor)
        elif descriptor is not None:
            os.close(descriptor)
        if not fits:
            raise ProtocolError(f"operation {got} for request {request} answers operation {operation}")
        return reply

    # --- memory ---

    def _open_segment(self, reply, descriptor):
        """Maps a segment that is described for the first time, and tells the daemon that the descriptor has arrived: until then it
        sends nothing else."""
        segment, size, _, _, _ = DESCRIPTION.unpack_from(reply, LEASE_BODY.size)
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(descriptor).st_size != size:
                raise ProtocolError("a segment that is no sealed memfd of its size")
            memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            memory.madvise(mmap.MADV_DONTFORK)  # the daemon lends it to this process alone
        finally:
            os.close(descriptor)
        self.segments[segment] = memory
        self.send(OPENED, 0, struct.pack("<Q", segment))

    def _lease(self, operation, body):
        reply = self.ask(operation, body, LEASE)
        fields = LEASE_BODY.unpack_from(reply)
        segment, offset, size = fields[2:5]
        if segment not in self.segments:
            raise ProtocolError("a lease in a segment that was never described, or that is no host memory")
        return Lease(self, fields[:6], memoryview(self.segments[segment])[offset:offset + size])

    def pools(self):
        """The pools: dictionaries of their fields."""
        body = self.ask(LIST_POOLS, b"", POOLS)
        count, _ = struct.unpack_from("<II", body)
        names = ("id", "kind", "device", "numa_node", "uuid", "limit_bytes", "reserved_bytes", "leased_bytes", "free_bytes",
                 "quarantined_bytes", "largest_free_bytes", "name")
        pools = [dict(zip(names, POOL.unpack_from(body, 8 + i * POOL.size))) for i in range(count)]
        return [{**pool, "name": pool["name"].rstrip(b"\0").decode()} for pool in pools]

    def host_pool(self):
        for pool in self.pools():
            if pool["kind"] == POOL_HOST:
                return pool["id"]
        raise LookupError("the daemon has no host pool that this process may use")

    def acquire(self, pool, size, timeout_ns=FOREVER):
        """Borrows size bytes. DaemonError EXHAUSTED: there was no room within the time."""
        return self._lease(ACQUIRE, struct.pack("<IIQQQ", pool, 0, size, 0, timeout_ns))

    def attach(self, token):
        return self._lease(ATTACH, token)

    def share(self, lease):
        """A token, 32 bytes, with which sessions of the same user attach as long as a session holds the block."""
        return self.ask(SHARE, struct.pack("<5Q", lease.id, lease.generation, 0, 0, 0), TOKEN)[:32]

    def release(self, lease, offset=0, size=0):
        """Gives a lease back, or a part of it: offset and size in bytes, multiples of GRANULE. The caller stops using it before."""
        if size == 0:
            lease.memory.release()
        self.ask(RELEASE, struct.pack("<QQQQIIQQ", lease.id, lease.generation, offset, size, 0, 0, 0, 0), OK)

    def bye(self):
        """Says farewell: everything returns at once. The views of leases must have been released."""
        self.unmap()
        self.ask(BYE, b"", OK)
        self.socket.close()


def demonstrate(path):
    """One round of what a client does."""
    with Session(path) as lender, Session(path) as reader:
        pool = lender.host_pool()
        print(f"sessions {lender.id} and {reader.id} of the daemon with pid {lender.daemon_pid}; host pool {pool}")

        lease = lender.acquire(pool, 1 << 20)
        lease.memory[:5] = b"hello"
        print(f"acquired {lease.size} bytes")

        shared = reader.attach(lender.share(lease))
        print(f"the other session reads: {bytes(shared.memory[:5]).decode()}")
        reader.release(shared)
        lender.release(lease)

        lease = lender.acquire(pool, 1 << 20)
        half = lease.capacity // 2 // GRANULE * GRANULE
        lender.release(lease, half, lease.capacity - half)
        print(f"gave back {lease.capacity - half} bytes of {lease.capacity}")
        lender.release(lease)
        try:
            lender.release(lease)
        except DaemonError as error:
            print(f"a second time: {error}")

        reader.bye()
        lender.bye()
        print("farewell")


def main(arguments):
    path = arguments[0] if arguments else os.environ.get("GPUPOOL_SOCKET") or "/run/gpupool/gpupool.sock"
    try:
        demonstrate(path)
    except OSError as error:
        hint = "; is gpupoold running?" if error.errno in (errno.ENOENT, errno.ECONNREFUSED) else ""
        print(f"wire_client: {path}: {error.strerror or error}{hint}", file=sys.stderr)
        return 1
    except (DaemonError, ProtocolError, LookupError) as error:
        print(f"wire_client: {path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
