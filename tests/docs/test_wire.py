# SPDX-License-Identifier: Apache-2.0
"""docs/wire.md against the sources: each message has its table, with the offsets and sizes of the structs; each limit and error is
there with its number; each vector decodes to the fields that stand below it, and encodes to the same bytes; and the values that
the page calls broken are those that the decoder refuses. The sources speak through the program wire_page."""
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["GPUPOOL_SOURCE"])
PAGE = (SOURCE / "docs/wire.md").read_text()
VECTORS_FILE = SOURCE / "tests/docs/wire_vectors.txt"
WAIT_S = 60
REFUSED = {"client": "ends", "daemon": "refuse"}  # what the last column says of values that are not allowed


def ask(*commands):
    """The answers of the program, each a list of lines."""
    done = subprocess.run([os.environ["GPUPOOL_WIRE_PAGE"]], input="\n".join(commands) + "\n", check=True, capture_output=True,
                          text=True, encoding="utf-8", timeout=WAIT_S)
    return [answer.splitlines() for answer in done.stdout.split("\n\n")[:-1]]


def read_layout():
    """Messages by name: number, sender, and fields by name: (offset, size, kind)."""
    messages, fields = {}, None
    for line in ask("layout")[0]:
        words = line.split()
        if words[2] in ("client", "daemon", "both"):
            fields = {}
            messages[words[0]] = {"number": int(words[1]), "sender": words[2], "fields": fields}
        else:
            fields[words[0]] = (int(words[1]), int(words[2]), words[3])
    return messages


LAYOUT = read_layout()
MESSAGES = {name: message for name, message in LAYOUT.items() if name != "header"}


