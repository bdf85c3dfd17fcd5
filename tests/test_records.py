"""``record`` against the standard library's dataclasses, which it stands in for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field

import pytest

from ptxtile.records import record


@record
class Base:
    place: str | None = field(default=None, compare=False, repr=False, kw_only=True)


@record
class Pair(Base):
    left: int
    right: tuple[object, ...] = ()


@record
class Listed:
    name: str
    items: list[int] = field(default_factory=list)
    size: int = 3
    more: set[int] = field(default_factory=set, kw_only=True)


@record
class Documented:
    """Says what it is."""

    name: str = "a"
    items: tuple[int, ...] = (1,)


@record
class Checked:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")


@record
class Rounded:
    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rounded) and round(self.value) == round(other.value)

    def __hash__(self) -> int:
        return hash(round(self.value))

    def __repr__(self) -> str:
        return f"about {round(self.value)}"


@record
class CaseFree:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CaseFree) and self.name.lower() == other.name.lower()


@record
class Nothing:
    pass


class Named(Base):
    """Derived without the decorator."""


def test_as_the_standard_library_makes_it() -> None:
    """The same definitions, made by ``dataclass``."""
    base = dataclass(frozen=True, slots=True)(_plain(Base))
    pair = dataclass(frozen=True, slots=True)(_plain(Pair, base))
    for ours, theirs in ((Base, base), (Pair, pair)):
        assert [(f.name, f.default, f.compare, f.kw_only) for f in dataclasses.fields(ours)] == [
            (f.name, f.default, f.compare, f.kw_only) for f in dataclasses.fields(theirs)
        ]
        assert ours.__match_args__ == theirs.__match_args__ and ours.__slots__ == theirs.__slots__
    for args, keywords in (((1,), {}), ((1, (2,)), {"place": "here"}), ((), {"left": 4, "right": (1, 2)})):
        ours, theirs = Pair(*args, **keywords), pair(*args, **keywords)
        assert dataclasses.asdict(ours) == dataclasses.asdict(theirs) and repr(ours) == repr(theirs)
    for args, keywords in (((), {}), ((1, (), "here"), {}), ((1,), {"left": 2}), ((1,), {"other": 2})):
        with pytest.raises(TypeError) as theirs_said:
            pair(*args, **keywords)
        with pytest.raises(TypeError) as ours_said:
            Pair(*args, **keywords)
        assert str(ours_said.value) == str(theirs_said.value)


def _plain(cls: type, *bases: type) -> type:
    body = {name: cls.__dataclass_fields__[name].default for name in cls.__annotations__}
    body = {name: value for name, value in body.items() if value is not dataclasses.MISSING}
    if cls is Base:
        body["place"] = field(default=None, compare=False, repr=False, kw_only=True)
    names = {"__annotations__": cls.__annotations__, "__module__": __name__, "__qualname__": cls.__name__}
    return type(cls.__name__, bases, body | names)


def test_comparison_and_hash() -> None:
    assert Pair(1, (2,), place="a") == Pair(1, (2,), place="b") and hash(Pair(1, (2,))) == hash(Pair(1, (2,)))
    assert Pair(1) != Pair(2) and Pair(1) != Base() and Pair(1).__eq__(1) is NotImplemented
    assert Nothing() == Nothing() and hash(Nothing()) == hash(Nothing()) and Nothing() != Base()
    assert Checked(1) == Checked(1) != Checked(2) and {Checked(1), Checked(1)} == {Checked(1)}
    with pytest.raises(TypeError, match="unhashable"):
        hash(Pair(1, ([],)))


def test_methods_of_its_own_are_kept() -> None:
    assert Rounded(1.2) == Rounded(0.9) and hash(Rounded(1.2)) == hash(Rounded(0.9)) and repr(Rounded(1.2)) == "about 1"
    assert CaseFree("a") == CaseFree("A") and hash(CaseFree("a")) == hash(CaseFree("a"))


def test_frozen_with_slots() -> None:
    pair = Pair(1)
    for change in (lambda: setattr(pair, "left", 2), lambda: delattr(pair, "left"), lambda: setattr(pair, "new", 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert pair.left == 1 and not hasattr(pair, "__dict__")


def test_defaults() -> None:
    assert Documented() == Documented("a", (1,)) == Documented(items=(1,)) and Documented("b").items == (1,)
    assert Documented.__doc__ == "Says what it is." and Nothing.__doc__ == "Nothing()"
    assert Pair.__doc__ == "Pair(left, right)"


def test_fields_that_a_function_makes() -> None:
    one, other = Listed("a"), Listed("a", [5])
    assert one.items == [] and Listed("b").items is not one.items and other.items == [5] and one.size == 3
    assert Listed("a", items=None).items is None and Listed("a", [], 4, more={1}).more == {1} != one.more == set()


def test_a_field_that_is_not_passed_is_refused() -> None:
    body = {"__annotations__": {"items": "list[int]"}, "items": field(default=3, init=False), "__module__": __name__}
    with pytest.raises(TypeError, match="Bad: all fields of a record are passed"):
        record(type("Bad", (), body))


def test_signatures_are_those_of_the_class() -> None:
    """Two classes with as many fields share their code, but no names or defaults."""
    assert str(inspect.signature(Pair)) == "(left, right=(), *, place=None)"
    assert str(inspect.signature(Documented)) == "(name='a', items=(1,))"
    assert Pair.__init__.__qualname__ == "Pair.__init__" and Documented("x").name == "x"


def test_post_init() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)
    assert Checked(2).value == 2


def test_copies() -> None:
    pair = Pair(1, (Pair(2, place="inner"),), place="outer")
    for same in (pickle.loads(pickle.dumps(pair)), copy.copy(pair), copy.deepcopy(pair), dataclasses.replace(pair)):
        assert same == pair and same.place == "outer" and same.right[0].place == "inner"
    assert dataclasses.replace(pair, left=3) == Pair(3, pair.right)


def test_patterns_and_subclasses() -> None:
    match Pair(1, (2,)):
        case Pair(left, (2,)):
            assert left == 1
        case _:
            raise AssertionError
    made = Named(place="x")
    assert made == Named() and made != Base() and made.place == "x" and isinstance(made, Base)
    assert dataclasses.is_dataclass(made) and "Named()" in repr(made)
