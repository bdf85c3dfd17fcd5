"""The launch of an exported kernel as JSON: all that a loader in any language needs, and nothing of this package.

Version 1. A *size* is an integer, the name of a symbol, or ``{"operator": …, "left": size, "right": size}`` with the
operators add, sub, mul, floordiv, mod (both floor, as in Python), min and max. Sizes are outermost first and strides in
elements, except in tensor maps, which are as the driver takes them. The fields:

- ``format`` "ptxtile-launch", ``version`` 1, ``name``, ``target`` (architecture of the PTX), ``ptx_isa``
- ``files``: of the same folder: ``ptx``, ``llvm_ir``, ``header``, ``cubin`` (null where there is none; ``cubin_reason``
  says why, or for what it is)
- ``arguments``, in order. ``kind`` "tensor": ``name``, ``dtype``, ``element_bytes``, ``shape``, ``strides``,
  ``alignment`` (bytes that the address is a multiple of), ``written`` (the kernel may write it), ``unused`` (never
  touched: may be null, and is not checked), ``may_overlap`` (tensors that it may share memory with; with all others it
  must not where one of the two is written). A stride counts where its dimension is larger than 1 and the tensor has
  elements; then it must be equal. ``kind`` "scalar": ``name``, ``dtype``
- ``symbols``, in the order in which they are solved: ``name``; ``sources``: places with its value, of which the first
  that counts is taken (0 where none does): ``argument`` with ``property`` "value" (an integer scalar), "size" or
  "stride", with ``dimension``; of a size ``factor`` and ``offset`` (a size): the dimension is factor · value + offset,
  and the value is not negative; ``divisor`` that the value is a multiple of; ``maximum`` (null: none). Every other
  place where a symbol is must agree
- ``allocations``: contiguous tensors that the caller provides: ``name``, ``dtype``, ``element_bytes``, ``shape``,
  ``returned`` (else a workspace)
- ``returns``: names of what a call gives back, arguments or allocations
- ``tensor_maps``, arguments of cuTensorMapEncodeTiled, innermost dimension first: ``name``, ``tensor``, ``byte_offset``
  from its address, ``data_type`` and ``data_type_number``, ``element_bytes``, ``rank``, ``dimensions``,
  ``strides`` (sizes, bytes, one fewer), ``box``, ``element_strides``, ``interleave``, ``swizzle``, ``l2_promotion``,
  ``out_of_bounds_fill`` (the driver's numbers). The stride of a dimension of size 1 may be replaced by a legal one
- ``launches``, in order: ``kernel``; ``grid`` (three sizes; with a 0 the launch is left out), ``block``, ``cluster``,
  ``shared_bytes`` (dynamic), ``cooperative``, ``programmatic_stream_serialization``; ``parameters``, in order: ``kind``
  "pointer" (address of the tensor ``name``), "tensor_map" (128 bytes, 64-byte aligned while it is encoded) or "scalar"
  (``dtype``; ``value`` is a size, or null: the scalar argument ``name``), each with its ``bytes``
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ptxtile.compiler import Artifact
from ptxtile.ir.program import Program, TensorParameter
from ptxtile.ir.written_tensors import written_tensors
from ptxtile.launch_record import (
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    Symbol,
    TensorArgument,
    TensorMapRecord,
    solvable,
)
from ptxtile.runtime import tensor_maps
from ptxtile.runtime.dtypes import FORMATS
from ptxtile.runtime.module import isa_of
from ptxtile.runtime.symbols import SizeExpression
from ptxtile.target.ptx_isa import format_isa

FORMAT, VERSION = "ptxtile-launch", 1
POINTER_BYTES = 8


def describe(artifact: Artifact, files: dict[str, str | None], cubin_reason: str) -> dict[str, Any]:
    """The description of a compiled program, as plain values. ``files``: names by kind."""
    assert artifact.ptx is not None
    launch, program = artifact.launch, artifact.program
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": launch.name,
        "target": artifact.target.name,
        "ptx_isa": format_isa(isa_of(artifact.ptx)),
        "files": files,
        "cubin_reason": cubin_reason,
        "arguments": [_argument(argument, artifact) for argument in launch.arguments],
        "symbols": _symbols(launch, program),
        "allocations": [
            {
                "name": made.name,
                "dtype": made.dtype,
                "element_bytes": FORMATS[made.dtype].bytes,
                "shape": _sizes(made.shape),
                "returned": made.name in launch.returns,
            }
            for made in launch.allocations
        ],
        "returns": list(launch.returns),
        "tensor_maps": [_tensor_map(tensor_map) for tensor_map in launch.tensor_maps],
        "launches": [_launch(one) for one in launch.launches],
    }


def size(value: SizeExpression) -> Any:
    """A size as plain values."""
    if isinstance(value, int):
        return value
    if isinstance(value, Symbol):
        return value.name
    return {"operator": value.operator, "left": size(value.left), "right": size(value.right)}


def _sizes(values: Iterable[SizeExpression]) -> list[Any]:
    return [size(value) for value in values]


def _argument(argument: TensorArgument | ScalarArgument, artifact: Artifact) -> dict[str, Any]:
    if isinstance(argument, ScalarArgument):
        return {"kind": "scalar", "name": argument.name, "dtype": argument.dtype}
    groups = {p.name: p.alias_group for p in artifact.program.parameters if isinstance(p, TensorParameter)}
    own = groups[argument.name]
    return {
        "kind": "tensor",
        "name": argument.name,
        "dtype": argument.dtype,
        "element_bytes": FORMATS[argument.dtype].bytes,
        "shape": _sizes(argument.shape),
        "strides": _sizes(argument.strides),
        "alignment": argument.alignment,
        "written": argument.name in written_tensors(artifact.program),
        "unused": argument.unused,
        "may_overlap": [n for n, group in groups.items() if own is not None and group == own and n != argument.name],
    }


def _symbols(launch: LaunchRecord, program: Program) -> list[dict[str, Any]]:
    """Every symbol of the record with the place that gives its value, as :func:`ptxtile.runtime.arguments.bind` looks
    for it: integer arguments, then dimensions, then strides."""
    sources: dict[str, list[dict[str, Any]]] = {}
    for argument in launch.arguments:
        if isinstance(argument, ScalarArgument) and FORMATS[argument.dtype].kind in ("int", "uint"):
            sources[argument.name] = [{"argument": argument.name, "property": "value"}]
    tensors = [argument for argument in launch.arguments if isinstance(argument, TensorArgument)]
    tensors.sort(key=lambda tensor: tensor.unused)  # one that may be null is asked last
    for what in ("size", "stride"):
        for argument in tensors:
            for dimension, value in enumerate(argument.shape if what == "size" else argument.strides):
                if isinstance(value, Symbol):
                    places = sources.setdefault(value.name, [])
                    if not places or places[0]["property"] == "stride":
                        place = {"argument": argument.name, "property": what, "dimension": dimension}
                        places.append({**place, "factor": 1, "offset": 0} if what == "size" else place)
        if what == "size":
            while _add_sum(tensors, sources):
                pass
    maxima = {fact.var.name: fact.upper for fact in program.facts}
    divisors = {d.size.name: d.divisor for d in launch.divisibilities if isinstance(d.size, Symbol)}
    return [
        {"name": name, "sources": places, "divisor": divisors.get(name, 1), "maximum": maxima.get(name)}
        for name, places in sources.items()
    ]


def _add_sum(tensors: Sequence[TensorArgument], sources: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether a dimension that is a sum of sizes gave a source to one that has none."""
    for argument in tensors:
        for dimension, value in enumerate(argument.shape):
            found = solvable(value, sources)
            if found is not None:
                name, factor, offset = found
                place = {"argument": argument.name, "property": "size", "dimension": dimension}
                sources[name] = [{**place, "factor": factor, "offset": size(offset)}]
                return True
    return False


