"""The disk cache: what is written is read back or counts as missing, whatever other processes, users and disks do."""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ptxtile import config
from ptxtile.runtime import disk_cache
from ptxtile.runtime.disk_cache import DiskCache

ROOT = Path(__file__).resolve().parents[2]
KEY, OTHER = "ab" + "0" * 62, "cd" + "1" * 62


@pytest.fixture
def cache(tmp_path) -> DiskCache:
    return DiskCache(tmp_path / "cache", limit=1 << 20)


def file_of(cache: DiskCache, key: str = KEY, name: str = "program.json") -> Path:
    return cache.folder / key[:2] / key / name


def test_content_comes_back(cache) -> None:
    assert cache.read(KEY, "program.json") is None and cache.entries() == [] and not cache.folder.exists()
    for content in (b"", b"\n", b"two\nlines", bytes(range(256)) * 100):
        cache.write(KEY, "program.json", content)
        assert cache.read(KEY, "program.json") == content
    cache.write(KEY, "sm_90-13.0.log", b"log")
    cache.write(OTHER, "program.json", b"other")
    assert cache.read(KEY, "sm_90-13.0.log") == b"log" and cache.read(OTHER, "program.json") == b"other"
    assert {entry.key for entry in cache.entries()} == {KEY, OTHER}
    assert cache.clear() == 2 and cache.read(KEY, "program.json") is None and cache.entries() == []
    assert not [path for path in cache.folder.rglob("*") if path.is_file() and path.name != ".trimmed"]


def test_only_the_user_may_look(cache) -> None:
    cache.write(KEY, "program.json", b"x")
    for path in (cache.folder, file_of(cache).parent, file_of(cache)):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    cache.folder.chmod(0o777)
    assert DiskCache(cache.folder.parent, 1 << 20).read(KEY, "program.json") == b"x"
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_is_missing_and_made_anew(cache, seed) -> None:
    generator = random.Random(seed)
    content = generator.randbytes(300)
    cache.write(KEY, "program.json", content)
    path = file_of(cache)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    if seed % 2:
        del damaged[generator.randrange(len(damaged)) :]
    else:
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
    path.write_bytes(bytes(damaged))
    assert cache.read(KEY, "program.json") is None and not path.exists()
    cache.write(KEY, "program.json", content)
    assert path.read_bytes() == whole and cache.read(KEY, "program.json") == content


def test_a_file_of_another_user_is_not_used(cache, monkeypatch, caplog) -> None:
    cache.write(KEY, "program.json", b"theirs")
    own = os.getuid()
    real = disk_cache._is_own
    monkeypatch.setattr(disk_cache, "_is_own", lambda about: real(about) and stat.S_ISDIR(about.st_mode))
    for _ in range(2):
        assert cache.read(KEY, "program.json") is None
    assert len(caplog.records) == 1 and "belongs to another user" in caplog.text
    monkeypatch.undo()
    cache.write(KEY, "program.json", b"mine")
    assert cache.read(KEY, "program.json") == b"mine" and file_of(cache).stat().st_uid == own


def test_a_folder_of_another_user_is_not_used(cache, monkeypatch, caplog) -> None:
    cache.write(KEY, "program.json", b"theirs")
    monkeypatch.setattr(os, "getuid", lambda: os.stat(cache.folder).st_uid + 1)
    mine = DiskCache(cache.folder.parent, 1 << 20)
    mine.write(OTHER, "program.json", b"mine")
    assert mine.read(KEY, "program.json") is None and mine.read(OTHER, "program.json") is None
    assert len(caplog.records) == 1 and "PTXTILE_CACHE_DIR names another place" in caplog.text


def test_links_are_not_followed(cache, tmp_path) -> None:
    cache.write(OTHER, "program.json", b"content")
    file_of(cache).parent.mkdir(parents=True)
    file_of(cache).symlink_to(file_of(cache, OTHER))
    assert cache.read(KEY, "program.json") is None
    cache.write(KEY, "program.json", b"content")
    assert not file_of(cache).is_symlink() and cache.read(OTHER, "program.json") == b"content"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("place", ["mkstemp", "write", "replace"])
