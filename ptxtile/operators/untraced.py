"""Calls of kernels that torch.compile meets without an operator: it must not trace the compiler itself.

With ``fullgraph=True`` such a call is torch's error, which gives the reason below; else the graph ends before the call,
which then runs as it does outside of compiled code.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

REASON = "torch.compile cannot trace a kernel of ptxtile: ptxtile.torch_op makes an operator of it, to call instead"


def untraced(function: _Function) -> _Function:
    """``function`` under :func:`torch.compiler.disable`, once torch.compile is in use; torch is not imported for it."""
    disabled: Any = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if disabled is None:
            import torch

            disabled = torch.compiler.disable(function, reason=REASON)
        return disabled(*args, **kwargs)

    # The marks of torch.compiler.disable, for the wrapper that torch.compile finds.
    marked: Any = call
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    return marked
