"""What a disk may hold after a power loss, from a record of the calls that changed it.

Only what was synced is certain. Writes to a file since its last fsync may be lost, torn between two
sectors, replaced by zeros, or applied without the ones before them. Names in a directory since its
last fsync may be missing, in any order. The enumeration is bounded: at each moment, one file or one
directory takes each of its states while all others keep everything, or nothing, that is uncertain;
in addition, random combinations are drawn.
"""

import os
import random
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from mopbt.filesystem import Disk

SECTOR = 512
COMBINATIONS = 24  # random combinations at each moment


class Recorder(Disk):
    """A disk that records what changes the files below a directory."""

    def __init__(self, root):
        self.root = root
        self.events = []
        self._inodes = {}  # by path
        self._open = {}  # inode, or the path of a directory, by descriptor
        self._next = 0

    def open(self, path, flags):
        exists = path.exists()
        fd = super().open(path, flags)
        if path.is_dir():
            self._open[fd] = path
        elif path in self._inodes:
            self._open[fd] = self._inodes[path]
            if flags & os.O_TRUNC:
                self.events.append(("truncate", self._inodes[path], 0))
        elif not exists:
            self._open[fd] = self._inodes[path] = self._next
            self.events.append(("name", path.parent, path.name, self._next))
            self._next += 1
        return fd

    def write(self, fd, data, offset):
        written = super().write(fd, data, offset)
        self.events.append(("write", self._open[fd], bytes(data[:written]), offset))
        return written

    def truncate(self, fd, length):
        super().truncate(fd, length)
        self.events.append(("truncate", self._open[fd], length))

    def sync(self, fd):
        super().sync(fd)
        if fd in self._open:
            self.events.append(("sync", self._open[fd]))

    def close(self, fd):
        super().close(fd)
        self._open.pop(fd, None)

    def replace(self, source, target):
        super().replace(source, target)
        inode = self._inodes.pop(source)
        self._inodes[target] = inode
        self.events.append(("rename", target.parent, source.name, target.name, inode))

    def link(self, source, target):
        super().link(source, target)
        self._inodes[target] = self._inodes[source]
        self.events.append(("name", target.parent, target.name, self._inodes[source]))

    def unlink(self, path):
        super().unlink(path)
        self._inodes.pop(path, None)
        self.events.append(("unname", path.parent, path.name))

    def mkdir(self, path):
        super().mkdir(path)
        self.events.append(("name", path.parent, path.name, path))


@dataclass
class Durable:
    """What is certain about a file or a directory, and what happened to it since."""

    content: object
    pending: list = field(default_factory=list)

    def settle(self, apply):
        self.content = apply(self.content, self.pending)
        self.pending = []


def apply_to_file(content, operations):
    for operation in operations:
        if operation[0] == "truncate":
            length = operation[2]
            content = content[:length].ljust(length, b"\0")
        else:
            _, _, data, offset = operation
            content = content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]
    return content


def apply_to_directory(content, operations):
    names = dict(content)
    for operation in operations:
        match operation:
            case ("name", _, name, what):
                names[name] = what
            case ("unname", _, name):
                names.pop(name, None)
            case ("rename", _, source, target, inode):
                names.pop(source, None)
                names[target] = inode
    return names


def file_states(file):
    """Return the contents that a file may have: none and all of the uncertain comes first."""
    pending = file.pending
    states = [file.content, apply_to_file(file.content, pending)]
    for count in range(1, len(pending)):
        states.append(apply_to_file(file.content, pending[:count]))
        states.append(apply_to_file(file.content, pending[count:]))
    for place, operation in enumerate(pending):
        if operation[0] == "write":
            before = apply_to_file(file.content, pending[:place])
            states += [apply_to_file(before, [torn]) for torn in torn_writes(operation)]
    return list(dict.fromkeys(states))


def torn_writes(operation):
    """Yield a write as far as some of its sectors reached the disk; the others are zeros."""
    kind, inode, data, offset = operation
    end = offset + len(data)
    for cut in range((offset // SECTOR + 1) * SECTOR, end, SECTOR):
        head = data[: cut - offset]
        tail = data[cut - offset :]
        yield kind, inode, head, offset
        yield kind, inode, head + b"\0" * len(tail), offset
        yield kind, inode, b"\0" * len(head) + tail, offset
    yield kind, inode, b"\0" * len(data), offset


def directory_states(directory):
    """Return the names that a directory may have: none and all of the uncertain comes first."""
    pending = directory.pending
    tries = [[], pending]
    for place in range(len(pending)):
        tries += [pending[:place], [pending[place]], pending[:place] + pending[place + 1 :]]
    return [apply_to_directory(directory.content, some) for some in tries]


def _nothing(states):
    return states[0]


def _everything(states):
    return states[min(1, len(states) - 1)]


class Machine:
    """The disk of a machine that may lose its power at any moment."""

    def __init__(self, root):
        self.root = root
        self.files = {}
        self.directories = {root: Durable({})}

    def execute(self, event):
        kind = event[0]
        if kind in ("write", "truncate"):
            self.files[event[1]].pending.append(event)
        elif kind == "sync":
            place = event[1]
            if place in self.files:
                self.files[place].settle(apply_to_file)
            elif place in self.directories:
                self.directories[place].settle(apply_to_directory)
        elif event[1] in self.directories:
            self.directories[event[1]].pending.append(event)
            if kind == "name" and isinstance(event[3], Path):
                self.directories.setdefault(event[3], Durable({}))
            elif kind == "name":
                self.files.setdefault(event[3], Durable(b""))

    def states(self, rng):
        """Yield the trees, as dicts from paths to bytes, that a power loss may leave now."""
        files = {key: file_states(file) for key, file in self.files.items()}
        folders = {key: directory_states(place) for key, place in self.directories.items()}
        uncertain = [(files, key) for key in files if len(files[key]) > 1]
        uncertain += [(folders, key) for key in folders if self.directories[key].pending]
        for base in (_nothing, _everything):
            for group, key in uncertain:
                for state in group[key]:
                    yield self.tree(files, folders, base, {(id(group), key): state})
        for _ in range(COMBINATIONS if len(uncertain) > 1 else 0):
            yield self.tree(files, folders, rng.choice, {})

    def tree(self, files, folders, choose, fixed):
        tree = {}
        todo = [self.root]
        while todo:
            place = todo.pop()
            key = (id(folders), place)
            names = fixed[key] if key in fixed else choose(folders[place])
            for name, what in names.items():
                if isinstance(what, Path):
                    tree[str(what.relative_to(self.root))] = None
                    todo.append(what)
                    continue
                key = (id(files), what)
                content = fixed[key] if key in fixed else choose(files[what])
                tree[str((place / name).relative_to(self.root))] = content
        return tree


def crash_states(recorder, *, begin=0, seed=0):
    """Yield each distinct state after a power loss once, with how many events preceded it."""
    machine = Machine(recorder.root)
    rng = random.Random(seed)
    seen = set()
    for number, event in enumerate(recorder.events, 1):
        machine.execute(event)
        if number <= begin:
            continue
        for tree in machine.states(rng):
            digest = blake2b(repr(sorted(tree.items())).encode(), digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                yield number, tree


def write_tree(tree, place):
    """Create the files of a state in an empty directory."""
    for name, content in sorted(tree.items()):
        if content is None:
            (place / name).mkdir()
        else:
            (place / name).write_bytes(content)
