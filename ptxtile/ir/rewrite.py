"""Generic traversal and rewriting of IR trees.

Children are found from the dataclass fields, so a new node needs nothing here. A rewrite that changes nothing returns
the same object. Each node knows which classes of nodes stand inside it (:func:`kinds_in`), so that whoever looks for
some classes passes over whatever holds none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter, is_not
from typing import Any, ClassVar, TypeVar, overload

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.nodes import Node
from ptxtile.ir.statements import Seq, Statement

_Kind = TypeVar("_Kind", bound=Node)

_BINDERS = {"var", "vars", "parameters"}  # fields that declare variables rather than use them
_NODE_TYPES = ("Expr", "Statement", "Region", "Role", "Var")


class _ByClass(dict[type, Any]):
    """What is known of each class of nodes, worked out when it is first asked for. Every pass asks for every node, so a
    look-up has to be one of a plain dictionary."""

    def __missing__(self, cls: type) -> Any:
        _learn(cls)
        return self[cls]


_FIELDS, _CHILD_FIELDS, _STATEMENT_FIELDS, _BUFFER_FIELDS = _ByClass(), _ByClass(), _ByClass(), _ByClass()
_CHILDREN, _IS_NODE, _OWN_KINDS = _ByClass(), _ByClass(), _ByClass()
METHOD_NAMES = _ByClass()
"""The method that rewrites a class of nodes."""


def _learn(cls: type) -> None:
    """Annotations, which are strings in this package, say which fields hold what."""
    _IS_NODE[cls] = issubclass(cls, Node)
    METHOD_NAMES[cls] = "rewrite_" + cls.__name__
    found = {f.name: str(f.type) for f in fields(cls)} if is_dataclass(cls) else {}
    _FIELDS[cls] = tuple(found)
    used = {name: annotation for name, annotation in found.items() if name not in _BINDERS}
    _BUFFER_FIELDS[cls] = tuple([name for name, annotation in used.items() if "Buffer" in annotation])
    _STATEMENT_FIELDS[cls] = tuple(
        [name for name, annotation in used.items() if "Statement" in annotation or "Role" in annotation]
    )
    inside = {name: annotation for name, annotation in used.items() if any(t in annotation for t in _NODE_TYPES)}
    _CHILD_FIELDS[cls] = tuple(inside)
    _CHILDREN[cls] = _children_of(inside)
    kinds = [base.__name__ for base in cls.__mro__ if issubclass(base, Node)]
    _OWN_KINDS[cls] = _bits([*kinds, *([HAS_BUFFERS] if _BUFFER_FIELDS[cls] else [])])


_BITS: dict[str, int] = {}
HAS_BUFFERS = "has buffers"
"""A kind of its own: nodes that name buffers."""
EVERYTHING = -1
"""All kinds of nodes, as bits."""


def _bits(names: Iterable[str]) -> int:
    """A set of kinds by the names of their classes: a bit for each."""
    result = 0
    for name in names:
        result |= _BITS.setdefault(name, 1 << len(_BITS))
    return result


@cache
def bits_of(kinds: tuple[type[Node], ...]) -> int:
    return _bits(kind.__name__ for kind in kinds)


def kinds_in(node: Node) -> int:
    """Which classes ``node`` and the nodes inside it are of, base classes too: a bit for each, as :func:`bits_of` has
    them. Found once for each node."""
    found = getattr(node, "_kinds", None)
    if found is None:
        found = _OWN_KINDS[type(node)]
        for child in _CHILDREN[type(node)](node):
            found |= kinds_in(child)
        _remember_kinds(node, found)
    return found


_remember_kinds = Node._kinds.__set__  # type: ignore[attr-defined]  # past the frozen class's __setattr__


def contains(node: Node, *kinds: type[Node]) -> bool:
    """Whether ``node`` or something inside it is of one of these classes."""
    return bool(kinds_in(node) & bits_of(kinds))


def _children_of(inside: Mapping[str, str]) -> Callable[[Any], Sequence[Any]]:
    """What gives the children of a node with these fields (name to annotation): one look where they hold nodes, all of
    them and always; else a look at each value."""
    names, annotations = tuple(inside), tuple(inside.values())
    if not names:
        return lambda node: ()
    if all(annotation in _NODE_TYPES for annotation in annotations):
        look = attrgetter(*names)
        return look if len(names) > 1 else lambda node: (look(node),)
    if len(names) == 1 and annotations[0].removeprefix("tuple[").removesuffix(", ...]") in _NODE_TYPES:
        return attrgetter(names[0])
    return lambda node: _nodes_in(node, names)


def _nodes_in(node: Any, names: Sequence[str]) -> Sequence[Any]:
    found = []
    for name in names:
        value = getattr(node, name)
        if _IS_NODE[type(value)]:
            found.append(value)
        elif isinstance(value, tuple):
            found.extend([item for item in value if _IS_NODE[type(item)]])
    return found


def children(node: Any) -> Sequence[Any]:
    """The expressions, statements and regions directly inside ``node``, in field order; not the variables it binds."""
    return _CHILDREN[type(node)](node)


@overload
def walk(node: Any) -> Iterator[Any]: ...
@overload
def walk(node: Any, *kinds: type[_Kind]) -> Iterator[_Kind]: ...
def walk(node: Any, *kinds: type[Any]) -> Iterator[Any]:
    """``node`` and everything inside it, outside in; with ``kinds`` only what is of one of these classes."""
    return _walk_kinds(node, bits_of(kinds)) if kinds else _walk_all(node)


def _walk_all(node: Any) -> Iterator[Any]:
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        inside = _CHILDREN[type(current)](current)
        if inside:
            stack.extend(reversed(inside))


def _walk_kinds(node: Any, wanted: int) -> Iterator[Any]:
    stack = [node]
    while stack:
        current = stack.pop()
        if kinds_in(current) & wanted:
            if _OWN_KINDS[type(current)] & wanted:
                yield current
            stack.extend(reversed(_CHILDREN[type(current)](current)))


def statements_in(node: Statement) -> Iterator[Statement]:
    """``node`` and the statements inside it, outside in; expressions are not looked into."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        for name in reversed(_STATEMENT_FIELDS[type(current)]):
            value = getattr(current, name)
            if isinstance(value, tuple):
                stack.extend(reversed(value))
            elif value is not None:
                stack.append(value)


