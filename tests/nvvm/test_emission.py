"""Line information, PTX ISA, parameters and aliasing, printing, inlining, and what the emitter refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ptxtile import target as targets
from ptxtile.errors import CompileError, Location, TargetError, VerificationError
from ptxtile.ir import gpu_ops as gpu
from ptxtile.ir import types
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import (
    Binary,
    Call,
    Compare,
    Expr,
    LogicalAnd,
    Select,
    Unary,
    Var,
    constant,
)
from ptxtile.ir.program import Function, Program, TensorParameter
from ptxtile.ir.statements import (
    Allocate,
    Break,
    For,
    If,
    Let,
    LoopKind,
    ParallelFor,
    Role,
    Seq,
    Specialized,
    Statement,
    seq,
)
from ptxtile.ir.tile_ops import Print
from ptxtile.ir.types import bool_, float32, float64, int32
from ptxtile.nvvm import emit
from ptxtile.nvvm.module import DATA_LAYOUT, ModuleWriter
from tests import ptxas
from tests.nvvm.programs import THREAD, at, local_scalar, number, private, program, put, shared, tensor

SM_90A = targets.get("sm_90a")
A, B, C = (tensor(name, float32) for name in "ABC")


def instructions(ptx: str) -> list[str]:
    """Opcodes of the first kernel, in order."""
    body = ptx.split("{", 1)[1]
    return [line.split()[0].rstrip(";") for line in body.splitlines() if re.match(r"\t[a-z]", line)]


# -- line information ----------------------------------------
def test_lines_of_the_users_source() -> None:
    def line(number_: int, file: str = "/home/some user/kernel.py", column: int = 5) -> Location:
        return Location(file, number_, column)

    macro = replace(line(7, '/else\\where/mäc"ro\n.py'), caller=line(14))
    body = [
        Let(Var("x", float32), at(A, THREAD) + 1.0, location=line(12)),
        put(C, THREAD, Var("x", float32) * 3.0, location=line(13)),
        put(C, THREAD + 4096, at(B, THREAD), location=macro),
        put(C, THREAD + 8192, at(B, THREAD + 1)),
    ]
    module = emit(program(body, [A, B, C], location=line(10)), SM_90A)
    ptxas.assemble(module.ptx, "sm_90a", options=("-lineinfo",))
    files = dict(re.findall(r'\.file\s+(\d+) "(.*)"', module.ptx))
    lines = {(files[f], int(n)) for f, n in re.findall(r"\.loc\s+(\d+) (\d+) \d+", module.ptx)}
    assert {("/home/some user/kernel.py", n) for n in (10, 12, 13)} <= lines
    assert any(path.startswith("/else_where/m") and path.endswith("c_ro_.py") and n == 7 for path, n in lines)
    current, places = 0, {}
    for text in module.ptx.splitlines():
        found = re.search(r"\.loc\s+\d+ (\d+)", text)
        current = int(found.group(1)) if found else current
        places.setdefault(text.split("\t")[1].split()[0] if text.startswith("\t") else "", []).append(current)
    assert places["add.rn.f32"] == [12] and places["mul.rn.f32"] == [13]
    assert places["st.global.b32"][0] in (13, 7) and 7 in places["st.global.b32"]
    assert ", debug" not in module.ptx


def test_no_line_information_without_locations() -> None:
    assert ".loc" not in emit(program(put(C, THREAD, at(A, THREAD)), [A, C]), SM_90A).ptx


# -- PTX ISA ----------------------------------------
def test_isa_asked_for() -> None:
    made = program(put(C, THREAD, at(A, THREAD)), [A, C])
    assert emit(made, targets.get("sm_80")).ptx_isa == (7, 0)
    module = emit(made, targets.get("sm_80"), ptx_isa=(8, 4))
    assert module.ptx_isa == (8, 4) and ".version 8.4" in module.ptx
    with pytest.raises(TargetError, match="does not know sm_90a"):
        emit(made, SM_90A, ptx_isa=(7, 8))
    barrier = shared("barrier", types.int64, 1, 0, Scope.BARRIER)
    waiting = program(gpu.MbarrierArriveExpectTx(barrier, number(0), 16))
    assert emit(waiting, targets.get("sm_90")).ptx_isa == (8, 0)
    with pytest.raises(TargetError, match="mbarrier_arrive_expect_tx"):
        emit(waiting, targets.get("sm_90"), ptx_isa=(7, 8))
    with pytest.raises(TargetError, match="unknown PTX ISA"):
        emit(made, SM_90A, ptx_isa=(8, 9))


def test_data_layout_is_llvms_own() -> None:
    import llvmlite.binding as llvm

    emit(program(put(C, THREAD, at(A, THREAD)), [A, C]), SM_90A)
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu="sm_90a", features="+ptx80")
    assert str(machine.target_data) == DATA_LAYOUT


# -- instructions chosen ----------------------------------------
def test_float_arithmetic_is_exact() -> None:
    """Nothing is contracted, flushed or approximated unless asked for."""
    x, y, z = (at(tensor(name, float32), THREAD) for name in "xyz")
    values: list[Expr] = [x * y + z, x / y, Unary("sqrt", x, float32), Call("fma", (x, y, z), float32)]
    body = [put(C, THREAD + 4096 * position, value) for position, value in enumerate(values)]
    module = emit(program(body, [tensor("x", float32), tensor("y", float32), tensor("z", float32), C]), SM_90A)
    counted = {name: instructions(module.ptx).count(name) for name in
               ("mul.rn.f32", "add.rn.f32", "div.rn.f32", "sqrt.rn.f32", "fma.rn.f32")}  # fmt: skip
    assert set(counted.values()) == {1}, counted
    assert "ftz" not in module.ptx and "approx" not in module.ptx


@pytest.mark.parametrize(
    "source, target, opcode",
    [
        ("float32", "int32", "cvt.rzi.s32.f32"),
        ("float32", "uint32", "cvt.rzi.u32.f32"),
        ("float64", "int64", "cvt.rzi.s64.f64"),
        ("float16", "int32", "cvt.rzi.s32.f32"),
        ("float32", "float16", "cvt.rn.f16.f32"),
        ("float32", "bfloat16", "cvt.rn.bf16.f32"),
        ("float64", "float32", "cvt.rn.f32.f64"),
        ("int32", "float32", "cvt.rn.f32.s32"),
        ("uint64", "float64", "cvt.rn.f64.u64"),
    ],
)
def test_conversions(source: str, target: str, opcode: str) -> None:
    from ptxtile.ir.expressions import Cast

    given, wanted = tensor("given", types.BY_NAME[source]), tensor("wanted", types.BY_NAME[target])
    module = emit(program(put(wanted, THREAD, Cast(at(given, THREAD), wanted.dtype)), [given, wanted]), SM_90A)
    assert instructions(module.ptx).count(opcode) == 1, module.ptx
    guarded = source == "float64" or target.endswith("64")
    has_test = any(name.startswith("setp.nan") or name.startswith("setp.num") for name in instructions(module.ptx))
    assert has_test == (guarded and "cvt.rzi" in opcode)  # NaN gives 0 by itself only from float32 to 32 bits


def test_loads_of_one_loop_share_an_address_register() -> None:
    i = Var("i", int32)
    index = Binary("mul", THREAD, number(4), int32) + i * 512
    wide = float32.with_lanes(4)
    value = Binary("add", at(A, index, 4), at(B, index, 4), wide)
    loop = For(i, number(0), number(8), 1, LoopKind.UNROLLED, put(C, index, value))
    module = emit(program(loop, [A, B, C]), SM_90A)
    addresses = re.findall(r"ld\.global\.nc\.v4\.b32 .*\[(%rd\d+)(?:\+(\d+))?\]", module.ptx)
    assert len(addresses) == 16 and len({register for register, _ in addresses}) == 2
    assert {int(offset or 0) for _, offset in addresses} == {2048 * k for k in range(8)}


def test_guarded_load_is_one_branch_without_a_call_or_a_stack() -> None:
    n = Var("n", int32)
    inside = LogicalAnd(Compare("lt", THREAD, n, bool_), Compare("gt", at(A, THREAD), constant(0.0, float32), bool_))
    value = Select(inside, at(B, THREAD), constant(0.0, float32), float32)
    module = emit(program(put(C, THREAD, value), [A, B, C], scalars=[n]), SM_90A)
    opcodes = instructions(module.ptx)
    assert opcodes.count("ld.global.nc.b32") == 2 and "__local_depot" not in module.ptx
    log = ptxas.assemble(module.ptx, "sm_90a")
    assert "0 bytes stack frame" in log


# -- aliasing ----------------------------------------
def parameter_text(module_text: str, position: int) -> str:
    line = next(line for line in module_text.splitlines() if line.startswith("define ptx_kernel"))
    return re.findall(r"ptr addrspace\(1\) ([^%]*)%a\d+", line)[position]


@pytest.mark.parametrize(
    "groups, body, expected",
    [
        # (A, B, C): alias groups; what each pointer may be told
        ((None, None, None), put(C, THREAD, at(A, THREAD)), ("noalias readonly", "", "noalias")),
        ((0, None, 0), put(C, THREAD, at(A, THREAD)), ("", "", "")),
        ((0, 0, None), put(C, THREAD, at(A, THREAD) + at(B, THREAD)), ("readonly", "readonly", "noalias")),
        ((None, None, None), put(C, THREAD, at(C, THREAD) + at(A, THREAD)), ("noalias readonly", "", "")),
        ((0, None, 1), put(C, THREAD, at(A, THREAD)), ("readonly", "", "")),
    ],
)
def test_what_pointers_are_known_to_be(groups: tuple, body: Statement, expected: tuple[str, ...]) -> None:
    tensors = [TensorParameter(t, 16, group) for t, group in zip((A, B, C), groups, strict=True)]
    module = emit(program(body, tensors), SM_90A)
    for position, words in enumerate(expected):
        assert parameter_text(module.llvm_ir, position).replace("align 16", "").strip() == words, position
    invariant = sum("readonly" in words for words in expected)
    assert module.ptx.count("ld.global.nc") == invariant


def test_a_tensor_written_through_a_map_is_not_read_only() -> None:
    from ptxtile.launch_record import TensorMapRecord

    record = TensorMapRecord("A_map", "A", "float32", (64,), (), (64,))
    tile = shared("tile", float32, 64, 0)
    body = seq(gpu.TmaStore("A_map", (number(0),), tile, number(0)), put(C, THREAD, at(A, THREAD)))
    module = emit(program(body, [A, C], tensor_maps=[record]), SM_90A)
    assert parameter_text(module.llvm_ir, 0).strip() == "align 16"
    assert "ld.global.nc" not in module.ptx


def test_alignment_of_a_pointer() -> None:
    module = emit(program(put(C, THREAD, at(A, THREAD)), [TensorParameter(A, 4), TensorParameter(C, 12)]), SM_90A)
    assert "align 4 " in parameter_text(module.llvm_ir, 0) and "align 4 " in parameter_text(module.llvm_ir, 1)


# -- shared memory, several kernels ----------------------------------------
def test_shared_memory_offsets() -> None:
    tile, other = shared("tile", float32, 64, 0), shared("other", types.int8, 64, 4096)
    body = seq(
        Allocate(tile),
        put(tile, THREAD, at(A, THREAD)),
        gpu.BarSync(0, 128),
        put(C, THREAD, at(tile, 127)),
        put(other, 5, constant(7, types.int8)),
    )
    module = emit(program(body, [A, C]), targets.get("sm_80"))
    assert ".extern .shared .align 1024 .b8 ptxtile_shared[]" in module.ptx
    assert "[ptxtile_shared+508]" in module.ptx and "[ptxtile_shared+4101]" in module.ptx
    assert "bar.sync 0;" in module.ptx
    ptxas.assemble(module.ptx, "sm_80")


def test_several_kernels_in_one_module() -> None:
    tile = shared("tile", float32, 64, 0)
    first = program(put(tile, THREAD, at(A, THREAD)), [A], name="first")
    second = program(put(C, THREAD, at(tile, THREAD)), [C], name="second")
    both = replace(
        first,
        parameters=first.parameters + second.parameters,
        kernels=first.kernels + second.kernels,
        launch=replace(first.launch, launches=first.launch.launches + second.launch.launches),  # type: ignore[union-attr]
    )
    module = emit(both, targets.get("sm_80"))
    assert module.ptx.count(".extern .shared") == 1
    assert re.findall(r"\.visible \.entry (\w+)", module.ptx) == ["first", "second"]
    ptxas.assemble(module.ptx, "sm_80")
    with pytest.raises(VerificationError, match="two kernels"):
        emit(replace(both, kernels=(first.kernels[0], first.kernels[0])), targets.get("sm_80"))


# -- printing, device functions ----------------------------------------
def test_print() -> None:
    values = tuple(
        at(tensor(str(d), d), THREAD) for d in (types.int8, types.uint32, types.float16, float64, types.uint64, bool_)
    )
    body = Print('100% of\n"x"', values)
    module = emit(program(body, [tensor(str(v.dtype), v.dtype) for v in values]), SM_90A)
    ptxas.assemble(module.ptx, "sm_90a")
    text = bytes(int(x) for x in re.findall(r"text0\[\d+\] = \{(.*?)\}", module.ptx)[0].split(","))
    assert text == b'100%% of\n"x" %d %u %g %g %llu %d\n'
    assert "vprintf" in module.ptx


def test_long_functions_are_called_and_short_ones_inlined() -> None:
    x, i = Var("x", float32), Var("i", int32)
    long: Expr = x
    for step in range(100):
        long = Binary("add", Binary("mul", long, x, float32), constant(float(step), float32), float32)
    functions = (
        Function("short", (x,), Seq(()), x * 3.0),
        Function("long", (x,), Seq(()), long),
        Function("rare", (x,), Seq(()), x + 1.0, out_of_line=True),
    )
    for trips, expected in ((1, {"rare"}), (32, {"long", "rare"})):
        value = at(A, THREAD + i * 128)
        calls = [put(C, THREAD + i * 128 + k * 8192, Call(f.name, (value,), float32)) for k, f in enumerate(functions)]
        loop = For(i, number(0), number(trips), 1, LoopKind.UNROLLED, seq(*calls))
        ptx = emit(program(loop, [A, C], functions=functions), SM_90A).ptx
        ptxas.assemble(ptx, "sm_90a")
        assert {name for name in ("short", "long", "rare") if re.search(rf"\b{name}\b", ptx)} == expected


# -- refusals ----------------------------------------
REGISTERS = private("registers", float32, 4)
UNPLACED = replace(A, storage=replace(shared("tile", float32, 4, 0).storage, offset=None))
LOOP = Var("loop", int32)


def test_registers_out_of_range_under_a_condition_of_threads():
    """A guarded access that never happens is emitted as a 0, or as no store; it is no mistake of the program."""
    guard = Compare("lt", THREAD, number(0), bool_)
    store, load = put(REGISTERS, 4, at(A, 1)), Select(guard, at(REGISTERS, 7), at(REGISTERS, 0), float32)
    body = seq(Allocate(REGISTERS), put(REGISTERS, 0, at(A, 0)), If(guard, store), put(C, 0, load))
    ptxas.assemble(emit(program(body, [A, C]), SM_90A).ptx, "sm_90a")


@pytest.mark.parametrize(
    "body, message",
    [
        (seq(Allocate(REGISTERS), put(REGISTERS, THREAD, at(A, 0))), "register buffer registers is indexed"),
        (seq(Allocate(REGISTERS), put(REGISTERS, 4, at(A, 0))), "out of range"),
        (put(REGISTERS, 0, at(A, 0)), "before its Allocate"),
        (put(UNPLACED, 0, at(A, 0)), "has not been placed"),
        (put(B, 0, at(A, 0)), "has no address"),
        (put(A, 0, number(1)), "value of int32 is stored"),
        (put(A, 0, Var("nobody", float32)), "nobody is not bound"),
        (put(A, 0, Call("sin", (at(A, 0),), float32)), "unknown function 'sin'"),
        (put(A, 0, Binary("floormod", at(A, 0), at(A, 1), float32)), "floormod of float32"),
        (For(LOOP, number(0), THREAD, 1, LoopKind.UNROLLED, Seq(())), "constant bounds"),
        (For(LOOP, number(0), number(4), 1, LoopKind.UNROLLED, Break()), "break in an unrolled loop"),
        (For(LOOP, number(0), number(4), 0, LoopKind.SERIAL, Seq(())), "step 0"),
        (For(LOOP, number(0), number(4), 1, LoopKind.PIPELINED, Seq(())), "pipelined loop"),
        (Break(), "break outside"),
        (ParallelFor((LOOP,), (4,), Seq(())), "ParallelFor is not legal"),
        (Specialized((Role("r", 16, 32, Seq(())),)), "role r"),
        (Specialized((Role("r", 96, 64, Seq(())),)), "need 160 threads"),
        (gpu.BarSync(16, 128), "barrier 16"),
        (gpu.BarSync(1, 48), "48 threads"),
        (gpu.SetMaxRegisters("inc", 250), "setmaxnreg of 250"),
        (gpu.PrefetchTensorMap("A"), "tensor map A is no parameter"),
        (put(tensor("A", types.BY_NAME["int4"]), 0, at(tensor("A", types.BY_NAME["int4"]), 0)), "int4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(body: Statement, message: str) -> None:
    where = Location(__file__, 3, 1)
    located = (
        replace(body, location=where)
        if not isinstance(body, Seq)
        else Seq(tuple(replace(s, location=where) for s in body.statements))
    )
    with pytest.raises(VerificationError, match=message) as raised:
        emit(program(located, [A], location=where), SM_90A)
    assert raised.value.location == where or "int4" in message


@pytest.mark.parametrize("name", ["a b", "1st", "llvm.trap", "", "a.b", "ptxtile_shared", "vprintf", 'x"', "ä"])
def test_refused_kernel_names(name: str) -> None:
    with pytest.raises(VerificationError, match="cannot be the name"):
        emit(program(put(C, 0, at(A, 0)), [A, C], name=name), SM_90A)


def test_intrinsics_outside_the_list_never_reach_llvm() -> None:
    module = ModuleWriter(SM_90A)
    for name in ("llvm.sin.f32", "llvm.exp.f32", "llvm.pow.f64", "llvm.sqrt.f16", "llvm.trap"):
        with pytest.raises(VerificationError, match="not among"):
            module.intrinsic(name)


def test_a_program_that_is_not_lowered() -> None:
    made = program(put(C, 0, at(A, 0)), [A, C])
    for wrong in (replace(made, stage="tile"), replace(made, launch=None)):
        with pytest.raises(VerificationError, match="not lowered"):
            emit(wrong, SM_90A)


@pytest.mark.parametrize("location", [None, Location("kernel.py", 3)], ids=["no lines", "lines"])
def test_what_llvm_refuses_is_an_error_of_ours(location: Location | None) -> None:
    """A Let inside a branch does not reach the code after it."""
    inner = Var("inner", float32)
    body = seq(If(Compare("lt", THREAD, number(3), bool_), Let(inner, at(A, 0) + 1.0)), put(C, 0, inner))
    made = program(body, [A, C])
    (kernel,) = made.kernels
    with pytest.raises(CompileError, match="LLVM refused"):
        emit(replace(made, kernels=(replace(kernel, location=location),)), SM_90A)


def test_emission_is_deterministic() -> None:
    def build() -> Program:
        cell = local_scalar("cell", float32)
        body = seq(Allocate(cell), put(cell, 0, at(A, THREAD)), put(C, THREAD, at(cell, 0) * 2.0))
        return program(body, [A, C])

    assert emit(build(), SM_90A).ptx == emit(build(), SM_90A).ptx
