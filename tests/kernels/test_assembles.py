"""The PTX of one case of each kind is assembled by the real ptxas, without a warning."""

from __future__ import annotations

from itertools import groupby

import pytest

from ptxtile.variant import Variant
from tests.kernels import suite
from tests.kernels.case import Case, generator_of
from tests.ptxas import IGNORED_SETMAXNREG, assemble


def kind(case: Case) -> str:
    return case.name.partition("-")[0]


def sample() -> list[Case]:
    """The first case of each kind that is on the card's list; of those that name a target, two for each."""
    firsts = [next(group) for _, group in groupby((case for case in suite.CASES if case.card), kind)]
    return firsts + [case for case in suite.TARGET_CASES if case.name.endswith(("-0-130x70", "-1-64x128"))]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in sample()])
def test_assembles(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    ptx: dict[str, str] = {}

    def compile_only(variant: Variant, binding, device_type):
        compiled = variant.compiled().ptx
        assert compiled is not None
        ptx[compiled] = variant.target.name
        return binding.results

    monkeypatch.setattr(Variant, "run", compile_only)
    call = case.make(generator_of(case, 0))
    call.kernel(*call.arguments)
    assert ptx
    for text, target in ptx.items():
        log = assemble(text, target)
        assert "warning" not in log.lower() and not any(message in log for message in IGNORED_SETMAXNREG), log
