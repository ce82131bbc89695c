# SPDX-License-Identifier: Apache-2.0
"""A daemon dies, and the next one goes on with its sessions: nothing is lost, and nothing is lent twice."""
import contextlib
import os
import pathlib
import signal
import subprocess
import unittest

from gpupool_restart import CONFIG, MIB, NO_CACHE, Restarts
from gpupool_system import DAEMON, Daemon, WAIT_S, ctl, holding, wait_until


KEEP = 1  # GPUPOOL_NAME_KEEP


class Restart(Restarts):
    def test_clients_see_the_pause(self):
        daemon = self.start()
        holder, waiting, plain = self.worker(daemon), self.worker(daemon), self.worker(daemon, **NO_CACHE)
        holder.do("acquire", 0, "host", 60 * MIB, WAIT_S * 1000)
        waiting.say("acquire", 0, "host", 32 * MIB, WAIT_S * 1000)
        wait_until(lambda: self.pools(daemon)["host"]["waiters"] == 1, "the request waits")
        changes = []
        for _ in range(2):
            for worker in (holder, plain):
                self.assertEqual(worker.do("state"), "there")
            with daemon.away():
                changes.append("away")
                wait_until(lambda: holder.do("changes").split() == changes, "the callback tells of the pause")
                for worker in (holder, plain):
                    self.assertEqual(worker.do("state"), "away")
            changes.append("there")
            wait_until(lambda: holder.do("changes").split() == changes, "the callback tells of the pause's end")
            wait_until(lambda: plain.do("state") == "there", "the client without a cache hears it as well")
            self.assertEqual(holder.do("state"), "there")
        holder.do("release", 0)
        waiting.answer()
        wait_until(lambda: waiting.do("changes").split() == changes, "a client that waited was told of the pauses")
        plain.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        for worker in (holder, waiting, plain):
            worker.end()
        self.nothing_is_left(daemon)

    def test_no_call_fails_or_stays_behind_where_daemons_are_killed_at_work(self):
        """Some are killed while they send an answer. A request whose answer is lost would end with its time, 30 s."""
        daemon = self.start()
        workers = [self.worker(daemon, **({} if i % 2 == 0 else NO_CACHE)) for i in range(4)]
        for _ in range(8):
            for worker in workers:
                worker.say("churn", 500)
            for _ in range(3):
                daemon.restart()
            for worker in workers:
                worker.answer()
        for worker in workers:
            worker.end()
        self.nothing_is_left(daemon)

    def test_a_daemon_that_nothing_starts_again_is_lost(self):
        daemon = Daemon(CONFIG)
        self.addCleanup(daemon.close)
        worker = self.worker(daemon)
        self.assertEqual(worker.do("state"), "there")
        daemon.close()
        wait_until(lambda: worker.do("state") == "lost", "the daemon is lost")
        wait_until(lambda: worker.do("changes").split()[-1:] == ["lost"], "the callback tells it")
        worker.end()

    def test_buffers_stay_and_more_can_be_had(self):
        daemon = self.start()
        for variables in ({}, NO_CACHE):
            worker = self.worker(daemon, **variables)
            worker.do("acquire", 0, "host", 3 * MIB, WAIT_S * 1000)
            worker.do("acquire", 1, "device", 5 * MIB, WAIT_S * 1000)
            worker.do("fill", 0, 17)
            worker.do("fill", 1, 34)
            for number in range(3):
                daemon.restart()
                worker.do("check", 0, 17)
                worker.do("check", 1, 34)
                worker.do("acquire", 2 + number, "device", 20 * MIB if number == 1 else MIB, WAIT_S * 1000)
                worker.do("fill", 2 + number, 50 + number)
            for number in range(3):
                worker.do("check", 2 + number, 50 + number)
                worker.do("release", 2 + number)
            worker.do("check", 1, 34)
            session = daemon.ask("sessions")["sessions"]
            self.assertEqual([entry["pid"] for entry in session], [worker.process.pid])
            worker.end()
            self.nothing_is_left(daemon)
        self.assertNotIn("let go", daemon.log_text())

    def test_a_request_waits_on(self):
        daemon = self.start()
        first, second = self.worker(daemon, **NO_CACHE), self.worker(daemon, **NO_CACHE)
        first.do("acquire", 0, "host", 60 * MIB, WAIT_S * 1000)
        second.say("acquire", 0, "host", 50 * MIB, WAIT_S * 1000)
        wait_until(lambda: self.pools(daemon)["host"]["waiters"] == 1, "the request waits")
        daemon.restart()
        # Its client may be between two requests: for what is idle, and for anything.
        wait_until(lambda: self.pools(daemon)["host"]["waiters"] == 1, "it waits again")
        first.do("release", 0)
        second.answer()
        second.do("fill", 0, 5)
        daemon.restart()
        second.do("check", 0, 5)
        first.end()
        second.end()
        self.nothing_is_left(daemon)

    def test_what_is_said_while_no_daemon_is_there_is_heard(self):
        daemon = self.start()
        first, second = self.worker(daemon, **NO_CACHE), self.worker(daemon, **NO_CACHE)
        first.do("acquire", 0, "host", 40 * MIB, WAIT_S * 1000)
        second.do("acquire", 0, "host", 10 * MIB, WAIT_S * 1000)
        second.do("fill", 0, 9)
        with daemon.away():
            first.say("release", 0)
            second.say("acquire", 1, "host", 40 * MIB, WAIT_S * 1000)
        first.answer()
        second.answer()
        second.do("check", 0, 9)
        with daemon.away():
            second.process.stdin.close()  # its farewell waits for an answer
        self.assertEqual(second.process.wait(WAIT_S), 0)
        second.process.stdout.close()
        first.end()
        self.nothing_is_left(daemon)

    def test_shared_buffers_and_parcels(self):
        daemon = self.start()
        first, second = self.worker(daemon, **NO_CACHE), self.worker(daemon, **NO_CACHE)
        first.do("acquire", 0, "device", MIB, WAIT_S * 1000)
        first.do("fill", 0, 7)
        shared = first.do("share", 0)
        first.do("acquire", 1, "host", MIB, WAIT_S * 1000)
        first.do("fill", 1, 8)
        sent = first.do("send", 1)
        first.do("release", 1)
        daemon.restart()
        second.do("attach", 0, shared)
        daemon.restart()
        second.do("attach", 1, sent)
        second.do("check", 0, 7)
        second.do("check", 1, 8)
        first.end()
        daemon.restart()
        second.do("check", 0, 7)  # its last holder
        with self.assertRaises(AssertionError):
            second.do("attach", 2, sent)
        second.end()
        self.nothing_is_left(daemon)

    def test_the_sender_of_a_parcel_may_be_gone(self):
        daemon = self.start()
        first = self.worker(daemon)
        first.do("acquire", 0, "device", MIB, WAIT_S * 1000)
        first.do("fill", 0, 66)
        sent = first.do("send", 0)
        first.end()
        daemon.restart()
        second = self.worker(daemon)
        second.do("attach", 0, sent)
        second.do("check", 0, 66)
        second.end()
        self.nothing_is_left(daemon)

    def test_names_and_their_readers(self):
        daemon = self.start()
        first, second = self.worker(daemon), self.worker(daemon, **NO_CACHE)
        first.do("acquire", 0, "device", 20 * MIB, WAIT_S * 1000)
        first.do("fill", 0, 7)
        first.do("publish", 0, "weights/kept", KEEP)
        first.do("acquire", 1, "host", MIB, WAIT_S * 1000)
        first.do("fill", 1, 8)
        first.do("publish", 1, "weights/mine", 0)
        second.do("open-name", 0, "weights/kept", 0)
        daemon.restart()
        second.do("check", 0, 7)
        second.do("open-name", 1, "weights/mine", 0)
        second.do("open-name", 2, "weights/kept", 0)
        daemon.restart()
        for number, byte in ((0, 7), (1, 8), (2, 7)):
            second.do("check", number, byte)
        first.end()
        daemon.restart()
        with self.assertRaises(AssertionError):
            second.do("open-name", 3, "weights/mine", 0)
        second.do("open-name", 3, "weights/kept", 0)
        second.do("check", 3, 7)
        for number in range(4):
            second.do("close-name", number)
        second.end()
        daemon.restart()
        third = self.worker(daemon)
        third.do("open-name", 0, "weights/kept", 0)
        third.do("check", 0, 7)
        third.do("unpublish", 0, "weights/kept")
        daemon.restart()
        third.do("check", 0, 7)
        with self.assertRaises(AssertionError):
            third.do("open-name", 1, "weights/kept", 0)
        third.do("close-name", 0)
        third.end()
        self.nothing_is_left(daemon)

    def test_names_that_sleep_and_change(self):
        daemon = self.start()
        first = self.worker(daemon)
        readers = [self.worker(daemon), self.worker(daemon, **NO_CACHE)]
        first.do("acquire-sleeper", 0, "device", 7 * MIB)
        first.do("fill", 0, 7)
        first.do("publish", 0, "weights/sleeps", KEEP)
        for reader in readers:
            reader.do("open-sleeper", 0, "weights/sleeps", 0)
            reader.do("sleep-name", 0, "weights/sleeps")
        daemon.restart()
        for reader in readers:
            reader.do("wake-name", 0, "weights/sleeps", 0, 0)
            reader.do("check", 0, 7)
        generation = int(first.do("watch", 0, "weights/sleeps", 0, 0))
        readers[0].do("sleep-name", 0, "weights/sleeps")
        for reader in readers:
            reader.say("wake-name", 0, "weights/sleeps", WAIT_S * 1000, generation + 1)
        wait_until(lambda: daemon.ask("quota")["quotas"][0]["waiting"] == 2, "both wait for the next generation")
        daemon.restart()
        first.do("acquire-sleeper", 1, "device", 7 * MIB)
        first.do("fill", 1, 8)
        first.do("publish", 1, "weights/sleeps", KEEP)
        for reader in readers:
            reader.answer()
        first.end()
        daemon.restart()
        for reader in readers:
            reader.do("check", 0, 8)
            reader.do("sleep-name", 0, "weights/sleeps")
        daemon.restart()
        readers[0].do("wake-name", 0, "weights/sleeps", 0, 0)
        readers[0].do("check", 0, 8)
        readers[0].do("unpublish", 0, "weights/sleeps")
        for reader in readers:
            reader.do("close-name", 0)
            reader.end()
        self.nothing_is_left(daemon)

    def test_a_name_is_built_and_waited_for(self):
        daemon = self.start()
        builder, other, watcher = self.worker(daemon), self.worker(daemon), self.worker(daemon, **NO_CACHE)
        self.assertEqual(builder.do("build", 0, "built", 0), "builds")
        other.say("build", 0, "built", WAIT_S * 1000)
        watcher.say("open-name", 0, "built", WAIT_S * 1000)
        wait_until(lambda: daemon.ask("quota")["quotas"][0]["waiting"] == 2, "two wait")
        daemon.restart()
        builder.kill()  # also while the next daemon begins
        self.assertEqual(other.answer(), "builds")
        with daemon.away():
            other.say("acquire", 0, "device", MIB, WAIT_S * 1000)
        other.answer()
        other.do("fill", 0, 9)
        daemon.restart()
        other.do("publish", 0, "built", 0)
        watcher.answer()
        watcher.do("check", 0, 9)
        watcher.say("watch", 1, "built", WAIT_S * 1000, 1 << 40)
        self.assertNotEqual(watcher.answer(), "0")
        watcher.do("close-name", 0)
        for worker in (other, watcher):
            worker.end()
        self.nothing_is_left(daemon)

    def test_frames_pass_while_no_daemon_is_there(self):
        daemon = self.start()
        producer, consumer = self.worker(daemon), self.worker(daemon)
        for number, kind in enumerate(("kept", "not-kept")):
            producer.do("make-channel", number, kind, number, 4)
            producer.do("join", number, kind, 0, WAIT_S * 1000)
            consumer.do("join", number, kind, 1, WAIT_S * 1000)
        with daemon.away():
            for number in range(2):
                producer.say("stream-frames", number, "-", 200, 0)
                consumer.say("stream-frames", number, "-", 200, 0)
                producer.answer()
                consumer.answer()
        for number in range(2):
            producer.say("stream-frames", number, "-", 5000, 200)
            consumer.say("stream-frames", number, "-", 5000, 200)
            for _ in range(3):
                daemon.restart()
            producer.answer()
            consumer.answer()
            producer.do("leave", number)
            consumer.do("leave", number)
        producer.end()
        daemon.restart()
        consumer.do("join", 0, "kept", 0, 0)
        consumer.do("unpublish", 0, "kept")
        consumer.do("leave", 0)
        consumer.end()
        self.nothing_is_left(daemon)

    def test_the_next_daemon_knows_who_was_in_a_channel(self):
        daemon = self.start()
        producer, consumer, successor = self.worker(daemon), self.worker(daemon), self.worker(daemon)
        producer.do("make-channel", 0, "frames", 1, 4)
        producer.do("join", 0, "frames", 0, 0)
        consumer.do("join", 0, "frames", 1, 0)
        successor.say("join", 0, "frames", 1, WAIT_S * 1000)
        producer.do("send-frame", 0, "-", 1, 0)
        consumer.do("receive-frame", 0, "-", 1, WAIT_S * 1000)
        producer.do("send-frame", 0, "-", 2, 0)
        daemon.restart()
        with daemon.away():
            consumer.kill()  # its successor waits in the daemon
        successor.answer()
        successor.do("receive-frame", 0, "-", 2, WAIT_S * 1000)
        with daemon.away():
            producer.kill()
            with self.assertRaises(AssertionError):
                successor.do("receive-frame", 0, "-", 3, 100)
        another = self.worker(daemon)
        another.do("join", 0, "frames", 0, WAIT_S * 1000)
        daemon.restart()
        another.do("send-frame", 0, "-", 4, 0)
        successor.do("receive-frame", 0, "-", 4, WAIT_S * 1000)
        another.end()
        successor.end()
        self.nothing_is_left(daemon)

    def test_the_pages_of_channels_are_stored_and_leave_the_store(self):
        daemon = self.start()
        maker = self.worker(daemon)

        def stored():
            return daemon.ask("estate")["estate"]["descriptors"]["stored"]

        maker.do("make-channel", 0, "first", 0, 4)
        before = stored()
        maker.do("make-channel", 0, "second", 0, 4)
        self.assertEqual(stored(), before + 3)  # the roll, and a page for each of two places
        daemon.restart()
        wait_until(lambda: stored() == before + 3, "the next daemon stores the same")
        maker.do("unpublish", 0, "second")
        wait_until(lambda: stored() == before, "the pages of the ended channel have left the store")
        maker.do("unpublish", 0, "first")
        wait_until(lambda: stored() == before - 3, "so have those of the other one")
        maker.end()
        self.nothing_is_left(daemon)

    def test_a_process_dies_while_no_daemon_is_there(self):
        daemon = self.start()
        first, second = self.worker(daemon, **NO_CACHE), self.worker(daemon, **NO_CACHE)
        first.do("acquire", 0, "device", 50 * MIB, WAIT_S * 1000)
        with daemon.away():
            first.kill()
        second.do("acquire", 0, "device", 50 * MIB, WAIT_S * 1000)
        second.end()
        self.nothing_is_left(daemon)

    def test_a_dead_process_whose_work_goes_on_keeps_its_memory(self):
        daemon = self.start()
        # As with a forked child: the simulated driver's list, which has the dead otherwise, ends with the daemon.
        first = self.worker(daemon, GPUPOOL_SIM_LINGER_MS="1000", GPUPOOL_SIM_LINGER_KEEP_FDS="1", **NO_CACHE)
        second = self.worker(daemon, **NO_CACHE)
        first.do("acquire", 0, "device", 50 * MIB, WAIT_S * 1000)
        first.kill()
        wait_until(lambda: self.pools(daemon)["device"]["quarantined_bytes"] == 50 * MIB, "its memory is in quarantine")
        daemon.restart()
        second.do("acquire", 0, "device", 50 * MIB, WAIT_S * 1000)
        second.do("fill", 0, 3)
        second.do("check", 0, 3)
        second.end()
        self.nothing_is_left(daemon)

    def test_a_stopped_process_delays_nothing_of_others(self):
        daemon = self.start()
        first, second = self.worker(daemon, **NO_CACHE), self.worker(daemon, **NO_CACHE)
        first.do("acquire", 0, "device", 10 * MIB, WAIT_S * 1000)
        first.process.send_signal(signal.SIGSTOP)
        daemon.restart()
        second.do("acquire", 0, "device", 40 * MIB, WAIT_S * 1000)
        second.do("release", 0)
        daemon.restart()
        first.process.send_signal(signal.SIGCONT)
        first.do("release", 0)
        first.end()
        second.end()
        self.nothing_is_left(daemon)

    def test_memory_released_behind_a_stream(self):
        daemon = self.start()
        worker = self.worker(daemon, **NO_CACHE)
        for _ in range(3):
            worker.do("acquire", 0, "device", 40 * MIB, WAIT_S * 1000)
            worker.do("stream-release", 0, "-")
            daemon.restart()
        worker.do("acquire", 0, "device", 40 * MIB, WAIT_S * 1000)
        worker.end()
        self.nothing_is_left(daemon)

    def test_device_memory_by_ipc_handles_is_left_to_those_that_have_it(self):
        daemon = self.start(CONFIG.replace("export = vmm\n", ""))
        first = self.worker(daemon)
        first.do("acquire", 0, "device", 5 * MIB, WAIT_S * 1000)
        first.do("fill", 0, 44)
        shared = first.do("share", 0)
        daemon.restart()
        first.do("check", 0, 44)
        first.do("acquire", 1, "device", 6 * MIB, WAIT_S * 1000)
        second = self.worker(daemon)
        with self.assertRaisesRegex(AssertionError, "cannot be mapped anew"):
            second.do("attach", 0, shared)
        second.end()
        first.end()
        self.nothing_is_left(daemon)
        wait_until(lambda: self.pools(daemon)["device"]["reserved_bytes"] <= 16 * MIB, "the memory of before is given back")

    def test_a_pool_that_is_not_configured_any_more_keeps_its_number(self):
        daemon = self.start()
        worker = self.worker(daemon)
        worker.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        worker.do("acquire", 1, "device", MIB, WAIT_S * 1000)
        worker.do("fill", 0, 1)
        worker.do("fill", 1, 2)
        before = {pool["id"]: pool["kind"] for pool in daemon.ask("pools")["pools"]}
        daemon.config.write_text(CONFIG + "enabled = no\n")
        daemon.restart()
        self.assertEqual({pool["id"]: pool["kind"] for pool in daemon.ask("pools")["pools"]}, before)
        worker.do("check", 1, 2)
        worker.do("acquire", 2, "host", MIB, WAIT_S * 1000)
        worker.end()

    def test_damage_costs_no_more_than_it_has_to(self):
        """Bytes of the estate are changed: the daemon starts whatever they are, and what goes on is whole."""
        daemon = self.start()
        for seed in range(12):
            worker = self.worker(daemon)
            worker.do("acquire", 0, "host", MIB, WAIT_S * 1000)
            worker.do("fill", 0, 77)
            pid = daemon.pid()
            estate = next(entry for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir()
                          if "gpupool-estate" in os.readlink(entry))
            with open(estate, "r+b", buffering=0) as memory:
                with daemon.away():
                    size = os.fstat(memory.fileno()).st_size
                    place = (65536 + 4096 * seed + 31 * seed) % size
                    memory.seek(place)
                    byte = memory.read(1)
                    memory.seek(place)
                    memory.write(bytes([byte[0] ^ (1 << seed % 8)]))
            worker.say("check", 0, 77)
            worker.answer()
            worker.say("acquire", 1, "host", MIB, WAIT_S * 1000)
            with contextlib.suppress(AssertionError):  # its session may be over
                worker.answer()
            with contextlib.suppress(AssertionError):
                worker.end()
            wait_until(lambda: not daemon.ask("sessions")["sessions"], "the session is gone")

    def test_an_operator_sees_what_would_go_on(self):
        daemon = self.start(CONFIG.replace("export = vmm\n", ""))
        worker = self.worker(daemon)
        worker.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        worker.do("acquire", 1, "device", MIB, WAIT_S * 1000)
        estate = daemon.ask("estate")["estate"]
        self.assertEqual((estate["kept"], estate["why"], estate["manager"], estate["incarnation"]), (True, None, "keeper", 1))
        self.assertEqual(estate["sessions"], {"kept": 1, "lost": 0})
        kinds = {pool["id"]: pool["kind"] for pool in daemon.ask("pools")["pools"]}
        for pool in estate["pools"]:
            has, none = ("kept", "lost") if kinds[pool["id"]] == "host" else ("lost", "kept")
            self.assertEqual((pool[f"{none}_segments"], pool[f"{none}_bytes"]), (0, 0), pool)
            self.assertEqual(pool[f"{has}_segments"] > 0, pool[f"{has}_bytes"] > 0, pool)
        for item in ("kept_bytes", "lost_bytes"):
            self.assertGreater(sum(pool[item] for pool in estate["pools"]), 0)
        self.assertEqual([session["outlives_daemon"] for session in daemon.ask("sessions")["sessions"]], [True])
        shown = ctl("estate", socket_path=daemon.admin_socket)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("keeps 1 session; 0 would end", shown.stdout)
        self.assertIn("export = vmm", shown.stdout)
        daemon.restart()
        self.assertEqual(daemon.ask("estate")["estate"]["incarnation"], 2)
        after = daemon.ask("estate")["estate"]["pools"]
        self.assertGreater(sum(pool["orphans"] for pool in after), 0)
        self.assertEqual([pool["orphan_bytes"] for pool in daemon.ask("pools")["pools"]], [pool["orphan_bytes"] for pool in after])
        self.assertGreater(sum(pool["orphan_bytes"] for pool in after), 0)
        worker.do("acquire", 2, "device", MIB, WAIT_S * 1000)
        done = ctl("upgrade", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("16 MiB cannot be lent any more after the restart", done.stderr)
        worker.end()

    def test_without_a_store_nothing_would_go_on(self):
        with Daemon(CONFIG) as daemon:
            estate = daemon.ask("estate")["estate"]
            self.assertEqual((estate["kept"], estate["manager"]), (False, None))
            self.assertIn("--keeper", estate["why"])
            with holding(daemon):
                self.assertEqual([session["outlives_daemon"] for session in daemon.ask("sessions")["sessions"]], [False])
            refused = ctl("upgrade", socket_path=daemon.admin_socket)
            self.assertEqual(refused.returncode, 1, refused)
            self.assertIn("no service manager", refused.stderr + refused.stdout)
            self.assertEqual(daemon.ask("estate-drop")["error"]["code"], "no-estate")

    def test_an_upgrade_keeps_the_sessions(self):
        daemon = self.start()
        worker = self.worker(daemon)
        worker.do("acquire", 0, "device", MIB, WAIT_S * 1000)
        worker.do("fill", 0, 21)
        before = daemon.pid()
        done = ctl("upgrade", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "goes on with 1 session, as process [0-9]+, after ")
        self.assertNotEqual(daemon.pid(), before)
        worker.do("check", 0, 21)
        worker.do("acquire", 1, "device", 30 * MIB, WAIT_S * 1000)
        self.assertNotIn("killed by", daemon.log_text())
        self.assertIn("restarts; ", daemon.log_text())
        worker.end()
        self.nothing_is_left(daemon)

    def test_an_upgrade_gives_back_no_memory_for_a_request_that_waits(self):
        """Without the sessions, which the daemon forgets at its end, segments would be free to make room for the request."""
        daemon = self.start()
        holder, waiting = self.worker(daemon, **NO_CACHE), self.worker(daemon, **NO_CACHE)
        for number in range(3):
            holder.do("acquire", number, "host", 14 * MIB, WAIT_S * 1000)
            holder.do("fill", number, 40 + number)
        waiting.say("acquire", 0, "host", 40 * MIB, WAIT_S * 1000)
        wait_until(lambda: self.pools(daemon)["host"]["waiters"] == 1, "the request waits")
        for _ in range(2):
            done = ctl("upgrade", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 0, done.stderr)
            for number in range(3):
                holder.do("check", number, 40 + number)
        holder.end()
        waiting.answer()
        waiting.end()
        self.nothing_is_left(daemon)

    def test_a_daemon_that_ends_gives_no_memory_up(self):
        for arguments in ([], ["--keeper"]):
            daemon = Daemon(CONFIG, arguments=arguments)
            self.addCleanup(daemon.close)
            worker, other = self.worker(daemon), self.worker(daemon)
            for number in range(4):
                worker.do("acquire", number, "host", 16 * MIB, WAIT_S * 1000)
                worker.do("fill", number, 40 + number)
            other.do("begin", 0, "host", 20 * MIB, WAIT_S * 1000)
            wait_until(lambda: self.pools(daemon)["host"]["waiters"] == 1, "the request waits")
            self.assertEqual(daemon.stop(), 0)
            for number in range(4):
                worker.do("check", number, 40 + number)
            worker.end()
            other.end()

    def test_a_program_that_cannot_go_on_is_not_begun_unasked(self):
        daemon = self.start()
        worker = self.worker(daemon)
        worker.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        before = daemon.pid()
        refused = ctl("upgrade", "--daemon=/bin/false", socket_path=daemon.admin_socket)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("/bin/false cannot go on with what this daemon has: a restart ends 1 session", refused.stderr)
        self.assertEqual(daemon.pid(), before)
        for odd in ("2/1", "1/2 1:64", "1/1 1:65", "1/1 1:64 29:8", "1/1 99:8"):
            asked = subprocess.run([DAEMON, "--reads-estate", odd], capture_output=True, text=True, timeout=WAIT_S, check=False)
            self.assertEqual(asked.returncode, 1, odd)
            self.assertRegex(asked.stderr, "is of version|does not know records")
        worker.end()

    def test_the_estates_of_releases_are_read(self):
        """A release's line never changes. A kind of records whose payload became another one fails here."""
        formats = {"0.2.0": "1/1 1:64 2:240 3:24 4:64 5:32 6:72 7:24 8:80 9:96 10:32 16:592 17:992 18:16 19:24 20:32"}
        for release, kinds in formats.items():
            asked = subprocess.run([DAEMON, "--reads-estate", kinds], capture_output=True, text=True, timeout=WAIT_S, check=False)
            self.assertEqual((asked.returncode, asked.stderr), (0, ""), release)

    def test_an_estate_is_let_go(self):
        daemon = self.start()
        worker = self.worker(daemon)
        worker.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        done = ctl("estate", "--drop", "--yes", socket_path=daemon.admin_socket)
        self.assertEqual(done.returncode, 0, done.stderr)
        worker.do("acquire", 1, "device", 20 * MIB, WAIT_S * 1000)  # the session goes on
        estate = daemon.ask("estate")["estate"]
        self.assertFalse(estate["kept"])
        self.assertIn("it was let go", estate["why"])
        self.assertEqual(estate["descriptors"]["stored"], 2)  # the sockets where programs connect
        self.assertIn("If the daemon stopped now", ctl("sessions", socket_path=daemon.admin_socket).stdout)
        daemon.restart()
        self.assertEqual(daemon.ask("sessions")["sessions"], [])
        self.assertTrue(daemon.ask("estate")["estate"]["kept"])
        worker.kill()
        other = self.worker(daemon)
        other.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        other.end()
        self.nothing_is_left(daemon)

    def test_a_drain_gets_what_programs_keep_idle_and_ends_with_a_restart(self):
        for config in (CONFIG, CONFIG.replace("export = vmm\n", "")):
            daemon = self.start(config)
            worker = self.worker(daemon)
            for number, kind in enumerate(("host", "device")):
                worker.do("acquire", number, kind, 3 * MIB, WAIT_S * 1000)
            worker.do("release", 1)
            self.assertGreater(self.pools(daemon)["device"]["leased_bytes"], 0)  # the program keeps it
            devices = [pool["id"] for pool in daemon.ask("pools")["pools"] if pool["kind"] == "device"]
            done = ctl("drain", f"--pool={devices[0]}", f"--timeout={WAIT_S}s", socket_path=daemon.admin_socket)
            self.assertEqual(done.returncode, 0, done)
            self.assertIn("Drained", done.stdout)
            wait_until(lambda: self.pools(daemon)["device"]["reserved_bytes"] == 0, "the program has closed the segments")
            self.assertGreaterEqual(self.pools(daemon)["host"]["leased_bytes"], 3 * MIB)
            with self.assertRaisesRegex(AssertionError, "an operator drains"):
                worker.do("acquire", 1, "device", MIB, WAIT_S * 1000)
            daemon.restart()
            self.assertEqual({pool["draining"] for pool in daemon.ask("pools")["pools"]}, {False})
            worker.do("acquire", 1, "device", MIB, WAIT_S * 1000)
            worker.end()
            self.nothing_is_left(daemon)
            daemon.close()

    def test_a_zeroed_estate_is_let_go(self):
        daemon = self.start()
        worker = self.worker(daemon)
        worker.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        estate = next(entry for entry in pathlib.Path(f"/proc/{daemon.pid()}/fd").iterdir() if "gpupool-estate" in os.readlink(entry))
        with open(estate, "r+b", buffering=0) as memory:
            with daemon.away():
                memory.write(b"\xff" * os.fstat(memory.fileno()).st_size)
        with self.assertRaises(AssertionError):
            worker.do("acquire", 1, "host", 20 * MIB, WAIT_S * 1000)
        worker.kill()
        self.assertIn("is let go", daemon.log_text())
        other = self.worker(daemon)
        other.do("acquire", 0, "host", MIB, WAIT_S * 1000)
        other.end()
        self.nothing_is_left(daemon)


if __name__ == "__main__":
    unittest.main()
