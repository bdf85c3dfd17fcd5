"""The comparison itself: calls that do the wrong thing must fail."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.case import Call, Ulps, run


def off_by_one(a):
    result = a.clone()
    result[-1] = torch.nextafter(a[-1], torch.tensor(math.inf))
    return result


def writes_beside(a, b):
    b.copy_(a)
    a.untyped_storage()[0] = 7


def writes_behind(a, b):
    b.copy_(a)
    b.untyped_storage()[b.untyped_storage().nbytes() - 1] = 7


def numbers():
    return torch.arange(1, 9, dtype=torch.float32)


def test_a_wrong_last_bit() -> None:
    run(Call(off_by_one, (numbers(),), numbers(), tolerance=Ulps(1)))
    with pytest.raises(AssertionError, match="result 0: 1 of 8 elements are wrong"):
        run(Call(off_by_one, (numbers(),), numbers()))


@pytest.mark.parametrize("kernel", [writes_beside, writes_behind])
def test_a_stray_write(kernel) -> None:
    base = torch.zeros(20)
    with pytest.raises(AssertionError, match="outside of what changes"):
        run(Call(kernel, (numbers(), base[3:11]), changes={1: numbers()}))


def test_a_change_that_did_not_happen() -> None:
    with pytest.raises(AssertionError, match="argument 1: 8 of 8"):
        run(Call(lambda a, b: None, (numbers(), torch.zeros(8)), changes={1: numbers()}))


@pytest.mark.parametrize(
    "result", [torch.zeros(8), numbers().double(), numbers()[None], (numbers(), numbers()), None, numbers().tolist()]
)
def test_a_result_of_another_kind(result) -> None:
    with pytest.raises(AssertionError):
        run(Call(lambda a: result, (numbers(),), numbers()))


def test_special_values() -> None:
    nan = torch.tensor([math.nan, 0.0, 1.0])
    run(Call(lambda a: -nan, (numbers(),), torch.tensor([math.nan, -0.0, -1.0])))
    for wrong in ([0.0, 0.0, 1.0], [math.nan, -0.0, 1.0], [math.nan, math.nan, 1.0]):
        with pytest.raises(AssertionError, match="1 of 3"):
            run(Call(lambda a, wrong=wrong: torch.tensor(wrong), (numbers(),), nan))
    with pytest.raises(AssertionError, match="1 of 3"):
        run(Call(lambda a: torch.tensor([1.0, 0.0, 1.0]), (numbers(),), nan.double(), tolerance=Ulps(1e9)))


def test_aliasing_is_kept() -> None:
    base = torch.zeros(10)

    def through_the_other(a, b):
        a[1] = 5
        assert b[0] == 5 and a.data_ptr() + 4 == b.data_ptr()

    after = torch.zeros(9)
    after[1] = 5
    run(Call(through_the_other, (base[:-1], base[1:]), changes={0: after}))
