"""C programs that use exported headers: written, compiled and run."""

from __future__ import annotations

import ast
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ptxtile.export.c_names import identifier

DRIVER = Path(__file__).parent / "driver"
COMPILERS = {"C99": ["gcc", "-std=c99"], "C++11": ["g++", "-std=c++11"]}
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]


def compiler(language: str = "C99") -> list[str]:
    """The command; the test does not run where there is no such compiler."""
    command = COMPILERS[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return command


def compiled(
    folder: Path, source: str, sources: Sequence[Path] = (), *, language: str = "C99", extra: Sequence[str] = (),
    includes: Sequence[Path] = (DRIVER,),
) -> Path:  # fmt: skip
    """The program of ``source`` and the files ``sources``; every warning is an error."""
    suffix = "c" if language.startswith("C9") else "cpp"
    main, program = folder / f"main.{suffix}", folder / f"program_{suffix}"
    main.write_text(source)
    command = [*compiler(language), *STRICT, f"-I{folder}", *(f"-I{path}" for path in includes), str(main)]
    done = subprocess.run([*command, *map(str, sources), *extra, "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def filled(
    description: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, bytes]
) -> list[str]:
    """C statements that fill ``arguments``. ``scalars``: the bytes of each."""
    lines = []
    for argument in description["arguments"]:
        own = f"arguments.{identifier(argument['name'])}"
        if argument["kind"] == "scalar":
            content = scalars[argument["name"]]
            lines.append(f"{{ const unsigned char bits[] = {{{', '.join(map(str, content))}}}; "
                         f"memcpy(&{own}, bits, sizeof bits); }}")  # fmt: skip
        elif argument["name"] in tensors:
            tensor = tensors[argument["name"]]
            lines.append(f"{own}.data = {tensor.data_ptr()}u;")
            for what, values in (("shape", tensor.shape), ("strides", tensor.stride())):
                lines += [f"{own}.{what}[{d}] = {value};" for d, value in enumerate(values)]
    for made in description["allocations"]:
        lines.append(f"arguments.{identifier(made['name'])} = {tensors[made['name']].data_ptr()}u;")
    return lines


def recording_program(description: Mapping[str, Any], statements: Sequence[str], stream: int) -> str:
    """A program that loads, prints the shapes of allocations, launches, and says what came of it. It defines the
    parameter sizes that the recording driver asks for."""
    name = identifier(description["name"])
    sizes = []
    for launch in description["launches"]:
        listed = ", ".join(str(parameter["bytes"]) for parameter in launch["parameters"])
        sizes.append(f'    if (strcmp(kernel, "{launch["kernel"]}") == 0) {{ static const int s[] = {{{listed}, 0}}; '
                     "return s[number]; }")  # fmt: skip
    shapes = []
    for made in description["allocations"]:
        rank = len(made["shape"])
        items = "".join(f'printf("%lld, ", (long long)shape[{d}]); ' for d in range(rank))
        shapes.append(
            f"    {{ int64_t shape[{max(rank, 1)}]; uint64_t bytes; "
            f"if ({name}_shape_{identifier(made['name'])}(&symbols, shape, &bytes, &reason) == CUDA_SUCCESS) {{ "
            f"printf(\"{{'call': 'shape', 'name': '{made['name']}', 'shape': (\"); {items}"
            "printf(\"), 'bytes': %llu}\\n\", (unsigned long long)bytes); } }"
        )
    return "\n".join(
        [
            "#include <stdio.h>",
            f'#include "{name}.h"',
            "#ifdef __cplusplus",
            'extern "C"',
            "#endif",
            "int parameter_sizes(const char *kernel, int number);",
            "int parameter_sizes(const char *kernel, int number) {",
            *sizes,
            "    (void)kernel; (void)number;",
            "    return 0;",
            "}",
            "int main(void) {",
            f"    {name}_module loaded; {name}_arguments arguments; {name}_symbols symbols;",
            '    const char *reason = "";',
            "    CUresult result;",
            "    memset(&arguments, 0, sizeof arguments);",
            *[f"    {statement}" for statement in statements],
            f'    if ({name}_load(&loaded, "image") != CUDA_SUCCESS) return 2;',
            f"    if ({name}_solve(&arguments, &symbols, &reason) == CUDA_SUCCESS) {{",
            *shapes,
            "    }",
            f"    result = {name}_launch(&loaded, &arguments, (CUstream)(uintptr_t){stream}, &reason);",
            "    printf(\"{'call': 'end', 'result': %d, 'reason': '%s'}\\n\", (int)result, reason);",
            f"    return {name}_unload(&loaded) != CUDA_SUCCESS;",
            "}",
            "",
        ]
    )


def recorded(folder: Path, description: Mapping[str, Any], statements: Sequence[str], stream: int = 0,
             language: str = "C99") -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """What the recording driver was given, by call, in order."""
    driver = folder / "recording_driver.o"
    if not driver.exists():
        command = [
            *compiler("C99"),
            *STRICT,
            f"-I{DRIVER}",
            "-c",
            str(DRIVER / "recording_driver.c"),
            "-o",
            str(driver),
        ]
        subprocess.run(command, check=True)
    program = compiled(folder, recording_program(description, statements, stream), [driver], language=language)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    calls: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        entry = ast.literal_eval(line.replace("bytes.fromhex(", "(")) if "fromhex" not in line else eval(line)
        calls.setdefault(entry.pop("call"), []).append(entry)
    return calls


def packed(dtype: str, value: int | float) -> bytes:
    """The bytes of a number, by torch."""
    kinds = {"bool": torch.bool, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
             "float64": torch.float64}  # fmt: skip
    if dtype in kinds:
        return bytes(torch.tensor([value], dtype=torch.float64).to(kinds[dtype]).view(torch.uint8).tolist())
    codes = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
             "uint64": "Q"}  # fmt: skip
    return struct.pack("<" + codes[dtype], value)


