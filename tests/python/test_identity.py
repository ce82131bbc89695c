# SPDX-License-Identifier: Apache-2.0
"""Which daemon is meant: pickles, figures and private daemons reach their own daemon by whichever path, and never another one."""
import json
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest
import weakref
from unittest import mock

import gpupool
import scene
from gpupool._gpupool import _find_client
from scene import needs_torch

METHODS = ("fork", "spawn", "forkserver")
PRIVATE_ARGUMENTS = "--gpu sim --log-level error"


def receive(connection, environment, folder):
    """In another process: receives pickled buffers, with variables and a directory of its own, until None comes."""
    os.environ.update(environment)
    os.chdir(folder)
    while (pickled := connection.recv_bytes()) != b"":
        try:
            buffer = pickle.loads(pickled)
            connection.send((bytes(memoryview(buffer)[:4]), buffer.pool.client.identity))
        except gpupool.Error as error:
            connection.send((type(error).__name__, str(error)))


class Pickles(scene.Scene):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-identity-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.link = self.folder / "mount"  # another path to the daemon, with the simulated GPUs' socket beside it
        os.symlink(os.path.dirname(self.daemon.socket), self.link)
        self.other = scene.Daemon(self.config)
        self.addCleanup(self.other.close)

    def start(self, method, environment):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context(method).Process(target=receive, args=(theirs, environment, "/"), daemon=True)
        process.start()

        def send(pickled):
            ours.send_bytes(pickled)
            self.assertTrue(ours.poll(scene.WAIT_S), "no answer")
            return ours.recv()

        def end():
            ours.send_bytes(b"")
            process.join(scene.WAIT_S)
            self.assertEqual(process.exitcode, 0)

        return send, end

    def received(self, method, client, environment, before_it_comes=lambda: None):
        """The answers of a process to a buffer of each pool that it can use: a forked one has no GPU."""
        send, end = self.start(method, environment)
        answers = []
        for pool in (client.host_pool(), client.device_pool(0))[:1 if method == "fork" else 2]:
            buffer = pool.acquire(100)
            memoryview(buffer)[:4] = b"sent"
            pickled = pickle.dumps(buffer)
            before_it_comes()
            answers.append(send(pickled))
            self.assertEqual(bytes(memoryview(buffer)[:4]), b"sent")
        end()
        return answers

    def assert_arrives(self, answers, identity):
        self.assertEqual(answers, [(b"sent", identity)] * len(answers))

    def test_a_client_whose_object_dies_is_not_found(self):
        client, found = gpupool.Client(self.other.socket), []
        identity = client.identity
        self.assertIs(_find_client(identity), client)
        watch = weakref.ref(client, lambda _: found.append(_find_client(identity)))
        del client
        self.assertIsNone(watch())
        self.assertEqual(found, [None])

    def test_another_daemon_is_the_receivers_own(self):
        for method in METHODS:
            with self.subTest(method):
                answers = self.received(method, self.client, {"GPUPOOL_SOCKET": self.other.socket})
                self.assert_arrives(answers, self.client.identity)

    def test_the_path_leads_nowhere_and_the_receiver_has_its_own(self):
        for method in METHODS:
            with self.subTest(method), gpupool.Client(self.link / "data") as client:
                moved = self.folder / f"elsewhere-{method}"
                answers = self.received(method, client, {"GPUPOOL_SOCKET": self.daemon.socket},
                                        lambda: self.link.is_symlink() and self.link.rename(moved))
                self.assert_arrives(answers, self.client.identity)
            moved.rename(self.link)

    def test_a_path_of_another_directory(self):
        for method in METHODS:
            with self.subTest(method):
                here = os.getcwd()
                os.chdir(self.link)
                try:
                    client = gpupool.Client("data")
                finally:
                    os.chdir(here)
                with client:
                    self.assertTrue(os.path.isabs(client.socket_path))
                    self.assert_arrives(self.received(method, client, {"GPUPOOL_SOCKET": self.other.socket}), self.client.identity)

    def test_an_open_client_serves_by_whichever_path_it_was_opened(self):
        sessions = len(self.daemon.ask("sessions")["sessions"])
        with gpupool.Client(self.link / "data") as client, mock.patch.dict(os.environ, GPUPOOL_SOCKET=self.other.socket):
            for opened in (self.client, client):
                buffer = opened.host_pool().acquire(100)
                again = pickle.loads(pickle.dumps(buffer))
                self.assertEqual(again.pool.client.identity, self.client.identity)
                again.close()
            self.assertEqual(len(self.daemon.ask("sessions")["sessions"]), sessions + 1)

    def test_another_daemon_at_the_path_is_not_taken_for_the_one_that_is_meant(self):
        with gpupool.Client(self.other.socket) as others:
            identities = self.client.identity, others.identity
        for method in METHODS:
            with self.subTest(method), gpupool.Client(self.link / "data") as client:
                def turn():
                    self.link.unlink()
                    os.symlink(os.path.dirname(self.other.socket), self.link)

                for name, text in self.received(method, client, {"GPUPOOL_SOCKET": self.other.socket}, turn):
                    self.assertEqual(name, "NoTokenError")
                    for part in (*identities, str(self.link / "data"), self.other.socket, "GPUPOOL_SOCKET"):
                        self.assertIn(part, text)
                self.link.unlink()
                os.symlink(os.path.dirname(self.daemon.socket), self.link)

    def test_a_restart_makes_another_daemon(self):
        with gpupool.Client(self.other.socket) as client:
            pickled, identity = pickle.dumps(client.host_pool().acquire(100)), client.identity
            self.other.kill()
            self.other.start()
            with gpupool.Client(self.other.socket) as again:
                self.assertNotEqual(again.identity, identity)
                with self.assertRaises(gpupool.NoTokenError) as caught:
                    pickle.loads(pickled)
                for part in (identity, again.identity, self.other.socket, "started anew"):
                    self.assertIn(part, str(caught.exception))

    def test_a_daemon_that_is_nowhere_is_named(self):
        with gpupool.Client(self.link / "data") as client:
            pickled = pickle.dumps(client.host_pool().acquire(100))
            self.link.unlink()
            nowhere = str(self.folder / "nowhere")
            for method in METHODS:
                with self.subTest(method):
                    send, end = self.start(method, {"GPUPOOL_SOCKET": nowhere})
                    name, text = send(pickled)
                    end()
                    self.assertEqual(name, "ConnectError")
                    for part in (client.identity, str(self.link / "data"), nowhere):
                        self.assertIn(part, text)


