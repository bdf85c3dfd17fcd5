"""What the assembler says, made by the real ptxas from small PTX texts, and what becomes of it: figures, warnings."""

from __future__ import annotations

import re

import pytest

from ptxtile.errors import PerformanceWarning
from ptxtile.runtime import jit_log, performance_warnings
from ptxtile.runtime.jit_log import Effect, FunctionFigures
from ptxtile.runtime.ptx_lines import PtxLines
from tests.ptxas import assemble

FENCE, COMMIT, WAIT = (
    f"wgmma.{name};\n" for name in ("fence.sync.aligned", "commit_group.sync.aligned", "wait_group.sync.aligned 0")
)
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {f0,f1,f2,f3}, d0, d0, 1, 1, 1, 0, 0;\n"
BOUNDS = ".maxntid 256\n.minnctapersm 1"
TAKE, GIVE = "setmaxnreg.inc.sync.aligned.u32 232;\n", "setmaxnreg.dec.sync.aligned.u32 24;\n"
OUTSIDE = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);"
CALL = """{.param .b64 x; .param .b64 y; .param .b32 z;
st.param.b64 [x], d1; st.param.b64 [y], d1;
call (z), vprintf, (x, y);}
"""
DIVERGE = "mov.u32 r0, %tid.x; setp.eq.u32 p0, r0, 5;\n"
LOOP = "mov.u32 r0, 0;\nL:\n", "add.u32 r0, r0, 1; setp.lt.u32 p0, r0, 10; @p0 bra L;\n"


def loads(count: int) -> str:
    return "".join(f"ld.global.f32 f{i}, [d1+{4 * i}];\n" for i in range(count))


def stores(count: int) -> str:
    return "".join(f"st.global.f32 [d1+{4 * i}], f{i};\n" for i in range(count))


def wide(first: int) -> str:
    """A wgmma with 128 accumulators from register ``first`` on."""
    registers = ",".join(f"f{first + i}" for i in range(128))
    return f"wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {{{registers}}}, d0, d0, 1, 1, 1, 0, 0;\n"


def kernel(body: str, bounds: str = ".maxntid 128", before: str = "") -> str:
    return f"""\
.version 8.0
.target sm_90a
.address_size 64
{before}
.visible .entry gemm(.param .u64 p_out, .param .u64 p_descriptor)
{bounds}
{{
.loc 1 8 5
.reg .f32 f<260>; .reg .b64 d<2>; .reg .pred p<1>; .reg .b32 r<2>;
ld.param.u64 d0, [p_descriptor]; ld.param.u64 d1, [p_out]; cvta.to.global.u64 d1, d1;
mov.f32 f0, 0f00000000; mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0;
.loc 1 17 9
{body}
.loc 1 30 9
st.global.f32 [d1], f0; st.global.f32 [d1+4], f1; st.global.f32 [d1+8], f2; st.global.f32 [d1+12], f3;
ret;
}}
.file 1 "/home/user/kernel.py"
"""


