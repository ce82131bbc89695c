# SPDX-License-Identifier: Apache-2.0
"""Figures of the pages that the sources have too: each sentence stands on its page with the figure of the sources, which speak
through the program wire_page. docs/wire.md has a test of its own (test_wire.py)."""
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["GPUPOOL_SOURCE"])
WAIT_S = 60
ARCHITECTURE, HEADER = "docs/architecture.md", "client/include/gpupool/gpupool.h"
CONF, LIMITS, UNIT = "docs/man/gpupoold.conf.5.scd", "docs/limits.md", "systemd/gpupoold.service.in"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
# Figures of sources that the program does not print.
DEFINED = {
    "daemon/data/client.h": ("CLIENT_GREETING_MAX",),
    "daemon/core/limits.h": ("WAIT_QUEUE_WINDOW", "ASKS_TRUSTED_MAX", "HOLDERS_WALK_MAX", "SHARED_LOOKED_AT_MAX"),
    "daemon/admin/admin_report.c": ("REQUESTS_TOLD_MAX",),
    "client/api/options.c": ("DEFAULT_ANSWER_TIMEOUT_NS", "DEFAULT_DECAY_NS", "DEFAULT_ALLOC_TIMEOUT_NS"),
    "client/cache/depot.h": ("MAGAZINE_PIECES",),
    "client/cache/move_debts.h": ("MOVE_DEBT_CREDIT", "MOVE_DEBT_TAKES"),
    "client/session/row.h": ("ROWS_IDLE_MAX",),
}
SENTENCES = [
    (CONF, "How many processes may be connected at a time, {SESSIONS_MAX_DEFAULT}."),
    (CONF, "descriptors of 65536 are enough for {SESSIONS_OF_65536} sessions, {PAGES_OF_65536} pages and {SEGMENTS_OF_65536} such segments, "
           "4096 for {SESSIONS_OF_4096}, {PAGES_OF_4096} and {SEGMENTS_OF_4096}, 256 for {SESSIONS_OF_256}, {PAGES_OF_256} and {SEGMENTS_OF_256}"),
    (LIMITS, "stored ones {USER_PAGES:,} pages, which are {USER_CHANNELS} channels of one consumer"),
    (CONF, "How many leases one process may have at a time, {SESSION_LEASES_DEFAULT};"),
    (CONF, "Leases of all processes, {LEASES_DEFAULT}."),
    (CONF, "The ranges that these leases are in, {RANGES_DEFAULT}."),
    (CONF, "Requests that wait for room, {WAITING_DEFAULT}."),
    (CONF, "the daemon keeps for processes that do not read its replies, *{REPLIES_MIB}MiB*."),
    (CONF, "a user has at most {UNDELIVERED_MAX} such sockets, and fewer where *LimitNOFILE* is below {LINGERING_ALL} "
           "(a {LINGERING_PER}nd of it, such as {LINGERING_OF_65536} of 65536, but {LINGERING_MIN} from {LINGERING_FEW} "
           "descriptors on)"),
    (LIMITS, "A user with more than {LINGERING_OF_65536} such sockets"),
    (CONF, "Each takes up to {SESSION_DESCRIPTORS} descriptors of the daemon"),
    (UNIT, "A session takes up to {SESSION_DESCRIPTORS} descriptors"),
    ("docs/upgrades.md", "The unit's store holds {STORE_SLOTS:,}, a keeper's as many"),
    ("docs/upgrades.md", "so with {SESSIONS_MAX_DEFAULT:,} sessions {STORED_SEGMENTS:,} segments are kept"),
    (LIMITS, "The store holds {STORE_SLOTS:,} descriptors at most"),
    (UNIT, "FileDescriptorStoreMax={STORE_SLOTS}"),
    (LIMITS, "by {TOKEN_BYTES}-byte tokens that the program transports"),
    ("docs/streams.md", "Any means will do to pass the token: it is {TOKEN_BYTES} bytes."),
    ("docs/python.md", "returns a token for two processes, as {TOKEN_BYTES} bytes to be sent by any means"),
    ("SECURITY.md", "Sharing is by a token of {TOKEN_RANDOM_BITS} random bits"),
    (ARCHITECTURE, "unless {PROTO_UNHEARD_MAX} messages before it may not have been read"),
    (ARCHITECTURE, "with up to {PROTO_ONE_WAY_PER_TURN_WORD} messages without an answer"),
    (ARCHITECTURE, "so the writer asks again, up to {PROTO_HOLDERS_ASKS_WORD} times"),
    (HEADER, "{PROTO_PAGE_FENCES} streams of this process are busy with theirs"),
    (HEADER, "the buffer lies in more than {PROTO_ROW_PARTS_MAX:,} segments"),
    (HEADER, "({PROTO_BOARD_SLOTS:,} processes of the user leave some, or {PROTO_BOARD_WORDS} streams of this one are busy with theirs)"),
    (HEADER, "LIMIT also when {PARCELS_MAX:,} buffers of the user are on their way"),
    (LIMITS, "A shared buffer lies in {PROTO_ROW_PARTS_MAX:,} segments at most."),
    ("docs/troubleshooting.md", "(option `answer_timeout_ns`, {DEFAULT_ANSWER_TIMEOUT_NS} s by default;"),
    ("docs/man/gpupool.3.scd", "after _decay_ns_ without use ({DEFAULT_DECAY_NS} s)"),
    ("docs/man/gpupool.3.scd", "else *$GPUPOOL_ALLOC_TIMEOUT*, else {DEFAULT_ALLOC_TIMEOUT_NS} seconds:"),
    ("docs/python.md", "which is `GPUPOOL_ALLOC_TIMEOUT`, or {DEFAULT_ALLOC_TIMEOUT_NS} seconds;"),
    ("docs/libraries.md", "as long as `GPUPOOL_ALLOC_TIMEOUT` says ({DEFAULT_ALLOC_TIMEOUT_NS} s)."),
    (ARCHITECTURE, "At most {CLIENT_GREETING_MAX} connections may be about to say HELLO"),
    (ARCHITECTURE, "the pool looks at the first {WAIT_QUEUE_WINDOW} of a wait queue"),
    (ARCHITECTURE, "after {PASSES_MAX} times it is *overdue*"),
    (ARCHITECTURE, "once for up to {MAGAZINE_PIECES} pieces"),
    (ARCHITECTURE, "stays within a credit of {MOVE_DEBT_CREDIT} segments"),
    (ARCHITECTURE, "{MOVE_DEBT_TAKES} buffers that the process takes from the pool pay for one segment"),
    (ARCHITECTURE, "A row without a lease stays mapped as well, up to {ROWS_IDLE_MAX} of them"),
    ("docs/glossary.md", "overtaken {PASSES_MAX} times"),
    ("docs/wire.md", "If {CLIENT_GREETING_MAX} connections have not said HELLO yet"),
    ("docs/wire.md", "the daemon looks at {SHARED_LOOKED_AT_MAX} leases at most"),
    ("docs/man/gpupoolctl.1.scd", "one for each of its requests that wait, the {REQUESTS_TOLD_MAX} oldest at most"),
    (LIMITS, "in {ASKS_TRUSTED_MAX} rounds of questions"),
    (LIMITS, "Each refusal goes through the first {HOLDERS_WALK_MAX} sessions of its user"),
    (LIMITS, "The cache counters have {PROTO_PAGE_COUNTERS} places."),
    (LIMITS, "{PROTO_BOARD_SLOTS:,} sessions of a user can leave such fences, with {PROTO_BOARD_WORDS} streams each"),
    (LIMITS, "can be overtaken {PASSES_MAX} times by later requests"),
    (LIMITS, "(a session may have {SESSION_LEASES_DEFAULT:,})"),
    (LIMITS, "A host buffer has at most {HOST_GIB} GiB"),
    (LIMITS, "The defaults allow {LEASES_MIB} MiB of leases, {RANGES_MIB} MiB of ranges, {WAITING_MIB} MiB of requests, {REPLIES_MIB} MiB "
             "of replies, and {SESSIONS_OF_A_USER:,} sessions"),
]


