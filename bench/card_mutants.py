"""What mutants that the checker calls wrong really do on a card: a wrong result, a hang, or nothing that shows.

Run it:  python bench/card_mutants.py plan            (needs no card: chooses the mutants, a minute)
         python bench/card_mutants.py run [--launches 20] [--seconds 5] [--budget 150] [--only NUMBER]
         python bench/card_mutants.py run --dry-run   (needs no card: the simulator stands for it, nothing is kept)

``plan`` lowers examples for sm_90a, takes from the mutants of each (:mod:`ptxtile.sim.check.mutations`) one for each
row of ``CHOICES`` and keeps what the checker says of it. ``run`` compiles the same mutants for larger sizes and
launches each in a process of its own, several times with fresh inputs on poisoned outputs; the result is compared bit
by bit with that of the program without the change, which runs beside it and is compared with float64 once.

All processes start at once and compile; then one after another is told to use the card. One that does not finish its
launches in time is killed, and its context goes with it; then a small kernel asks whether the card still works. What
should hang comes last. Both steps write bench/results/card_mutants.json, ``run`` after each mutant.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import RESULTS, environment

import ptxtile
from ptxtile import target
from ptxtile.ir.program import Program
from ptxtile.runtime.arguments import Binding, bind
from ptxtile.sim.check.mutations import Mutant, mutants
from ptxtile.sim.check.run import check

FILE = RESULTS / "card_mutants.json"
TARGET = "sm_90a"
THIS = [sys.executable, __file__]
SECONDS_TO_COMPILE = 120
SECONDS_TO_START = 30
"""For the context, the modules and the launch of the right program."""
SECONDS_TO_DIE = 15
POISON = float("nan")


@dataclass(frozen=True)
class Subject:
    """An example: ``small`` sizes and arguments for the checker, ``large`` ones for a card, compile options."""

    module: str
    small: dict[str, int]
    large: dict[str, int]
    options: dict[str, Any]


PRODUCT = {"M": 4096, "N": 4096, "K": 4096}
SUBJECTS = {
    "gemm": Subject("gemm", {"M": 256, "N": 256, "K": 384}, PRODUCT, {}),
    "gemm_persistent": Subject(
        "gemm_persistent", {"M": 256, "N": 256, "K": 256, "sms": 2}, {**PRODUCT, "sms": 132}, {}
    ),
    "gemm_roles": Subject("gemm_roles", {"M": 128, "N": 128, "K": 384}, PRODUCT, {}),
    "elementwise_add": Subject(
        "elementwise_add", {"M": 128, "N": 128}, {"M": 8192, "N": 8192}, {"specialize_warps": True}
    ),
}


@dataclass(frozen=True)
class Choice:
    """The mutant number ``number``, from 0, of those of ``subject`` that do ``change`` to a ``kind`` of operation and
    that the checker reports as ``rule``."""

    subject: str
    kind: str
    change: str
    rule: str
    number: int = 0


CHOICES = (
    Choice("elementwise_add", "MbarrierWait", "removed", "race"),
    Choice("gemm", "WgmmaWaitGroup", "removed", "race"),
    Choice("gemm", "WgmmaCommitGroup", "removed", "race"),
    Choice("gemm", "FenceProxyAsync", "removed", "missing fence"),
    Choice("gemm_persistent", "BulkWaitGroup", "removed", "race"),
    Choice("gemm_persistent", "BarSync", "removed", "race", 1),
    Choice("gemm", "BulkCommitGroup", "removed", "unfinished"),
    Choice("gemm", "MbarrierWait", "removed", "race", 1),
    Choice("gemm_roles", "MbarrierWait", "other parity", "race"),
    Choice("gemm_persistent", "MbarrierInit", "one arrival less", "race"),
    Choice("gemm_roles", "MbarrierExpectTx", "16 bytes more", "deadlock"),
    Choice("gemm", "MbarrierArrive", "removed", "deadlock"),
)
"""Those that may hang come late, those that must last."""


# The programs ---------------------------------------------------------------------------------------------------------


@cache
def lowered(name: str, large: bool) -> Program:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    subject = SUBJECTS[name]
    function = getattr(importlib.import_module(subject.module), name)
    jitted = ptxtile.jit(function.__wrapped__, target=TARGET, **subject.options)
    return jitted.specialize(**(subject.large if large else subject.small)).program


def mutant_of(name: str, what: str, large: bool) -> Mutant:
    """The mutant by its words; the operations of a program have the same numbers for all sizes of a subject."""
    small, wanted = [m.what for m in mutants(lowered(name, False))], list(mutants(lowered(name, large)))
    if small != [m.what for m in wanted]:
        raise SystemExit(f"{name} has other operations at other sizes: choose sizes that need the same ones")
    for mutant in wanted:
        if mutant.what == what:
            return mutant
    raise SystemExit(f"{name} has no mutant {what!r} any more: run plan again")


def inputs(program: Program, device: str, seed: int) -> list[torch.Tensor]:
    """Fresh random tensors for the program's arguments."""
    assert program.launch is not None
    generator = torch.Generator(device).manual_seed(seed)
    return [
        torch.randn(tuple(argument.shape), generator=generator, device=device).to(getattr(torch, argument.dtype))  # type: ignore[union-attr, arg-type]
        for argument in program.launch.arguments
    ]


