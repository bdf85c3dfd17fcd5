"""Files by key, kept between processes: where compiled programs lie on disk.

A key is a folder of small files. A file is written under another name and then renamed, so that a reader sees all of it
or nothing, whoever else writes, and whenever a writer is killed. Its first line holds the hash of the rest: a file that
is damaged, of another user, or no plain file counts as missing. There are no locks: two processes that make the same
entry write the same content. A folder that cannot be written (read-only, full disk) is said once, and then only read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ptxtile import config
from ptxtile.records import record

FORMAT = "v1"
"""The folder of this layout; another layout gets another name, and leaves this one alone."""
_MAGIC = b"ptxtile cache "
_NEW = ".new-"
_TRIMMED = ".trimmed"
_ABANDONED = 3600.0
"""Seconds after which the file of a writer that was killed is removed."""
_USE_NOTED = 3600.0
"""Seconds within which a use is not noted again: last uses are for throwing away the oldest, not for counting."""


@record
class Entry:
    """``last_used``: seconds since the epoch; ``bytes`` of all its files."""

    key: str
    bytes: int
    last_used: float


class DiskCache:
    """The cache in ``root``. ``limit``: bytes, beyond which the entries that were not used for longest are removed;
    ``trim_seconds``: how often that is looked at."""

    def __init__(self, root: Path, limit: int, trim_seconds: float = 300.0) -> None:
        self.folder = root / FORMAT
        self._limit = limit
        self._trim_seconds = trim_seconds
        self._said: set[str] = set()
        self._writable = True
        self._ours: bool | None = None

    # -- reading

    def read(self, key: str, name: str) -> bytes | None:
        """The content of file ``name`` of ``key``; None when it is not there, or not as it was written."""
        if not self._is_ours():
            return None
        path = self._place(key) / name
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or not _is_own(about):
                self._say("foreign", f"{path} belongs to another user and is not used")
                return None
            try:
                content = _checked(file.read())
            except OSError:
                content = None
        if content is None:
            config.logger().info("%s is damaged and is made anew", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        if time.time() - about.st_mtime > _USE_NOTED:
            with contextlib.suppress(OSError):
                os.utime(path)
        return content

    # -- writing

    def write(self, key: str, name: str, content: bytes) -> None:
        """Keep ``content``. What goes wrong is said once and is no error: kernels are then compiled again."""
        if not self._writable or not self._is_ours(create=True):
            return
        for _ in range(5):  # somebody may remove the folder while it is being made, or afterwards
            try:
                self._write(self._place(key), name, content)
                break
            except (FileNotFoundError, FileExistsError):
                continue
            except OSError as error:
                self._writable = False
                reason = error.strerror or str(error)
                self._say("write", f"the kernel cache {self.folder} cannot be written ({reason}): kernels that are not "
                          "in it are compiled in every process")  # fmt: skip
                return
        self._trim_now_and_then()

    def _write(self, folder: Path, name: str, content: bytes) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=_NEW, dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            os.replace(temporary, folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    # -- all of it

    def entries(self) -> list[Entry]:
        """Every entry, the one used last first."""
        found = []
        for folder in self._folders():
            files = [about for path, about in _files(folder) if not path.name.startswith(_NEW)]
            if files and not folder.name.startswith(_NEW):
                sizes, uses = sum(about.st_size for about in files), max(about.st_mtime for about in files)
                found.append(Entry(folder.name, sizes, uses))
        return sorted(found, key=lambda entry: -entry.last_used)

    def clear(self) -> int:
        """Remove every entry; gives their number."""
        count = len(self.entries())
        for folder in list(self._folders()):
            _remove(folder)
        return count

    def trim(self) -> None:
        """Remove what killed processes left, and the entries used longest ago until a fifth of the limit is free."""
        self._remove_abandoned()
        kept = self.entries()
        total = sum(entry.bytes for entry in kept)
        if total <= self._limit:
            return
        while kept and total > self._limit * 4 // 5:
            oldest = kept.pop()
            _remove(self._place(oldest.key))
            total -= oldest.bytes

    def _remove_abandoned(self) -> None:
        before = time.time() - _ABANDONED
        for folder in list(self._folders()):
            files = list(_files(folder))
            if folder.name.startswith(_NEW) and all(about.st_mtime < before for _, about in files):
                _remove(folder)
            for path, about in files:
                if path.name.startswith(_NEW) and about.st_mtime < before:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _trim_now_and_then(self) -> None:
        mark = self.folder / _TRIMMED
        with contextlib.suppress(OSError):
            try:
                due = time.time() - mark.stat().st_mtime >= self._trim_seconds
            except FileNotFoundError:
                due = True
            if due:
                mark.touch()
                self.trim()

    def _folders(self) -> Iterator[Path]:
        if not self._is_ours():
            return
        with contextlib.suppress(OSError):
            for group in list(os.scandir(self.folder)):
                if group.is_dir(follow_symlinks=False):
                    yield from (Path(folder.path) for folder in list(os.scandir(group.path)))

    def _place(self, key: str) -> Path:
        return self.folder / key[:2] / key

    # -- whose it is

    def _is_ours(self, create: bool = False) -> bool:
        """Whether the folder is there and this user's alone; made, or closed to others, where it can be."""
        if self._ours:
            return True
        try:
            if create:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = os.stat(self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._writable = False
            self._say("folder", f"there can be no kernel cache in {self.folder} ({error.strerror or error})")
            return False
        if not stat.S_ISDIR(about.st_mode) or not _is_own(about):
            self._ours, self._writable = False, False
            self._say("owner", f"the kernel cache {self.folder} belongs to another user and is not used; "
                      "PTXTILE_CACHE_DIR names another place")  # fmt: skip
            return False
        if stat.S_IMODE(about.st_mode) & 0o077:
            with contextlib.suppress(OSError):
                self.folder.chmod(0o700)
        self._ours = True
        return True

    def _say(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            config.logger().warning("%s", message)


def _checked(content: bytes) -> bytes | None:
    """The content behind the header; None if it is not what the header says."""
    header, separator, rest = content.partition(b"\n")
    if not separator or not header.startswith(_MAGIC):
        return None
    return rest if hashlib.sha256(rest).hexdigest().encode() == header[len(_MAGIC) :] else None


def _is_own(about: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or about.st_uid == os.getuid()


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with contextlib.suppress(OSError):
        for file in list(os.scandir(folder)):
            with contextlib.suppress(OSError):
                yield Path(file.path), file.stat(follow_symlinks=False)


def _remove(folder: Path) -> None:
    """The folder is renamed first, so that nobody finds half of an entry."""
    aside = folder.with_name(f"{_NEW}removed-{os.getpid()}-{folder.name}")
    with contextlib.suppress(OSError):
        os.rename(folder, aside)
        for path, _ in _files(aside):
            with contextlib.suppress(OSError):
                path.unlink()
        os.rmdir(aside)


_opened: dict[tuple[str, int], DiskCache] = {}


def opened() -> DiskCache | None:
    """The cache that the environment asks for; None where it says that there shall be none."""
    limit = config.cache_bytes()
    if limit == 0:
        return None
    root = config.cache_directory()
    key = (str(root), limit)
    if key not in _opened:
        _opened[key] = DiskCache(root, limit)
    return _opened[key]