def read_figures():
    done = subprocess.run([os.environ["GPUPOOL_WIRE_PAGE"]], input="figures\n", check=True, capture_output=True, text=True,
                          timeout=WAIT_S)
    figures = {name: int(value) for name, value in (line.split() for line in done.stdout.splitlines() if line)}
    figures["LINGERING_OF_65536"] = 65536 // figures["LINGERING_PER"]
    figures["LINGERING_ALL"] = figures["UNDELIVERED_MAX"] * figures["LINGERING_PER"]
    figures["LINGERING_FEW"] = 16 * figures["LINGERING_MIN"]
    figures["HOST_GIB"] = figures["HOST_SEGMENT_MAX"] >> 30
    figures["REPLIES_MIB"] = figures["REPLIES_DEFAULT"] >> 20
    for source, names in DEFINED.items():
        figures |= {name: figure_of(source, rf"#define {name} +(?:UINT64_C)?\(?(\d+)") for name in names}
    figures["SESSION_DESCRIPTORS"] = NUMBERS[figure_of("daemon/loop/descriptors.c", r"#define SESSION_DESCRIPTORS (\d+)u")]
    figures["TOKEN_BYTES"] = figure_of("client/include/gpupool/gpupool.h", r"struct gpupool_token \{\s*uint8_t bytes\[(\d+)\];")
    figures["TOKEN_RANDOM_BITS"] = 8 * figure_of("proto/limits.h", r"#define PROTO_TOKEN_BYTES +(\d+)u")
    for name in ("PROTO_ONE_WAY_PER_TURN", "PROTO_HOLDERS_ASKS"):
        figures[f"{name}_WORD"] = NUMBERS[figures[name]]
    # as unit/core_spend has the bytes of each
    figures["LEASES_MIB"] = figures["LEASES_DEFAULT"] * 544 >> 20
    figures["RANGES_MIB"] = figures["RANGES_DEFAULT"] * 192 >> 20
    figures["WAITING_MIB"] = figures["WAITING_DEFAULT"] * 320 >> 20
    figures["SESSIONS_OF_A_USER"] = figures["SESSIONS_MAX_DEFAULT"] - figures["SESSIONS_MAX_DEFAULT"] // 64
    return figures


def figure_of(source, pattern):
    """A number that a source has once."""
    found, = re.findall(pattern, (SOURCE / source).read_text())
    return int(found)


class Figures(unittest.TestCase):
    def test_each_sentence_has_the_figure_of_the_sources(self):
        figures = read_figures()
        pages = {page: " ".join(re.sub(r"\n *[#*] ", " ", (SOURCE / page).read_text()).split()) for page in {page for page, _ in SENTENCES}}
        for page, sentence in SENTENCES:
            with self.subTest(sentence):
                self.assertTrue(sentence.format(**figures) in pages[page], f"{page} does not say: {sentence.format(**figures)}")


if __name__ == "__main__":
    unittest.main()
