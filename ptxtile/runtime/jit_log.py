"""Reading what ptxas says about a module, alone or inside of the driver's JIT: figures of each function, and what it
could not do as it was told.

Both write the same lines; the driver puts ``ptxas .`` before the line of the stack frame. NVIDIA documents neither the
sentences nor their codes, and the codes move from version to version (the sentence that ptxas 13.0 numbers C7520 has
C7519 in 13.5), so what counts is the sentence. The table holds those that ptxas 13.0 and 13.5 have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import Enum

from ptxtile.records import record


class Effect(Enum):
    """What an advice of the assembler comes to."""

    SERIALISED = "made wgmma instructions wait for each other"
    WAITED = "inserted a wait for wgmma instructions"
    IGNORED = "ignored setmaxnreg"
    SPILLED = "keeps values of registers in local memory"
    FENCED = "inserted a wgmma.fence"
    OTHER = "expects a loss of performance"

    @property
    def costs_time(self) -> bool:
        """A fence of its own costs the assembler's code next to nothing."""
        return self is not Effect.FENCED


@record
class Reason:
    """``meaning``: why it happened, as a sentence; ``change``: what to do about it."""

    effect: Effect
    meaning: str
    change: str


_TILE = "use a smaller tile, or more threads for it"
_CALLS = "take device-side printing and device functions out of this kernel"
_BETWEEN = "let the product be complete (wgmma.wait_group, in inline PTX) before"
_UNIFORM = "let all threads of a warpgroup take the same way from the product to its wait"

_IGNORED = "'setmaxnreg' ignored"
_SERIALISED = "wgmma.mma_async instructions are serialized due to"

_WAITED = Reason(
    Effect.WAITED,
    "accumulators are used while a wgmma that adds to them is in flight",
    f"{_BETWEEN} using the accumulator",
)

REASONS: Mapping[str, Reason] = {
    f"{_IGNORED} to maintain compatibility across compilation units": Reason(
        Effect.IGNORED,
        "the code was assembled to be linked with other code",
        "load the PTX through the driver, or assemble it without -c and not through nvJitLink",
    ),
    f"{_IGNORED} to allow debugging": Reason(
        Effect.IGNORED, "the code was assembled for debugging", "assemble it without -g"
    ),
    f"{_IGNORED} to maintain compatibility into 'extern' call": Reason(
        Effect.IGNORED, "the kernel calls a function outside of it, such as the device's vprintf", _CALLS
    ),
    f"{_IGNORED} to maintain minimum register requirements": Reason(
        Effect.IGNORED,
        "code after it needs more registers than it leaves",
        "leave that role more registers (T.set_max_nreg), or give it less to do",
    ),
    f"{_IGNORED}; unable to determine register count at entry": Reason(
        Effect.IGNORED,
        "the registers at the kernel's entry are not known, for its launch bounds are missing",
        "write T.set_max_nreg instead of inline PTX: the compiler then states the bounds",
    ),
    f"{_SERIALISED} the presence of Extern calls": Reason(
        Effect.SERIALISED, "the function calls one outside of it", _CALLS
    ),
    f"{_SERIALISED} wgmma pipeline crossing function boundary": Reason(
        Effect.SERIALISED, "instructions in flight would meet a function call", _CALLS
    ),
    f"{_SERIALISED} insufficient register resources for the wgmma pipeline": Reason(
        Effect.SERIALISED, "there are not enough registers for the instructions in flight", _TILE
    ),
    f"{_SERIALISED} insufficient register resources for the function": Reason(
        Effect.SERIALISED, "there are not enough registers for the kernel", _TILE
    ),
    f"{_SERIALISED} non wgmma instructions defining input registers": Reason(
        Effect.SERIALISED,
        "registers that a wgmma reads are written while it is in flight",
        f"{_BETWEEN} writing the fragment that is its operand",
    ),
    f"{_SERIALISED} non wgmma instructions reading accumulator registers": Reason(
        Effect.SERIALISED,
        "accumulators are read while a wgmma that adds to them is in flight",
        f"{_BETWEEN} reading the accumulator",
    ),
    f"{_SERIALISED} non wgmma instructions defining accumulator registers": Reason(
        Effect.SERIALISED,
        "accumulators are written while a wgmma that adds to them is in flight",
        f"{_BETWEEN} writing the accumulator",
    ),
    f"{_SERIALISED} ill formed pipeline stage": Reason(
        Effect.SERIALISED, "fence, commit and wait do not follow each other on every way through the code", _UNIFORM
    ),
    f"{_SERIALISED} program dependence on compiler-inserted WG.DP in divergent path": Reason(
        Effect.SERIALISED, "a wait that the assembler has to insert lies on a divergent path", _UNIFORM
    ),
    f"{_SERIALISED} program dependence on compiler-inserted WG.AR in divergent path": Reason(
        Effect.SERIALISED, "a fence that the assembler has to insert lies on a divergent path", _UNIFORM
    ),
    "warpgroup.wait is injected": _WAITED,
    "wgmma.wait_group is injected": _WAITED,
    "warpgroup.arrive is injected": Reason(
        Effect.FENCED,
        "registers of a wgmma are written before it without a fence in between",
        "put a wgmma.fence between them",
    ),
}
"""By the part of a sentence that names the reason."""

