"""Every call by which the fs tier touches the disk, and nothing else: tests inject faults by overriding them.

Each method is one system call (or the loop that a short read or write needs) and raises OSError like it.
"""

# ruff: noqa: PTH102, PTH104, PTH106, PTH108
from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Sequence

# struct flock on 64-bit Linux: type, whence, start, length (0: to the end), pid.
_FLOCK = struct.Struct("hhqqi4x")
_F_OFD_SETLK = 37
_FILE_MODE = 0o666
_DIRECTORY_MODE = 0o777


class DiskIO:
    """The real disk."""

    def open(self, path: str, flags: int) -> int:
        """A new descriptor; never follows a link at the end of the path, never waits for a FIFO's other end."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, _FILE_MODE)

    def close(self, fd: int) -> None:
        """Close; on network file systems this can be where a failed write is reported."""
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """What a descriptor is."""
        return os.fstat(fd)

    def lstat(self, path: str) -> os.stat_result:
        """What stands at a path, itself and not what it points to."""
        return os.lstat(path)

    def stat_entry(self, entry: os.DirEntry[str]) -> os.stat_result:
        """What an entry of a listed directory is; does not follow links."""
        return entry.stat(follow_symlinks=False)

    def read_into(self, fd: int, buffers: Sequence[memoryview], offset: int = 0) -> int:
        """Fill the buffers from a file; returns the bytes read, fewer only at the end of the file."""
        wanted = sum(map(len, buffers))
        done = os.preadv(fd, buffers, offset)
        while 0 < done < wanted:
            more = os.preadv(fd, _after(buffers, done), offset + done)
            if more == 0:
                break
            done += more
        return done

    def write_from(self, fd: int, buffers: Sequence[memoryview], offset: int = 0) -> None:
        """Write all of the buffers."""
        wanted = sum(map(len, buffers))
        done = os.pwritev(fd, buffers, offset)
        while done < wanted:
            more = os.pwritev(fd, _after(buffers, done), offset + done)
            if more == 0:
                raise OSError(errno.EIO, "the file system wrote nothing and said nothing")
            done += more

    def without_direct(self, fd: int) -> None:
        """Make an O_DIRECT descriptor an ordinary one."""
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)

    def truncate(self, fd: int, size: int) -> None:
        """Set the length of a file."""
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        """Bring a file or a directory to the medium."""
        os.fsync(fd)

    def set_times(self, target: str | int, time_ns: int) -> None:
        """Set the access and modification time of a path (a link itself) or of a descriptor."""
        if isinstance(target, int):
            os.utime(target, ns=(time_ns, time_ns))
        else:
            os.utime(target, ns=(time_ns, time_ns), follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name; what was there before is replaced at once."""
        os.rename(source, target)

    def open_directory(self, path: str, above: int | None = None) -> int:
        """A descriptor of a directory, by its path or by its name in the directory `above`, where it is no link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if above is None else os.O_NOFOLLOW)
        return os.open(path, flags, dir_fd=above)

    def lstat_in(self, directory: int, name: str) -> os.stat_result:
        """What stands under a name in a directory."""
        return os.stat(name, dir_fd=directory, follow_symlinks=False)

    def unlink_in(self, directory: int, name: str) -> None:
        """Take a name away in a directory."""
        os.unlink(name, dir_fd=directory)

    def rmdir_in(self, directory: int, name: str) -> None:
        """Remove one empty directory in another one."""
        os.rmdir(name, dir_fd=directory)

    def unlink(self, path: str) -> None:
        """Take a file's name away."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove one empty directory."""
        os.rmdir(path)

    def mkdir(self, path: str) -> None:
        """Make one directory."""
        os.mkdir(path, _DIRECTORY_MODE)

    def scandir(self, path: str) -> list[os.DirEntry[str]]:
        """The entries of one directory, in no order."""
        with os.scandir(path) as entries:
            return list(entries)

    def statvfs(self, path: str) -> os.statvfs_result:
        """How full the file system is."""
        return os.statvfs(path)

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock on a whole file; False if another descriptor has it.

        An "open file description" lock and not `lockf`: it also excludes other tiers of the same process, is not
        lost when somebody closes another descriptor of the file, and still is a POSIX record lock for NFS.
        """
        try:
            fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


def is_plain_file(found: os.stat_result) -> bool:
    """Whether it is a regular file: no directory, link, FIFO, socket or device."""
    return stat.S_ISREG(found.st_mode)


def _after(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of the buffers behind the first `done` bytes."""
    rest: list[memoryview] = []
    for buffer in buffers:
        if done < len(buffer):
            rest.append(buffer[done:])
        done = max(0, done - len(buffer))
    return rest
