"""``ptxtile cache``: what of compiled kernels is kept on disk."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ptxtile import config
from ptxtile.runtime import disk_cache
from ptxtile.runtime.disk_cache import DiskCache

commands = typer.Typer(
    help="What is kept of compiled kernels on disk.", no_args_is_help=True, rich_markup_mode=None,
    pretty_exceptions_enable=False,
)  # fmt: skip


def _opened() -> DiskCache:
    found = disk_cache.opened()
    if found is None:
        typer.echo("nothing is kept: PTXTILE_CACHE_MEGABYTES is 0", err=True)
        raise typer.Exit(1)
    return found


@commands.command()
def path() -> None:
    """Print the folder."""
    typer.echo(str(config.cache_directory()))


@commands.command(name="list")
def list_entries(
    full: Annotated[bool, typer.Option("--full", help="Print whole keys.")] = False,
) -> None:
    """Print a line for each kernel, the one used last first: key, program, target, kilobytes, last use."""
    from ptxtile.compiled_programs import described

    cache = _opened()
    entries = cache.entries()
    for entry in entries:
        name, target = described(cache, entry.key)
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
        key = entry.key if full else entry.key[:12]
        typer.echo(f"{key}  {name:30}  {target:8}  {entry.bytes / 1000:8.1f} kB  {used}")
    total = sum(entry.bytes for entry in entries) / 1e6
    typer.echo(f"{len(entries)} kernels, {total:.1f} MB of {config.cache_bytes() / 1e6:.0f} MB in {cache.folder}")


@commands.command()
def clear() -> None:
    """Remove every kernel."""
    typer.echo(f"removed {_opened().clear()} kernels")
