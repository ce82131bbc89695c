# SPDX-License-Identifier: Apache-2.0
"""The files that a gate looks at: those that git tracks. A tree of which git tracks nothing, such as an unpacked archive, is walked
instead, without builds and without folders whose names begin with a dot."""
import os
import pathlib
import subprocess


def ask_git(root):
    """The names that git tracks in a folder, or None where it tracks none there: no checkout, or there is no git."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook's names another checkout
    try:
        done = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return None
    return [name for name in done.stdout.split("\0") if name] or None


def walk(root):
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(("build", ".")) and name != "__pycache__"]
        names += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return names


def files(root):
    """The paths of a tree's files relative to it, in order. Links and files that are not there any more are left out."""
    root = pathlib.Path(root)
    names = ask_git(root)
    paths = [pathlib.Path(name) for name in (walk(root) if names is None else names)]
    return sorted(path for path in paths if (root / path).is_file() and not (root / path).is_symlink())
