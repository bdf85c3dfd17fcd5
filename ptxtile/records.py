"""``@record``: what ``@dataclass(frozen=True, slots=True)`` makes, in a tenth of the time.

A process that compiles one kernel makes some two hundred such classes while it imports the compiler, and the standard
decorator compiles eight methods for each: 0.5 ms a class, 0.1 s together. Here all but ``__init__`` are functions of
this file that look at the fields, and ``__init__`` is compiled once for each number of fields. To :mod:`dataclasses` a
record is a dataclass: ``fields``, ``replace`` and inheritance work. What is derived from a record is a record, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: _Class) -> _Class:
    """A frozen dataclass with slots of ``cls``. Methods that ``cls`` defines itself are kept.

    TypeError for a field that is not passed (``init=False``).
    """
    own = cls.__dict__
    if cls.__doc__ is None:
        cls.__doc__ = f"{cls.__name__}({', '.join(own.get('__annotations__', ()))})"
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    values = _values_of([f.name for f in dataclasses.fields(made) if f.compare])
    methods = {
        "__init__": _initialiser(made),
        "__eq__": _equality(values),
        "__hash__": _hashing(values),
        "__repr__": _representation,
        "__setattr__": _refuse_change,
        "__delattr__": _refuse_change,
        "__getstate__": _state,
        "__setstate__": _restore,
    }
    for name, method in methods.items():
        if own.get(name) is None:  # Python writes None for __hash__ next to an __eq__ of the class
            setattr(made, name, method)
    return made


def _refuse_change(self: Any, name: str, *value: Any) -> None:
    what = "assign to" if value else "delete"
    raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")


def _state(self: Any) -> list[Any]:
    """What is pickled and copied."""
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


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


def _initialiser(cls: Any) -> Callable[..., None]:
    """The ``__init__`` of a record: arguments as :mod:`dataclasses` orders them, ``__post_init__`` where there is one.

    A slot is set through its descriptor, which is the way past a frozen class's ``__setattr__``, and the quickest. The
    code is that of any record with as many fields, with other names.
    """
    found = dataclasses.fields(cls)
    if not all(f.init for f in found):
        raise TypeError(f"{cls.__name__}: all fields of a record are passed: init=False is not known here")
    positional, by_name = [f for f in found if not f.kw_only], [f for f in found if f.kw_only]
    ordered = [*positional, *by_name]
    made_by = {position: f.default_factory for position, f in enumerate(ordered) if _is_given(f.default_factory)}
    code = _code(len(positional), len(by_name), frozenset(made_by), hasattr(cls, "__post_init__"))
    code = code.replace(co_varnames=("self", *(f.name for f in ordered)), co_qualname=f"{cls.__qualname__}.__init__")
    names: dict[str, Any] = {f"set_{position}": getattr(cls, f.name).__set__ for position, f in enumerate(ordered)}
    names |= {f"make_{position}": factory for position, factory in made_by.items()}
    names["MISSING"] = dataclasses.MISSING
    made = FunctionType(code, names, "__init__", tuple([f.default for f in positional if _is_optional(f)]))
    made.__kwdefaults__ = {f.name: f.default for f in by_name if _is_optional(f)}
    return made


def _is_given(value: object) -> bool:
    return value is not dataclasses.MISSING


def _is_optional(f: dataclasses.Field[Any]) -> bool:
    """Whether the argument may be left out; MISSING is the default of what ``default_factory`` makes."""
    return _is_given(f.default) or _is_given(f.default_factory)


@cache
def _code(positional: int, by_name: int, made: frozenset[int], post_init: bool) -> CodeType:
    """``made``: positions of the fields that a function makes when they are not passed."""
    names = [f"field_{position}" for position in range(positional + by_name)]
    arguments = ["self", *names[:positional], *(["*"] if by_name else []), *names[positional:]]
    body = []
    for position, name in enumerate(names):
        value = f"make_{position}() if {name} is MISSING else {name}" if position in made else name
        body.append(f"set_{position}(self, {value})")
    body += ["self.__post_init__()"] if post_init else []
    found: dict[str, Any] = {}
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(body or ["pass"]), found)
    return found["__init__"].__code__