CLEAN = kernel(FENCE + WGMMA + COMMIT + WAIT)
RECURSIVE = """
.func (.param .b32 r) inner(.param .b32 a);
.func (.param .b32 r) inner(.param .b32 a) {
.reg .f32 q; .reg .pred p; .param .b32 x; .param .b32 y;
ld.param.f32 q, [a]; setp.lt.f32 p, q, 0f00000000; @p bra E; sub.f32 q, q, 0f3f800000;
st.param.f32 [x], q; call (y), inner, (x); ld.param.f32 q, [y];
E: st.param.f32 [r], q; ret;
}
"""
INNER = "{.param .b32 x; .param .b32 y; st.param.f32 [x], f9; call (y), inner, (x); ld.param.f32 f5, [y];}\n"
SAID: dict[str, tuple[str, tuple[str, ...]]] = {
    "across compilation units": (kernel(TAKE, BOUNDS), ("-c",)),
    "allow debugging": (kernel(TAKE, BOUNDS), ("-g",)),
    "minimum register requirements": (
        kernel(loads(128) + GIVE + FENCE + wide(0) + COMMIT + WAIT + stores(128), BOUNDS),
        (),
    ),
    "unable to determine register count": (kernel(TAKE), ()),
    "Extern calls": (kernel("mov.f32 f9, f0;\n" + FENCE + WGMMA + INNER + WGMMA + COMMIT + WAIT, before=RECURSIVE), ()),
    "crossing function boundary": (kernel(FENCE + WGMMA + COMMIT + WAIT + CALL, before=OUTSIDE), ()),
    "resources for the wgmma pipeline": (
        kernel(loads(256) + FENCE + wide(0) + wide(128) + COMMIT + WAIT + stores(256), BOUNDS),
        (),
    ),
    "defining accumulator registers": (
        kernel(LOOP[0] + FENCE + WGMMA + COMMIT + "add.f32 f0, f0, f0;\n" + LOOP[1] + WAIT),
        (),
    ),
    "is injected in around line": (
        kernel(FENCE + WGMMA + COMMIT + "st.global.f32 [d1+64], f0;\n" + WGMMA + COMMIT + WAIT),
        (),
    ),
    "WG.AR in divergent path": (kernel(DIVERGE + FENCE + WGMMA + "@p0 bra X;\n" + WGMMA + "X:\n" + COMMIT + WAIT), ()),
}
"""PTX for sm_90a and options that make ptxas say each of these."""


@pytest.mark.parametrize("part", SAID)
def test_what_ptxas_really_says(part: str) -> None:
    ptx, options = SAID[part]
    said = assemble(ptx, "sm_90a", options=options)
    (advice,) = (advice for advice in jit_log.parse(said).advice if part in advice.said)
    assert advice.said in said and advice.code and f"({advice.code})" in said
    assert any(advice.reason is reason and words in advice.said for words, reason in jit_log.REASONS.items()), said
    words = {"serialized": Effect.SERIALISED, "setmaxnreg": Effect.IGNORED, "injected": Effect.WAITED}
    assert advice.reason.effect is next(effect for word, effect in words.items() if word in advice.said)
    if " line " in advice.said:
        line = re.search(r" line (\d+)", advice.said)
        assert line is not None and advice.ptx_line == int(line[1])


@pytest.mark.parametrize("part", SAID)
def test_no_sentence_is_unknown(part: str) -> None:
    ptx, options = SAID[part]
    for advice in jit_log.parse(assemble(ptx, "sm_90a", options=options)).advice:
        assert advice.reason is not jit_log.OTHER


def test_a_clean_kernel_has_no_advice() -> None:
    said = assemble(CLEAN, "sm_90a")
    log = jit_log.parse(said)
    assert log.advice == () and performance_warnings.warnings_of(log, CLEAN, ("gemm",)) == []
    figures = log.functions["gemm"]
    assert f"Used {figures.registers} registers" in said and figures.spill_stores == figures.spill_loads == 0


LOST, SERIALISED = "Potential Performance Loss: ", "wgmma.mma_async instructions are serialized due to "
RECORDED = (
    (Effect.IGNORED, f"(C7506) {LOST}'setmaxnreg' ignored to maintain compatibility into 'extern' call."),
    (Effect.IGNORED, f"(C7508) {LOST}'setmaxnreg' ignored; unable to determine register count at entry."),
    (
        Effect.SERIALISED,
        f"(C7512) {LOST}{SERIALISED}insufficient register resources for the function 'gemm'",
    ),
    (
        Effect.SERIALISED,
        f"(C7513) {LOST}{SERIALISED}non wgmma instructions defining input registers of a wgmma between start and end "
        "of the pipeline stage in the function 'gemm' in line 0",
    ),
    (
        Effect.SERIALISED,
        f"(C7514) {LOST}{SERIALISED}non wgmma instructions reading accumulator registers of  a wgmma between start and "
        "end of the pipeline stage in the function 'gemm'",
    ),
    (Effect.SERIALISED, f"(C7516) {LOST}{SERIALISED}ill formed pipeline stage in the function 'gemm'"),
    (
        Effect.SERIALISED,
        f"(C7518) {LOST}{SERIALISED}program dependence on compiler-inserted WG.DP in divergent path in the function "
        "'gemm'",
    ),
    (
        Effect.SERIALISED,
        f"(C7520) {LOST}{SERIALISED}program dependence on compiler-inserted WG.AR in divergent path in the function "
        "'gemm'",
    ),
    (
        Effect.SERIALISED,
        f"(C7519) {LOST}{SERIALISED}program dependence on compiler-inserted WG.AR in divergent path in the function "
        "'gemm' in line 19",
    ),
    (
        Effect.WAITED,
        "(C7517) warpgroup.wait is injected in around line 14 by compiler to allow use of registers defined by GMMA in "
        "function 'gemm'",
    ),
    (
        Effect.WAITED,
        "(C7517) wgmma.wait_group is injected in around line 14 by compiler to allow use of registers defined by GMMA "
        "in function 'gemm'",
    ),
    (
        Effect.FENCED,
        "(C7519) warpgroup.arrive is injected in around line 11 by compiler to allow use of registers in GMMA in "
        "function 'gemm'",
    ),
)
"""Sentences of ptxas 13.0 and 13.5, from their logs or, where nothing provoked them, their lists of messages."""


