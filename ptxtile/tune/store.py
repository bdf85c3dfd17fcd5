"""What sweeps found, on disk: a row for each configuration as it is measured, and the best of a sweep that is over.

They lie in ``tuned`` beside the kernel cache, with its rules (:mod:`ptxtile.runtime.disk_cache`): JSON, each file with
its hash, written whole, of this user alone. A sweep is known by its function's source, its arguments, the device and
the version of ptxtile; each row also by what its program is when traced, so that a row of other code, which a closure
or a compiler that has changed makes, is not taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ptxtile import __version__, config
from ptxtile.runtime.disk_cache import DiskCache
from ptxtile.tune.configurations import identity
from ptxtile.tune.results import Row, Status

FOLDER = "tuned"
_BEST = "best.json"
_KEPT = frozenset({Status.MEASURED, Status.PRUNED, Status.WRONG, Status.TIMEOUT})
"""What is found again: a failure or an early end may be the moment's."""


class Store:
    """Of one sweep. Where no kernels are kept on disk (PTXTILE_CACHE_MEGABYTES=0), nothing of it is either."""

    def __init__(self, source: str, arguments: str, device: str, settings: str = "") -> None:
        digest = hashlib.sha256()
        for part in (source, arguments, device, settings, __version__):
            digest.update(f"{len(part)}:{part}".encode())
        self.key = digest.hexdigest()
        limit = config.cache_bytes()
        self._cache = DiskCache(config.cache_directory() / FOLDER, limit) if limit else None

    def keep(self, row: Row) -> None:
        if row.status in _KEPT and not row.resumed:
            self._write(_name(row.config), _plain(row))

    def find(self, config: Mapping[str, Any], program: str) -> Row | None:
        """The row of a configuration, if it was measured for the same program."""
        found = self._read(_name(config))
        row = None if found is None else _row(found, config)
        return row if row is not None and row.program == program else None

    def keep_best(self, config: Mapping[str, Any], latency: float, ref_latency: float | None, program: str) -> None:
        self._write(
            _BEST,
            {"config": identity(config), "latency": latency, "ref_latency": ref_latency, "program": program},
        )

    def find_best(self) -> tuple[str, float, float | None, str] | None:
        """Configuration (:func:`~ptxtile.tune.configurations.identity`), latency, latency of the reference and program
        of the latest sweep that came to an end."""
        found = self._read(_BEST)
        try:
            if found is None:
                return None
            reference = found["ref_latency"]
            return (
                str(found["config"]), float(found["latency"]), None if reference is None else float(reference),
                str(found["program"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            return None

    def _write(self, name: str, fields: Mapping[str, Any]) -> None:
        if self._cache is not None:
            self._cache.write(self.key, name, json.dumps(fields).encode())

    def _read(self, name: str) -> dict[str, Any] | None:
        content = self._cache.read(self.key, name) if self._cache is not None else None
        try:
            found = json.loads(content) if content is not None else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def clear() -> int:
    """Forget all sweeps; gives their number."""
    return DiskCache(config.cache_directory() / FOLDER, config.cache_bytes() or 1).clear()


def _name(config: Mapping[str, Any]) -> str:
    return f"row-{hashlib.sha256(identity(config).encode()).hexdigest()[:32]}.json"


_FIGURES = ("latency", "fastest", "reason", "registers", "spills", "shared_bytes", "compile_seconds", "program")


def _plain(row: Row) -> dict[str, Any]:
    return {"config": identity(row.config), "status": row.status.value, **{n: getattr(row, n) for n in _FIGURES}}


def _row(fields: Mapping[str, Any], config: Mapping[str, Any]) -> Row | None:
    """None for what is not a row of this configuration."""
    try:
        if fields["config"] != identity(config):
            return None
        return Row(config, Status(fields["status"]), **{name: fields[name] for name in _FIGURES}, resumed=True)
    except (KeyError, TypeError, ValueError):
        return None