def _tensor_map(tensor_map: TensorMapRecord) -> dict[str, Any]:
    element = FORMATS[tensor_map.dtype]
    return {
        "name": tensor_map.name,
        "tensor": tensor_map.tensor,
        "byte_offset": tensor_map.offset,
        "data_type": f"CU_TENSOR_MAP_DATA_TYPE_{element.tensor_map}",
        "data_type_number": tensor_maps.DATA_TYPES[element.tensor_map],
        "element_bytes": element.bytes,
        "rank": tensor_map.rank,
        "dimensions": _sizes(tensor_map.dimensions),
        "strides": _sizes(tensor_map.strides),
        "box": list(tensor_map.box),
        "element_strides": [1] * tensor_map.rank,
        "interleave": 0,
        "swizzle": tensor_maps.SWIZZLES[tensor_map.swizzle],
        "l2_promotion": tensor_maps.L2_PROMOTIONS[tensor_map.l2_promotion],
        "out_of_bounds_fill": 0,
    }


def _launch(launch: KernelLaunch) -> dict[str, Any]:
    return {
        "kernel": launch.kernel,
        "grid": _sizes(launch.grid),
        "block": list(launch.block),
        "cluster": list(launch.cluster),
        "shared_bytes": launch.shared_bytes,
        "cooperative": launch.cooperative,
        "programmatic_stream_serialization": launch.dependent_launch,
        "parameters": [_parameter(parameter) for parameter in launch.parameters],
    }


def _parameter(parameter: KernelParameter) -> dict[str, Any]:
    if parameter.kind == "pointer":
        return {"kind": "pointer", "name": parameter.name, "bytes": POINTER_BYTES}
    if parameter.kind == "tensor_map":
        return {"kind": "tensor_map", "name": parameter.name, "bytes": tensor_maps.BYTES}
    return {
        "kind": "scalar",
        "name": parameter.name,
        "dtype": parameter.dtype,
        "bytes": FORMATS[parameter.dtype].bytes,
        "value": None if parameter.value is None else size(parameter.value),
    }