def test_a_folder_that_cannot_be_written_is_said_once(cache, monkeypatch, caplog, error, place) -> None:
    cache.write(KEY, "program.json", b"there")

    def fails(*_, **__):
        raise OSError(error, os.strerror(error))

    class Full:
        def __init__(self, descriptor, mode):
            self.descriptor = descriptor

        def __enter__(self):
            return self

        def __exit__(self, *_):
            os.close(self.descriptor)

        def write(self, content):
            os.write(self.descriptor, content[: len(content) // 2])
            fails()

    if place == "write":
        real = os.fdopen
        monkeypatch.setattr(disk_cache.os, "fdopen", lambda d, mode: (Full if "w" in mode else real)(d, mode))
    else:
        monkeypatch.setattr(disk_cache.tempfile if place == "mkstemp" else disk_cache.os, place, fails)
    for number in range(3):
        cache.write(f"{number:02}" + KEY[2:], "program.json", b"new")
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
    assert os.strerror(error) in caplog.text and str(cache.folder) in caplog.text
    monkeypatch.undo()
    assert cache.read(KEY, "program.json") == b"there" and [entry.key for entry in cache.entries()] == [KEY]
    assert not list(cache.folder.rglob(".new-*"))


def test_no_place_for_a_folder(tmp_path, caplog) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache", 1 << 20)
    for _ in range(2):
        cache.write(KEY, "program.json", b"x")
        assert cache.read(KEY, "program.json") is None
    assert len(caplog.records) == 1 and "there can be no kernel cache" in caplog.text


def aged(cache: DiskCache, key: str, seconds: float, size: int) -> None:
    cache.write(key, "program.json", b"x" * size)
    then = time.time() - seconds
    os.utime(file_of(cache, key), (then, then))


def test_what_was_not_used_for_longest_goes_first(tmp_path) -> None:
    cache = DiskCache(tmp_path, limit=100_000, trim_seconds=1e9)
    keys = [f"{number:02x}" + "0" * 62 for number in range(12)]
    for number, key in enumerate(keys):
        aged(cache, key, 10_000.0 * (12 - number), 10_000)
    assert cache.read(keys[0], "program.json") is not None  # used now
    cache.trim()
    left = {entry.key for entry in cache.entries()}
    assert keys[0] in left and keys[-1] in left and keys[1] not in left and keys[2] not in left
    assert sum(entry.bytes for entry in cache.entries()) <= 80_000 and len(left) == 7
    for key in left:
        assert cache.read(key, "program.json") == b"x" * 10_000


def test_the_limit_is_kept_while_writing(tmp_path) -> None:
    cache = DiskCache(tmp_path, limit=50_000, trim_seconds=0.0)
    for number in range(30):
        cache.write(f"{number:02x}" + "0" * 62, "program.json", bytes(10_000))
        assert sum(entry.bytes for entry in cache.entries()) <= 50_000
    assert cache.read(f"{29:02x}" + "0" * 62, "program.json") == bytes(10_000)


def test_what_killed_writers_left_is_removed_in_time(cache) -> None:
    cache.write(KEY, "program.json", b"x")
    fresh, old = (file_of(cache).with_name(f".new-{word}") for word in ("fresh", "old"))
    removed = cache.folder / "ab" / ".new-removed-1-ab"
    removed.mkdir()
    for path in (fresh, old, removed / "program.json"):
        path.write_bytes(b"half")
    then = time.time() - 2 * disk_cache._ABANDONED
    for path in (old, removed / "program.json"):
        os.utime(path, (then, then))
    cache.trim()
    assert fresh.exists() and not old.exists() and not removed.exists() and cache.read(KEY, "program.json") == b"x"
    assert [entry.key for entry in cache.entries()] == [KEY] and cache.entries()[0].bytes < 200


CHILD = """
import hashlib, os, random, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from ptxtile.runtime.disk_cache import DiskCache

def content(key, size):
    return (hashlib.sha256(key.encode()).digest() * (size // 32 + 1))[:size]

keys = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(8)]
sizes = [100, 5_000, 70_000, 300_000, 17, 0, 4096, 250_000]
"""
RACE = """
def work(seed):
    generator = random.Random(seed)
    cache = DiskCache(Path({folder!r}), limit=600_000, trim_seconds=0.0)
    for _ in range(25):
        number = generator.randrange(8)
        found = cache.read(keys[number], "program.json")
        if found is None:
            cache.write(keys[number], "program.json", content(keys[number], sizes[number]))
        elif found != content(keys[number], sizes[number]):
            os._exit(3)
        if generator.random() < 0.05:
            cache.clear()
    os._exit(0 if cache._writable else 4)

children = []
for seed in range(64):
    child = os.fork()
    if child == 0:
        try:
            work(seed)
        finally:
            os._exit(5)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def script(text: str, folder: Path) -> str:
    return textwrap.dedent(CHILD + text).format(root=str(ROOT), folder=str(folder))


def test_sixty_four_processes_at_once(tmp_path) -> None:
    """They read, write, trim and clear the same entries: whatever is read is whole, and nobody fails."""
    done = subprocess.run([sys.executable, "-c", script(RACE, tmp_path)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    cache = DiskCache(tmp_path, 1 << 30)
    for entry in cache.entries():
        assert cache.read(entry.key, "program.json") is not None


FOREVER = """
cache = DiskCache(Path({folder!r}), limit=1 << 30)
print("ready", flush=True)
while True:
    for key, size in zip(keys, sizes):
        cache.write(key, "program.json", content(key, size))
"""


def test_a_writer_that_is_killed(tmp_path) -> None:
    namespace: dict = {}
    exec(script("", tmp_path), namespace)
    keys, sizes, content = namespace["keys"], namespace["sizes"], namespace["content"]
    for delay in (0.0, 0.003, 0.011, 0.02, 0.031):
        child = subprocess.Popen([sys.executable, "-c", script(FOREVER, tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        cache = DiskCache(tmp_path, 1 << 30)
        for key, size in zip(keys, sizes, strict=True):
            found = cache.read(key, "program.json")
            assert found is None or found == content(key, size)
            cache.write(key, "program.json", content(key, size))
            assert cache.read(key, "program.json") == content(key, size)


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
cache = DiskCache(Path({folder!r}), limit=1 << 30)
for key, size in zip(keys, sizes):
    cache.write(key, "program.json", content(key, size))
print([cache.read(key, "program.json") == content(key, size) for key, size in zip(keys, sizes)])
"""


def test_a_disk_that_takes_only_a_part(tmp_path) -> None:
    """The system refuses the rest of a large file: nothing of it is left, what was written before is."""
    command = [sys.executable, "-c", script(LIMITED, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str([True, True, False, False, False, False, False, False])
    assert done.stderr.count("cannot be written") == 1 and not list(tmp_path.rglob(".new-*"))


def test_the_environment_chooses(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("PTXTILE_CACHE_MEGABYTES", "2.5")
    found = disk_cache.opened()
    assert found is not None and found.folder == tmp_path / "here" / "v1" and found is disk_cache.opened()
    assert config.cache_bytes() == 2_621_440
    for nothing in ("0", "-1", "none", "nan"):
        monkeypatch.setenv("PTXTILE_CACHE_MEGABYTES", nothing)
        assert disk_cache.opened() is None
    monkeypatch.delenv("PTXTILE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert config.cache_directory() == tmp_path / "xdg" / "ptxtile"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # must be ignored (XDG Base Directory Specification)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config.cache_directory() == tmp_path / "home" / ".cache" / "ptxtile"
