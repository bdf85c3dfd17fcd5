"""Where the 8×8 matrices of stmatrix lie in the layout of a parallel loop.

The accumulator of a tensor core lies in the registers of a warp as matrices of 8 rows and 8 columns, of which thread t
holds columns 2·(t % 4) and 2·(t % 4) + 1 of row t // 4 (PTX ISA, figures of the mma.sync and wgmma accumulators): just
what stmatrix takes when the elements have 16 bits (PTX ISA 9.7.14.5.16). A loop that runs in such a layout and stores
to shared memory can store whole matrices, two or four at once, instead of pairs of elements.
"""

from __future__ import annotations

from math import prod

from ptxtile.ir.layouts import Fragment, Layout
from ptxtile.lower.fragment_maps import layout_of_sequence
from ptxtile.records import record

WARP, ROWS, COLUMNS = 32, 8, 8


@record
class MatrixForm:
    """A layout as pairs of matrices, one 8 rows below the other, whose values a thread holds one after the other.

    ``warp`` and ``pair`` map the warp and the number of the pair to the offset of the pair's first element in the
    row-major domain. ``row``: the dimension of the domain that the rows of a matrix go along; columns go along the last
    one.
    """

    extents: tuple[int, ...]
    warp: Layout
    pair: Layout
    row: int

    @property
    def row_stride(self) -> int:
        return prod(self.extents[self.row + 1 :])

    @property
    def fragment(self) -> Fragment:
        """The layout that the form describes: the last two modes of a thread's values are the matrix of the pair and
        the column of the thread's two."""
        thread = _modes(self.warp, (8, self.row_stride), (4, 2))
        value = _modes(self.pair, (2, ROWS * self.row_stride), (2, 1))
        return Fragment(self.extents, self.extents, thread, value)

    @property
    def count(self) -> int:
        """Matrices that one instruction stores: those of two pairs where pairs come in twos."""
        return 4 if self.pair.modes[-1][0] % 2 == 0 else 2

    def rows(self, transposed: bool) -> Fragment:
        """Thread → first element of the row whose address it gives, value → number of the instruction.

        Matrices of an instruction follow each other as the values do: the two of a pair, then those of the next pair.
        Thread t gives row t % 8 of matrix t // 8 (of two matrices, modulo 2); ``transposed``: the rows in memory are
        the columns of the matrix.
        """
        *outer, (pairs, stride) = self.pair.modes
        at_once = self.count // 2
        matrices = [(2, stride if at_once == 2 else 0), (2, ROWS * self.row_stride)]
        thread = _modes(self.warp, *matrices, (8, 1 if transposed else self.row_stride))
        others = Layout(tuple(n for n, _ in outer), tuple(d for _, d in outer))
        value = _modes(others, (pairs // at_once, stride * at_once))
        return Fragment(self.extents, self.extents, thread, value)


def _modes(layout: Layout, *modes: tuple[int, int]) -> Layout:
    """``layout``'s modes (those of one coordinate aside) and then ``modes``."""
    every = [mode for mode in layout.modes if mode[0] > 1] + list(modes)
    return Layout(tuple(n for n, _ in every), tuple(d for _, d in every))


def matrix_form(layout: Fragment) -> MatrixForm | None:
    """``layout`` as pairs of matrices, if it is made of them: whole warps, each element in one thread, no padding."""
    import numpy as np

    extents = layout.shape
    if layout.padded != extents or layout.threads % WARP or layout.values % 4 or extents[-1] % COLUMNS:
        return None
    thread, value = layout.thread(np.arange(layout.threads)), layout.value(np.arange(layout.values))
    stride = int(thread[4] - thread[0])
    strides = [prod(extents[position + 1 :]) for position in range(len(extents) - 1)]
    if stride not in strides:
        return None
    row = strides.index(stride)
    lanes = (stride * np.arange(8)[:, None] + 2 * np.arange(4)).ravel()
    pair = np.array([0, 1, ROWS * stride, ROWS * stride + 1])
    warps, pairs = thread[::WARP], value[::4]
    if (thread.reshape(-1, WARP) != warps[:, None] + lanes).any():
        return None
    if (value.reshape(-1, 4) != pairs[:, None] + pair).any():
        return None
    starts = warps[:, None] + pairs
    if (starts % COLUMNS).any() or (starts // stride % extents[row] % ROWS).any() or extents[row] % ROWS:
        return None
    warp_layout, pair_layout = layout_of_sequence(warps), layout_of_sequence(pairs)
    if warp_layout is None or pair_layout is None or not layout.is_exclusive:
        return None
    return MatrixForm(extents, warp_layout, pair_layout, row)
