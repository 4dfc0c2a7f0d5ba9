"""What a disk may hold after a power loss, from a record of the calls that changed it.

Only what was synced is certain. Writes to a file since its last fsync may be lost, torn between two
sectors, replaced by zeros, or applied without the ones before them. Names in a directory since its
last fsync may be missing, in any order. The enumeration is bounded: at each moment, one file or one
directory takes each of its states while all others keep everything, or nothing, that is uncertain;
in addition, random combinations are drawn. A remote storage keeps what it accepted; the object that
was being written may be incomplete.
"""

import random
from dataclasses import dataclass, field
from hashlib import blake2b

SECTOR = 512
COMBINATIONS = 24  # random combinations at each moment
ROOT = ("folder", "")


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
            case ("rename", _, source, target, what):
                names.pop(source, None)
                names[target] = what
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
    kind, file, data, offset = operation
    end = offset + len(data)
    for cut in range((offset // SECTOR + 1) * SECTOR, end, SECTOR):
        head = data[: cut - offset]
        tail = data[cut - offset :]
        yield kind, file, head, offset
        yield kind, file, head + b"\0" * len(tail), offset
        yield kind, file, b"\0" * len(head) + tail, offset
    yield kind, file, b"\0" * len(data), offset


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
    """The disk of a machine that may lose its power at any moment.

    Args:
        tree: What the disk holds durably at first: bytes by path, None for a directory.
    """

    def __init__(self, tree=None):
        self.files = {}
        self.folders = {ROOT: Durable({})}
        self.remote = {}
        self._torn = {}  # the remote object that is being written, incomplete
        for path, content in sorted((tree or {}).items()):
            folder, _, name = path.rpartition("/")
            what = ("folder", path) if content is None else path
            self.folders["folder", folder].content[name] = what
            if content is None:
                self.folders[what] = Durable({})
            else:
                self.files[what] = Durable(content)

    def execute(self, event):
        """Apply an event; what it changed is uncertain until it is synced."""
        self._torn = {}
        match event:
            case ("write" | "truncate", file, *_):
                self.files[file].pending.append(event)
            case ("sync", place):
                if place in self.folders:
                    self.folders[place].settle(apply_to_directory)
                else:
                    self.files[place].settle(apply_to_file)
            case ("name" | "unname" | "rename", folder, *_):
                self.folders["folder", folder].pending.append(event)
                if event[0] == "name":
                    group = self.folders if isinstance(event[3], tuple) else self.files
                    group.setdefault(event[3], Durable({} if group is self.folders else b""))
            case ("put" | "rm", path, data):
                self._execute_remote(path, data)

    def _execute_remote(self, path, data):
        if data is None:
            self.remote.pop(path, None)
        else:
            self.remote[path] = data
            self._torn = {path: data[: len(data) // 2]}

    def states(self, rng):
        """Yield the trees, as dicts from paths to bytes, that a power loss may leave now."""
        files = {key: file_states(file) for key, file in self.files.items()}
        folders = {key: directory_states(place) for key, place in self.folders.items()}
        uncertain = [(files, key) for key in files if len(files[key]) > 1]
        uncertain += [(folders, key) for key in folders if self.folders[key].pending]
        for base in (_nothing, _everything):
            yield self.tree(files, folders, base)
            for group, key in uncertain:
                all_states = group[key]
                for state in all_states:
                    group[key] = [state]
                    yield self.tree(files, folders, base)
                group[key] = all_states
        for _ in range(COMBINATIONS if len(uncertain) > 1 else 0):
            yield self.tree(files, folders, rng.choice)
        if self._torn:
            yield self.tree(files, folders, _everything) | self._torn

    def tree(self, files, folders, choose):
        """Choose a state of each file and directory, and return the tree that they make."""
        tree = {}
        todo = [ROOT]
        while todo:
            place = todo.pop()
            prefix = f"{place[1]}/" if place[1] else ""
            for name, what in choose(folders[place]).items():
                if isinstance(what, tuple):
                    tree[what[1]] = None
                    todo.append(what)
                else:
                    tree[prefix + name] = choose(files[what])
        for path, content in self.remote.items():
            tree.setdefault(path.rpartition("/")[0], None)
            tree[path] = content
        return tree


class Digests:
    """Names states by their content."""

    def __init__(self):
        self._known = {None: "-"}

    def of(self, tree):
        """Return the digest of a tree."""
        parts = [f"{path} {self._digest(content)}" for path, content in sorted(tree.items())]
        return blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()

    def _digest(self, content):
        if content not in self._known:
            self._known[content] = blake2b(content, digest_size=12).hexdigest()
        return self._known[content]


def crash_states(events, tree=None, *, seed=0):
    """Yield each distinct state once, with its digest and how many events preceded it."""
    machine = Machine(tree)
    rng = random.Random(seed)
    digests = Digests()
    seen = set()
    for number, event in enumerate(events, 1):
        machine.execute(event)
        if event[0] == "shown":
            continue
        for state in machine.states(rng):
            digest = digests.of(state)
            if digest not in seen:
                seen.add(digest)
                yield number, digest, state


def write_tree(tree, place):
    """Create the files of a state in an empty directory."""
    for name, content in sorted(tree.items()):
        if content is None:
            (place / name).mkdir()
        else:
            (place / name).write_bytes(content)


def read_tree(place):
    """Return the files of a directory as a tree."""
    tree = {}
    for file in sorted(place.rglob("*")):
        name = file.relative_to(place).as_posix()
        tree[name] = None if file.is_dir() else file.read_bytes()
    return tree
