# SPDX-License-Identifier: Apache-2.0
"""The program and the other pieces of docs/cpp.md, compiled and run as they stand there."""
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import installed  # noqa: E402

PAGE = (installed.SOURCE / "docs/cpp.md").read_text()
HEADER = "".join((installed.SOURCE / f"client/include/gpupool/{name}.hpp").read_text() for name in ("gpupool", "channel", "result"))
PROGRAM, *PIECES = installed.blocks(PAGE, "cpp")
COMMANDS = installed.blocks(PAGE, "sh")[0]
COMPILE = "c++ -std=c++17 -Wall -Wextra -Werror example.cc -o example $(pkg-config --cflags --libs gpupool)\n"
# Against a daemon of the test, since two processes cannot have a private one each.
WITH_DAEMON = """gpupoold --socket $PWD/data --admin-socket $PWD/admin --gpu sim --log-level error & daemon=$!
trap 'kill $daemon; wait $daemon' EXIT
while [ ! -S admin ]; do kill -0 $daemon; sleep 0.1; done
export GPUPOOL_SOCKET=$PWD/data GPUPOOL_ADMIN_SOCKET=$PWD/admin
"""
MAIN = """
int main() {
    gpupool::client client = gpupool::client::open();
    reconnect(client);
    auto buffer = acquire_or_trim(client, 1 << 20);
    auto failed = acquire_or_trim(client, 0);
    std::cout << buffer->size() << " " << failed.error().name() << std::endl;
}
"""
BEGINNING = "#include <gpupool/gpupool.hpp>\n#include <cstdlib>\n#include <iostream>\n#include <thread>\n"
# Beside a daemon that ends and comes back, by commands in the environment.
RECONNECTING = """
static void command(const char *name) {
    if (std::system(std::getenv(name)) != 0)
        std::abort();
}

int main() {
    gpupool::client client = gpupool::client::open();
    gpupool::buffer old = client.host_pool().acquire(1 << 20, gpupool::no_stream), next;
    old.as<char>()[0] = 'x';
    command("END_DAEMON");
    for (int i = 0; i < 6000 && client.is_connected(); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    bool was_connected = client.is_connected();
    char kept = old.as<char>()[0];
    command("START_DAEMON");
    reconnect(client);
    next = client.host_pool().acquire(1 << 20, gpupool::no_stream);
    std::cout << was_connected << kept << bool(old) << client.is_connected() << bool(next) << std::endl;
}
"""


class Cpp(installed.Installed):
    def example(self, name, text):
        directory = self.work / name
        directory.mkdir()
        (directory / "example.cc").write_text(text)
        return directory

    def test_the_program_sends_its_message_and_leaves_nothing(self):
        output = self.shell(WITH_DAEMON + COMMANDS + "gpupoolctl pools --json\n", self.example("program", PROGRAM))
        message, _, pools = output.partition("\n")
        self.assertEqual(message, "a message in GPU memory")
        leased = re.findall(r'"leased_bytes": *(\d+)', pools)
        self.assertGreaterEqual(len(leased), 2)
        self.assertEqual(set(leased), {"0"})

    def test_the_program_ends_where_there_is_no_daemon(self):
        output = self.shell(COMPILE + "status=0; GPUPOOL_SOCKET=$PWD/nowhere timeout 60 ./example 2>said || status=$?; cat said; echo $status\n",
                            self.example("alone", PROGRAM))
        self.assertIn("nowhere", output)
        self.assertEqual(output.splitlines()[-1], "1")

    def test_the_pieces_do_what_the_page_says(self):
        directory = self.example("pieces", BEGINNING + "".join(PIECES) + MAIN)
        output = self.shell(COMPILE + "GPUPOOL_SOCKET=private GPUPOOL_DAEMON_ARGS='--gpu sim --log-level warning' ./example", directory)
        self.assertEqual(output, "1048576 GPUPOOL_E_INVALID\n")

    def test_a_program_goes_on_with_the_next_daemon(self):
        directory = self.example("reconnecting", BEGINNING + PIECES[-1] + RECONNECTING)
        start = "gpupoold --socket $PWD/data --admin-socket $PWD/admin --gpu sim --log-level error & echo $! >pid\n" \
                "until [ -S admin ]; do kill -0 $(cat pid); sleep 0.1; done\n"
        # A process that was killed has its sockets and its lock until it is a zombie.
        end = "kill -9 $(cat pid)\nwhile grep -q State:.[^ZX] /proc/$(cat pid)/status; do sleep 0.01; done\nrm -f data admin\n"
        output = self.shell(f"{COMPILE}export END_DAEMON='{end}' START_DAEMON='set -e; {start}' "
                            "GPUPOOL_SOCKET=$PWD/data\ntrap 'kill $(cat pid)' EXIT\n" + start + "./example", directory)
        self.assertEqual(output, "0x011\n")  # gone, its buffer readable, and empty once its client had closed

    def test_the_page_names_calls_that_the_header_has(self):
        """Both forms of each call, and no call that is gone."""
        declared = set(re.findall(r"\b(\w+)\(", HEADER)) | {"code"}  # std::system_error's
        named = set(re.findall(r"`[^`\n]*?\b(\w+)\(", PAGE))
        self.assertGreater(len(named), 15)
        self.assertEqual(named - declared, set())
        throwing = {name for name in declared if f"try_{name}" in declared}
        self.assertEqual({f"try_{name}" for name in throwing}, {name for name in declared if name.startswith("try_")})


if __name__ == "__main__":
    unittest.main()