def buffers_of(node: Any) -> Sequence[Buffer]:
    """The buffers that ``node`` itself names (not those of its children)."""
    names = _BUFFER_FIELDS[type(node)]
    if not names:
        return ()
    found = []
    for name in names:
        value = getattr(node, name)
        if isinstance(value, Buffer):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend([item for item in value if isinstance(item, Buffer)])
    return found


def copy_with(node: Any, changes: dict[str, Any]) -> Any:
    """``dataclasses.replace``, but the same object when nothing differs; keeps the location."""
    for name, value in changes.items():
        if getattr(node, name) is not value:
            break
    else:
        return node
    values = {name: getattr(node, name) for name in _FIELDS[type(node)]}
    values.update(changes)
    return type(node)(**values)


def map_children(node: Any, visit: Callable[[Any], Any]) -> Any:
    """``node`` with ``visit`` applied to each child. A statement inside a Seq may become None (dropped) or a Seq
    (spliced)."""
    if isinstance(node, Seq):
        return _map_seq(node, visit)
    changes: dict[str, Any] = {}
    for name in _CHILD_FIELDS[type(node)]:
        value = getattr(node, name)
        if _IS_NODE[type(value)]:
            changed = visit(value)
            if changed is None and isinstance(value, Statement):
                changed = Seq(()) if name != "otherwise" else None
            if changed is not value:
                changes[name] = changed
        elif isinstance(value, tuple):
            new = tuple([visit(item) if _IS_NODE[type(item)] else item for item in value])
            if any(map(is_not, new, value)):
                changes[name] = new
    return copy_with(node, changes) if changes else node


def _map_seq(node: Seq, visit: Callable[[Any], Any]) -> Seq:
    result: list[Statement] = []
    changed = False
    for statement in node.statements:
        new = visit(statement)
        changed |= new is not statement
        if isinstance(new, Seq):
            result.extend(new.statements)
        elif new is not None:
            result.append(new)
    return Seq(tuple(result), location=node.location) if changed else node


class Rewriter:
    """Rewrites bottom-up by class: define ``rewrite_<ClassName>(self, node)``; the node's children are rewritten
    already.

    To see a node before its children, override :meth:`visit`. Buffers are replaced through :meth:`buffer`.
    ``wanted``: the kinds of nodes that a class has something to do with; whatever holds none of them is left as it is.
    They follow from its methods. One with a ``visit`` (or ``expression``) of its own names what that looks for,
    ``class Mine(Rewriter, kinds=(Copy, Fill))``, or gets to see everything.
    """

    wanted: ClassVar[int] = 0

    def __init_subclass__(cls, kinds: tuple[type[Node], ...] | None = None) -> None:
        own = vars(cls)
        if kinds is not None:
            cls.wanted |= bits_of(kinds)
        elif "visit" in own or "expression" in own:
            cls.wanted = EVERYTHING
        cls.wanted |= _bits(name.removeprefix("rewrite_") for name in own if name.startswith("rewrite_"))
        cls.wanted |= _bits([HAS_BUFFERS] if "buffer" in own else [])

    def visit(self, node: Any) -> Any:
        if not kinds_in(node) & self.wanted:
            return node
        node = self._with_buffers(map_children(node, self.visit))
        method = getattr(self, METHOD_NAMES[type(node)], None)
        return node if method is None else method(node)

    def buffer(self, buffer: Buffer) -> Buffer:
        return buffer

    def _with_buffers(self, node: Any) -> Any:
        names = _BUFFER_FIELDS[type(node)]
        if not names:
            return node
        changes: dict[str, Any] = {}
        for name in names:
            value = getattr(node, name)
            if isinstance(value, Buffer):
                changes[name] = self.buffer(value)
            elif isinstance(value, tuple) and any(isinstance(item, Buffer) for item in value):
                new = tuple(self.buffer(item) if isinstance(item, Buffer) else item for item in value)
                changes[name] = value if all(a is b for a, b in zip(new, value, strict=True)) else new
        return copy_with(node, changes) if changes else node


class _Substitution(Rewriter):
    def __init__(self, values: dict[str, Expr]) -> None:
        self.values = values

    def rewrite_Var(self, node: Var) -> Expr:
        return self.values.get(node.name, node)


def substitute(node: Any, values: dict[str, Expr]) -> Any:
    """``node`` with the variables of the given names replaced."""
    return _Substitution(values).visit(node) if values else node


class _BufferReplacement(Rewriter):
    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self.buffers = buffers

    def buffer(self, buffer: Buffer) -> Buffer:
        return self.buffers.get(buffer.name, buffer)


def replace_buffers(node: Any, buffers: dict[str, Buffer]) -> Any:
    """``node`` with the buffers of the given names replaced."""
    return _BufferReplacement(buffers).visit(node) if buffers else node


def free_variables(expression: Expr) -> set[str]:
    return {node.name for node in walk(expression, Var)}


def has_load(expression: Expr) -> bool:
    return contains(expression, Load)
