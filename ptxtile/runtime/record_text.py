"""A launch record as JSON and back: what a disk cache keeps of the host part. Plain values only, no pickle."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from ptxtile import launch_record
from ptxtile.launch_record import LaunchRecord

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        launch_record.Symbol,
        launch_record.SizeOperation,
        launch_record.TensorArgument,
        launch_record.ScalarArgument,
        launch_record.Allocation,
        launch_record.Divisibility,
        launch_record.TensorMapRecord,
        launch_record.KernelParameter,
        launch_record.KernelLaunch,
        launch_record.LaunchRecord,
    )
}
_KIND = "record"


def to_json(record: LaunchRecord) -> str:
    return json.dumps(_plain(record), separators=(",", ":"))


def from_json(text: str) -> LaunchRecord:
    """ValueError for text that is no launch record of this version."""
    try:
        record = _value(json.loads(text))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no launch record: {error}") from error
    if not isinstance(record, LaunchRecord):
        raise ValueError("no launch record")
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if type(value).__name__ in _CLASSES:
        return {_KIND: type(value).__name__, **{f.name: _plain(getattr(value, f.name)) for f in fields(value)}}
    assert value is None or isinstance(value, (bool, int, str)), value
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple([_value(item) for item in plain])
    if isinstance(plain, dict):
        given = {name: _value(item) for name, item in plain.items() if name != _KIND}
        return _CLASSES[plain[_KIND]](**given)
    if plain is not None and not isinstance(plain, (bool, int, str)):
        raise ValueError(f"a launch record holds no {type(plain).__name__}")
    return plain
