"""How native code reads torch's tensors: the DLPack exchange table, and the dispatch keys of a tensor.

The table (dlpack.h, DLPackExchangeAPI; ``torch.Tensor.__dlpack_c_exchange_api__``) fills a DLTensor without allocating
and gives the current stream. It says nothing of negative views, so the key of these is read from the tensor's
TensorImpl. Where that lies is found, and proved, by tensors of many kinds whose keys torch tells; where it cannot be
found, ``tensor.is_neg`` is called.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ptxtile.native.layout import WORD, View
from ptxtile.records import record

_NAME = b"dlpack_exchange_api"
_MAJOR = 1
_VIEW_AT, _STREAM_AT = 5, 6
"""Words from the start of the table: version and previous table, then the functions."""
_SEARCHED = 23
"""Words of a TensorImpl in which its keys are looked for: as many as it has in any torch with the table."""


@record
class Reading:
    """``view``, ``stream``: addresses of functions of the table. The others as in :class:`ptxtile.native.layout.Table`;
    0 where the keys were not found."""

    view: int
    stream: int
    tensor_at: int = 0
    keys_at: int = 0
    negative_key: int = 0


def reading() -> Reading | None:
    """None for a torch without the table."""
    import torch

    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if type(capsule).__name__ != "PyCapsule":
        return None
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = get(capsule, _NAME)
    if ctypes.c_uint32.from_address(table).value != _MAJOR:
        return None
    view, stream = (_word(table + WORD * position) for position in (_VIEW_AT, _STREAM_AT))
    if not view or not stream:
        return None
    try:
        return Reading(view, stream, *_keys())
    except (AttributeError, LookupError, RuntimeError, TypeError):  # another torch tells less of its tensors
        return Reading(view, stream)


def view_of(view: int, tensor: Any) -> tuple[int, ...]:
    """The words of a tensor's DLTensor. RuntimeError, or what torch says, for a tensor without one."""
    words = (ctypes.c_uint64 * View.COUNT)()
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(view)
    if function(tensor, ctypes.addressof(words)):
        raise RuntimeError("torch gives no view of this tensor")
    return tuple(words)


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _keys() -> tuple[int, int, int]:
    """Where a tensor object holds its TensorImpl, where that holds its keys, the key Negative."""
    import torch

    negative_view: Any = torch._neg_view  # pyright: ignore[reportPrivateImportUsage]
    zero_tensor: Any = torch._efficientzerotensor  # pyright: ignore[reportPrivateImportUsage]
    plain, whole = torch.zeros(3, 4, device="cpu"), torch.zeros(2, dtype=torch.int8, device="cpu")
    conjugate = torch.zeros(2, dtype=torch.complex64, device="cpu").conj()
    tensors = [
        plain, whole, torch.nn.Parameter(plain), negative_view(plain), conjugate, plain.t(), plain[:0],
        negative_view(whole), zero_tensor((2, 3)), plain.to("meta"),
    ]  # fmt: skip
    with torch.inference_mode():
        tensors.append(torch.zeros(2, 3, device="cpu"))
    keys = [torch._C._dispatch_keys(tensor).raw_repr() for tensor in tensors]
    implementations = [tensor._cdata for tensor in tensors]
    size = torch.Tensor.__basicsize__
    tensor_at = _only(
        [at for at in range(2 * WORD, size, WORD)
         if all(_word(id(tensor) + at) == where for tensor, where in zip(tensors, implementations, strict=True))]
    )  # fmt: skip
    keys_at = _only(
        [at for at in range(0, _SEARCHED * WORD, WORD)
         if all(_word(where + at) == key for where, key in zip(implementations, keys, strict=True))]
    )  # fmt: skip
    negative = keys[0] ^ keys[3]
    if negative.bit_count() != 1 or keys[1] ^ keys[7] != negative or any(key & negative for key in keys[:3]):
        raise LookupError("no single key tells negative views")
    return tensor_at, keys_at, negative


def _only(found: list[int]) -> int:
    if len(found) != 1:
        raise LookupError(f"{len(found)} places")
    return found[0]
