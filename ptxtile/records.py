"""``@record``: what ``@dataclass(frozen=True, slots=True)`` makes, in less than half the time.

A process that compiles one kernel makes some two hundred such classes while it imports the compiler, and the standard
decorator compiles six methods for each: 0.5 ms a class, 90 ms together. Here comparison, hashing and printing are
functions of this file that look at the fields, and ``__init__`` is compiled when the first object is made. To
:mod:`dataclasses` a record is a dataclass like any other: ``fields``, ``replace``, inheritance and pickling work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: _Class) -> _Class:
    """A frozen dataclass with slots of ``cls``. Methods that ``cls`` defines itself are kept."""
    own = cls.__dict__
    if cls.__doc__ is None:
        cls.__doc__ = f"{cls.__name__}({', '.join(own.get('__annotations__', ()))})"
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)(cls)
    values = _values_of([f.name for f in dataclasses.fields(made) if f.compare])
    if "__eq__" not in own:
        made.__eq__ = _equality(values)
    if "__hash__" not in own or own["__hash__"] is None:  # Python writes None next to an __eq__ of the class
        made.__hash__ = _hashing(values)
    if "__repr__" not in own:
        made.__repr__ = _representation
    if "__init__" not in own:
        made.__init__ = _init_when_needed(made)
    return made


def _values_of(names: list[str]) -> Callable[[Any], Any]:
    """What gives the values of these fields, as one object that compares and hashes as they do together."""
    return attrgetter(*names) if names else lambda self: ()


def _equality(values: Callable[[Any], Any]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or values(self) == values(other)

    return __eq__


def _hashing(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _representation(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _init_when_needed(cls: Any) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = init = _init(cls)
        init(self, *args, **kwargs)

    return __init__


def _init(cls: Any) -> Callable[..., None]:
    """The ``__init__`` of a record: arguments as :mod:`dataclasses` orders them, ``__post_init__`` where there is one.

    A slot is set through its descriptor, which is the way past a frozen class's ``__setattr__``, and the quickest.
    """
    names: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    positional, by_name, body = [], [], []
    for f in dataclasses.fields(cls):
        value, default = f.name, ""
        if f.default is not dataclasses.MISSING:
            names[f"default_{f.name}"] = f.default
            default = f"default_{f.name}"
        elif f.default_factory is not dataclasses.MISSING:
            names[f"factory_{f.name}"] = f.default_factory
            default = "MISSING"
            value = f"factory_{f.name}() if {f.name} is MISSING else {f.name}" if f.init else f"factory_{f.name}()"
        if f.init:
            (by_name if f.kw_only else positional).append(f"{f.name}={default}" if default else f.name)
        elif default != "MISSING":
            value = default
        names[f"set_{f.name}"] = getattr(cls, f.name).__set__
        body.append(f"set_{f.name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join(["self", *positional, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), names)
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made
