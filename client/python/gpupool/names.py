# SPDX-License-Identifier: Apache-2.0
"""Names: buffers that other processes of the user find by a text.

    gpupool.names.publish_buffers("frames/background", [buffer], keep=True)

    with gpupool.names.open_buffers("frames/background") as name:   # in any process, also after the publisher's end
        use(name.buffers[0])

A name stands for 1 to 64 buffers and for a directory, up to 64 KiB of bytes that say what lies where. Publishing again replaces what a
name stands for; each publication has a generation, a number above all before. docs/names.md tells the rest.
"""
import collections

from gpupool import _gpupool

KEEP, LIVE, SAME_LAYOUT, WRITE = 1, 2, 4, 8  # as in <gpupool/names.h>

NameInfo = collections.namedtuple("NameInfo", "name generation bytes layout session keep live buffers")
NameInfo.__doc__ = """A name of the user. generation is 0 while nothing is published; session is that of the publisher or the builder in the
daemon's stats; buffers is how many it has."""


class Name:
    """A name that was opened. Its Buffers give their leases back with close(), or when they die."""

    def __init__(self, name, opened):
        self.name = name
        self.generation, self.layout, flags, self.directory, self.buffers = opened
        self.keep, self.live = bool(flags & KEEP), bool(flags & LIVE)

    def close(self, stream=None):
        """Gives the buffers back behind the stream; None: behind the one that each was opened for."""
        while self.buffers:
            self.buffers[-1].close(stream)
            self.buffers.pop()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return f"<gpupool.names.Name {self.name!r}, generation {self.generation}, {len(self.buffers)} buffers>"


def publish_buffers(name, buffers, *, directory=b"", stream=None, keep=False, live=False, same_layout=False):
    """Publishes Buffers under a name, in the place of what it stood for. Returns the generation.

    The contents are what the stream has written by then; None: they are there already. keep: the name stays when this process ends.
    live: this process goes on writing; otherwise the contents are final. same_layout: only in the place of the same sizes and directory
    (else InvalidError). The caller may close the Buffers at once.
    """
    flags = (KEEP if keep else 0) | (LIVE if live else 0) | (SAME_LAYOUT if same_layout else 0)
    return _gpupool._publish(name, buffers, stream, directory, flags)


def open_buffers(name, *, generation=0, write=False, stream=None, timeout=0, client=None):
    """Opens a name, and returns a Name.

    generation: at least this one. write: map live contents for writing. The stream waits for the publisher's work on the GPU; None: this
    call waits. timeout: seconds until it has to be published, else NoNameError; None: for ever.
    """
    return Name(name, _gpupool._open_name(name, generation, False, WRITE if write else 0, stream, timeout, client))


def open_or_build(name, *, write=False, stream=None, timeout=None, client=None):
    """Opens a name, and returns a Name; or None, where this process is to build it.

    Of the processes that ask while nothing is published, one builds: it calls publish_buffers(), or abandon(). The others wait.
    """
    opened = _gpupool._open_name(name, 0, True, WRITE if write else 0, stream, timeout, client)
    return None if opened is None else Name(name, opened)


def abandon(name, *, client=None):
    """Gives up what this process was to build: another one that waits builds it."""
    _gpupool._end_name(name, None, client)


def unpublish(name, *, generation=0, client=None):
    """Has a name stand for nothing. generation: only if it stands for this one. Processes that have it open keep it."""
    _gpupool._end_name(name, generation, client)


def watch(name, generation=0, *, timeout=None, client=None):
    """Waits until a name stands for another generation, and returns that; 0: for none any more. NoNameError after the timeout."""
    return _gpupool._watch_name(name, generation, timeout, client)


def names(*, client=None):
    """Returns a list of NameInfo, of all names of the user."""
    return [NameInfo(name, generation, n_bytes, layout, session, bool(flags & KEEP), bool(flags & LIVE), n_buffers)
            for name, generation, n_bytes, layout, session, flags, n_buffers in _gpupool._list_names(client)]
