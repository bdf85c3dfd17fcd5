"""The command ``ptxtile``: ``cache``, ``inspect``, ``check``, ``export``, ``doctor``, ``--version``.

Exit codes: 0; 1 for an error of the tree (its report alone on standard error), for a user's file that raises (its own
traceback), for a tool that is not there and when ``check`` finds something; 2 for a wrong command line.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from ptxtile.errors import PtxtileError
from ptxtile.inspect.cache import commands as cache_commands
from ptxtile.inspect.subject import UsageError, find, parse_definitions
from ptxtile.inspect.views import View, show, show_passes

app = typer.Typer(
    name="ptxtile",
    help="Look into kernels and into this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ptxtile.inspect.doctor import ptxtile_version

        typer.echo(f"ptxtile {ptxtile_version()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """What this machine has, and what will and won't work on it."""
    from ptxtile.inspect.doctor import as_dictionary, examine, print_report

    report = examine()
    if json:
        import json as encoder

        typer.echo(encoder.dumps(as_dictionary(report), indent=2))
    else:
        print_report(report)


app.add_typer(cache_commands, name="cache")


@app.command()
def inspect(
    kernel: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="A jitted function, factory, prim_func or kernel.")
    ],
    define: Annotated[
        list[str] | None, typer.Option("-D", metavar="NAME=VALUE", help="A size, or an argument of the factory.")
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Architecture, such as sm_90a.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("-O", metavar="NAME=VALUE", help="A compile option, such as fast_math=True.")
    ] = None,
    tile_ir: Annotated[bool, typer.Option("--tile-ir", help="The program as traced.")] = False,
    passes: Annotated[bool, typer.Option("--passes", help="The program after each pass.")] = False,
    gpu_ir: Annotated[bool, typer.Option("--gpu-ir", help="The program after all passes.")] = False,
    host: Annotated[bool, typer.Option("--host", help="Checks, allocations, tensor maps, launches.")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="The LLVM IR.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="The PTX (shown when nothing else is asked for).")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="The machine code; needs nvdisasm or cuobjdump.")] = False,
    resources: Annotated[bool, typer.Option("--resources", help="Registers, spills; needs ptxas or a card.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Decisions of the passes, with reasons.")] = False,
    timing: Annotated[bool, typer.Option("--timing", help="How long each step took.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", help="Write here. With --passes a folder gets a file for each pass.")
    ] = None,
) -> None:
    """Show a stage of a kernel's way to machine code. Needs no card."""
    flags = (tile_ir, passes, gpu_ir, host, llvm, ptx, sass, resources, why, timing)
    chosen = [view for view, flag in zip(View, flags, strict=True) if flag]
    if len(chosen) > 1:
        raise typer.BadParameter("one view at a time: " + ", ".join(view.value for view in chosen))
    view = chosen[0] if chosen else View.PTX
    with _errors_shown(kernel):
        subject = find(kernel, parse_definitions(define or ()), arch, parse_definitions(option or ()))
        if view is View.PASSES:
            show_passes(subject, _stage_writer(output))
        else:
            _write(output, show(view, subject))


@app.command()
def check(
    kernel: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="A jitted function, factory, prim_func or kernel.")
    ],
    define: Annotated[
        list[str] | None,
        typer.Option("-D", metavar="NAME=VALUE", help="A size, an argument of the factory, a number of the call."),
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Architecture, such as sm_90a.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("-O", metavar="NAME=VALUE", help="A compile option, such as fast_math=True.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many schedules to try.")] = 2,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also threads that hang if they come to a wait a whole phase too late.")
    ] = False,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs", metavar="[FILE.py:]NAME", help="A function that returns the arguments; else random ones."
        ),
    ] = None,
    input_seed: Annotated[int, typer.Option("--input-seed", help="Seed of the random arguments.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a kernel under the checker: races, missing waits and fences, deadlocks. Needs no card; exits with 1 when
    something is found."""
    from ptxtile.inspect.check import as_dictionary, find_call, print_outcome, run

    with _errors_shown(kernel):
        definitions, options = parse_definitions(define or ()), parse_definitions(option or ())
        outcome = run(find_call(kernel, definitions, arch, options, inputs, input_seed), seeds, strict)
    if json:
        import json as encoder

        typer.echo(encoder.dumps(as_dictionary(outcome), indent=2))
    else:
        print_outcome(outcome)
    if not outcome.report.clean:
        raise typer.Exit(1)


@app.command()
def export(
    kernel: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="A jitted function, factory, prim_func or kernel.")
    ],
    output: Annotated[Path, typer.Option("-o", help="The folder to write to.")],
    define: Annotated[
        list[str] | None, typer.Option("-D", metavar="NAME=VALUE", help="A size, or an argument of the factory.")
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Architecture, such as sm_90a.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("-O", metavar="NAME=VALUE", help="A compile option, such as fast_math=True.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What files and C functions are called.")] = None,
) -> None:
    """Write PTX, LLVM IR, machine code, a description of the launch (JSON) and a C header that launches the kernel from
    a program without Python. Needs no card; the variant is that of contiguous, aligned tensors."""
    from ptxtile.compiler import lower
    from ptxtile.export.export import export as write

    with _errors_shown(kernel):
        subject = find(kernel, parse_definitions(define or ()), arch, parse_definitions(option or ()))
        made = write(lower(subject.program, subject.target, subject.options), output, name)
    for path in made.files:
        typer.echo(str(path))
    typer.echo(f"cubin: {made.cubin_reason}", err=True)


@contextmanager
def _errors_shown(kernel: str) -> Iterator[None]:
    """Errors end the program as its exit codes say; ``kernel``: FILE.py:NAME."""
    try:
        yield
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None
    except PtxtileError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except Exception as error:
        frames = _frames_of_file(error, kernel.rpartition(":")[0])
        if frames is None and not isinstance(error, SyntaxError):
            raise  # not the user's: the whole traceback
        traceback.print_exception(type(error), error, frames)
        raise typer.Exit(1) from None


def _write(output: Path | None, text: str) -> None:
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text)


def _stage_writer(output: Path | None) -> Callable[[str, str, str], None]:
    """What takes one stage after the other: standard output, a file, or a folder (no suffix) with a file for each."""
    number = -1
    if output is not None and output.suffix:
        output.write_text("")
    elif output is not None:
        output.mkdir(parents=True, exist_ok=True)

    def emit(name: str, stage: str, text: str) -> None:
        nonlocal number
        number += 1
        heading = f"{name} ({stage})" if stage else name
        shown = f"# ===== {number:02d} {heading} =====\n{text.rstrip()}\n\n"
        if output is None:
            typer.echo(shown, nl=False)
        elif output.suffix:
            with output.open("a") as file:
                file.write(shown)
        else:
            (output / f"{number:02d}_{name.replace(' ', '_')}.ir.py").write_text(text)

    return emit


def _frames_of_file(error: BaseException, path: str) -> TracebackType | None:
    """The part of the traceback that starts in the user's file; None when no frame is of it."""
    file = str(Path(path).resolve())
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != file:
        frames = frames.tb_next
    return frames
