"""Element formats as the host sees them: torch's name, the bytes in memory, the encoding as a kernel parameter.

Formats below one byte and types with several lanes are not in the table: no tensor of theirs can be passed yet.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ptxtile.records import record

if TYPE_CHECKING:
    import torch


@record
class ElementFormat:
    """``kind``: bool, int, uint or float. ``bytes``: size of an element. ``packing``: the code of Python's ``struct``
    for the element's bits. ``tensor_map``: suffix of the CUtensorMapDataType constant that TMA moves it as."""

    name: str
    kind: str
    bytes: int
    torch_name: str
    packing: str
    tensor_map: str

    @property
    def minimum(self) -> int:
        """Smallest integer of an integer or bool format."""
        return -(1 << (8 * self.bytes - 1)) if self.kind == "int" else 0

    @property
    def maximum(self) -> int:
        """Largest integer of an integer or bool format."""
        if self.kind == "bool":
            return 1
        return (1 << (8 * self.bytes - (self.kind == "int"))) - 1


FORMATS: dict[str, ElementFormat] = {
    element.name: element
    for element in (
        ElementFormat("bool", "bool", 1, "bool", "B", "UINT8"),
        ElementFormat("int8", "int", 1, "int8", "b", "UINT8"),
        ElementFormat("int16", "int", 2, "int16", "h", "UINT16"),
        ElementFormat("int32", "int", 4, "int32", "i", "INT32"),
        ElementFormat("int64", "int", 8, "int64", "q", "INT64"),
        ElementFormat("uint8", "uint", 1, "uint8", "B", "UINT8"),
        ElementFormat("uint16", "uint", 2, "uint16", "H", "UINT16"),
        ElementFormat("uint32", "uint", 4, "uint32", "I", "UINT32"),
        ElementFormat("uint64", "uint", 8, "uint64", "Q", "UINT64"),
        ElementFormat("float16", "float", 2, "float16", "e", "FLOAT16"),
        ElementFormat("bfloat16", "float", 2, "bfloat16", "H", "BFLOAT16"),
        ElementFormat("float32", "float", 4, "float32", "f", "FLOAT32"),
        ElementFormat("tfloat32", "float", 4, "float32", "f", "FLOAT32"),
        ElementFormat("float64", "float", 8, "float64", "d", "FLOAT64"),
        ElementFormat("float8_e4m3fn", "float", 1, "float8_e4m3fn", "B", "UINT8"),
        ElementFormat("float8_e5m2", "float", 1, "float8_e5m2", "B", "UINT8"),
        ElementFormat("float8_e8m0fnu", "float", 1, "float8_e8m0fnu", "B", "UINT8"),
    )
}
"""TMA only moves bits here (boxes are copied and zeros filled in), so formats that CUtensorMapDataType does not know
go as unsigned integers of their width (CUDA driver API, «CUtensorMapDataType»). tfloat32 goes as FLOAT32, which keeps
every bit; the driver's TFLOAT32 type would round."""


@cache
def torch_dtype(name: str) -> torch.dtype:
    """``"bfloat16"`` → ``torch.bfloat16``. KeyError for a format without a torch dtype."""
    import torch

    return getattr(torch, FORMATS[name].torch_name)
