"""``record`` against the standard library's dataclasses, which it stands in for."""

from __future__ import annotations

import copy
import dataclasses
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
    """Has defaults of every kind."""

    name: str
    items: list[int] = field(default_factory=list)
    fixed: int = field(default=3, init=False)
    made: list[int] = field(default_factory=lambda: [1], init=False)


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


@dataclass(frozen=True, slots=True)
class Standard(Base):
    """A standard dataclass derived from a record."""

    left: int


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
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
            change()
    assert pair.left == 1 and not hasattr(pair, "__dict__")


def test_defaults() -> None:
    one, other = Listed("a"), Listed("a", [5])
    assert one.items == [] and Listed("b").items is not one.items and other.items == [5]
    assert one.fixed == 3 and one.made == [1] and Listed("c").made is not one.made
    with pytest.raises(TypeError):
        Listed("a", [], 4)
    assert Listed.__doc__ == "Has defaults of every kind." and Nothing.__doc__ == "Nothing()"


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
    made = Standard(4, place="x")
    assert made == Standard(4) and made != Pair(4) and made.place == "x" and isinstance(made, Base)
    assert dataclasses.is_dataclass(made) and "Standard(left=4)" in repr(made)
