"""The driver's functions of a launch in native code, which do next to nothing: for measuring and counting calls."""

from __future__ import annotations

from ptxtile.native import code_memory, object_code
from ptxtile.native.layout import Table
from ptxtile.native.llvm_text import Function
from tests.runtime.fake_bindings import PRIMARY

NAMES = ("cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent")


def stand_ins() -> str:
    """LLVM IR of the driver's functions, and of an empty one in the form of a method."""
    nothing = Function("nothing", ("callable", "arguments", "positional", "names", "table"), linkage="")
    none = nothing.load(nothing.parameters[4], Table.NONE)
    nothing.call(nothing.load(nothing.parameters[4], Table.INCREASE), (none,), "void")
    nothing.give(none)
    launched = Function("cuLaunchKernelEx", ("config", "function", "parameters", "extra"), linkage="")
    launched.store(launched.parameters[2], launched.parameters[0], 0)  # the grid, which nobody reads
    launched.give(0)
    encode = Function("cuTensorMapEncodeTiled", ("out", *[f"p{n}" for n in range(11)]), linkage="")
    for word in range(16):
        encode.store(encode.parameters[3], encode.parameters[0], word)
    encode.give(0)
    current = Function("cuCtxGetCurrent", ("out",), linkage="")
    current.store(PRIMARY, current.parameters[0])
    current.give(0)
    stream = Function("stream", ("kind", "device", "out"), linkage="")
    stream.store(7, stream.parameters[2])
    stream.give(0)
    other = [Function(name, ("context",), linkage="") for name in ("cuCtxPushCurrent", "cuCtxPopCurrent")]
    for function in other:
        function.give(0)
    functions = [nothing, launched, encode, current, stream, *other]
    return "\n".join(function.text() for function in functions) + 'attributes #0 = { nounwind "no-builtins" }\n'


class StandIn:
    """The stand-ins in memory, by address."""

    def __init__(self) -> None:
        text = stand_ins()
        entries = {name: object_code.compile_text(text, name) for name in (*NAMES, "stream", "nothing")}
        self._keep, start = code_memory.mapped(entries["stream"].text)
        self.addresses = {name: start + code.entry for name, code in entries.items()}
        self.empty_code = entries["nothing"]
