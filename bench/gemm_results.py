"""What becomes of the times: one record for each product, merged into a file as the records come, and the means."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_peers import NT, recorded_tilelang
from gemm_rows import Contender, Row
from measure import RESULTS, interval, ratio

NOTES = (
    "TFLOP/s and us are medians with a 95 % bootstrap interval; ratios are medians over turns of the ratio of two "
    "launches of the same turn. Host time does not count, but under 'single launches', which begin when the card has "
    "nothing to do. L2 is overwritten before each launch of a decode row and of no other; kernels under 100 us of the "
    "other rows are launched several times in a measurement. 'ours' are at most four configurations of tile code "
    "without roles, barriers or inline PTX; 'plain' is examples/gemm.py, one CTA a tile. Each contender is compared "
    "with float64 in 64 rows and with torch everywhere before it is timed."
)
GOALS: dict[str, tuple[float | None, float | None]] = {
    "compute-bound bf16": (1.10, 0.99),
    "fp8": (1.15, None),
    "decode, m <= 64": (None, 0.98),
    "decode, m > 64": (None, None),
}
"""Group → (geometric mean, lowest row) of ours ÷ the best peer."""
COPY = "torch copy of as many bytes"


def record(
    row: Row, contenders: Sequence[Contender], times: Mapping[str, Sequence[float]],
    errors: Mapping[str, tuple[float, float]], reasons: Mapping[str, str], run: str,
) -> dict[str, Any]:  # fmt: skip
    """The JSON of a row. ``times`` in milliseconds by name; ``reasons`` why a contender did not run."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    found: dict[str, Any] = {"group": row.group, "dtype": row.dtype, "m": row.m, "n": row.n, "k": row.k, "run": run}
    found |= {"L2 overwritten": row.flush, "turns": min(map(len, times.values()), default=0), "contenders": []}
    for contender in contenders:
        entry: dict[str, Any] = {"contender": contender.name, "side": contender.side}
        if contender.name in times:
            entry |= _figures(row, times[contender.name])
            entry["relative error"] = [float(f"{error:.1e}") for error in errors[contender.name]]
        else:
            entry["unavailable"] = reasons.get(contender.name, "not measured")
        found["contenders"].append(entry)
    best = {}
    for side in ("ours", "plain", "peer", "probe"):
        names = [contender.name for contender in contenders if contender.side == side and contender.name in times]
        if names:
            best[side] = min(names, key=medians.__getitem__)
    found["best"] = best
    if "ours" in best:
        ours = times[best["ours"]]
        found["ours / best"] = {side: ratio(times[name], ours) for side, name in best.items() if side != "ours"}
        found |= _against_tilelang(row, medians, best["ours"])
    if COPY in times:
        found["copy GB/s"] = round(row.bytes / medians[COPY] / 1e6)
        shares = {side: ratio(times[COPY], times[name]) for side, name in best.items()}
        found["share of the copy rate"] = shares
    return found


def single_launches(best: Mapping[str, str], times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The best of each side again, each launched when the card has nothing to do: with the host time of its call."""
    medians = {side: statistics.median(times[name]) for side, name in best.items()}
    found: dict[str, Any] = {f"{side} us": round(1e3 * median, 2) for side, median in medians.items()}
    if "ours" in best:
        ours = times[best["ours"]]
        found["ours / best"] = {side: ratio(times[name], ours) for side, name in best.items() if side != "ours"}
    return {"single launches": found}


def _figures(row: Row, values: Sequence[float]) -> dict[str, Any]:
    low, high = interval(values)
    median = statistics.median(values)
    rate = {"TFLOP/s": round(row.operations / median / 1e9, 1)}
    rate["95%"] = [round(row.operations / bound / 1e9, 1) for bound in (high, low)]  # type: ignore[assignment]
    return {"us": round(1e3 * median, 2), **rate, "GB/s": round(row.bytes / median / 1e6)}


def _against_tilelang(row: Row, medians: Mapping[str, float], ours: str) -> dict[str, Any]:
    """(ours ÷ cuBLAS) ÷ (TileLang ÷ cuBLAS as recorded), for the range that was recorded."""
    recorded = recorded_tilelang(row)
    cublas = [time for name, time in medians.items() if name.startswith(NT)]
    if recorded is None or not cublas or any(name.startswith("TileLang ") for name in medians):
        return {}
    to_cublas = min(cublas) / medians[ours]
    middle = math.sqrt(recorded[0] * recorded[1])
    return {
        "ours / TileLang as recorded": {
            "TileLang / cuBLAS as recorded": list(recorded),
            "median": round(to_cublas / middle, 4),
            "range": [round(to_cublas / recorded[1], 4), round(to_cublas / recorded[0], 4)],
        }
    }


# ---------------------------------------------------------------- the file


def load(path: Path) -> dict[str, Any]:
    """What was measured before: that file's content, or that of the repository's when there is none yet."""
    for candidate in (path, RESULTS / "gemm.json"):
        if candidate.exists():
            content = json.loads(candidate.read_text())
            rows = [row for row in content.get("rows", []) if "group" in row]
            return {"notes": NOTES, "runs": content.get("runs", {}) if rows else {}, "rows": rows}
    return {"notes": NOTES, "runs": {}, "rows": []}


def merge(content: dict[str, Any], row: dict[str, Any], run: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` with ``row`` in the place of an older one of the same product, runs without rows left out."""
    rows = {_key(old): old for old in content["rows"]} | {_key(row): row}
    ordered = sorted(rows.values(), key=_order)
    runs = {**content["runs"], run: dict(environment)}
    used = {old["run"] for old in ordered}
    return {
        "notes": NOTES,
        "runs": {name: what for name, what in runs.items() if name in used},
        "summary": summary(ordered),
        "rows": ordered,
    }


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("group", "dtype", "m", "n", "k"))


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    groups = ("square", "k-sweep", "fp8", "decode")
    number = groups.index(row["group"]) if row["group"] in groups else len(groups)
    return number, row["n"], row["k"], row["m"]


