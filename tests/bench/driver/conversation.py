# SPDX-License-Identifier: Apache-2.0
"""A program that is asked a line and answers an object, so that several programs can live at the same time and take turns."""
import contextlib
import json
import subprocess
import tempfile
import threading

from bench import ERROR_BYTES, SKIPPED, Absent, Failed


class Conversation:
    """Close it."""

    def __init__(self, command, environment):
        self.errors = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen([str(argument) for argument in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.errors, env=environment, text=True)
        except OSError:
            self.errors.close()
            raise

    def answer(self, limit_s):
        """The next object that the program prints."""
        limit = threading.Timer(limit_s, self.process.kill)
        limit.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
            status = self.process.wait()
        finally:
            limit.cancel()
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()[-ERROR_BYTES:]
        if status == SKIPPED:
            raise Absent(text)
        raise Failed(f"the program ended with {status}: {text}")

    def tell(self, line):
        """Its answer is to be fetched by answer()."""
        with contextlib.suppress(OSError):  # it has ended: answer() says how
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def ask(self, line, limit_s):
        self.tell(line)
        return self.answer(limit_s)

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()
