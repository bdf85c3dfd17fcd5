"""``ptxtile doctor``: what this machine has, and what will and won't work on it.

Each fact is found on its own; one that cannot be found says why in its place, and nothing here ends the program.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from ptxtile import config, target
from ptxtile.errors import PtxtileError
from ptxtile.inspect.machine_code import find_tool
from ptxtile.records import record
from ptxtile.target.ptx_isa import format_isa, newest_of_driver


@record
class Fact:
    """``value`` as shown; ``good`` is False where something is missing or wrong."""

    name: str
    value: str
    good: bool = True


@record
class Card:
    index: int
    name: str
    capability: tuple[int, int]
    target: str | None
    problem: str = ""


@record
class Report:
    """``verdicts``: what works (good) and what does not, with the reason. ``variables``: of config.py."""

    facts: tuple[Fact, ...]
    cards: tuple[Card, ...]
    variables: tuple[Fact, ...]
    verdicts: tuple[Fact, ...]


def examine() -> Report:
    """Look at the machine. Initialises the CUDA driver where there is one."""
    driver = _probe("CUDA driver", _driver)
    cards, card_problem = _cards()
    facts = (
        Fact("Python", f"{platform.python_version()} ({sys.executable})", sys.version_info >= (3, 11)),
        _probe("ptxtile", ptxtile_version),
        _probe("torch", _torch),
        driver,
        Fact("cards", str(len(cards)) if cards else card_problem, bool(cards)),
        _probe("llvmlite, LLVM", _llvm),
        _probe("numba", lambda: _version("numba")),
        _probe("cuda-bindings", lambda: _version("cuda-bindings")),
        _probe("repeated launches", _launcher),
        *(_tool(name) for name in ("ptxas", "nvdisasm", "cuobjdump")),
        _cache(),
    )
    return Report(facts, cards, tuple(_variables()), tuple(_verdicts(facts, cards)))


def _launcher() -> str:
    from ptxtile.native import calls, launcher

    return launcher.describe() if calls.is_on() else "from Python: PTXTILE_LAUNCHER asks for it"


def _probe(name: str, find: Callable[[], str]) -> Fact:
    try:
        return Fact(name, find())
    except PtxtileError as error:
        return Fact(name, error.message + (f": {error.got}" if error.got else ""), good=False)
    except importlib.metadata.PackageNotFoundError:
        return Fact(name, "not installed", good=False)
    except Exception as error:  # whatever is broken on this machine is what the doctor is asked for
        return Fact(name, f"{type(error).__name__}: {error}".split("\n")[0], good=False)


def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


def ptxtile_version() -> str:
    try:
        return _version("ptxtile")
    except importlib.metadata.PackageNotFoundError:
        return "run from its source folder, not installed"


def _torch() -> str:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    return f"{torch.__version__} ({build})"


def _driver() -> str:
    from ptxtile.runtime import driver

    version = driver.library().version()
    return f"CUDA {format_isa(version)}, PTX ISA up to {format_isa(newest_of_driver(version))}"


def _llvm() -> str:
    binding = importlib.import_module("llvmlite.binding")
    return f"{_version('llvmlite')}, LLVM {'.'.join(map(str, binding.llvm_version_info))}"


def _cards() -> tuple[tuple[Card, ...], str]:
    """The cards, and why there are none."""
    from ptxtile.runtime import driver

    try:
        cuda = driver.initialised()
        return tuple(_card(cuda, index) for index in range(cuda.device_count())), "none"
    except PtxtileError as error:
        return (), error.message
    except Exception as error:  # see _probe
        return (), f"{type(error).__name__}: {error}".split("\n")[0]


def _card(cuda: Any, index: int) -> Card:
    capability = cuda.compute_capability(index)
    try:
        return Card(index, cuda.device_name(index), capability, target.from_compute_capability(*capability).name)
    except PtxtileError as error:
        return Card(index, cuda.device_name(index), capability, None, f"{error.message}: needs {error.expected}")


def _tool(name: str) -> Fact:
    found = find_tool(name)
    use = "--sass and --resources, which also take a card" if name == "ptxas" else "--sass"
    return Fact(name, found or f"not found (only for ptxtile inspect {use})", found is not None)


def _cache() -> Fact:
    def find() -> str:
        directory = config.cache_directory()
        nearest = directory
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if not os.access(nearest, os.W_OK | os.X_OK) or not nearest.is_dir():
            raise PermissionError(f"{directory} is not writable")
        return f"{directory} (writable)"

    return _probe("cache folder", find)


def _variables() -> list[Fact]:
    values = []
    for variable in config.VARIABLES:
        value = config.read(variable.name)
        shown = f"{value} (default)" if value and not config.is_set(variable.name) else value
        values.append(Fact(variable.name, shown or f"not set: {variable.meaning}"))
    return values


def _verdicts(facts: tuple[Fact, ...], cards: tuple[Card, ...]) -> list[Fact]:
    by_name = {fact.name: fact for fact in facts}

    def needs(what: str, *names: str) -> Fact:
        missing = [f"{name}: {by_name[name].value}" for name in names if not by_name[name].good]
        return Fact(what, "; ".join(missing) if missing else "works", not missing)

    usable = [card for card in cards if card.target is not None]
    verdicts = [needs("compile kernels to PTX", "torch", "llvmlite, LLVM")]
    run = needs("run kernels on a card", "torch", "CUDA driver", "cards", "cuda-bindings")
    if run.good and "without CUDA" in by_name["torch"].value:
        run = Fact(run.name, "torch is a build without CUDA: install one with it", good=False)
    elif run.good and not usable:
        run = Fact(run.name, cards[0].problem, good=False)
    elif run.good and (old := _driver_too_old(usable)):
        run = Fact(run.name, old, good=False)
    verdicts.append(run)
    verdicts.append(needs("run kernels in the simulator (CPU tensors)", "torch", "numba"))
    tma = [card for card in usable if card.target and target.get(card.target).has(target.Feature.TMA)]
    if usable:
        reason = "works" if tma else "no: the cards are older than compute capability 9.0, copies go through registers"
        verdicts.append(Fact("TMA copies", reason, bool(tma)))
    disassembler = by_name["nvdisasm"].good or by_name["cuobjdump"].good
    assembler = by_name["ptxas"].good or bool(usable)
    shown = "works" if disassembler and assembler else "needs nvdisasm or cuobjdump, and ptxas or a card"
    verdicts.append(Fact("ptxtile inspect --sass", shown, disassembler and assembler))
    shown = "works" if assembler else "needs ptxas or a card"
    verdicts.append(Fact("ptxtile inspect --resources", shown, assembler))
    kept = needs("keep compiled kernels on disk", "cache folder")
    if config.cache_bytes() == 0:
        kept = Fact(kept.name, "no: PTXTILE_CACHE_MEGABYTES is 0", good=False)
    verdicts.append(kept)
    return verdicts


def _driver_too_old(cards: list[Card]) -> str:
    """Why the driver cannot load PTX of the cards' architectures; empty when it can."""
    from ptxtile.runtime import driver

    newest = newest_of_driver(driver.library().version())
    for card in cards:
        minimum = target.get(card.target).minimum_ptx_isa if card.target else (0, 0)
        if minimum > newest:
            return (
                f"{card.target} needs PTX ISA {format_isa(minimum)}, the driver knows {format_isa(newest)}: update it"
            )
    return ""


