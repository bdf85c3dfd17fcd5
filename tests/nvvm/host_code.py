"""Runs device functions of the emitter on this machine's own processor, through LLVM's JIT compiler.

The arithmetic that the emitter writes is ordinary LLVM IR, so a card is not needed to see what it computes. The only
NVPTX intrinsics in it, the float-to-integer conversions, are given here as the PTX manual describes ``cvt.rzi``.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np

from ptxtile import target
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType
from ptxtile.nvvm import device_functions
from ptxtile.nvvm.module import ModuleWriter

NUMPY = {
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "float32": np.float32, "float64": np.float64,
}  # fmt: skip

_BITS = {"i": 32, "ui": 32, "ll": 64, "ull": 64}


def _conversions(text: str) -> str:
    """Definitions of the cvt.rzi intrinsics that ``text`` declares. Saturating; NaN becomes 0 from float32 to 32 bits,
    else the bit pattern 1 << (width − 1) (PTX ISA, «cvt»)."""
    parts = []
    for name in sorted(set(re.findall(r"declare i\d+ @(llvm\.nvvm\.[fd]2\w+\.rz)", text))):
        letter, letters = re.fullmatch(r"llvm\.nvvm\.([fd])2(\w+)\.rz", name).groups()  # type: ignore[union-attr]
        source, bits = {"f": "float", "d": "double"}[letter], _BITS[letters]
        sign = "u" if letters.startswith("u") else "s"
        intrinsic = f"llvm.fpto{sign}i.sat.i{bits}.{'f32' if source == 'float' else 'f64'}"
        invalid = 0 if source == "float" and bits == 32 else -(1 << (bits - 1))
        parts.append(
            f"declare i{bits} @{intrinsic}({source})\n"
            f'define internal i{bits} @"cvt.{name}"({source} %x) {{\n'
            f"  %saturated = call i{bits} @{intrinsic}({source} %x)\n"
            f"  %nan = fcmp uno {source} %x, %x\n"
            f"  %r = select i1 %nan, i{bits} {invalid}, i{bits} %saturated\n  ret i{bits} %r\n}}\n"
        )
    return "\n".join(parts)


def _host_text(module: ModuleWriter, triple: str) -> str:
    text = re.sub(r"target (datalayout|triple) = .*\n", "", module.text())
    definitions = _conversions(text)
    text = re.sub(r"declare i\d+ @llvm\.nvvm\.[fd]2\w+\.rz.*\n", "", text)
    text = re.sub(r"@(llvm\.nvvm\.[fd]2\w+\.rz)\(", r'@"cvt.\1"(', text)
    return f'target triple = "{triple}"\n' + text + definitions


class HostFunctions:
    """Compiled device functions: ``call(name, arrays…)`` runs one for each element of the arrays."""

    def __init__(self, functions: list[Function]) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = ModuleWriter(target.get("sm_80"))
        module.device_functions = {function.name: function for function in functions}
        device_functions.add(module, [device_functions.write(module, function) for function in functions])
        wrappers = [_wrapper(function) for function in functions]
        text = _host_text(module, llvm.get_process_triple()) + "\n".join(wrappers)
        parsed = llvm.parse_assembly(text)
        parsed.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        self._functions = {function.name: function for function in functions}

    def call(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        function = self._functions[name]
        size = len(arrays[0])
        inputs = [
            np.ascontiguousarray(array, NUMPY[str(parameter.dtype)])
            for array, parameter in zip(arrays, function.parameters, strict=True)
        ]
        output = np.zeros(size, NUMPY[str(function.result.dtype)])
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (len(inputs) + 1))
        kind(self._engine.get_function_address("run_" + name))(
            size, *(array.ctypes.data for array in inputs), output.ctypes.data
        )
        return output


def _wrapper(function: Function) -> str:
    """A loop over arrays, so that one call checks many inputs."""
    arguments = "".join(f", ptr %a{i}" for i in range(len(function.parameters)))
    lines = [
        f"define void @run_{function.name}(i64 %n{arguments}, ptr %out) {{",
        "entry:\n  %empty = icmp eq i64 %n, 0\n  br i1 %empty, label %end, label %loop",
        "loop:\n  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
    ]
    typed = []
    for position, parameter in enumerate(function.parameters):
        memory, value = _types(parameter.dtype)
        lines.append(f"  %p{position} = getelementptr {memory}, ptr %a{position}, i64 %i")
        lines.append(f"  %m{position} = load {memory}, ptr %p{position}")
        text = f"%m{position}"
        if memory != value:
            lines.append(f"  %v{position} = icmp ne i8 {text}, 0")
            text = f"%v{position}"
        typed.append(f"{value} {text}")
    memory, value = _types(function.result.dtype)
    lines.append(f'  %r = call {value} @"{function.name}"({", ".join(typed)})')
    result = "%r"
    if memory != value:
        lines.append("  %rm = zext i1 %r to i8")
        result = "%rm"
    lines.append(f"  %po = getelementptr {memory}, ptr %out, i64 %i\n  store {memory} {result}, ptr %po")
    lines.append("  %next = add i64 %i, 1\n  %more = icmp ult i64 %next, %n\n  br i1 %more, label %loop, label %end")
    lines.append("end:\n  ret void\n}\n")
    return "\n".join(lines)


def _types(dtype: DType) -> tuple[str, str]:
    from ptxtile.nvvm.dtypes import memory_type, value_type

    return memory_type(dtype), value_type(dtype)


def compile_one(function: Function) -> Callable[..., np.ndarray]:
    compiled = HostFunctions([function])
    return lambda *arrays: compiled.call(function.name, *arrays)
