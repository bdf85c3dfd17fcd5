"""Device functions (expanded mathematics), and whether LLVM inlines each into its callers.

Inlining is right for a short function, and makes compilation slow for a long one that an unrolled loop calls at many
places. Measured with 32 call sites, LLVM and ptxas together: exp 81 ms inlined against 68 ms called, erf 145 against
54, pow 374 against 64. A call costs the card some ten instructions.
"""

from __future__ import annotations

from ptxtile.ir.program import Function
from ptxtile.nvvm import statements
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.expressions import scalar
from ptxtile.nvvm.function import FunctionWriter, Value
from ptxtile.nvvm.module import ModuleWriter
from ptxtile.records import record

INLINE_BUDGET = 1500
"""Instructions that all inlined copies of one function may come to; that many take LLVM some 50 ms."""


@record
class Written:
    """A function whose body has been written: its parameters as text, and the number of its instructions."""

    function: Function
    parameters: str
    body: str
    size: int


def write(module: ModuleWriter, function: Function) -> Written:
    writer = FunctionWriter(module, function.name)
    context = Context(writer)
    parameters = []
    for position, parameter in enumerate(function.parameters):
        name = f"%p{position}"
        parameters.append(f"{value_type(parameter.dtype)} {name}")
        context.variables[parameter.name] = (Value(name, parameter.dtype),)
    statements.run(context, function.body)
    result = scalar(context, function.result)
    writer.finish(f"ret {writer.typed(result)}")
    return Written(function, ", ".join(parameters), writer.body(), len(writer.lines))


def add(module: ModuleWriter, functions: list[Written]) -> None:
    """Adds the functions to the module, once every caller is written and the calls are counted."""
    inlined = _inlined(module, functions)
    for written in functions:
        function = written.function
        keyword = "alwaysinline" if function.name in inlined else "noinline"
        attributes = module.attributes(f"{keyword} nounwind")
        kind = value_type(function.result.dtype)
        head = f'define internal {kind} @"{function.name}"({written.parameters}) {attributes} {{'
        module.functions.append(f"{head}\n{written.body}\n}}\n")


def _inlined(module: ModuleWriter, functions: list[Written]) -> set[str]:
    """Names of the functions to inline. Callers are decided before what they call, for an inlined caller multiplies the
    calls in it."""
    by_name = {written.function.name: written for written in functions}
    copies: dict[str, int] = {}
    inlined: set[str] = set()

    def decide(name: str) -> int:
        """How many copies of the function's body there will be."""
        if name not in by_name:
            return 1  # a kernel
        if name not in copies:
            copies[name] = 1
            calls = sum(count * decide(caller) for (caller, callee), count in module.calls.items() if callee == name)
            written = by_name[name]
            if not written.function.out_of_line and calls * written.size <= INLINE_BUDGET:
                inlined.add(name)
                copies[name] = calls
        return copies[name]

    for name in by_name:
        decide(name)
    return inlined
