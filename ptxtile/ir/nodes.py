"""What all nodes of the IR have in common."""

from __future__ import annotations


class Node:
    """Base of expressions, statements and regions.

    Nodes never change, so what has been worked out about one can be kept with it: ``_kinds`` is what
    :func:`~ptxtile.ir.rewrite.kinds_in` found. It is no field: copies, comparisons and pickles do without.
    """

    __slots__ = ("_kinds",)

    _kinds: int