class PicklesOfDescriptors(Pickles):
    config = "[device]\nexport = vmm\n"


class Figures(scene.Scene):
    def setUp(self):
        self.other = scene.Daemon()
        self.addCleanup(self.other.close)

    def identity_of_stats(self, program="", status=0, **environment):
        """Of the daemon whose figures a program gets that first runs some lines."""
        unset = ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET")
        variables = {**{key: value for key, value in os.environ.items() if key not in unset}, **environment}
        done = subprocess.run([sys.executable, "-c", f"import os, gpupool\n{program}\nprint(gpupool.stats()['daemon']['identity'])"],
                              env=variables, capture_output=True, text=True, timeout=scene.WAIT_S, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.strip() if status == 0 else done.stderr

    def test_they_are_of_the_daemon_that_the_program_uses(self):
        ours = {"GPUPOOL_SOCKET": self.daemon.socket}
        for program, environment in (("", ours), ("gpupool.host_pool()", ours),
                                     ("", {**ours, "GPUPOOL_ADMIN_SOCKET": self.other.admin_socket}),
                                     ("", {**ours, "GPUPOOL_ADMIN_SOCKET": "/nowhere"}),
                                     (f"gpupool.host_pool(); os.environ['GPUPOOL_SOCKET'] = {self.other.socket!r}", ours),
                                     (f"os.environ['GPUPOOL_SOCKET'] = {self.daemon.socket!r}", {"GPUPOOL_SOCKET": "/nowhere"})):
            with self.subTest(program, **environment):
                self.assertEqual(self.identity_of_stats(program, **environment), self.client.identity)

    def test_a_path_that_is_passed_is_asked(self):
        stats = gpupool.stats(self.other.admin_socket)
        self.assertEqual(stats["daemon"]["socket"], self.other.socket)
        self.assertEqual(stats["daemon"]["admin_socket"], self.other.admin_socket)

    def test_a_program_that_only_watches_needs_no_data_socket(self):
        if os.path.exists("/run/gpupool/gpupool.sock"):
            self.skipTest("this machine has a daemon")
        self.assertEqual(self.identity_of_stats(GPUPOOL_ADMIN_SOCKET=self.daemon.admin_socket), self.client.identity)

    def test_never_another_daemons(self):
        admin = pathlib.Path(self.other.admin_socket)
        admin.rename(admin.with_name("hidden"))
        with gpupool.Client(self.other.socket) as client:
            identity = client.identity
        for place in (None, self.daemon.admin_socket):
            if place is not None:
                os.symlink(place, admin)
            text = self.identity_of_stats(status=1, GPUPOOL_SOCKET=self.other.socket, GPUPOOL_ADMIN_SOCKET=self.daemon.admin_socket)
            for part in ("gpupool.ConnectError", identity, str(admin), f"another daemon answers at {self.daemon.admin_socket}"):
                self.assertIn(part, text)
        self.assertIn("/nowhere", self.identity_of_stats(status=1, GPUPOOL_SOCKET="/nowhere", GPUPOOL_ADMIN_SOCKET=str(admin)))


FAMILY = """
import multiprocessing, os, subprocess, sys, json
if "late" in sys.argv:
    import gpupool
    os.environ["GPUPOOL_SOCKET"] = "private"
import gpupool

def tell(connection):
    client = gpupool.default_client()
    connection.send(client.identity)
    connection.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    seen = []
    if "first" in sys.argv:
        seen.append(gpupool.default_client().identity)
    children = []
    for _ in range(4):
        ours, theirs = context.Pipe()
        child = context.Process(target=tell, args=(theirs,))
        child.start()
        children.append((ours, child))
    seen += [ours.recv() if ours.poll(60) else "no answer" for ours, _ in children]
    seen.append(gpupool.default_client().identity)
    program = "import gpupool; print(gpupool.default_client().identity)"
    seen.append(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip())
    ping = subprocess.run([os.environ["GPUPOOLCTL"], "ping", "--json"], capture_output=True, text=True, check=True)
    seen.append(json.loads(ping.stdout)["daemon"]["identity"])
    seen += [gpupool.stats()["daemon"]["identity"], gpupool.Client().identity]
    for ours, child in children:
        ours.send(None)
        child.join()
    print(json.dumps([gpupool.default_client().socket_path, seen]))
"""

ORPHAN = """
import os, sys, gpupool
ours = gpupool.default_client()
print(ours.socket_path, flush=True)
end, go = os.pipe()
if os.fork():
    os._exit(0 if os.read(end, 1) else 1)
buffer = gpupool.host_pool().acquire(1 << 20)
os.write(go, b"1")
sys.stdin.read()
another = gpupool.device_pool(0).acquire(1 << 20)
print(buffer.pool.client.identity == another.pool.client.identity == gpupool.stats()["daemon"]["identity"], flush=True)
"""

LOADER = """
import sys, torch, torch.utils.data, gpupool, gpupool.torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.full((5000,), float(i))

if __name__ == "__main__":
    torch.set_num_threads(1)
    identities = set()
    for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, collate_fn=gpupool.torch.collate,
                                             multiprocessing_context=sys.argv[1]):
        identities.add(batch.untyped_storage()._gpupool.buffer.pool.client.identity)
    print(len(identities), identities == {gpupool.default_client().identity})
"""


class Private(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpupool-family-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        unset = ("GPUPOOL_SOCKET", "GPUPOOL_ADMIN_SOCKET", "GPUPOOL_PRIVATE_SOCKET")
        self.environment = {**{key: value for key, value in os.environ.items() if key not in unset}, "GPUPOOL_SIM_LATENCY": "0",
                            "GPUPOOL_SOCKET": "private", "GPUPOOL_DAEMON": os.environ["GPUPOOLD"], "GPUPOOL_DAEMON_ARGS": PRIVATE_ARGUMENTS}

    def command(self, text, *arguments):
        program = self.folder / "program.py"
        program.write_text(text)
        return [sys.executable, "-X", "faulthandler", str(program), *arguments]

    def run_program(self, text, *arguments, seconds=scene.WAIT_S, **environment):
        done = subprocess.run(self.command(text, *arguments), capture_output=True, text=True, timeout=seconds, check=False,
                              env={**self.environment, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip()

    def wait_until_it_ended(self, path):
        scene.wait_until(lambda: not os.path.exists(os.path.dirname(path)), "the private daemon has removed its directory")

    def test_a_process_and_its_children_have_one(self):
        for method in METHODS:
            for order in ("first", "with its children"):
                with self.subTest(method, order=order):
                    path, seen = json.loads(self.run_program(FAMILY, method, order))
                    self.assertEqual(len(set(seen)), 1, seen)
                    self.assertRegex(seen[0], "^[0-9a-f]{32}$")
                    self.wait_until_it_ended(path)

    def test_it_may_be_asked_for_after_the_import(self):
        for method in METHODS:
            with self.subTest(method):
                path, seen = json.loads(self.run_program(FAMILY, method, "first", "late", GPUPOOL_SOCKET="/nowhere"))
                self.assertEqual(len(set(seen)), 1, seen)
                self.wait_until_it_ended(path)

    def test_a_child_keeps_it_after_the_end_of_its_parent(self):
        with subprocess.Popen(self.command(ORPHAN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment) as program:
            path = scene.read_line(program.stdout).strip()
            self.assertEqual(program.wait(scene.WAIT_S), 0)
            self.assertTrue(os.path.exists(path), "the daemon ended with the parent")
            program.stdin.close()
            self.assertEqual(scene.read_line(program.stdout), "True\n")
        self.wait_until_it_ended(path)

    def test_programs_that_are_no_relatives_have_their_own(self):
        program = "import gpupool; print(gpupool.default_client().identity)"
        self.assertNotEqual(self.run_program(program), self.run_program(program))

    def test_a_path_that_this_process_cannot_use_is_not_used(self):
        program = "import gpupool; print(gpupool.default_client().socket_path)"
        open_to_all = self.folder / "open"
        open_to_all.mkdir()
        open_to_all.chmod(0o755)
        for path in (open_to_all / "gpupool.sock", "/nowhere/at/all/gpupool.sock", "relative/gpupool.sock"):
            with self.subTest(path):
                self.assertNotEqual(self.run_program(program, GPUPOOL_PRIVATE_SOCKET=str(path)), str(path))
        usable = self.folder / "mine" / "gpupool.sock"
        self.assertEqual(self.run_program(program, GPUPOOL_PRIVATE_SOCKET=str(usable)), str(usable))

    @needs_torch
    def test_a_loader_and_its_workers_have_one(self):
        for method in ("fork", "spawn"):
            with self.subTest(method):  # each worker imports PyTorch, which takes seconds
                self.assertEqual(self.run_program(LOADER, method, seconds=4 * scene.WAIT_S), "1 True")


if __name__ == "__main__":
    unittest.main()
