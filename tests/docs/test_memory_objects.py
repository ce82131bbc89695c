# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/memory_objects.md, compiled and run as they stand there."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import installed  # noqa: E402

PAGE = (installed.SOURCE / "docs/memory_objects.md").read_text()
MAIN = """
int main(void) {
    struct gpupool_client *client;
    void *first, *second;

    if (gpupool_open(NULL, &client) < 0 || gpupool_stream_create(client, 0, &first) < 0 ||
        gpupool_stream_create(client, 0, &second) < 0 || serve_three(client, first) < 0 ||
        weights(client, first, second) < 0 || there_and_back(client, GPUPOOL_PER_THREAD) < 0) {
        fprintf(stderr, "%s\\n", gpupool_error_text());
        return 1;
    }
    gpupool_stream_destroy(client, 0, first);
    gpupool_stream_destroy(client, 0, second);
    struct gpupool_pool pools[8];
    size_t count = 0;
    if (gpupool_trim(client, NULL) < 0 || gpupool_pools(client, pools, 8, &count) < 0)
        return 1;
    for (size_t i = 0; i < count; i++)
        printf("left of pool %zu: %llu\\n", i, (unsigned long long)pools[i].leased_bytes);
    gpupool_close(client);
    return 0;
}
"""
CPP_BEGINNING = "#include <cstdint>\n#include <gpupool/pair.h>\n#include <gpupool/staging.h>\n#include <gpupool/synced.h>\n" \
                "float *first_of(struct gpupool_pair *input, std::uint64_t count);\n"
FLAGS = "-Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags gpupool)"


class MemoryObjects(installed.Installed):
    def example(self, name, text):
        directory = self.work / name
        directory.mkdir()
        (directory / f"example.{name}").write_text(text)
        return directory

    def test_the_examples_do_what_the_page_says_and_leave_nothing(self):
        directory = self.example("c", "".join(installed.blocks(PAGE, "c")) + MAIN)
        self.shell(f"cc -std=c11 {FLAGS} example.c -o example $(pkg-config --libs gpupool)", directory)
        output = self.shell("GPUPOOL_SOCKET=private GPUPOOL_DAEMON_ARGS='--gpu sim --log-level warning' ./example", directory)
        lines = output.splitlines()
        self.assertRegex(lines[0], r"^pair: 12 of [1-9]\d{3,} bytes$")
        self.assertEqual(lines[1:3], ["array: 2 and 1, 1 copy to the device, 1 to the host", "staging: 7 and 7"])
        self.assertGreaterEqual(len(lines), 5)
        self.assertTrue(all(line.endswith(": 0") for line in lines[3:]), output)

    def test_the_example_in_cpp_compiles(self):
        text = CPP_BEGINNING + "".join(installed.blocks(PAGE, "cpp"))
        self.shell(f"c++ -std=c++17 {FLAGS} -c example.cc", self.example("cc", text))


if __name__ == "__main__":
    unittest.main()