SPILLS = Reason(
    Effect.SPILLED,
    "a thread needs more registers than it may have",
    "use smaller fragments, more threads for them, or fewer of them at a time",
)
OTHER = Reason(Effect.OTHER, "the table of its sentences does not have this one", "what the sentence says")


@record
class Advice:
    """One thing that the assembler could not do as told. ``code``: the assembler's own, such as ``C7511``, or empty;
    ``function``: its name, empty where the log names none;
    ``ptx_line``: about where, counted from 1, None where the log does not say; ``said``: its own words."""

    code: str
    reason: Reason
    function: str
    ptx_line: int | None
    said: str


@record
class FunctionFigures:
    """Of one function: registers of a thread (None: a device function, counted with its callers); stack frame, spill
    stores and loads of a thread in bytes; static shared memory of a CTA in bytes; named barriers."""

    registers: int | None = None
    stack_bytes: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared_bytes: int = 0
    barriers: int = 0


@record
class JitLog:
    """``functions`` is empty when the driver took the code from its own cache and assembled nothing."""

    functions: Mapping[str, FunctionFigures] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for '?([\w$.%]+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?")
_SHARED = re.compile(r"(\d+) bytes smem")
_CODE = re.compile(r"\((C\d+)\)")
_FUNCTION = re.compile(r"function '([^']+)'")
_LINE = re.compile(r"\bin (?:around )?line (\d+)")
_LOSS = re.compile(r"Potential Performance Loss|Advisory:")


def parse(log: str) -> JitLog:
    """The figures and the advice in a log; lines that say neither are passed over."""
    functions: dict[str, FunctionFigures] = {}
    advice: list[Advice] = []
    entry = current = ""
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            entry = current = found[1]
        elif found := _PROPERTIES.search(line):
            current = found[1]
        elif found := _STACK.search(line):
            stack, stores, loads = (int(part) for part in found.groups())
            functions[current] = _with(
                functions.get(current), stack_bytes=stack, spill_stores=stores, spill_loads=loads
            )
        elif found := _USED.search(line):
            shared = _SHARED.search(line)
            functions[entry] = _with(
                functions.get(entry),
                registers=int(found[1]),
                barriers=int(found[2] or 0),
                shared_bytes=int(shared[1]) if shared else 0,
            )
        elif said := _advice(line):
            advice.append(said)
    return JitLog(functions, (*advice, *_spills(functions)))


def _with(figures: FunctionFigures | None, **changed: int) -> FunctionFigures:
    return replace(figures or FunctionFigures(), **changed)


def _advice(line: str) -> Advice | None:
    code = _CODE.search(line)
    reason = next((reason for part, reason in REASONS.items() if part in line), None)
    if reason is None and not _LOSS.search(line):
        return None
    function, ptx_line = _FUNCTION.search(line), _LINE.search(line)
    said = line.partition(" : ")[2].strip() or line.strip()
    return Advice(
        code[1] if code else "",
        reason or OTHER,
        function[1] if function else "",
        int(ptx_line[1]) or None if ptx_line else None,
        said,
    )


def _spills(functions: Mapping[str, FunctionFigures]) -> Iterable[Advice]:
    for name, figures in functions.items():
        if figures.spill_stores or figures.spill_loads:
            said = f"{figures.spill_stores} bytes spill stores, {figures.spill_loads} bytes spill loads"
            yield Advice("", SPILLS, name, None, said)
