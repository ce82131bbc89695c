# SPDX-License-Identifier: Apache-2.0
"""A daemon dies at each place of an operation at which that makes a difference: before each store into memory that
outlives it, and around each message. No call of a program fails, nothing is lost, and behind it all is as if no daemon
had died. See die_here.h."""
import mmap
import os
import pathlib
import tempfile
import unittest

from gpupool_restart import CONFIG, Kept, MIB, NO_CACHE, Restarts, Worker
from gpupool_system import DAEMON, WAIT_S, ctl, stride, wait_until

DYING = os.environ["GPUPOOLD_DYING"]
WAIT_MS = WAIT_S * 1000
# More than any operation has.
PLACES_MAX = 4000


class Dying(Kept):
    def __init__(self):
        self.place = tempfile.TemporaryDirectory(prefix="gpupool-die-")
        file = pathlib.Path(self.place.name) / "places"
        file.write_bytes(bytes(4096))
        with open(file, "r+b") as opened:
            self.places = mmap.mmap(opened.fileno(), 4096)
        os.environ["GPUPOOL_DIE_FILE"] = str(file)
        super().__init__(CONFIG)

    def command(self):
        return [DYING if word == DAEMON else word for word in super().command()]

    def arm(self, first, second=0):
        self.places[0:16] = first.to_bytes(8, "little") + second.to_bytes(8, "little")

    def disarm(self):
        """Returns whether a daemon died."""
        died = self.places[0:8] == bytes(8)
        self.arm(0)
        return died

    def close(self):
        self.arm(0)
        super().close()
        self.place.cleanup()