def write(path: Path, content: Mapping[str, Any]) -> None:
    """At once or not at all, so that a run that is cut off leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)


# ---------------------------------------------------------------- means


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each group of rows: geometric mean and lowest row of ours ÷ the best peer, ÷ the probe and ÷ the plain form.
    ``with TileLang as recorded``: the best peer is also TileLang by its recorded ratio."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("ours / best"):
            name = Row(row["group"], row["m"], row["n"], row["k"], row["dtype"]).summary
            groups.setdefault(name, []).append(row)
    found = {}
    for name, members in groups.items():
        entry: dict[str, Any] = {"rows": len(members)}
        for side in ("peer", "probe", "plain"):
            entry |= _mean(f"ours / {side}", {_title(row): row["ours / best"][side]["median"] for row in members
                                              if side in row["ours / best"]})  # fmt: skip
        single = {_title(row): row["single launches"]["ours / best"]["peer"]["median"] for row in members
                  if "peer" in row.get("single launches", {}).get("ours / best", {})}  # fmt: skip
        entry |= _mean("ours / peer, single launches", single)
        with_recorded = {}
        for row in members:
            if "peer" in row["ours / best"]:
                recorded = row.get("ours / TileLang as recorded", {}).get("median", math.inf)
                with_recorded[_title(row)] = min(row["ours / best"]["peer"]["median"], recorded)
        entry |= _mean("with TileLang as recorded", with_recorded)
        shares = [row["share of the copy rate"]["ours"]["median"] for row in members if "share of the copy rate" in row]
        if shares:
            entry["share of the copy rate"] = round(geometric_mean(shares), 4)
        mean, lowest = GOALS.get(name, (None, None))
        entry["goal"] = {"mean": mean, "lowest": lowest}
        found[name] = entry
    return found


def _mean(name: str, values: Mapping[str, float]) -> dict[str, Any]:
    if not values:
        return {}
    lowest = min(values, key=values.__getitem__)
    return {name: {"mean": round(geometric_mean(list(values.values())), 4), "lowest": values[lowest], "at": lowest}}


def _title(row: Mapping[str, Any]) -> str:
    return f"{row['m']}x{row['n']}x{row['k']}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each product: the best of each side in TFLOP/s (decode: GB/s), and ours against them."""
    sides = " ".join(f"{side:>7s}" for side in ("ours", "peer", "probe", "plain"))
    lines = [f"{'product':22s} {sides}   / peer  / probe / TileLang*  best"]
    for row in rows:
        unit = "GB/s" if row["group"] == "decode" else "TFLOP/s"
        rates = {entry["contender"]: entry.get(unit) for entry in row["contenders"]}
        cells = [_cell(rates.get(row["best"].get(side)), 7, 0) for side in ("ours", "peer", "probe", "plain")]
        ratios = [_cell(row.get("ours / best", {}).get(side, {}).get("median"), 8, 3) for side in ("peer", "probe")]
        tilelang = _cell(row.get("ours / TileLang as recorded", {}).get("median"), 11, 3)
        title = f"{_title(row)} {'fp8' if 'float8' in row['dtype'] else 'bf16'}"
        best = f"{row['best'].get('ours', '-')} | {row['best'].get('peer', '-')}"
        share = row.get("share of the copy rate", {}).get("ours", {}).get("median")
        ending = "" if share is None else f"  {100 * share:.0f} % of the copy rate"
        lines.append(f"{title:22s} {' '.join(cells)} {' '.join(ratios)} {tilelang}  {best}{ending}")
    return "\n".join(lines)


def _cell(value: float | None, width: int, digits: int) -> str:
    return " " * (width - 1) + "-" if value is None else f"{value:{width}.{digits}f}"


def summary_text(found: Mapping[str, Any]) -> str:
    """The means, a line for each."""
    lines = []
    for name, entry in found.items():
        lines.append(f"{name} ({entry['rows']} rows), goal: {entry['goal']}")
        for what, value in entry.items():
            if isinstance(value, dict) and "at" in value:
                lines.append(f"  {what:28s} mean {value['mean']:.3f}   lowest {value['lowest']:.3f} at {value['at']}")
            elif what == "share of the copy rate":
                lines.append(f"  {what:28s} mean {value:.3f}")
    return "\n".join(lines)
