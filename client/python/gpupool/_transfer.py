# SPDX-License-Identifier: Apache-2.0
"""Pickled buffers. The receiver finds a client of the sender's daemon, by the daemon's identity, and attaches. The sender holds the memory.

A message holds its memory until it is received, as long as its sender lives, and LIFETIME_S longer. A message whose receiver has ended
is taken back. An argument of a process that is being started goes to that process. Nothing tells to which process another pickle goes,
but the receivers that can be known are the processes of multiprocessing that are there LIFETIME_S after it was sent. When none of them
lives any more, or there is none, the sender revokes the message.
"""
import collections
import contextlib
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.process
import os
import threading
import time
import weakref

from gpupool._gpupool import (Client, ConnectError, Error, NoTokenError, _find_client, _is_mapped_read_only, _private_socket, _send_held,
                              attach, default_client, revoke)

DEFAULT_PATH = "/run/gpupool/gpupool.sock"

_lock = threading.Lock()
_clients = {}  # by process and origin: of daemons that are not the default client's


def origin_of(client):
    """Which daemon a message is of. The path is its last resort: here it may lead to another daemon than there, or nowhere."""
    return client.identity, client.socket_path


def client_of(origin):
    """A client of the daemon: an open one, else a new one by this process's own path, else one by the sender's."""
    identity, path = origin
    client = _find_client(identity) if identity else None
    if client is None:
        with _lock:
            client = _open_client_of(identity, path)
    return client


def _open_client_of(identity, path):
    key = os.getpid(), identity, path
    if key in _clients and _clients[key].connected:
        return _clients[key]
    default = _find_client(None)
    others, failed = [] if default is None else [_other(default, default.socket_path)], []
    for place, opener in _places(identity, path, default):
        try:
            client = opener()
        except Error as error:
            failed.append(str(error))
            continue
        is_default = opener is default_client
        if not identity or client.identity == identity:
            if not is_default:
                _clients[key] = client
            return client
        others.append(_other(client, place))
        if not is_default:
            client.close()
    raise _not_found(identity, path, others, failed)


def _other(client, place):
    return f"at {place} there is the daemon {client.identity}"


def _places(identity, path, default):
    """Paths at which the daemon may listen, the likeliest first, each with what opens a client there."""
    is_private = os.environ.get("GPUPOOL_SOCKET") == "private"
    own = _private_socket() if is_private else os.environ.get("GPUPOOL_SOCKET") or DEFAULT_PATH
    places = [(path, lambda: Client(path))]
    if default is None and path == own:
        places = [(own, default_client)]
    elif not identity or is_private:
        pass  # a daemon that does not tell is known by its path alone, and a private one is not started only to look at it
    elif default is None:
        places.insert(0, (own, default_client))
    elif own not in (path, default.socket_path):
        places.insert(0, (own, lambda: Client(own)))
    return places


def _not_found(identity, path, others, failed):
    text = f"the memory is in the daemon {identity}, which listened at {path}, and this process does not find it: "
    text += "; ".join(others + failed)
    if others:
        return NoTokenError(f"{text}. A daemon that was started anew does not have the memory of the one before. "
                            "For one that runs, set GPUPOOL_SOCKET to where it listens in this process")
    return ConnectError(text)


LIFETIME_S = 600  # a message can wait for so long for a process that is to be started, and holds memory for so long in vain
_CHILD_PAUSE_S, _CHILD_SHARE = 0.25, 4  # a child is looked at after a quarter of the time that it has lived, and no sooner than that
_MESSAGES_MAX = 4096  # of which one group knows: more than lie in the pipes of a process, which hold some 200 each


class _Group:
    """Messages that the same processes may receive."""

    def __init__(self, messages, receivers):
        self.messages, self.receivers = messages, receivers

    def revoke(self):
        for find_client, token in self.messages:
            client = find_client()
            try:
                if client is not None:
                    revoke(token, client=client)
            except NoTokenError:
                pass  # it was received
            except Error:
                return  # the daemon is gone


