"""GEMM (A · Bᵀ) on a card beside cuBLAS, Triton, TileLang and a hand-written kernel: alternated, medians, random data.

Run it:  python bench/gemm.py [--rows square k-sweep decode fp8 all] [--sizes 4096x4096x4096 …] [--seconds 6]

Results are merged into bench/results/gemm.json (or ``--results``) after each product, so that a run that is cut off
loses nothing. ``--only TEXT`` takes the contenders with TEXT in their names alone, and writes nothing; ``--without
TEXT`` leaves such out. ``--profile`` launches each contender once between the profiler's marks, for ``ncu
--profile-from-start off``. ``--dry-run`` goes the same way with small products in the simulator, without a card.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gemm_ours
import gemm_peers
import gemm_results
import torch
from gemm_rows import GROUPS, Contender, Operands, Row, Unavailable, selected
from measure import RESULTS, environment, host_milliseconds, milliseconds

SHORT = 0.1
"""Milliseconds of a measurement, at least, where the L2 cache is left alone."""
MOST_LAUNCHES = 20
DRY_MULTIPROCESSORS = 3


def main() -> None:
    arguments = parsed(sys.argv[1:])
    on_card = torch.cuda.is_available() and not arguments.dry_run
    if not on_card and not arguments.dry_run:
        sys.exit("no CUDA card here; --dry-run tries everything else in the simulator")
    rows = selected(arguments.rows, arguments.sizes)
    if not on_card:
        rows = list(dict.fromkeys(small(row) for row in rows))
    where = environment() | ({"commit": arguments.commit} if arguments.commit else {})
    run = where["date"]
    content = gemm_results.load(arguments.results)
    measured = []
    for row in rows:
        if arguments.profile:
            profile(row, arguments)
            continue
        found = measure(row, arguments, on_card, run)
        measured.append(found)
        if not arguments.only:
            content = gemm_results.merge(content, found, run, where)
            gemm_results.write(arguments.results, content)
    if arguments.only:
        print("nothing is written with --only")
    elif measured:
        print("\n" + gemm_results.table(measured))
        print("* by its recorded ratio to cuBLAS\n\n" + gemm_results.summary_text(content["summary"]))
        print("written to", arguments.results)


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=[*GROUPS, "all"], default=["all"], help="groups of products")
    parser.add_argument("--sizes", nargs="+", default=[], metavar="MxNxK", help="these products only")
    parser.add_argument("--turns", type=int, default=40, help="launches of each contender, at most")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing for a product; compiling comes on top")
    parser.add_argument("--results", type=Path, default=RESULTS / "gemm.json")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of the names of the contenders that take part")
    parser.add_argument("--without", nargs="+", default=[], metavar="TEXT", help="of those that are left out")
    parser.add_argument("--commit", help="recorded with the results where git cannot tell it")
    parser.add_argument("--profile", action="store_true", help="one launch each between the profiler's marks")
    parser.add_argument("--dry-run", action="store_true", help="small products in the simulator, without a card")
    return parser.parse_args(words)


def small(row: Row) -> Row:
    """A product of the same kind that the simulator can do."""
    return Row(row.group, min(row.m, 256), 512, min(row.k, 256), row.dtype)


def measure(row: Row, arguments: argparse.Namespace, on_card: bool, run: str) -> dict[str, Any]:
    started = time.perf_counter()
    operands = operands_of(row, on_card)
    contenders = all_contenders(operands, arguments)
    calls, errors, reasons = ready(contenders, operands)
    prepared = time.perf_counter()
    if row.group == "decode":
        calls[gemm_results.COPY] = copy(row, operands.device)
    if on_card:
        times = milliseconds(
            calls, arguments.turns, warm_up=2, flush=row.flush, seconds=arguments.seconds,
            launches=None if row.flush else launches(calls),
        )  # fmt: skip
    else:
        times = host_milliseconds(calls, min(arguments.turns, 2), arguments.seconds)
    found = gemm_results.record(row, contenders, times, errors, reasons, run)
    if on_card and not row.flush:
        best = {name: calls[name] for name in found["best"].values()}
        single = milliseconds(best, arguments.turns, 2, False, seconds=arguments.seconds / 3, one_at_a_time=True)
        found |= gemm_results.single_launches(found["best"], single)
    report(row, found, prepared - started, time.perf_counter() - prepared)
    return found


def operands_of(row: Row, on_card: bool) -> Operands:
    count = torch.cuda.get_device_properties(0).multi_processor_count if on_card else DRY_MULTIPROCESSORS
    return Operands(row, "cuda" if on_card else "cpu", count)


def all_contenders(operands: Operands, arguments: argparse.Namespace) -> list[Contender]:
    found = [*gemm_ours.contenders(operands), *gemm_peers.contenders(operands)]
    left_out = [name.lower() for name in arguments.without]
    return [
        gemm_peers.unavailable(contender.name, contender.side, "left out by --without")
        if any(text in contender.name.lower() for text in left_out)
        else contender
        for contender in found
        if arguments.only.lower() in contender.name.lower()
    ]


def ready(
    contenders: list[Contender], operands: Operands
) -> tuple[dict[str, Any], dict[str, tuple[float, float]], dict[str, str]]:
    """The contenders that run and are right: calls and errors by name; and why the others do not take part."""
    calls, errors, reasons = {}, {}, {}
    for contender in contenders:
        operands.poison()
        try:
            call = contender.build()
            operands.poison()
            errors[contender.name] = operands.errors(call())
        except Exception as error:  # whatever stops a contender is its line in the result; the others go on
            reasons[contender.name] = f"{type(error).__name__}: {str(error)[:400]}"
            stop_if_the_card_is_lost(contender.name, error, operands.device)
            if not isinstance(error, Unavailable):
                print(f"  {contender.name}: {reasons[contender.name]}", file=sys.stderr, flush=True)
            continue
        if max(errors[contender.name]) <= operands.bound:  # false for NaN
            calls[contender.name] = call
        else:
            reasons[contender.name] = f"WRONG: relative errors {errors[contender.name]}"
            print(f"  {contender.name} is {reasons[contender.name]}", file=sys.stderr, flush=True)
    return calls, errors, reasons


def stop_if_the_card_is_lost(name: str, error: Exception, device: str) -> None:
    """After an illegal access every call of this process fails; rows measured so far are in the file."""
    if device != "cuda":
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        sys.exit(f"{name} broke the CUDA context, nothing more can be measured in this process: {error}")


def copy(row: Row, device: str) -> Any:
    """A copy within the card's memory that reads and writes, together, as many bytes as the row has to move."""
    source = torch.randint(0, 255, (row.bytes // 2,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def launches(calls: dict[str, Any]) -> dict[str, int]:
    """How many launches make a measurement of at least :data:`SHORT`: the same number for all contenders."""
    fastest = min(min(values) for values in milliseconds(calls, turns=4, warm_up=1, flush=False).values())
    count = max(1, min(MOST_LAUNCHES, round(SHORT / fastest + 0.5)))
    return dict.fromkeys(calls, count)


def profile(row: Row, arguments: argparse.Namespace) -> None:
    operands = operands_of(row, torch.cuda.is_available())
    calls, _, _ = ready(all_contenders(operands, arguments), operands)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for name, call in calls.items():
        print(row, name, flush=True)
        call()
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def report(row: Row, found: dict[str, Any], preparing: float, timing: float) -> None:
    best_peer = next((e for e in found["contenders"] if e["contender"] == found["best"].get("peer")), None)
    print(f"{row}: {found['turns']} turns; {preparing:.1f} s to prepare, {timing:.1f} s to time", flush=True)
    for entry in found["contenders"]:
        if "unavailable" in entry:
            print(f"  {entry['side']:5s} {entry['contender']:66s} {entry['unavailable'][:80]}")
            continue
        against = best_peer["us"] / entry["us"] if best_peer else float("nan")
        print(
            f"  {entry['side']:5s} {entry['contender']:66s} {entry['us']:9.1f} us {entry['TFLOP/s']:6.0f} TFLOP/s "
            f"{entry['GB/s']:6d} GB/s  {against:.3f}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
