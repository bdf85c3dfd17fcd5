"""The frame between a user's call and ours: errors show the user's lines only, and torch.compile stays outside.

torch.compile must not trace the compiler itself: with ``fullgraph=True`` such a call is torch's error, which gives the
reason below; else the graph ends before the call, which then runs as it does outside of compiled code.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ptxtile.frontend.locations import without_our_frames

_Function = TypeVar("_Function", bound=Callable[..., Any])

REASON = "torch.compile cannot trace a kernel of ptxtile: ptxtile.torch_op makes an operator of it, to call instead"


def user_call(function: _Function) -> _Function:
    """``function`` as users call it. It is under :func:`torch.compiler.disable` once torch.compile is in use; torch is
    not imported for that."""
    disabled: Any = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        try:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            if disabled is None:
                import torch

                disabled = torch.compiler.disable(function, reason=REASON)
            return disabled(*args, **kwargs)
        except Exception as error:
            raise without_our_frames(error) from error.__cause__

    # The marks of torch.compiler.disable, for the wrapper that torch.compile finds.
    marked: Any = call
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    return marked