class _Watch:
    """Takes messages back, in a thread that looks once in LIFETIME_S, and more often at young children with arguments that are messages.
    It starts with the first message.

    A message is noted without a lock, as each one pays for it: a thread may be about to add to the messages that another one has just
    made a group of. So a group is merged with others when it is looked at the next time."""

    def __init__(self):
        self.messages = collections.deque(maxlen=_MESSAGES_MAX)  # whose receivers are not known yet
        self.groups = []
        self.arguments = collections.deque()  # (child, message) that the thread has not seen
        self.children = {}  # by child: a group, and since when it is known
        self.is_told, self.next_look = threading.Event(), float("inf")
        self.is_started = False

    def note(self, client, token):
        child = multiprocessing.context.get_spawning_popen()
        if child is None:
            self.messages.append((weakref.ref(client), token))
        else:
            self.arguments.append((weakref.ref(child), (weakref.ref(client), token)))
            if self.next_look > time.monotonic() + _CHILD_PAUSE_S:  # not for each of many arguments
                self.is_told.set()
        if not self.is_started:
            self.start()

    def start(self):
        with _lock:
            if self.is_started:
                return
            self.is_started = True
            with contextlib.suppress(RuntimeError):  # the process ends, and starts no threads any more
                threading.Thread(target=self.run, name="gpupool-messages", daemon=True).start()

    def run(self):
        due = time.monotonic() + LIFETIME_S
        while True:
            self.next_look = min(due, time.monotonic() + self.pause())
            if self.arguments:  # of a message that was noted before next_look said that this thread is going to wait
                self.is_told.set()
            self.is_told.wait(max(0, self.next_look - time.monotonic()))
            self.is_told.clear()
            for group in self.look_at_children():
                group.revoke()
            if time.monotonic() >= due:
                for group in self.look():
                    group.revoke()
                due = time.monotonic() + LIFETIME_S

    def pause(self):
        """Until the next look at the children."""
        if not self.children:
            return LIFETIME_S
        youngest = max(since for _, since in self.children.values())
        return max(_CHILD_PAUSE_S, (time.monotonic() - youngest) / _CHILD_SHARE)

    def look_at_children(self):
        """Returns the groups of those that have ended."""
        while self.arguments:
            child, message = self.arguments.popleft()
            if child not in self.children:
                self.children[child] = _Group(collections.deque(maxlen=_MESSAGES_MAX), None), time.monotonic()
            self.children[child][0].messages.append(message)
        ended = [child for child in self.children if not _is_running(child())]
        return [self.children.pop(child)[0] for child in ended]

    def look(self):
        """Returns the groups whose messages no process can receive any more."""
        ended, known = [], {}
        for group in self.groups:  # from the newest one to the oldest one
            group.receivers = frozenset(filter(_is_alive, group.receivers))
            newer = known.setdefault(group.receivers, group)
            if not group.receivers:
                ended.append(group)
            elif newer is not group:
                newer.messages = collections.deque([*group.messages, *newer.messages], _MESSAGES_MAX)
        known.pop(frozenset(), None)
        added, self.messages = self.messages, collections.deque(maxlen=_MESSAGES_MAX)
        self.groups = [_Group(added, frozenset(filter(_is_alive, _family()))), *known.values()]
        return ended


def _family():
    """The processes that this one can reach by a queue or a pipe of multiprocessing, as far as it knows them."""
    parent = multiprocessing.process.parent_process()
    return {*multiprocessing.process._children, *(() if parent is None else (parent,))}


def _is_alive(process):
    """As Process.is_alive(), and leaves it to the program to wait for the process."""
    try:
        return not multiprocessing.connection.wait([process.sentinel], 0)
    except (OSError, ValueError):  # the program has closed the object, as it may when the process has ended
        return False


def _is_running(child):
    """Whether a process that multiprocessing starts, or has started, may still receive its arguments. multiprocessing keeps the object
    until it knows that the process has ended, and drops that of a process which could not be started."""
    if child is None or child.returncode is not None:
        return False
    if not hasattr(child, "pid") or not hasattr(child, "sentinel"):
        return True  # it is being started: until then the fork server's sentinel is readable, too
    return _is_alive(child)


def _forget():
    """In a forked child: messages are the parent's, and another thread of it may have had a lock."""
    global _lock, _watch
    _lock, _watch = threading.Lock(), _Watch()


_watch = _Watch()
os.register_at_fork(after_in_child=_forget)


def send(client, buffer, stream=None, lifetime_s=None):
    """The token of a pickled message, which holds its memory for lifetime_s, or LIFETIME_S, after its sender's end."""
    token = _send_held(buffer, stream, LIFETIME_S if lifetime_s is None else lifetime_s)
    _watch.note(client, token)
    return token


def reduce_buffer(buffer):
    client = buffer.pool.client
    return attach_sent, (send(client, buffer), origin_of(client), _is_mapped_read_only(buffer))


def attach_sent(token, origin, read_only):
    """A Buffer over the memory that was pickled."""
    return attach(token, read_only=read_only, client=client_of(origin))


def view_of_other(buffer, shape, dtype, offset):
    """An Array over the memory that was pickled."""
    return buffer.view(shape, dtype, offset)
