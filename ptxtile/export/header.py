"""The C header of an exported kernel, made from its description alone: C99 that is also C++11, on cuda.h and nothing
else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ptxtile.export.c_names import INTEGER_LIMITS, identifier, scalar_type, size_expression, size_text
from ptxtile.export.c_support import SUPPORT
from ptxtile.runtime.dtypes import FORMATS

_SWIZZLES = ("NONE", "32B", "64B", "128B")
_PROMOTIONS = ("NONE", "L2_64B", "L2_128B", "L2_256B")


def header(description: dict[str, Any]) -> str:
    """The text of the header."""
    return _Writer(description).text()


class _Writer:
    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description
        self.name = identifier(description["name"])
        self.tensors = [argument for argument in description["arguments"] if argument["kind"] == "tensor"]
        self.scalars = [argument for argument in description["arguments"] if argument["kind"] == "scalar"]
        self.allocations = description["allocations"]
        self.launches = description["launches"]
        used = {p["name"] for launch in self.launches for p in launch["parameters"] if p["kind"] == "tensor_map"}
        self.maps = [tensor_map for tensor_map in description["tensor_maps"] if tensor_map["name"] in used]

    def text(self) -> str:
        guard = f"PTXTILE_EXPORT_{self.name.upper()}_H"
        parts = [
            self._introduction(),
            f"#ifndef {guard}\n#define {guard}\n",
            "#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n\n#include <cuda.h>\n",
            SUPPORT.strip("\n") + "\n",
            self._types(),
            self._load(),
            self._solve(),
            *[self._shape(made) for made in self.allocations],
            *[self._map(tensor_map) for tensor_map in self.maps],
            *[self._grid(number, launch) for number, launch in enumerate(self.launches)],
            self._launch(),
            "#endif",
        ]
        return "\n".join(parts) + "\n"

    # ---------------------------------------------------------------- declarations

    def _introduction(self) -> str:
        name, target = self.name, self.description["target"]
        steps = [
            f"{name}_load: the module ({self.description['files']['ptx']}, or a cubin), once for each context",
            f"{name}_solve: sizes from the arguments; it checks them",
            *[f"{name}_shape_{identifier(m['name'])}: what to allocate for {m['name']}" for m in self.allocations],
            f"{name}_launch: checks, encodes the tensor maps, launches on a stream",
        ]
        lines = "\n".join(f"     {step}" for step in steps)
        return (
            f"/* {self.description['name']} for {target}, exported by ptxtile. A context is current in all calls:\n"
            f"{lines}\n   Each gives a CUresult; CUDA_ERROR_INVALID_VALUE also for arguments that do not fit, and then "
            "*reason,\n   if reason is not NULL, says what is wrong. */"
        )

    def _types(self) -> str:
        fields = []
        for argument in self.description["arguments"]:
            own = identifier(argument["name"])
            if argument["kind"] == "tensor":
                rank = max(1, len(argument["shape"]))
                about = f"{argument['dtype']} {_listed(argument['shape'])}, strides {_listed(argument['strides'])}"
                about += f", at a multiple of {argument['alignment']} bytes" + ("; written" * argument["written"])
                about += "; never touched, may be all 0" * argument["unused"]
                fields.append(
                    f"    struct {{\n        CUdeviceptr data;\n        int64_t shape[{rank}];\n"
                    f"        int64_t strides[{rank}]; /* in elements */\n    }} {own}; /* {about} */"
                )
            else:
                element = FORMATS[argument["dtype"]]
                kind = scalar_type(argument["dtype"], element.bytes)
                bits = "" if element.kind != "float" or kind in ("float", "double") else ", its bits"
                fields.append(f"    {kind} {own}; /* {argument['dtype']}{bits} */")
        for made in self.allocations:
            what = "result" if made["returned"] else "workspace"
            about = f"{what}, the caller's: {made['dtype']} {_listed(made['shape'])}, contiguous"
            fields.append(f"    CUdeviceptr {identifier(made['name'])}; /* {about} */")
        symbols = [f"    int64_t {identifier(symbol['name'])};" for symbol in self.description["symbols"]]
        count = max(1, len(self.launches))
        return "\n".join(
            [
                "typedef struct {\n    CUmodule module;",
                f"    CUfunction functions[{count}];\n}} {self.name}_module;\n",
                "typedef struct {",
                *(fields or ["    int nothing;"]),
                f"}} {self.name}_arguments;\n",
                "typedef struct {",
                *(symbols or ["    int64_t nothing;"]),
                f"}} {self.name}_symbols;\n",
            ]
        )

    def _load(self) -> str:
        lines = [
            f"/* image: the text of the PTX with a NUL at its end, or a cubin, for {self.description['target']} */",
            f"static inline CUresult {self.name}_load({self.name}_module *loaded, const void *image) {{",
            "    CUresult result = cuModuleLoadData(&loaded->module, image);",
        ]
        for number, launch in enumerate(self.launches):
            ctas = launch["cluster"][0] * launch["cluster"][1] * launch["cluster"][2]
            lines += [
                "    if (result == CUDA_SUCCESS)",
                f"        result = ptxtile_function(&loaded->functions[{number}], loaded->module, "
                f'"{launch["kernel"]}", {launch["shared_bytes"]}, {ctas});',
            ]
        lines += [
            "    return result;",
            "}\n",
            f"static inline CUresult {self.name}_unload({self.name}_module *loaded) {{",
            "    return cuModuleUnload(loaded->module);",
            "}\n",
        ]
        return "\n".join(lines)

    # ---------------------------------------------------------------- sizes and checks

    def _solve(self) -> str:
        lines = [
            f"static inline CUresult {self.name}_solve(const {self.name}_arguments *arguments, "
            f"{self.name}_symbols *symbols, const char **reason) {{",
            "    (void)arguments;",
            "    (void)reason;",
            "    memset(symbols, 0, sizeof *symbols);",
        ]
        for symbol in self.description["symbols"]:
            lines += self._solve_symbol(symbol)
        for symbol in self.description["symbols"]:
            lines += self._check_symbol(symbol)
        for tensor in self.tensors:
            lines += self._check_tensor(tensor)
        return "\n".join([*lines, "    return CUDA_SUCCESS;", "}\n"])

    def _solve_symbol(self, symbol: dict[str, Any]) -> Iterable[str]:
        target = f"symbols->{identifier(symbol['name'])}"
        for number, place in enumerate(symbol["sources"]):
            source = f"arguments->{identifier(place['argument'])}"
            if place["property"] == "value":
                value = f"(int64_t){source}"
            elif place["property"] == "size":
                value = _from_dimension(f"{source}.shape[{place['dimension']}]", place)
            else:
                rank = len(self._tensor(place["argument"])["shape"])
                value = f"ptxtile_stride({rank}, {source}.shape, {source}.strides, {place['dimension']})"
            yield f"    {f'if ({target} == 0) ' if number else ''}{target} = {value};"

    def _check_symbol(self, symbol: dict[str, Any]) -> Iterable[str]:
        own = f"symbols->{identifier(symbol['name'])}"
        if any(place.get("factor", 1) != 1 or place.get("offset", 0) != 0 for place in symbol["sources"]):
            yield from _refusal(f"{own} < 0", f"{symbol['name']} would be negative")
        if symbol["divisor"] > 1:
            text = f"{symbol['name']} is not a multiple of {symbol['divisor']}, which this variant was compiled for"
            yield from _refusal(f"{own} % {symbol['divisor']} != 0", text)
        if symbol["maximum"] is not None:
            text = f"{symbol['name']} is above {symbol['maximum']}, which this variant was compiled for"
            yield from _refusal(f"{own} > INT64_C({symbol['maximum']})", text)

    def _check_tensor(self, tensor: dict[str, Any]) -> Iterable[str]:
        name, own, rank = tensor["name"], f"arguments->{identifier(tensor['name'])}", len(tensor["shape"])
        shapes, strides = (
            ", ".join(size_expression(size, "symbols->") for size in tensor[what]) for what in ("shape", "strides")
        )
        yield f"    {'if (' + own + '.data != 0) ' if tensor['unused'] else ''}{{"
        if rank:
            yield f"        const int64_t shape[{rank}] = {{{shapes}}};"
            yield f"        const int64_t strides[{rank}] = {{{strides}}};"
            text = f"{name}: the shape is not {_listed(tensor['shape'])}"
            yield from _refusal(f"!ptxtile_shape_is({rank}, {own}.shape, shape)", text, 2)
            text = f"{name}: the strides are not {_listed(tensor['strides'])} elements"
            yield from _refusal(f"!ptxtile_strides_are({rank}, {own}.shape, {own}.strides, strides)", text, 2)
        empty = f"!ptxtile_is_empty({rank}, {own}.shape) && " if rank else ""
        yield from _refusal(f"{empty}{own}.data == 0", f"{name}: the address is null", 2)
        if tensor["alignment"] > 1:
            text = f"{name}: the address is not a multiple of {tensor['alignment']} bytes"
            yield from _refusal(f"{empty}{own}.data % {tensor['alignment']} != 0", text, 2)
        yield "    }"

    def _shape(self, made: dict[str, Any]) -> str:
        rank = len(made["shape"])
        sizes = [
            f"    shape[{position}] = {size_expression(size, 'symbols->')};"
            for position, size in enumerate(made["shape"])
        ]
        refusals = [
            line
            for position in range(rank)
            for line in _refusal(f"shape[{position}] < 0", f"{made['name']} would have a negative size")
        ]
        product = " * ".join([f"(uint64_t){made['element_bytes']}", *(f"(uint64_t)shape[{d}]" for d in range(rank))])
        return "\n".join(
            [
                f"/* {made['name']}: {made['dtype']} {_listed(made['shape'])}; bytes of it */",
                f"static inline CUresult {self.name}_shape_{identifier(made['name'])}"
                f"(const {self.name}_symbols *symbols, int64_t shape[{max(1, rank)}], uint64_t *bytes, "
                "const char **reason) {",
                "    (void)symbols;",
                "    (void)reason;",
                *(sizes or ["    shape[0] = 1;"]),
                *refusals,
                f"    *bytes = {product};",
                "    return CUDA_SUCCESS;",
                "}\n",
            ]
        )

    # ---------------------------------------------------------------- tensor maps and launches

    def _map(self, tensor_map: dict[str, Any]) -> str:
        rank = tensor_map["rank"]
        dimensions, strides = (
            ", ".join(size_expression(size, "symbols->") for size in tensor_map[what])
            for what in ("dimensions", "strides")
        )
        swizzle, promotion = _SWIZZLES[tensor_map["swizzle"]], _PROMOTIONS[tensor_map["l2_promotion"]]
        return "\n".join(
            [
                f"/* the map of {tensor_map['tensor']}, whose address is data; map lies at a multiple of 64 bytes */",
                f"static inline CUresult {self.name}_encode_{identifier(tensor_map['name'])}"
                f"(CUtensorMap *map, CUdeviceptr data, const {self.name}_symbols *symbols, const char **reason) {{",
                f"    const int64_t dimensions[{rank}] = {{{dimensions}}};",
                f"    const int64_t strides[{rank}] = {{{strides + ', ' if strides else ''}0}};",
                f"    const cuuint32_t box[{rank}] = {{{', '.join(map(str, tensor_map['box']))}}};",
                "    (void)symbols;",
                f"    return ptxtile_encode(map, {tensor_map['data_type']}, {tensor_map['element_bytes']}, {rank}, "
                f"(uint64_t)data + {tensor_map['byte_offset']}u,",
                f"                          dimensions, strides, box, CU_TENSOR_MAP_SWIZZLE_{swizzle},",
                f"                          CU_TENSOR_MAP_L2_PROMOTION_{promotion}, reason);",
                "}\n",
            ]
        )

    def _grid(self, number: int, launch: dict[str, Any]) -> str:
        cluster = ", ".join(map(str, launch["cluster"]))
        text = f"the grid of {launch['kernel']} is out of range"
        if launch["cluster"] != [1, 1, 1]:
            text += ", or is not made of whole clusters"
        return "\n".join(
            [
                f"static inline CUresult {self.name}_grid_{number}(const {self.name}_symbols *symbols, "
                "int64_t grid[3], const char **reason) {",
                f"    const unsigned int cluster[3] = {{{cluster}}};",
                "    (void)symbols;",
                *[f"    grid[{d}] = {size_expression(size, 'symbols->')};" for d, size in enumerate(launch["grid"])],
                *_refusal("!ptxtile_grid_is_legal(grid, cluster)", text),
                "    return CUDA_SUCCESS;",
                "}\n",
            ]
        )

    def _launch(self) -> str:
        count = max(1, len(self.launches))
        lines = [
            f"static inline CUresult {self.name}_launch(const {self.name}_module *loaded, const {self.name}_arguments "
            "*arguments, CUstream stream, const char **reason) {",
            f"    {self.name}_symbols solved;",
            f"    const {self.name}_symbols *symbols = &solved;",
            f"    int64_t grid[{count}][3];",
            "    int runs = 0;",
            f"    CUresult result = {self.name}_solve(arguments, &solved, reason);",
            "    (void)symbols;",
            *self._room_for_maps(),
        ]
        for number in range(len(self.launches)):
            lines += [
                f"    if (result == CUDA_SUCCESS) result = {self.name}_grid_{number}(symbols, grid[{number}], reason);",
                f"    if (result == CUDA_SUCCESS) runs |= grid[{number}][0] && grid[{number}][1] && grid[{number}][2];",
            ]
        lines.append("    if (result != CUDA_SUCCESS || !runs) return result;")
        for made in self.allocations:
            lines += self._check_allocation(made)
        lines += self._check_overlaps()
        for position, tensor_map in enumerate(self.maps):
            tensor, own = tensor_map["tensor"], identifier(tensor_map["name"])
            lines += [
                f"    result = {self.name}_encode_{own}(&maps[{position}], {self._address(tensor)}, symbols, reason);",
                "    if (result != CUDA_SUCCESS) return result;",
            ]
        for number, launch in enumerate(self.launches):
            lines += self._start(number, launch)
        return "\n".join([*lines, "    return result;", "}\n"])

    def _room_for_maps(self) -> Iterable[str]:
        if self.maps:  # C99 does not align CUtensorMap
            yield f"    unsigned char room[{len(self.maps)} * sizeof(CUtensorMap) + 64];"
            yield "    CUtensorMap *maps = (CUtensorMap *)(void *)(room + (64 - (uintptr_t)room % 64) % 64);"

    def _check_allocation(self, made: dict[str, Any]) -> Iterable[str]:
        own, rank = identifier(made["name"]), max(1, len(made["shape"]))
        yield "    {"
        yield f"        int64_t shape[{rank}];"
        yield "        uint64_t bytes;"
        yield f"        result = {self.name}_shape_{own}(symbols, shape, &bytes, reason);"
        yield "        if (result != CUDA_SUCCESS) return result;"
        yield from _refusal(f"bytes != 0 && arguments->{own} == 0", f"{made['name']}: the address is null", 2)
        text = f"{made['name']}: the address is not a multiple of 16 bytes"
        yield from _refusal(f"bytes != 0 && arguments->{own} % 16 != 0", text, 2)
        for tensor in self.tensors:
            text = f"{tensor['name']} and {made['name']} overlap in memory"
            span = f"{self._address(tensor['name'])}, {self._extent(tensor)}"
            yield from _refusal(f"ptxtile_overlap(arguments->{own}, bytes, {span})", text, 2)
        yield "    }"

    def _check_overlaps(self) -> Iterable[str]:
        """The variant relies on tensors being apart, where one of the two is written."""
        for position, one in enumerate(self.tensors):
            for other in self.tensors[:position]:
                if (one["written"] or other["written"]) and other["name"] not in one["may_overlap"]:
                    text = f"{other['name']} and {one['name']} overlap in memory, which this variant is not made for"
                    spans = ", ".join(f"{self._address(t['name'])}, {self._extent(t)}" for t in (other, one))
                    yield from _refusal(f"ptxtile_overlap({spans})", text)

    def _extent(self, tensor: dict[str, Any]) -> str:
        own = f"arguments->{identifier(tensor['name'])}"
        rank = len(tensor["shape"])
        if not rank:
            return str(tensor["element_bytes"])
        return f"ptxtile_extent({rank}, {own}.shape, {own}.strides, {tensor['element_bytes']})"

    def _start(self, number: int, launch: dict[str, Any]) -> Iterable[str]:
        parameters = launch["parameters"]
        block, cluster = (", ".join(map(str, launch[what])) for what in ("block", "cluster"))
        yield "    {"
        yield f"        const unsigned int block[3] = {{{block}}}, cluster[3] = {{{cluster}}};"
        places = []
        for position, parameter in enumerate(parameters):
            if parameter["kind"] == "tensor_map":
                map_number = [tensor_map["name"] for tensor_map in self.maps].index(parameter["name"])
                places.append(f"(void *)&maps[{map_number}]")
                continue
            kind, value = self._value(parameter)
            yield f"        {kind} p{position} = {value};"
            places.append(f"(void *)&p{position}")
        yield f"        void *parameters[{max(1, len(places))}] = {{{', '.join(places) or 'NULL'}}};"
        for parameter in parameters:
            yield from self._check_fits(parameter)
        cooperative, serialization = launch["cooperative"], launch["programmatic_stream_serialization"]
        yield f"        result = ptxtile_start(loaded->functions[{number}], grid[{number}], block, cluster,"
        yield f"                               {launch['shared_bytes']}u, {int(cooperative)}, {int(serialization)},"
        yield "                               stream, parameters);"
        yield "        if (result != CUDA_SUCCESS) return result;"
        yield "    }"

    def _value(self, parameter: dict[str, Any]) -> tuple[str, str]:
        """Type and value of a parameter that is no tensor map."""
        if parameter["kind"] == "pointer":
            return "CUdeviceptr", self._address(parameter["name"])
        kind = scalar_type(parameter["dtype"], parameter["bytes"])
        if parameter["value"] is None:
            return kind, f"arguments->{identifier(parameter['name'])}"
        return kind, f"({kind}){size_expression(parameter['value'], 'symbols->')}"

    def _check_fits(self, parameter: dict[str, Any]) -> Iterable[str]:
        if parameter["kind"] != "scalar" or parameter["value"] is None or parameter["dtype"] not in INTEGER_LIMITS:
            return
        low, high = INTEGER_LIMITS[parameter["dtype"]]
        value = size_expression(parameter["value"], "symbols->")
        if high < 2**63 - 1:
            text = f"{parameter['name']} does not fit {parameter['dtype']}"
            yield from _refusal(f"{value} < INT64_C({low}) || {value} > INT64_C({high})", text, 2)

    def _address(self, tensor: str) -> str:
        own = f"arguments->{identifier(tensor)}"
        return own if any(made["name"] == tensor for made in self.allocations) else own + ".data"

    def _tensor(self, name: str) -> dict[str, Any]:
        return next(tensor for tensor in self.tensors if tensor["name"] == name)


def _from_dimension(dimension: str, place: dict[str, Any]) -> str:
    """The symbol of which a dimension is factor · symbol + offset; what leaves a rest has another shape."""
    value = dimension if place["offset"] == 0 else f"({dimension} - ({size_expression(place['offset'], 'symbols->')}))"
    return value if place["factor"] == 1 else f"{value} / {place['factor']}"


def _refusal(condition: str, text: str, depth: int = 1) -> Iterable[str]:
    indent = "    " * depth
    yield f"{indent}if ({condition})"
    yield f'{indent}    return ptxtile_refuse(reason, "{text}");'


def _listed(sizes: Sequence[Any]) -> str:
    return "[" + ", ".join(size_text(size) for size in sizes) + "]"
