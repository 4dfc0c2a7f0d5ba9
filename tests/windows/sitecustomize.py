"""Make Python look like Windows to mopbt: no fork, groups, fcntl or POSIX-only signals.

Python imports this module at its start if its directory is on PYTHONPATH. Packages that have code
of their own for Windows are imported before.
"""

import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import sysconfig
import types

sysconfig.get_config_vars()
for name in (
    *("asyncio", "logging.handlers", "multiprocessing", "pathlib", "platform", "shutil", "socket"),
    *("socketserver", "http.server", "tempfile", "uuid", "webbrowser", "cloudpickle", "moocore"),
    *("numpy", "rich.console", "rich.progress", "typer", "click.testing", "tomli_w"),
):
    __import__(name)


def locking(fd, mode, count):
    """Lock bytes from the position of a file on, for its handle, as Windows does."""
    assert mode == 2
    start = os.lseek(fd, 0, os.SEEK_CUR)
    # Linux wants a file that can be written for an exclusive lock.
    is_writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    kind = fcntl.F_WRLCK if is_writable else fcntl.F_RDLCK
    wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, count, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError:
        raise OSError(errno.EACCES, "Permission denied") from None


ABSENT = {
    os: (
        *("fork", "killpg", "getpgrp", "getpgid", "setsid", "pwrite", "register_at_fork", "uname"),
        *("sched_getaffinity", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "getuid", "geteuid"),
    ),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGSTOP"),
    select: ("poll", "epoll"),
}
for module, names in ABSENT.items():
    for name in names:
        delattr(module, name)
os.O_BINARY = os.O_NOINHERIT = 0
subprocess.CREATE_NEW_PROCESS_GROUP = 0
subprocess.Popen.kill = lambda self: self.send_signal(9)
windows = types.ModuleType("msvcrt")
windows.LK_NBLCK = 2
windows.locking = locking
sys.modules |= {"msvcrt": windows, "fcntl": None, "resource": None, "termios": None, "pwd": None}
sys.platform = "win32"
