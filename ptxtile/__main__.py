"""``python -m ptxtile`` and the console script ``ptxtile``."""

from __future__ import annotations


def main() -> None:
    from ptxtile.inspect.command_line import app

    app(prog_name="ptxtile")


if __name__ == "__main__":
    main()
