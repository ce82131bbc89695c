# SPDX-License-Identifier: Apache-2.0
"""Completion of gpupoolctl in bash, zsh and fish, in those shells; zsh and fish where they are installed."""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

from gpupool_system import CTL, SOURCE, WAIT_S

FOLDER = SOURCE / "client/ctl/completions"
CASES = ((("",), {"stats", "top", "events", "session"}, {"--json"}), (("ev",), {"events"}, {"stats"}), (("events", "--si"), {"--since"}, {"--release"}),
         (("quarantine", "--"), {"--release", "--yes", "--json"}, {"--since"}), (("session", ""), {"end"}, {"stats"}), (("scope", ""), {"add", "set", "drop", "list"}, {"stats"}), (("help", "par"), {"parcels"}, {"top"}),
         (("un",), {"unpublish"}, {"names"}), (("unpublish", "--"), {"--uid", "--scope", "--yes"}, {"--release"}))


class Completion(unittest.TestCase):
    def variables(self, folder):
        (pathlib.Path(folder) / "gpupoolctl").symlink_to(CTL)
        return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": folder, "LC_ALL": "C.UTF-8", "TERM": "dumb"}

    def check(self, complete):
        with tempfile.TemporaryDirectory() as folder:
            variables = self.variables(folder)
            for words, there, absent in CASES:
                with self.subTest(words):
                    found = complete(words, variables, folder)
                    self.assertLessEqual(there, found)
                    self.assertFalse(absent & found, found)

    def run_shell(self, command, variables):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WAIT_S, check=True)
        return set(done.stdout.split())

    def test_bash(self):
        def complete(words, variables, _):
            script = (f"source {FOLDER}/gpupoolctl.bash; COMP_WORDS=(gpupoolctl {' '.join(repr(word) for word in words)}); "
                      f"COMP_CWORD={len(words)}; _gpupoolctl; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
            return self.run_shell(["bash", "-c", script], variables)
        self.check(complete)

    @unittest.skipIf(shutil.which("fish") is None, "there is no fish")
    def test_fish(self):
        def complete(words, variables, _):
            line = " ".join(("gpupoolctl", *words))
            return self.run_shell(["fish", "--no-config", "-c", f"source {FOLDER}/gpupoolctl.fish; complete -C '{line}'"], variables)
        self.check(complete)

    @unittest.skipIf(shutil.which("zsh") is None, "there is no zsh")
    def test_zsh(self):
        """zsh completes in a terminal alone."""
        def complete(words, variables, folder):
            shutil.copy(FOLDER / "gpupoolctl.zsh", pathlib.Path(folder) / "_gpupoolctl")
            child, master = pty.fork()
            if child == 0:
                os.execvpe("zsh", ["zsh", "-f", "-i"], variables)
            text = b""

            def read_until(pattern):
                nonlocal text
                end = time.monotonic() + WAIT_S
                while not re.search(pattern, text, re.DOTALL):
                    self.assertLess(time.monotonic(), end, text)
                    if select.select([master], [], [], 0.1)[0]:
                        text += os.read(master, 65536)

            os.write(master, f"PS1='> ' LISTMAX=1000; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; echo be''gin\n".encode())
            read_until(rb"begin.*\[\?2004h")  # the line editor is at work: it turns bracketed paste on
            text = b""
            os.write(master, " ".join(("gpupoolctl", *words)).encode() + b"\t\t")
            os.write(master, b"\x15echo fin''ished\n")
            read_until(rb"finished")
            os.write(master, b"exit\n")
            os.close(master)
            os.waitpid(child, 0)
            return set(text.decode(errors="replace").replace("\x08", " ").split())
        self.check(complete)


if __name__ == "__main__":
    unittest.main()
