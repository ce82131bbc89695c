# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/memory_objects.md and docs/streams.md, compiled and run as they stand there."""
import re
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
        weights(client, first, second) < 0 || scale(client, second) < 0 || there_and_back(client, GPUPOOL_PER_THREAD) < 0) {
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
CPP_BEGINNING = "#include <algorithm>\n#include <cstdint>\n#include <gpupool/pair.h>\n#include <gpupool/staging.h>\n#include <gpupool/synced.h>\n" \
                "float *first_of(struct gpupool_pair *input, std::uint64_t count);\n" \
                "int ones(struct gpupool_client *client, std::uint64_t count, void *stream);\n"
STREAMS_PAGE = (installed.SOURCE / "docs/streams.md").read_text()
# A frame for the example on the page. A simulated GPU runs no kernels, so the kernel works on the CPU, behind the stream.
STREAMS_BEGINNING = """
#include <gpupool/gpupool.h>
#include <stdio.h>
#include <string.h>

enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
static struct gpupool_client *client;

static int cudaMemcpyAsync(void *to, const void *from, uint64_t size, int kind, void *stream) {
    return kind != 0 ? gpupool_copy(client, 0, to, from, size, stream) : 1;
}

static void work_on(unsigned char *data, uint64_t size, void *stream) {
    gpupool_stream_synchronize(client, 0, stream);
    for (uint64_t i = 0; i < size; i++)
        data[i] ^= 0x5a;
}

static void one_stream(unsigned number, unsigned streams, unsigned batches, uint64_t size, uint32_t device_pool, void *stream,
                       void **input, void **output) {
    struct gpupool_buffer device;
"""
STREAMS_MAIN = """}

enum { STREAMS = 3, BATCHES = 7, SIZE = 100000 };

int main(void) {
    struct gpupool_buffer host[2][BATCHES];
    void *memory[2][BATCHES], *streams[STREAMS];
    uint32_t device_pool, host_pool;
    int wrong = 0;

    if (gpupool_open(NULL, &client) < 0 || gpupool_device_pool(client, 0, &device_pool) < 0 ||
        gpupool_host_pool(client, -1, &host_pool) < 0)
        return 1;
    for (unsigned i = 0; i < 2 * BATCHES; i++) {
        if (gpupool_acquire(client, host_pool, SIZE, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &host[i % 2][i / 2]) < 0)
            return 1;
        memory[i % 2][i / 2] = host[i % 2][i / 2].data;
        memset(memory[i % 2][i / 2], (int)i, SIZE);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        if (gpupool_stream_create(client, 0, &streams[i]) < 0)
            return 1;
        one_stream(i, STREAMS, BATCHES, SIZE, device_pool, streams[i], memory[0], memory[1]);
    }
    for (unsigned i = 0; i < STREAMS; i++)
        if (gpupool_stream_destroy(client, 0, streams[i]) < 0)
            return 1;
    for (unsigned batch = 0; batch < BATCHES; batch++)
        for (unsigned i = 0; i < SIZE; i++)
            wrong += ((unsigned char *)memory[1][batch])[i] != ((2 * batch) ^ 0x5a);
    gpupool_close(client);
    return printf("%d wrong\\n", wrong) < 0;
}
"""
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
        self.assertEqual(lines[1:4], ["array: 2 and 1, 1 copy to the device, 1 to the host", "by type: 0 and 50",
                                      "staging: 7 and 7"])
        self.assertGreaterEqual(len(lines), 5)
        self.assertTrue(all(line.endswith(": 0") for line in lines[4:]), output)

    def test_the_example_in_cpp_compiles(self):
        text = CPP_BEGINNING + "".join(installed.blocks(PAGE, "cpp"))
        self.shell(f"c++ -std=c++17 {FLAGS} -c example.cc", self.example("cc", text))

    def test_the_example_of_streams_computes_every_batch(self):
        text = installed.blocks(STREAMS_PAGE, "c")[-1]
        text, launches = re.subn(r"(work_on)<<<.*?, (stream)>>>\((.*?)\);", r"\1(\3, \2);", text)
        self.assertEqual(launches, 1)
        directory = self.example("c-streams", STREAMS_BEGINNING + text + STREAMS_MAIN)
        self.shell(f"cc -x c -std=c11 {FLAGS} example.c-streams -o example $(pkg-config --libs gpupool)", directory)
        output = self.shell("GPUPOOL_SOCKET=private GPUPOOL_DAEMON_ARGS='--gpu sim --log-level warning' ./example", directory)
        self.assertEqual(output, "0 wrong\n")

    def test_the_example_of_two_processes_orders_their_turns(self):
        directory = self.example("c-processes", installed.blocks(STREAMS_PAGE, "c")[0])
        self.shell(f"cc -x c -std=c11 {FLAGS} example.c-processes -o example $(pkg-config --libs gpupool)", directory)
        output = self.shell("gpupoold --socket $PWD/data --admin-socket $PWD/admin --gpu sim --log-level error & daemon=$!\n"
                            "trap 'kill $daemon; wait $daemon' EXIT\n"
                            # The admin socket comes last: the data socket then takes connections.
                            "while [ ! -S admin ]; do kill -0 $daemon; sleep 0.1; done\n"
                            "GPUPOOL_SOCKET=$PWD/data ./example", directory)
        self.assertEqual(output, "every turn was read as it was written\n")


if __name__ == "__main__":
    unittest.main()
