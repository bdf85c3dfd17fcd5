"""The bytes of a kernel's parameters: each at its natural alignment, tensor maps at 64 bytes, in the order of the PTX
entry."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ptxtile.errors import LaunchError
from ptxtile.launch_record import KernelLaunch, KernelParameter, evaluate_size
from ptxtile.runtime import tensor_maps
from ptxtile.runtime.dtypes import FORMATS
from ptxtile.runtime.scalars import encode

POINTER_BYTES = 8


class ParameterLayout:
    """Where each parameter of ``launch`` lies in one block of memory, worked out once.

    ``offsets`` in bytes from a start that is aligned to 64; ``size`` in bytes. A bool is one byte, a float16 or
    bfloat16 two.
    """

    def __init__(self, launch: KernelLaunch) -> None:
        self.kernel = launch.kernel
        self.parameters = launch.parameters
        code, offsets, position = "<", [], 0
        for parameter in launch.parameters:
            size, piece = _size_and_code(launch.kernel, parameter)
            alignment = min(size, tensor_maps.ALIGNMENT)
            padding = -position % alignment
            code += f"{padding}x{piece}" if padding else piece
            offsets.append(position + padding)
            position += padding + size
        self.offsets: tuple[int, ...] = tuple(offsets)
        self.size = position
        self._struct = struct.Struct(code)

    def pack(self, values: Sequence[int | float | bytes]) -> bytes:
        """The parameters' bytes. Values in order: addresses, encoded maps, and numbers as :meth:`number` gives them."""
        try:
            return self._struct.pack(*values)
        except (struct.error, OverflowError):
            for parameter, value in zip(self.parameters, values, strict=True):
                self._check_fits(parameter, value)
            raise

    def number(
        self, parameter: KernelParameter, scalars: Mapping[str, int | float], symbols: Mapping[str, int]
    ) -> int | float:
        """What :meth:`pack` takes for a scalar parameter."""
        if parameter.value is None:
            return encode(scalars[parameter.name], FORMATS[parameter.dtype])
        return evaluate_size(parameter.value, symbols)

    def _check_fits(self, parameter: KernelParameter, value: int | float | bytes) -> None:
        if parameter.kind != "scalar":
            return
        try:
            struct.pack("<" + FORMATS[parameter.dtype].packing, value)
        except (struct.error, OverflowError):
            raise LaunchError(
                f"kernel {self.kernel!r}: parameter {parameter.name!r} does not fit its type",
                expected=f"a value of {parameter.dtype}",
                got=str(value) if parameter.value is None else f"{parameter.value} = {value}",
            ) from None


def _size_and_code(kernel: str, parameter: KernelParameter) -> tuple[int, str]:
    if parameter.kind == "pointer":
        return POINTER_BYTES, "Q"
    if parameter.kind == "tensor_map":
        return tensor_maps.BYTES, f"{tensor_maps.BYTES}s"
    if parameter.kind == "scalar" and parameter.dtype in FORMATS:
        element = FORMATS[parameter.dtype]
        return element.bytes, element.packing
    raise LaunchError(
        f"kernel {kernel!r}: parameter {parameter.name!r} cannot be passed",
        expected="a pointer, a tensor map, or a scalar of " + ", ".join(FORMATS),
        got=f"{parameter.kind} {parameter.dtype}".strip(),
    )