def as_dictionary(report: Report) -> dict[str, Any]:
    """The report for ``--json``."""

    def table(facts: tuple[Fact, ...]) -> dict[str, Any]:
        return {fact.name: {"value": fact.value, "good": fact.good} for fact in facts}

    return {
        "facts": table(report.facts),
        "cards": [
            {
                "index": card.index,
                "name": card.name,
                "compute_capability": format_isa(card.capability),
                "target": card.target,
                "problem": card.problem,
            }
            for card in report.cards
        ],
        "variables": {
            fact.name: config.read(fact.name) if config.is_set(fact.name) else None for fact in report.variables
        },
        "verdicts": table(report.verdicts),
    }


def print_report(report: Report) -> None:
    """The report as tables on standard output."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def table(title: str, rows: list[Fact]) -> Table:
        made = Table(title=title, title_justify="left", show_header=False)
        made.add_column("", no_wrap=True)
        made.add_column("", overflow="fold")
        for row in rows:
            value = escape(row.value)
            made.add_row(escape(row.name), value if row.good else f"[yellow]{value}[/yellow]")
        return made

    cards = [
        Fact(
            f"card {card.index}",
            f"{card.name}, compute capability {format_isa(card.capability)}: {card.target or card.problem}",
            card.target is not None,
        )
        for card in report.cards
    ]
    console = Console()
    console.print(table("this machine", [*report.facts, *cards]))
    console.print(table("environment", list(report.variables)))
    verdicts = [Fact(("yes  " if row.good else "no   ") + row.name, row.value, row.good) for row in report.verdicts]
    console.print(table("what works", verdicts))