@pytest.mark.parametrize("effect, sentence", RECORDED)
def test_recorded_sentences(effect: Effect, sentence: str) -> None:
    (advice,) = jit_log.parse(f"ptxas info    : {sentence}\n").advice
    assert advice.reason.effect is effect and f"({advice.code}) " in sentence
    assert advice.function == ("gemm" if "function" in sentence else "")
    line = re.search(r" line (\d+)", sentence)
    assert advice.ptx_line == (int(line[1]) if line and line[1] != "0" else None)


def test_every_sentence_of_the_table_is_covered() -> None:
    said = [sentence for _, sentence in RECORDED]
    said += [assemble(ptx, "sm_90a", options=options) for ptx, options in SAID.values()]
    assert all(any(words in text for text in said) for words in jit_log.REASONS)


def test_a_loss_without_a_known_code_is_not_lost() -> None:
    line = "ptxas info    : (C7999) Potential Performance Loss: something new in the function 'gemm'"
    (advice,) = jit_log.parse(line).advice
    assert advice.code == "C7999" and advice.reason is jit_log.OTHER and advice.function == "gemm"
    (warning,) = performance_warnings.warnings_of(jit_log.parse(line), CLEAN, ("gemm",))
    assert "something new" in str(warning)


def test_spills() -> None:
    ptx = kernel(loads(120) + "bar.sync 0;\n" + stores(120), ".maxntid 128\n.maxnreg 32")
    said = assemble(ptx, "sm_90a")
    counted = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert counted is not None and int(counted[1]) > 0
    log = jit_log.parse(said)
    figures = log.functions["gemm"]
    assert (figures.spill_stores, figures.spill_loads) == (int(counted[1]), int(counted[2]))
    assert figures.registers == 32 and figures.barriers == 1 and figures.stack_bytes >= 4
    (warning,) = performance_warnings.warnings_of(log, ptx, ("gemm",))
    assert "local memory" in str(warning) and f"{counted[1]} bytes spill stores" in str(warning)
    assert warning.location is not None and str(warning.location) == "/home/user/kernel.py:8:5"


def test_an_array_in_local_memory_is_no_spill() -> None:
    body = ".local .align 4 .b8 array[512]; .reg .b64 e<2>;\nmov.u64 e0, array; cvt.u64.u32 e1, %tid.x;"
    body += " add.u64 e0, e0, e1;\nst.local.f32 [e0], f0; bar.sync 0; ld.local.f32 f0, [e0+4];"
    log = jit_log.parse(assemble(kernel(body), "sm_90a"))
    assert log.functions["gemm"].stack_bytes == 512 and log.advice == ()