class Deaths(Restarts):
    def state(self):
        """All that no death may change: what each living session has, and what of the pools is in use."""
        sessions = sorted((entry["pid"], entry["state"], entry["leased_bytes"], entry["fenced_bytes"], entry["waiting"])
                          for entry in self.daemon.ask("sessions")["sessions"])
        pools = [[pool["id"]] + [pool[item] for item in ("leased_bytes", "leases", "quarantined_bytes", "fenced_bytes", "waiters",
                                                         "parcels", "parcel_bytes")] + [pool["reserved_bytes"] - pool["free_bytes"]]
                 for pool in self.daemon.ask("pools")["pools"]]
        return sessions, pools

    def each_place(self, operation, after=lambda: None):
        """Runs an operation with a death at each of its places, and some of them with a second one soon after. Stops
        where the operation is over before the place comes. Behind each the state has to be that without a death."""
        operation()
        after()
        wait_until(lambda: not any(pool["quarantined_bytes"] + pool["fenced_bytes"] for pool in self.daemon.ask("pools")["pools"]),
                   "all has come back that comes back")
        step, n, deaths, expected = stride(12), 1, 0, self.state()
        while n < PLACES_MAX:
            for second in (0,) if deaths % 4 else (0, 1 + deaths % 37):
                self.daemon.arm(n, second)
                try:
                    operation()
                except AssertionError as error:
                    raise AssertionError(f"death at place {n}, then {second}: {error}\n" + self.daemon.log_text()[-3000:]) from error
                died = self.daemon.disarm()
                after()
                # Deaths before that count: the estate is let go after three.
                wait_until(lambda: all(pool["state"] == "ready" for pool in self.daemon.ask("pools")["pools"]), "it is ready")
                try:
                    wait_until(lambda: self.state() == expected, "all is as without a death")
                except AssertionError as error:
                    raise AssertionError(f"death at place {n}, then {second}: {error}: {self.state()} instead of {expected}\n"
                                         + self.daemon.log_text()[-3000:]) from error
            if not died:
                break
            deaths += 1
            n += step
        self.assertGreater(deaths, 2)
        self.assertLess(n, PLACES_MAX)
        self.assertNotIn("let go", self.daemon.log_text())

    def setUp(self):
        self.daemon = Dying()
        self.addCleanup(self.daemon.close)
        self.first, self.second = (self.worker(self.daemon, **NO_CACHE) for _ in range(2))

    def end(self):
        self.first.end()
        self.second.end()
        self.nothing_is_left(self.daemon)

    def trim(self):
        self.assertEqual(ctl("trim", socket_path=self.daemon.admin_socket).returncode, 0)

    def test_acquire_and_release(self):
        def operation():
            self.first.do("acquire", 0, "host", MIB, WAIT_MS)
            self.first.do("fill", 0, 5)
            self.first.do("check", 0, 5)
            self.first.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_growth_and_retirement(self):
        def operation():
            self.first.do("acquire", 0, "device", 20 * MIB, WAIT_MS)
            self.first.do("fill", 0, 6)
            self.first.do("check", 0, 6)
            self.first.do("release", 0)

        self.each_place(operation, self.trim)
        self.end()

    def test_shares(self):
        def operation():
            self.first.do("acquire", 0, "host", MIB, WAIT_MS)
            self.first.do("fill", 0, 7)
            token = self.first.do("share", 0)
            self.second.do("attach", 0, token)
            self.first.do("release", 0)
            self.second.do("check", 0, 7)
            self.second.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_parcels(self):
        def operation():
            self.first.do("acquire", 0, "host", MIB, WAIT_MS)
            self.first.do("fill", 0, 8)
            token, other = self.first.do("send", 0), self.first.do("send", 0)
            self.first.do("release", 0)
            self.second.do("attach", 0, token)
            self.second.do("revoke", other)
            self.second.do("check", 0, 8)
            self.second.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_a_request_that_waits(self):
        def operation():
            self.first.do("acquire", 0, "host", 50 * MIB, WAIT_MS)
            self.second.say("acquire", 0, "host", 40 * MIB, WAIT_MS)
            self.first.do("release", 0)
            self.second.answer()
            self.second.do("fill", 0, 9)
            self.second.do("check", 0, 9)
            self.second.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_a_release_behind_a_stream(self):
        def operation():
            self.first.do("acquire", 0, "device", 40 * MIB, WAIT_MS)
            self.first.do("stream-release", 0, "-")
            self.second.do("acquire", 0, "device", 40 * MIB, WAIT_MS)
            self.second.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_a_part_of_a_buffer(self):
        def operation():
            self.first.do("acquire", 0, "host", MIB, WAIT_MS)
            self.first.do("fill", 0, 10)
            self.first.do("shrink", 0, MIB // 4)
            self.first.do("check", 0, 10)
            self.first.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_several_segments(self):
        """A buffer in two segments that are not neighbours, and that have others' buffers beside them."""
        for number in range(4):
            self.first.do("acquire", number, "device", 16 * MIB, WAIT_MS)
        self.first.do("release", 0)
        self.first.do("release", 2)

        def operation():
            self.first.do("acquire", 4, "device", 32 * MIB, WAIT_MS)
            self.first.do("fill", 4, 11)
            self.second.do("attach", 0, self.first.do("share", 4))
            self.first.do("release", 4)
            self.second.do("check", 0, 11)
            self.second.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_what_is_split_off_a_cache(self):
        cached = self.worker(self.daemon)

        def operation():
            cached.do("acquire", 0, "device", MIB, WAIT_MS)
            cached.do("fill", 0, 12)
            self.second.do("attach", 0, cached.do("share", 0))
            cached.do("release", 0)
            self.second.do("check", 0, 12)
            self.second.do("release", 0)
            cached.do("acquire", 0, "device", 3 * MIB, WAIT_MS)
            cached.do("release", 0)
            cached.do("trim")

        self.each_place(operation)
        cached.end()
        self.end()

    def test_idle_memory_is_asked_for(self):
        cached = self.worker(self.daemon)

        def operation():
            cached.do("acquire", 0, "host", 40 * MIB, WAIT_MS)
            cached.do("release", 0)
            self.second.do("acquire", 0, "host", 40 * MIB, WAIT_MS)
            self.second.do("release", 0)

        self.each_place(operation)
        cached.end()
        self.end()

    def test_idle_segments_are_closed(self):
        """Two programs whose requests fit no segment of the other's."""
        one, other = self.worker(self.daemon), self.worker(self.daemon)

        def operation():
            one.do("acquire", 0, "device", 40 * MIB, WAIT_MS)
            one.do("release", 0)
            other.do("acquire", 0, "device", 60 * MIB, WAIT_MS)
            other.do("release", 0)

        self.each_place(operation, lambda: [worker.do("trim") for worker in (one, other)])
        one.end()
        other.end()
        self.end()

    def test_a_submitted_request(self):
        def operation():
            self.first.do("acquire", 0, "host", 50 * MIB, WAIT_MS)
            self.second.do("begin", 0, "host", 40 * MIB, WAIT_MS)
            self.first.do("release", 0)
            self.second.do("end", 0)
            self.second.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_a_cancelled_request(self):
        def operation():
            self.first.do("acquire", 0, "host", 50 * MIB, WAIT_MS)
            self.second.do("begin", 0, "host", 40 * MIB, WAIT_MS)
            self.second.do("cancel", 0)
            self.second.do("begin", 1, "host", MIB, WAIT_MS)
            self.second.do("cancel", 1)
            self.first.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_a_refused_request(self):
        def operation():
            self.first.do("acquire", 0, "host", 50 * MIB, WAIT_MS)
            self.second.say("acquire", 0, "host", 40 * MIB, 300)
            with self.assertRaisesRegex(AssertionError, "not free within the time given"):
                self.second.answer()
            self.first.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_a_share_behind_a_stream(self):
        def operation():
            self.first.do("acquire", 0, "device", MIB, WAIT_MS)
            self.first.do("fill", 0, 13)
            self.second.do("stream-attach", 0, self.first.do("stream-share", 0))
            self.second.do("check", 0, 13)
            self.second.do("stream-release", 0)
            self.first.do("stream-reuse", 0)
            self.first.do("release", 0)

        self.each_place(operation)
        self.end()

    def shares_and_ends(self, end):
        def operation():
            worker = Worker(self.daemon, **NO_CACHE)
            worker.do("acquire", 0, "device", MIB, WAIT_MS)
            worker.do("fill", 0, 14)
            self.second.do("stream-attach", 0, worker.do("stream-share", 0))
            end(worker)
            self.second.do("query", 0)
            self.second.do("check", 0, 14)
            self.second.do("stream-release", 0)

        self.each_place(operation)
        self.end()

    def test_a_sharer_that_closes(self):
        self.shares_and_ends(Worker.end)

    def test_a_sharer_that_dies(self):
        self.shares_and_ends(Worker.kill)

    def test_a_sender_that_closes(self):
        def operation():
            worker = Worker(self.daemon)
            worker.do("acquire", 0, "host", MIB, WAIT_MS)
            worker.do("fill", 0, 15)
            token = worker.do("send", 0)
            worker.end()
            self.second.do("attach", 0, token)
            self.second.do("check", 0, 15)
            self.second.do("release", 0)

        self.each_place(operation)
        self.end()

    def test_a_session(self):
        def operation():
            worker = Worker(self.daemon, **NO_CACHE)
            worker.do("acquire", 0, "device", MIB, WAIT_MS)
            worker.do("stream-release", 0, "-")
            worker.end()

        self.each_place(operation)
        self.end()

    def test_the_death_of_a_process(self):
        def operation():
            worker = Worker(self.daemon, **NO_CACHE)
            worker.do("acquire", 0, "device", 50 * MIB, WAIT_MS)
            worker.kill()
            self.first.do("acquire", 0, "device", 50 * MIB, WAIT_MS)
            self.first.do("release", 0)

        self.each_place(operation)
        self.end()


if __name__ == "__main__":
    unittest.main()
