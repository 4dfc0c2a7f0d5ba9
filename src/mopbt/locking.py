"""Lock a file without waiting, on POSIX systems and on Windows.

The operating system releases a lock when its file is closed, and so when its process dies.
"""

import errno
import os
import sys

if sys.platform == "win32":
    import msvcrt

    # Windows lets no process read a locked byte, so it is one behind the text of a lock file.
    _LOCKED_BYTE = 2**30
    _TAKEN = (errno.EACCES, errno.EDEADLK)

    def try_lock(fd: int, *, shared: bool = False) -> bool:
        """Lock a file and return whether that succeeded; every lock is exclusive on Windows."""
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            return False
        finally:
            os.lseek(fd, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def try_lock(fd: int, *, shared: bool = False) -> bool:
        """Lock a file, exclusively or shared, and return whether that succeeded."""
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
