"""A launch record as text: what a call checks, allocates, encodes and launches, in that order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptxtile.launch_record import (
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)


def render_host(record: LaunchRecord) -> str:
    """The host part of a program, one line a thing. Sizes are outermost first, except in tensor maps (innermost
    first)."""
    lines = [f"host part of {record.name}"]
    solved: set[str] = set()
    lines += _section("arguments", (_argument(argument, solved) for argument in record.arguments))
    lines += _section("checks", (f"{d.size} is a multiple of {d.divisor}" for d in record.divisibilities))
    allocations = (f"{a.name}: {a.dtype} {_sizes(a.shape)}, contiguous" for a in record.allocations)
    lines += _section("allocations", allocations)
    lines += _section("tensor maps", map(_tensor_map, record.tensor_maps))
    for number, launch in enumerate(record.launches):
        lines += _section(f"launch {number}: {launch.kernel}", _launch(launch))
    lines += _section("returns", record.returns)
    return "\n".join(lines) + "\n"


def _section(title: str, entries: Iterable[str]) -> list[str]:
    entries = list(entries)
    return [f"  {title}", *(f"    {entry}" for entry in entries)] if entries else []


def _argument(argument: TensorArgument | ScalarArgument, solved: set[str]) -> str:
    if isinstance(argument, ScalarArgument):
        solved.add(argument.name)
        return f"{argument.name}: {argument.dtype}, a number"
    text = f"{argument.name}: {argument.dtype} {_sizes(argument.shape)}, strides {_sizes(argument.strides)}"
    text += f", base aligned to {argument.alignment} bytes"
    new = [size.name for size in (*argument.shape, *argument.strides) if isinstance(size, Symbol)]
    new = [name for name in dict.fromkeys(new) if name not in solved]
    solved.update(new)
    if new:
        text += f"; gives {', '.join(new)}"
    return text + ("; may be None, never touched" if argument.unused else "")


def _tensor_map(record: TensorMapRecord) -> str:
    text = f"{record.name} of {record.tensor}: {record.dtype}, dimensions {_sizes(record.dimensions)}"
    if record.strides:
        text += f", strides {_sizes(record.strides)} bytes"
    text += f", box {_sizes(record.box)}, swizzle {record.swizzle or 'none'}, L2 promotion {record.l2_promotion} bytes"
    return text + (f", from byte {record.offset}" if record.offset else "")


def _launch(launch: KernelLaunch) -> Iterable[str]:
    yield f"grid {_sizes(launch.grid)} CTAs, block {_sizes(launch.block)} threads"
    yield f"dynamic shared memory: {launch.shared_bytes} bytes"
    if launch.cluster != (1, 1, 1):
        yield f"cluster {_sizes(launch.cluster)} CTAs"
    if launch.cooperative:
        yield "cooperative: all CTAs resident at once"
    if launch.dependent_launch:
        yield "may start before the kernel ahead of it in the stream has ended"
    for number, parameter in enumerate(launch.parameters):
        yield f"parameter {number}: {_parameter(parameter)}"


def _parameter(parameter: KernelParameter) -> str:
    if parameter.kind == "pointer":
        return f"address of {parameter.name}"
    if parameter.kind == "tensor_map":
        return f"tensor map {parameter.name}, 128 bytes"
    if parameter.value is None or str(parameter.value) == parameter.name:
        return f"{parameter.name}: {parameter.dtype}"
    return f"{parameter.name}: {parameter.dtype} = {parameter.value}"


def _sizes(sizes: Sequence[object]) -> str:
    inner = ", ".join(str(size) for size in sizes)
    return f"({inner},)" if len(sizes) == 1 else f"({inner})"