DRIVER = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
ptxas         .     24 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 24 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Function properties for 'inner'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, 400 bytes cmem[0]
"""


def test_the_driver_s_form_of_a_log() -> None:
    log = jit_log.parse(DRIVER)
    assert log.functions == {
        "one": FunctionFigures(168, 24, 20, 28, 1024, 3), "inner": FunctionFigures(), "two": FunctionFigures(12),
    }  # fmt: skip
    (advice,) = log.advice
    assert advice.function == "one" and advice.reason is jit_log.SPILLS


def test_an_empty_log() -> None:
    """The driver took the code from its own cache."""
    assert jit_log.parse("") == jit_log.JitLog()


# -- lines


WAITED, UNBOUNDED = SAID["is injected in around line"][0], SAID["unable to determine register count"][0]


def test_a_line_that_the_assembler_names() -> None:
    """ptxas counts lines of the PTX text; the ``.loc`` before it says which Python line that is."""
    (warning,) = performance_warnings.warnings_of(jit_log.parse(assemble(WAITED, "sm_90a")), WAITED, ("gemm",))
    assert warning.code == "C7517" and warning.kernel == "gemm"
    assert str(warning.location) == "/home/user/kernel.py:17:9"
    assert str(warning).startswith("kernel gemm (/home/user/kernel.py:17:9): the assembler inserted a wait")
    assert "hint: " in str(warning)


def test_without_a_line_it_is_the_kernel_s() -> None:
    log = jit_log.parse(assemble(UNBOUNDED, "sm_90a"))
    (warning,) = performance_warnings.warnings_of(log, UNBOUNDED, ("gemm",))
    assert "launch bounds are missing" in str(warning) and str(warning.location) == "/home/user/kernel.py:8:5"


def test_a_fence_that_costs_nothing_is_no_warning() -> None:
    (sentence,) = (sentence for effect, sentence in RECORDED if effect is Effect.FENCED)
    log = jit_log.parse(f"ptxas info    : {sentence}")
    assert len(log.advice) == 1 and performance_warnings.warnings_of(log, CLEAN, ("gemm",)) == []


TWO = """\
.version 8.0
.target sm_90a
.func (.param .b32 r) inner(.param .b32 a)
{
.loc 2 3 1
ret;
}
.visible .entry one()
{
ret;
}
.visible .entry two(
.param .u64 p
)
.maxntid 32
{
.loc 1 0 0
mov.u32 a, b;
.loc 1 21 4, function_name $L__info_string0, inlined_at 1 9 2
ret;
}
.file 1 "a.py"
.file 2 "b.py"
"""


@pytest.mark.parametrize(
    "line, place",
    [(5, "b.py:3:1"), (6, "b.py:3:1"), (10, None), (17, None), (18, None), (20, "a.py:21:4"), (0, None)],
)
def test_lines_of_several_functions(line: int, place: str | None) -> None:
    found = PtxLines(TWO).location(line)
    assert (None if found is None else str(found)) == place


def test_the_first_line_of_a_function() -> None:
    lines = PtxLines(TWO)
    assert str(lines.of_function("two")) == "a.py:21:4" and str(lines.of_function("inner")) == "b.py:3:1"
    assert lines.of_function("one") is None and lines.of_function("three") is None


def test_advice_about_a_device_function_names_the_kernels() -> None:
    line = "ptxas info    : (C7509) Potential Performance Loss: wgmma.mma_async instructions are serialized due to the "
    line += "presence of Extern calls in the function 'inner'"
    (warning,) = performance_warnings.warnings_of(jit_log.parse(line), TWO, ("one", "two"))
    assert warning.kernel == "one, two" and str(warning.location) == "b.py:3:1"


def test_python_shows_the_warning_at_the_user_s_line() -> None:
    log = jit_log.parse(assemble(WAITED, "sm_90a"))
    with pytest.warns(PerformanceWarning) as caught:
        performance_warnings.warn(log, WAITED, ("gemm",))
    assert (caught[0].filename, caught[0].lineno) == ("/home/user/kernel.py", 17)


def test_without_any_line_the_warning_still_comes() -> None:
    sentence = RECORDED[0][1]
    with pytest.warns(PerformanceWarning, match="C7506"):
        performance_warnings.warn(jit_log.parse(f"ptxas info : {sentence}"), ".version 8.0", ())