WHOLE = """
#include <stdio.h>
#include <stdlib.h>
#include "product.h"

static char *content(const char *path, long *size) {
    FILE *file = fopen(path, "rb");
    char *data;
    if (file == NULL) exit(3);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    data = (char *)calloc(1, (size_t)*size + 1);
    if (fread(data, 1, (size_t)*size, file) != (size_t)*size) exit(4);
    fclose(file);
    return data;
}

#define CHECK(call) do { CUresult r_ = (call); if (r_ != CUDA_SUCCESS) { \\
    fprintf(stderr, "%s: %d %s\\n", #call, (int)r_, reason); return 1; } } while (0)

int main(int argc, char **argv) { /* image, A, B, where to write C */
    CUdevice device; CUcontext context;
    product_module loaded; product_arguments arguments; product_symbols symbols;
    const char *reason = "";
    long image_size, a_size, b_size;
    int64_t shape[2]; uint64_t bytes;
    char *image = content(argv[1], &image_size), *a = content(argv[2], &a_size), *b = content(argv[3], &b_size), *c;
    FILE *file;
    if (argc != 5) return 2;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    memset(&arguments, 0, sizeof arguments);
    CHECK(cuMemAlloc(&arguments.A.data, (size_t)a_size));
    CHECK(cuMemAlloc(&arguments.B.data, (size_t)b_size));
    CHECK(cuMemcpyHtoD(arguments.A.data, a, (size_t)a_size));
    CHECK(cuMemcpyHtoD(arguments.B.data, b, (size_t)b_size));
    arguments.A.shape[0] = ROWS; arguments.A.shape[1] = arguments.B.shape[1] = INNER; arguments.B.shape[0] = COLUMNS;
    arguments.A.strides[0] = arguments.B.strides[0] = INNER; arguments.A.strides[1] = arguments.B.strides[1] = 1;
    CHECK(product_load(&loaded, image));
    CHECK(product_solve(&arguments, &symbols, &reason));
    CHECK(product_shape_C(&symbols, shape, &bytes, &reason));
    CHECK(cuMemAlloc(&arguments.C, (size_t)bytes));
    CHECK(product_launch(&loaded, &arguments, NULL, &reason));
    CHECK(cuCtxSynchronize());
    c = (char *)malloc((size_t)bytes);
    CHECK(cuMemcpyDtoH(c, arguments.C, (size_t)bytes));
    CHECK(product_unload(&loaded));
    file = fopen(argv[4], "wb");
    if (file == NULL || fwrite(c, 1, (size_t)bytes, file) != bytes) return 5;
    return fclose(file);
}
"""
"""A program that runs the exported gemm, as «product», on a card. Its sizes are macros: ROWS, COLUMNS, INNER."""