def bound(program: Program, arguments: list[torch.Tensor], device: str) -> Binding:
    """With poisoned outputs."""
    assert program.launch is not None
    binding = bind(program.launch, arguments, {}, device_type=device)
    for allocation in program.launch.allocations:
        binding.tensors[allocation.name].fill_(POISON)
    return binding


# plan -----------------------------------------------------------------------------------------------------------------


def plan() -> list[dict[str, Any]]:
    rows = []
    for position, choice in enumerate(CHOICES):
        print(f"{position}: {choice.subject}, {choice.kind} {choice.change}", flush=True)
        mutant, report = chosen(choice)
        rows.append(
            {
                "number": position,
                "subject": choice.subject,
                "mutant": mutant.what,
                "line": within(str(mutant.location)) if mutant.location is not None else "",
                "checker": [finding.rule for finding in report],
                "first": within(" ".join(next(f.message for f in report if f.rule == choice.rule).split("\n")[:2])),
            }
        )
        print(f"   {rows[-1]['mutant']}: {rows[-1]['first']}", flush=True)
    return rows


def within(text: str) -> str:
    """Without the folder that this repository is in."""
    return text.replace(f"{Path(__file__).resolve().parent.parent}/", "")


def chosen(choice: Choice) -> tuple[Mutant, tuple[Any, ...]]:
    program = lowered(choice.subject, False)
    binding = bound(program, inputs(program, "cpu", 0), "cpu")
    left = choice.number
    for mutant in mutants(program):
        if choice.kind not in mutant.what.split() or not mutant.what.endswith(choice.change):
            continue
        report = check(mutant.program, binding.tensors, binding.scalars)
        if any(finding.rule == choice.rule for finding in report.findings):
            if left == 0:
                mutant_of(choice.subject, mutant.what, large=True)
                return mutant, report.findings
            left -= 1
    raise SystemExit(f"no such mutant: {choice}")


# run: the parent ------------------------------------------------------------------------------------------------------


