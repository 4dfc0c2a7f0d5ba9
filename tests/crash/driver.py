"""Drives runs and kills them: reads orders from standard input and forks a process for each.

An order is a JSON object: out, engine, asynchronous, and kill. `kill` is null, ["time", seconds] or
a place in the code, how often it may be passed, and where exactly: ["journal", 3, "torn"].
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import mopbt
from mopbt import filesystem
from mopbt.stores import directory
from toys import KillerToy

POPULATION, MAX_STEP, INTERVAL = 6, 12, 2


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Says when a place has been passed often enough."""

    def __init__(self, count):
        self.left = count

    def __call__(self):
        self.left -= 1
        return self.left <= 0


def arm_journal(fuse, moment):
    write_all = filesystem.AppendOnlyFile._write

    def write(self, line):
        if not fuse():
            return write_all(self, line)
        if moment == "torn":
            os.pwrite(self._fd, line[: random.randrange(1, len(line))], self._length)
        elif moment == "after":
            write_all(self, line)
        die()

    filesystem.AppendOnlyFile._write = write


def arm_acted(fuse, moment):
    append = filesystem.AppendOnlyFile.append

    def append_and_die(self, data):
        append(self, data)
        if fuse():
            die()

    filesystem.AppendOnlyFile.append = append_and_die


def arm_checkpoint(fuse, moment):
    save = directory.write_atomically

    def write_and_die(path, data):
        if not fuse():
            return save(path, data)
        if moment == "torn":
            path.with_name(f"{path.name}.{os.getpid()}.tmp").write_bytes(data[: len(data) // 2])
        elif moment == "after":
            save(path, data)
        die()

    directory.write_atomically = write_and_die


def arm_drop(fuse, moment):
    drop = directory.DirectoryCheckpoints.drop

    def drop_and_die(self, ids):
        ids = sorted(ids)
        if ids and fuse():
            drop(self, ids[:1])
            die()
        drop(self, ids)

    directory.DirectoryCheckpoints.drop = drop_and_die


ARM = {"journal": arm_journal, "acted": arm_acted, "checkpoint": arm_checkpoint, "drop": arm_drop}


def drive(order):
    kill = order["kill"]
    victim = (0, kill[1]) if kill and kill[0] == "worker" else None
    if kill and kill[0] not in ("time", "worker"):
        ARM[kill[0]](Fuse(kill[1]), kill[2])
    task = KillerToy(steps=MAX_STEP, interval=INTERVAL, victim=victim)
    algorithm = mopbt.MOPBT(population=POPULATION, asynchronous=order["asynchronous"])
    engine = mopbt.LocalEngine() if order["engine"] == "local" else mopbt.PoolEngine(2)
    mopbt.run(
        task,
        out=order["out"],
        algorithm=algorithm,
        engine=engine,
        seed=order.get("seed", 0),
        progress=False,
    )


def main():
    for text in sys.stdin:
        order = json.loads(text)
        child = os.fork()
        if child == 0:
            try:
                drive(order)
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        if order["kill"] and order["kill"][0] == "time":
            deadline = time.monotonic() + order["kill"][1]
            while time.monotonic() < deadline:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    break
                time.sleep(0.002)
            else:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
        else:
            _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