def rows(text):
    """The cells of a text's tables, without headings."""
    lines = [line for line in text.splitlines() if re.match(r"\|(?!-)", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("offset", "name", "word", "end")]


def section(title):
    """The text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    if found is None:
        raise AssertionError(f"docs/wire.md has no section {title!r}")
    return found[1]


def table_of(name):
    """A message's table: by field, (offset, size, last column)."""
    title = name if name == "header" else f"{name} ({LAYOUT[name]['number']})"
    return {row[2]: (row[0], row[1], row[5]) for row in rows(section(title)) if len(row) == 6}


def number_of(text):
    """16384, 2^56, 2 MiB, 64 GiB"""
    power = re.fullmatch(r"(\d+)\^(\d+)", text)
    if power:
        return int(power[1]) ** int(power[2])
    unit = {" MiB": 20, " GiB": 30}.get(text[-4:])
    return int(text, 0) if unit is None else int(text[:-4]) << unit


def bytes_of(text):
    """Hexadecimal bytes, of which "00 * 48" are 48."""
    text = re.sub(r"([0-9a-f]{2}) \* (\d+)", lambda found: f"{found[1]} " * int(found[2]), text)
    return bytes.fromhex(text)


def read_vectors():
    """Of each: the message's name, the packet, its fields or None, why it is refused or None."""
    vectors = []
    for text in VECTORS_FILE.read_text().strip().split("\n\n")[1:]:  # the first part is a comment
        title, *lines = text.splitlines()
        name, _, refused = title.partition(" ")
        if refused not in ("", "refused"):
            raise AssertionError(f"{VECTORS_FILE} has a vector with the title {title!r}")
        digits = [line for line in lines if re.fullmatch(r"[0-9a-f]{2}( (\*|\d+|[0-9a-f]{2}))*", line)]
        rest = lines[len(digits):]
        packet = bytes_of(" ".join(digits))
        if refused:
            vectors.append((name, packet, None, "\n".join(rest)))
        else:
            vectors.append((name, packet, dict(line.split(" = ", 1) for line in rest), None))
    return vectors


VECTORS = read_vectors()


def sender_of(name):
    return LAYOUT[name]["sender"]


def value_of(text, kind):
    if kind == "text":
        return text[1:-1]
    return bytes_of(text) if kind == "bytes" else int(text, 0)


def source_rows():
    """Of each message its name, sender, way of asking, reply and descriptors, in the words of the sources."""
    return re.findall(r"^PROTO_MESSAGE(?:_OPEN)?\((\w+), \d+, (\w+), (\w+), (\w+), (\w+),", (SOURCE / "proto/messages.def").read_text(),
                      re.MULTILINE)


class Tables(unittest.TestCase):
    def test_each_operation_of_the_header_is_a_message_with_a_section(self):
        operations = {name: message["number"] for name, message in MESSAGES.items()}
        self.assertEqual(set(operations), {name for name, *_ in source_rows()})
        titles = re.findall(r"^### ([A-Z_]+) \((\d+)\)$", PAGE, re.MULTILINE)
        self.assertEqual({name: int(number) for name, number in titles}, operations)

    def test_the_tables_have_the_fields_offsets_and_sizes_of_the_structs(self):
        for name, message in LAYOUT.items():
            with self.subTest(name):
                table = table_of(name)
                self.assertEqual(list(table), list(message["fields"]))
                for field, (offset, size, _) in table.items():
                    stride = {"pools": 144, "parts": 32, "leases": 24, "fences": 16, "names": 176,
                              "buffers": 48 if name == "PUBLISH" else 64}.get(field.split("[")[0], 8)
                    start, byte_count, _ = message["fields"][field]
                    self.assertEqual(offset, f"{start} + {stride} i" if "[i]" in field else str(start))
                    self.assertEqual(size, {"text": "text_length", "bytes": "n_bytes"}.get(field, str(byte_count)))

    def test_the_last_column_says_what_is_defined(self):
        errors = {line.split()[0] for line in ask("errors")[0]}
        for name, message in MESSAGES.items():
            allowed = {"ends", "–"} | errors if message["sender"] == "client" else {"refuse", "–"}
            with self.subTest(name):
                self.assertEqual({row[2] for row in table_of(name).values()} - allowed, set())

    def test_the_limits_are_the_sources(self):
        shown = {row[0]: number_of(row[1]) for row in rows(section("Limits")) if row[0] != "(granule)"}
        known = dict(line.split() for line in ask("limits")[0])
        for name, value in shown.items():
            with self.subTest(name):
                self.assertEqual(value, int(known[name]))
        only_in_text = {"PROTO_VERSION_MIN", "PROTO_VERSION_MAX", "PROTO_MAGIC"}
        self.assertEqual(set(known) - set(shown), only_in_text)
        self.assertEqual((known["PROTO_VERSION_MIN"], known["PROTO_VERSION_MAX"]), ("1", "3"))
        self.assertIn(f"{int(known['PROTO_MAGIC']):#x}", section("HELLO (1)"))

    def test_the_page_of_a_session_has_the_parts_of_the_struct(self):
        self.assertEqual([row[0] for row in rows(section("The page and its fences"))], ask("page")[0])

    def test_the_page_says_which_version_it_is(self):
        last = self.limits()["PROTO_VERSION_MAX"]
        self.assertRegex(PAGE, rf"describes version {last} of the protocol")
        self.assertRegex(section("HELLO_REPLY (64)"), rf"\| version \| \| {last}: ")

    def test_the_page_names_each_message_with_a_descriptor(self):
        carriers = {name for name, _, _, _, descriptors in source_rows() if descriptors != "0"}
        self.assertGreater(len(carriers), 4)
        named = section("Descriptors").partition("No other message has one.")[0]
        self.assertEqual(set(re.findall(r"\b[A-Z][A-Z_]+\b", named)) & set(MESSAGES), carriers)

    def test_each_message_that_may_be_one_way_is_named(self):
        named = re.search(r"\*\*One-way messages\*\*(.*?)\n\n", PAGE, re.DOTALL)[1]
        self.assertEqual(set(re.findall(r"\b[A-Z][A-Z_]+\b", named)) & set(MESSAGES),
                         {name for name, sender, request, _, _ in source_rows() if sender == "CLIENT" and request != "ANSWERED"})

    def test_each_request_names_its_reply(self):
        """In the sentence "Answered by …" of its section."""
        for name, sender, request, reply, _ in source_rows():
            if sender == "CLIENT" and request == "ANSWERED":
                with self.subTest(name):
                    self.assertRegex(section(f"{name} ({MESSAGES[name]['number']})"), rf"\b{reply}\b")

    def test_a_client_asks_until_the_daemon_has_read_what_is_unheard(self):
        text, limits = section("RELEASE (4)"), {name: int(value) for name, value in self.limits().items()}
        self.assertIn(f"A turn serves {limits['PROTO_ONE_WAY_PER_TURN']} messages", text)
        self.assertIn(f"A client with {limits['PROTO_UNHEARD_MAX']} unheard messages", text)
        self.assertIn(f"asks again, {limits['PROTO_HOLDERS_ASKS']} times in all", text)

    def test_the_largest_error_is_the_last_one(self):
        self.assertRegex(section("ERROR (70)"), rf"\| error \| \| 1 to {max(int(line.split()[1]) for line in ask('errors')[0])}, ")

    def limits(self):
        return dict(line.split() for line in ask("limits")[0])

    def test_the_errors_are_the_sources(self):
        shown = {row[0]: row[1] for row in rows(section("Errors"))}
        self.assertEqual(shown, dict(line.split() for line in ask("errors")[0]))


class Vectors(unittest.TestCase):
    def test_each_message_has_one_and_some_are_refused(self):
        self.assertEqual({name for name, _, fields, _ in VECTORS if fields is not None}, set(MESSAGES))
        self.assertGreater(sum(fields is None for _, _, fields, _ in VECTORS), 4)

    def test_each_decodes_to_its_fields_and_encodes_to_the_same_bytes(self):
        for name, packet, fields, _ in VECTORS:
            if fields is None:
                continue
            with self.subTest(name, packet=packet.hex()):
                *lines, again = ask(f"decode {sender_of(name)} {packet.hex()}")[0]
                self.assertFalse(again.startswith("refused"), again)
                self.assertEqual(again, f"again {packet.hex()}")
                decoded = dict((line + " ").split(" ", 1) for line in lines)
                self.assertEqual(int(decoded["operation"]), MESSAGES[name]["number"])
                kinds = {**LAYOUT["header"]["fields"], **MESSAGES[name]["fields"]}
                for field, text in decoded.items():
                    text, kind = text[:-1], kinds[re.sub(r"\[\d+\]", "[i]", field)][2]
                    if field in ("operation", "length") or field.endswith("reserved"):
                        continue
                    if field not in fields and (field.startswith("ids[") or field == "flags"):  # the header's flags
                        self.assertEqual(text, "0")
                        continue
                    self.assertIn(field, fields)
                    wanted = value_of(fields[field], kind)
                    got = text if kind == "text" else bytes.fromhex(text) if kind == "bytes" else int(text)
                    self.assertEqual(got, wanted, field)
                self.assertEqual(set(fields) - set(decoded), set())

    def test_those_that_are_refused_are_refused_for_what_the_page_says(self):
        for name, packet, fields, reason in VECTORS:
            if fields is None:
                with self.subTest(name, packet=packet.hex()):
                    self.assertEqual(ask(f"decode {sender_of(name)} {packet.hex()}")[0], [f"refused {reason}"])

    def test_the_page_calls_broken_what_the_decoder_refuses(self):
        """Each number of each vector is set to the ends of its range, and to what is above the limits."""
        questions, places = [], []
        for name, packet, fields, _ in VECTORS:
            for field, (offset, size, kind) in MESSAGES[name]["fields"].items():
                if fields is not None and kind in ("unsigned", "signed") and offset + size <= len(packet):
                    questions.append(f"try {sender_of(name)} {packet.hex()} {offset} {size}")
                    places.append((name, field))
        refused = {place: set() for place in places}
        for place, answer in zip(places, ask(*questions), strict=True):
            refused[place] |= {line.split(" ", 1)[1] for line in answer} - {"-"}
        self.assertGreater(len(refused), 60)
        for (name, field), reasons in refused.items():
            with self.subTest(f"{name}.{field}"):
                # Of a description, what is wrong may be said of another of its fields.
                names = [part for part in re.split(r"\.|\[i\]", field) if part not in ("", "pools")]
                word = re.compile(rf"\b({'|'.join(names)})\b")
                for reason in reasons:
                    self.assertRegex(reason, rf"^{name}\.")
                    self.assertRegex(reason, word)
                self.assertEqual(bool(reasons), table_of(name)[field][2] == REFUSED[sender_of(name)])


if __name__ == "__main__":
    unittest.main()
