"""The elements of a REGISTER storage as values of LLVM's.

Within a block of LLVM's an element is the value that was stored last. Between blocks each has a slot, an alloca, which
LLVM replaces by values again; only slots that some block loads from are made, and stored to. Unrolled loops store and
load each element many times in a block, and an instruction that is not written costs nothing to parse and remove.

Elements below 32 bits are also kept as the 32-bit words that instructions of the tensor cores take and give.
"""

from __future__ import annotations

from ptxtile.ir.types import DType
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.function import FunctionWriter


class RegisterSlots:
    """``count`` elements of ``dtype``. Values are texts of the LLVM type ``kind``, words of i32.

    ``_values`` and ``_words``: what is known in this block, by element; a word by the first of its elements.
    ``_unstored``: elements whose slots do not hold them yet. ``_ends``: of each block that has such, the number of the
    line for stores, these elements, and what was known. ``_loaded``: the elements that have slots.
    """

    def __init__(self, writer: FunctionWriter, dtype: DType, count: int) -> None:
        self.writer, self.dtype, self.count = writer, dtype, count
        self.kind = value_type(dtype)
        self._per_word = max(1, 32 // dtype.bits)
        self._vector = f"<{self._per_word} x {self.kind}>"
        self._values: dict[int, str] = {}
        self._words: dict[int, str] = {}
        self._unstored: set[int] = set()
        self._ends: list[tuple[int, set[int], dict[int, str], dict[int, str]]] = []
        self._stem = writer.name("slot") + "_"
        self._loaded: set[int] = set()
        self._allocation = len(writer.allocations)
        writer.allocations.append("")
        self._is_open = False
        writer.before_body.append(self._write_slots)

    # -- elements ----------------------------------------
    def load(self, element: int) -> str:
        known = self._values.get(element)
        if known is not None:
            return known
        first = element - element % self._per_word
        if first in self._words:
            self._take_apart(first)
            return self._values[element]
        self._open()
        self._loaded.add(element)
        known = self._values[element] = self.writer.piece(f"load {self.kind}, ptr {self._slot(element)}")
        return known

    def store(self, element: int, text: str) -> None:
        if self._words:
            first = element - element % self._per_word
            if first in self._words:
                self._take_apart(first)
                del self._words[first]
        self._open()
        self._values[element] = text
        self._unstored.add(element)

    # -- words ----------------------------------------
    def load_words(self, elements: range) -> list[str]:
        """Consecutive elements, lower bits first."""
        return [self._load_word(first) for first in elements[:: self._per_word]]

    def _load_word(self, first: int) -> str:
        known = self._words.get(first)
        if known is not None:
            return known
        whole = "poison"
        for lane in range(self._per_word):
            element = f"{self.kind} {self.load(first + lane)}"
            whole = self.writer.register(f"insertelement {self._vector} {whole}, {element}, i32 {lane}")
        return self.writer.register(f"bitcast {self._vector} {whole} to i32")

    def store_words(self, first: int, words: list[str]) -> None:
        """The inverse of :meth:`load_words`, from element ``first`` on."""
        for position, word in enumerate(words):
            start = first + position * self._per_word
            if start % self._per_word:
                self._store_parts(start, word)
                continue
            self._open()
            self._words[start] = word
            for element in range(start, start + self._per_word):
                self._values.pop(element, None)
                self._unstored.add(element)

    def _store_parts(self, first: int, word: str) -> None:
        for lane, text in enumerate(self._parts(word)):
            self.store(first + lane, text)

    def _take_apart(self, first: int) -> None:
        for lane, text in enumerate(self._parts(self._words[first])):
            self._values[first + lane] = text

    def _parts(self, word: str) -> list[str]:
        vector = self.writer.register(f"bitcast i32 {word} to {self._vector}")
        return [
            self.writer.register(f"extractelement {self._vector} {vector}, i32 {lane}")
            for lane in range(self._per_word)
        ]

    # -- between blocks ----------------------------------------
    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self.writer.before_control.append(self._end_block)

    def _end_block(self) -> None:
        """Leaves a line for what the slots have to hold here, empty until it is known which of them there are."""
        if self._unstored:
            lines = self.writer.lines
            self._ends.append((len(lines), self._unstored, self._values, self._words))
            lines.append("")
        self._unstored, self._values, self._words = set(), {}, {}
        self._is_open = False

    def _slot(self, element: int) -> str:
        return f"%{self._stem}{element}"

    def _write_slots(self) -> None:
        """Fills the lines that were left for the slots and for the stores to them."""
        writer, kind = self.writer, f"{self.kind}, align {max(1, self.dtype.bits // 8)}"
        slots = sorted(self._loaded, reverse=True)  # as FunctionWriter.body orders allocations
        writer.allocations[self._allocation] = "\n".join(
            f"  {self._slot(element)} = alloca {kind}" for element in slots
        )
        for number, unstored, values, words in self._ends:
            lines: list[str] = []
            vectors: dict[int, str] = {}
            for element in sorted(unstored & self._loaded):
                text = values.get(element)
                if text is None:
                    text = self._part(lines, vectors, words, element)
                lines.append(f"  store {self.kind} {text}, ptr {self._slot(element)}")
            writer.lines[number] = "\n".join(lines)

    def _part(self, lines: list[str], vectors: dict[int, str], words: dict[int, str], element: int) -> str:
        """An element of a word. ``vectors``: the words that were written as vectors, by first element; one for all of
        a word's elements, which LLVM then takes apart in one instruction."""
        lane, text = element % self._per_word, "%" + self.writer.name()
        first = element - lane
        if first not in vectors:
            vectors[first] = "%" + self.writer.name()
            lines.append(f"  {vectors[first]} = bitcast i32 {words[first]} to {self._vector}")
        lines.append(f"  {text} = extractelement {self._vector} {vectors[first]}, i32 {lane}")
        return text
