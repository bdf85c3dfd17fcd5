"""The passes in order. Read it top to bottom: that is the road from tile IR to GPU IR.

Each pass is a pure function ``run(program, target, options) -> program``. What must come before what, and why, is
written in :data:`ORDER` and checked when this module is first used.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir.program import Program
from ptxtile.lower import (
    agree_on_conditions,
    check_control_flow,
    check_registers,
    choose_shared_layouts,
    complete_launch,
    contract_fma,
    count_loops,
    elect_effects,
    elect_stores,
    expand_copies,
    expand_math,
    flatten_buffers,
    guard_bounds,
    hand_over_buffers,
    hoist_dependency_waits,
    infer_layouts,
    inline_indices,
    insert_synchronization,
    join_gemms,
    legalize,
    lower_async_copies,
    lower_loops,
    lower_mma,
    lower_tma,
    lower_wgmma,
    order_grid_barriers,
    overlap_launches,
    pace_stores,
    place_shared_memory,
    plan_async_copies,
    plan_loads,
    plan_registers,
    resolve_fragment_views,
    schedule_pipelines,
    select_gemm_paths,
    select_matrix_stores,
    select_paths,
    simplify,
    specialize_warps,
    stage_epilogues,
    vectorize_loops,
)
from ptxtile.lower.options import Options
from ptxtile.records import record
from ptxtile.target import Target


@record
class Pass:
    """``stage`` is the heading under which ``inspect --passes`` shows it (DESIGN: the road of a kernel)."""

    name: str
    stage: str
    run: Callable[[Program, Target, Options], Program]


PASSES: tuple[Pass, ...] = (
    Pass("check_control_flow", "legalize", check_control_flow.run),
    Pass("hoist_dependency_waits", "legalize", hoist_dependency_waits.run),
    Pass("check_registers", "legalize", check_registers.run),
    Pass("count_loops", "legalize", count_loops.run),
    Pass("simplify_tiles", "legalize", simplify.run),
    Pass("select_paths", "select paths", select_paths.run),
    Pass("select_gemm_paths", "select paths", select_gemm_paths.run),
    Pass("schedule_pipelines", "plan pipelines, specialize warps", schedule_pipelines.run),
    Pass("specialize_warps", "plan pipelines, specialize warps", specialize_warps.run),
    Pass("plan_async_copies", "plan pipelines, specialize warps", plan_async_copies.run),
    Pass("plan_loads", "plan pipelines, specialize warps", plan_loads.run),
    Pass("join_gemms", "plan pipelines, specialize warps", join_gemms.run),
    Pass("stage_epilogues", "plan pipelines, specialize warps", stage_epilogues.run),
    Pass("expand_copies", "infer layouts", expand_copies.run),
    Pass("inline_indices", "infer layouts", inline_indices.run),
    Pass("guard_bounds", "infer layouts", guard_bounds.run),
    Pass("elect_effects", "infer layouts", elect_effects.run),
    Pass("elect_stores", "infer layouts", elect_stores.run),
    Pass("agree_on_conditions", "infer layouts", agree_on_conditions.run),
    Pass("resolve_fragment_views", "infer layouts", resolve_fragment_views.run),
    Pass("infer_layouts", "infer layouts", infer_layouts.run),
    Pass("select_matrix_stores", "select paths", select_matrix_stores.run),
    Pass("lower_loops", "lower tile ops", lower_loops.run),
    Pass("vectorize_loops", "lower tile ops", vectorize_loops.run),
    Pass("choose_shared_layouts", "infer layouts", choose_shared_layouts.run),
    Pass("lower_async_copies", "lower tile ops", lower_async_copies.run),
    Pass("lower_mma", "lower tile ops", lower_mma.run),
    Pass("lower_wgmma", "lower tile ops", lower_wgmma.run),
    Pass("lower_tma", "lower tile ops", lower_tma.run),
    Pass("order_grid_barriers", "lower tile ops", order_grid_barriers.run),
    Pass("flatten_buffers", "lower tile ops", flatten_buffers.run),
    Pass("simplify_gpu", "lower tile ops", simplify.run),
    Pass("contract_fma", "lower tile ops", contract_fma.run),
    Pass("expand_math", "lower tile ops", expand_math.run),
    Pass("legalize", "lower tile ops", legalize.run),
    Pass("hand_over_buffers", "place memory and synchronization", hand_over_buffers.run),
    Pass("place_shared_memory", "place memory and synchronization", place_shared_memory.run),
    Pass("insert_synchronization", "place memory and synchronization", insert_synchronization.run),
    Pass("pace_stores", "finish", pace_stores.run),
    Pass("plan_registers", "finish", plan_registers.run),
    Pass("overlap_launches", "finish", overlap_launches.run),
    Pass("complete_launch", "finish", complete_launch.run),
)

ORDER: tuple[tuple[str, str, str], ...] = (
    ("check_control_flow", "hoist_dependency_waits", "a wait that only some threads reach is the user's error"),
    ("hoist_dependency_waits", "specialize_warps", "the wait comes in front of the roles"),
    ("count_loops", "select_paths", "TMA stores to positions that are known not to be negative"),
    ("select_paths", "schedule_pipelines", "which copies run ahead depends on how they are carried out"),
    ("schedule_pipelines", "specialize_warps", "loops whose order is given need no plan"),
    ("select_paths", "specialize_warps", "only copies on the TMA path can move to a producer"),
    ("specialize_warps", "plan_async_copies", "copies that a producer loads need no pipeline of their own"),
    ("plan_async_copies", "plan_loads", "copies on the TMA path without a producer run ahead with cp.async"),
    ("choose_shared_layouts", "lower_async_copies", "the copies write where the tile's arrangement puts them"),
    ("lower_async_copies", "lower_tma", "what is left of copies are the stores of TMA"),
    ("specialize_warps", "plan_loads", "loads without a role are issued by the threads that wait for them"),
    ("plan_loads", "join_gemms", "what loads need stands between the gemms by then"),
    ("join_gemms", "lower_wgmma", "which gemms are a group of wgmma, and wait for themselves, is decided there"),
    ("select_gemm_paths", "stage_epilogues", "what a tensor core leaves in the registers is worth staging"),
    ("plan_loads", "stage_epilogues", "staging tiles take what the versions of the loaded tiles leave"),
    ("stage_epilogues", "expand_copies", "the parts of a staged copy are copies themselves"),
    ("plan_loads", "expand_copies", "TMA loads must not become loops"),
    ("expand_copies", "guard_bounds", "the loops of copies need guards like the user's"),
    ("inline_indices", "guard_bounds", "guards, widths and layouts look at indices, not at names of them"),
    ("guard_bounds", "infer_layouts", "vector widths depend on which guards remain"),
    ("infer_layouts", "lower_loops", "a loop is split by its layout"),
    ("infer_layouts", "select_matrix_stores", "only loops in the layout of an accumulator hold matrices"),
    ("select_matrix_stores", "lower_loops", "such a loop is split into matrices"),
    ("elect_stores", "agree_on_conditions", "which threads store must not depend on what one of them announces"),
    ("agree_on_conditions", "infer_layouts", "exchanges through shared memory need barriers inside of conditions"),
    ("expand_copies", "resolve_fragment_views", "copies of views are loops over their accesses by then"),
    ("resolve_fragment_views", "infer_layouts", "a fragment has one layout, whatever it is called"),
    ("vectorize_loops", "choose_shared_layouts", "bank conflicts depend on the width of the accesses"),
    ("choose_shared_layouts", "lower_tma", "boxes follow the arrangement of the tile"),
    ("select_gemm_paths", "infer_layouts", "tensor cores fix where their accumulator lies"),
    ("choose_shared_layouts", "lower_mma", "the rows of ldmatrix lie where the operands' arrangement puts them"),
    ("choose_shared_layouts", "lower_wgmma", "descriptors describe the operands' arrangement"),
    ("lower_loops", "vectorize_loops", "lanes are loops of one thread"),
    ("vectorize_loops", "flatten_buffers", "contiguity is visible on logical indices"),
    ("simplify_gpu", "contract_fma", "a product that a scalar named once belongs to the sum that uses it"),
    ("contract_fma", "expand_math", "the functions of the language are contracted by hand"),
    ("lower_tma", "order_grid_barriers", "only what TMA does needs waits and fences of its own"),
    ("lower_tma", "hand_over_buffers", "what a barrier hands over is what TMA loads onto it"),
    ("hand_over_buffers", "place_shared_memory", "a tile lives until the wait that retires it"),
    ("flatten_buffers", "place_shared_memory", "lifetimes and hazards are about bytes"),
    ("place_shared_memory", "insert_synchronization", "merged buffers create hazards of their own"),
    ("place_shared_memory", "plan_registers", "shared memory decides how many CTAs a multiprocessor holds"),
    ("insert_synchronization", "pace_stores", "which waits are needed is decided without those that only pace"),
    ("insert_synchronization", "overlap_launches", "the wait comes behind the barriers of the prologue"),
    ("overlap_launches", "complete_launch", "a kernel that waits is launched early"),
    ("insert_synchronization", "complete_launch", "the launch record comes last"),
)
"""(earlier, later, reason)."""


def check_order(passes: tuple[Pass, ...] = PASSES) -> None:
    """AssertionError when the table breaks one of the constraints."""
    position = {entry.name: number for number, entry in enumerate(passes)}
    for earlier, later, reason in ORDER:
        assert position[earlier] < position[later], f"{earlier} must run before {later}: {reason}"


check_order()