class Child:
    """A process that prints lines of JSON: ``compiled``, then, once it is told to go, ``ready`` and its results."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._forward, self._keep_errors)]
        for reader in self._readers:
            reader.start()

    def _forward(self) -> None:
        for line in self.process.stdout or ():
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def _keep_errors(self) -> None:
        self.errors.extend(self.process.stderr or ())

    def go(self, seconds: float) -> tuple[list[dict[str, Any]], str]:
        """The lines that it prints, and how it ended: ``itself``, ``code N`` with the end of its standard error, or
        ``killed``. ``seconds``: for its launches, counted from its line ``ready``."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + SECONDS_TO_COMPILE
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                return found, "killed"
            if line is None:
                break
            found.append(json.loads(line))
            if found[-1].get("compiled"):
                self._tell()
                deadline = time.monotonic() + SECONDS_TO_START
            elif found[-1].get("ready"):
                deadline = time.monotonic() + seconds
        try:
            code = self.process.wait(timeout=max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # its context cannot be taken down while a kernel runs
            self.kill()
            return found, "killed"
        for reader in self._readers:  # a process that it started may hold its standard error open
            reader.join(timeout=5)
        return found, "itself" if code == 0 else f"code {code}: " + "".join(self.errors)[-1500:]

    def _tell(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its standard error tells of
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """Ends the process and what it started, and waits until the driver has let go of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(timeout=SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            print(f"process {self.process.pid} does not end: its kernel cannot be stopped", flush=True)


def run(rows: list[dict[str, Any]], launches: int, seconds: float, budget: float, *more: str) -> Iterator[dict]:
    """The rows with what happened on the card, one after another. ``budget``: seconds after which none begins.
    ``more``: options for the processes."""
    commands = [[*THIS, *more, "--child", row["subject"], row["mutant"], str(launches)] for row in rows]
    began = time.monotonic()
    children = [Child(command) for command in commands]
    probes: list[Child] = []
    try:
        probes.append(Child([*THIS, *more, "--child", "", "", "0"]))
        usable = True
        for row, child in zip(rows, children, strict=True):
            if not usable:
                yield row | {"outcome": "not run: the card did not answer after the mutant before"}
                continue
            if time.monotonic() - began > budget:
                yield row | {"outcome": f"not run: {budget:.0f} seconds were over"}
                continue
            lines, ended = child.go(seconds)
            result = outcome(lines, ended, launches)
            if "hang" in result["outcome"] or "fault" in result["outcome"]:
                answer, _ = probes.pop().go(SECONDS_TO_DIE)
                usable = result["card_usable_afterwards"] = bool(answer) and answer[-1].get("ok", False)
                probes.append(Child([*THIS, *more, "--child", "", "", "0"]))
            yield row | result | {"seconds_after_start": round(time.monotonic() - began, 1)}
    finally:
        for child in (*children, *probes):
            if child.process.poll() is None:
                child.kill()


def outcome(lines: list[dict[str, Any]], ended: str, launches: int) -> dict[str, Any]:
    """From what a process printed: what the mutant does."""
    done = [line for line in lines if "launch" in line]
    wrong = [line for line in done if line["wrong"]]
    result: dict[str, Any] = {"launches": len(done), "wrong_launches": len(wrong)}
    if wrong:
        result |= {key: wrong[0][key] for key in ("wrong", "of", "largest_error")}
    if not any(line.get("ready") for line in lines):
        result["outcome"] = f"not run: {ended}"
    elif any("control" in line for line in lines):
        result["outcome"] = "not judged: the program without the change is wrong"
    elif ended == "killed":
        result["outcome"] = f"hang in launch {len(done) + 1}" + (f", wrong in {len(wrong)} before" if wrong else "")
    elif ended != "itself":
        result["outcome"] = f"fault in launch {len(done) + 1}: {_reason(ended)}"
    elif len(done) < launches:
        result["outcome"] = f"not run to its end: {len(done)} launches"
    else:
        result["outcome"] = f"wrong in {len(wrong)} of {launches} launches" if wrong else "lucky"
    return result


def _reason(ended: str) -> str:
    """What CUDA says, without the advice that torch adds to it; else the end of what was printed."""
    said = [line.strip() for line in ended.splitlines() if "CUDA error" in line or "Error: " in line]
    return said[-1] if said else ended[-300:]


# run: the child -------------------------------------------------------------------------------------------------------


def launch_mutant(name: str, what: str, launches: int, dry: bool) -> None:
    """Prints a line when compiled, waits for a line, prints one when ready and one for each launch."""
    device = "cpu" if dry else "cuda"
    programs = {} if not name else {"right": lowered(name, not dry), "mutant": mutant_of(name, what, not dry).program}
    executables = {key: executable(program, dry) for key, program in programs.items()}
    say({"compiled": True})
    if not sys.stdin.readline():
        return  # the parent has ended
    torch.zeros(1, device=device)
    if not name:  # does the card still work?
        say({"ready": True})
        say({"ok": torch.ones(1 << 20, device=device).sum().item() == 1 << 20})
        return
    arguments = inputs(programs["right"], device, 0)
    wanted = executables["right"](bound(programs["right"], arguments, device))
    synchronize(device)
    if not is_right(wanted, arguments):
        say({"ready": True})
        say({"control": "wrong"})
        return
    say({"ready": True})
    for number in range(launches):
        arguments = inputs(programs["right"], device, number)
        wanted = executables["right"](bound(programs["right"], arguments, device))
        binding = bound(programs["mutant"], arguments, device)
        synchronize(device)
        got = executables["mutant"](binding)
        synchronize(device)
        differs = ~(got == wanted)  # NaN, the poison, differs from everything
        error = (got.double() - wanted.double()).abs().nan_to_num(float("inf")).max().item()
        count = int(differs.sum().item())
        shown = error if math.isfinite(error) else "not finite"
        say({"launch": number, "wrong": count, "of": got.numel(), "largest_error": shown if count else 0.0})


def executable(program: Program, dry: bool) -> Callable[[Binding], torch.Tensor]:
    """What launches a program and gives its output."""
    assert program.launch is not None
    if dry:
        return lambda binding: simulated(program, binding)
    from ptxtile import nvvm
    from ptxtile.runtime.executable import Executable

    return Executable(nvvm.emit(program, target.get(TARGET)).ptx, program.launch, TARGET)


def simulated(program: Program, binding: Binding) -> torch.Tensor:
    """Stands for a launch: asynchronous effects come late, and where nobody can go on the process hangs."""
    from ptxtile.errors import DeadlockError
    from ptxtile.sim.delayed_effects import DelayedEffects
    from ptxtile.sim.launch import run as simulate

    try:
        simulate(program, binding.tensors, binding.scalars, effects=DelayedEffects)
    except DeadlockError:
        time.sleep(3600)
    return binding.results


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def is_right(result: torch.Tensor, arguments: list[torch.Tensor]) -> bool:
    """Against float64: a sum for tensors of one shape that is the result's, else a product with the transpose."""
    a, b = (argument.double() for argument in arguments)
    wanted = a + b if result.shape == a.shape == b.shape and result.dtype == torch.float32 else a @ b.T
    return bool((result.double() - wanted).norm() < 1e-2 * wanted.norm())


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


# ----------------------------------------------------------------------------------------------------------------------


def save(rows: list[dict[str, Any]], key: str) -> None:
    """Keeps what is there already of the other step's environment."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    content = {**kept, key: environment(), "choices": [asdict(choice) for choice in CHOICES], "rows": rows}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("plan", "run"))
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5, help="for the launches of one mutant")
    parser.add_argument("--budget", type=float, default=150, help="seconds after which no mutant begins")
    parser.add_argument("--only", type=int, help="the number of one mutant")
    parser.add_argument("--dry-run", action="store_true", help="in the simulator; nothing is kept")
    parser.add_argument("--child", nargs=3, metavar=("SUBJECT", "MUTANT", "LAUNCHES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        launch_mutant(options.child[0], options.child[1], int(options.child[2]), options.dry_run)
    elif options.step == "plan":
        save(plan(), "plan_environment")
    elif options.step == "run":
        rows = json.loads(FILE.read_text())["rows"]
        chosen_rows = [row for row in rows if options.only is None or row["number"] == options.only]
        more = ["--dry-run"] if options.dry_run else []
        for row in run(chosen_rows, options.launches, options.seconds, options.budget, *more):
            rows = [row if other["number"] == row["number"] else other for other in rows]
            print(f"{row['number']}: {row['mutant']}: {row['outcome']}", flush=True)
            if not options.dry_run:
                save(rows, "environment")  # after each, so that nothing is lost
    else:
        parser.error("plan or run")


if __name__ == "__main__":
    main()
