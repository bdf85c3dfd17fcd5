"""Arrays of other libraries as torch tensors on the same memory: NumPy's, DLPack objects (CuPy, JAX, …), and objects
with ``__cuda_array_interface__`` (numba's device arrays, …). Nothing is copied.

Order of work. DLPack: the producer is told torch's current stream and makes it wait for its own work (Python array API,
«__dlpack__»: on CUDA, 1 is the legacy default stream, 2 that of the thread). ``__cuda_array_interface__`` (version 3,
«Synchronization»): torch's current stream waits for an event on the stream that the object names; None, or none named:
nothing is to be waited for. Neither protocol orders the producer's later work behind ours: for that the two share a
stream, or the user waits.

Lifetime: a tensor keeps its array alive, and a call keeps its tensors until everything is enqueued, so an array that is
thrown away while its kernel runs must not hand its memory to work on another stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.launch_record import LaunchRecord, TensorArgument
from ptxtile.records import record
from ptxtile.runtime import context
from ptxtile.runtime.scalars import shortened

if TYPE_CHECKING:
    import torch

_CUDA, _CUDA_MANAGED = 2, 13
"""DLDeviceType (dlpack.h)."""
_VERSIONED = b"dltensor_versioned"
_FLAGS_AT = 24
"""Offset of the flags in a DLManagedTensorVersioned: behind the version, the manager's context and the deleter."""
_NOT_THE_CALLER_S = 0b11
"""DLPACK_FLAG_BITMASK_READ_ONLY and DLPACK_FLAG_BITMASK_IS_COPIED (dlpack.h): writes are not allowed, or are lost."""


@record
class Shared:
    """``tensor`` lies on the array's memory; ``read_only``: that memory must not be written."""

    tensor: torch.Tensor
    read_only: bool = False


@record
class Adopted:
    """The arguments of a call with torch tensors for the arrays of others. ``originals``: the array of a tensor, by the
    tensor's ``id``. ``read_only``: names of the arguments that must not be written."""

    args: tuple[Any, ...]
    originals: Mapping[int, Any]
    read_only: frozenset[str]

    def restored(self, results: Any) -> Any:
        """``results`` of the call, with the caller's own objects where it gives back arguments."""
        if isinstance(results, tuple):
            return tuple([self.originals.get(id(result), result) for result in results])
        return self.originals.get(id(results), results)

    def refuse_writes(self, function: str, written: frozenset[str]) -> None:
        """ArgumentError when the kernel writes a read-only array."""
        for name in sorted(written & self.read_only):
            raise ArgumentError(
                f"{function}: argument {name!r} is read-only, and the kernel writes it",
                expected="an array that may be written", hint="pass a copy",
            )  # fmt: skip


def adopt(record: LaunchRecord, args: Sequence[Any]) -> Adopted | None:
    """``args`` of a call of ``record`` with torch tensors for arrays of others; None where there are none.

    ArgumentError for an array that cannot be shared. What is no array is left for the checks of the call.
    """
    import torch

    taken, originals, read_only = list(args), {}, set()
    for position, (argument, value) in enumerate(zip(record.arguments, args, strict=False)):
        if isinstance(value, torch.Tensor) or not isinstance(argument, TensorArgument):
            continue
        shared = share(value, f"{record.name}: argument {argument.name!r} ({position + 1} of {len(record.arguments)})")
        if shared is not None:
            taken[position] = shared.tensor
            originals[id(shared.tensor)] = value
            if shared.read_only:
                read_only.add(argument.name)
    return Adopted(tuple(taken), originals, frozenset(read_only)) if originals else None


def share(value: Any, subject: str) -> Shared | None:
    """A torch tensor on the memory of ``value``; None when it is no array. ArgumentError, which starts with
    ``subject``, when it cannot be shared."""
    try:
        if _is_numpy(value):
            return _of_numpy(value)
        if hasattr(type(value), "__dlpack__") and hasattr(type(value), "__dlpack_device__"):
            return _of_dlpack(value)
        if hasattr(value, "__cuda_array_interface__"):
            return _of_cuda_array_interface(value)
    except (TypeError, ValueError, RuntimeError, BufferError, KeyError) as error:
        raise ArgumentError(
            f"{subject}: this {type(value).__name__} cannot be shared with torch",
            got=str(error).strip().split("\n")[0] or shortened(value),
        ) from error
    return None


# ---------------------------------------------------------------- NumPy and DLPack


def _is_numpy(value: Any) -> bool:
    import numpy

    return isinstance(value, numpy.ndarray)


def _of_numpy(value: Any) -> Shared:
    import torch

    return Shared(torch.from_numpy(value)) if value.flags.writeable else _of_dlpack(value)


def _of_dlpack(value: Any) -> Shared:
    import torch

    kind, index = value.__dlpack_device__()
    options = {}
    if int(kind) in (_CUDA, _CUDA_MANAGED):
        options["stream"] = context.current_stream(index) or context.LEGACY_STREAM
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer that knows nothing of versions
        capsule = value.__dlpack__(**options)
    read_only = bool(_flags(capsule) & _NOT_THE_CALLER_S)  # before torch takes the capsule's content
    return Shared(torch.from_dlpack(capsule), read_only)


def _flags(capsule: Any) -> int:
    """Those of a versioned capsule; none of another."""
    python = ctypes.pythonapi
    python.PyCapsule_IsValid.argtypes = python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    if not python.PyCapsule_IsValid(capsule, _VERSIONED):
        return 0
    return ctypes.c_uint64.from_address(python.PyCapsule_GetPointer(capsule, _VERSIONED) + _FLAGS_AT).value


# ---------------------------------------------------------------- CUDA Array Interface


class _Export:
    """The interface of ``owner`` as torch takes it: nothing about streams, which are seen to here, nor read-only, which
    torch refuses. torch keeps it, and so the owner, as long as the tensor."""

    def __init__(self, owner: Any, interface: Mapping[str, Any]) -> None:
        self.owner = owner
        kept = {name: interface[name] for name in ("shape", "typestr") if name in interface}
        strides = interface.get("strides")
        address = int(interface["data"][0])
        self.__cuda_array_interface__ = {**kept, "strides": strides, "data": (address, False), "version": 2}


def _of_cuda_array_interface(value: Any) -> Shared:
    interface = value.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise BufferError("the array has a mask, and torch tensors have none")
    address, read_only = interface["data"]
    stream = interface.get("stream") if interface.get("version", 0) >= 3 else None
    if stream == 0:
        raise BufferError("its stream is 0, which the protocol forbids: 1 is the legacy default stream, 2 the thread's")
    with_memory = 0 not in interface["shape"]
    if not with_memory:
        return Shared(_empty(interface), bool(read_only))
    if not address:
        raise BufferError(f"its address is null, and its shape {tuple(interface['shape'])}")
    device = context.device_of(int(address))
    tensor = tensor_over(_Export(value, interface), device)
    if tensor.data_ptr() != int(address):
        raise BufferError("torch would have to copy it")
    if stream is not None:
        context.wait_for(device, int(stream))
    return Shared(tensor, bool(read_only))


def tensor_over(export: Any, device: int) -> torch.Tensor:
    """torch's tensor on memory of card ``device`` that ``export`` describes by ``__cuda_array_interface__``."""
    import torch

    return torch.as_tensor(export, device=torch.device("cuda", device))


def _empty(interface: Mapping[str, Any]) -> torch.Tensor:
    """A tensor for an array without elements, whose address is of no use."""
    import numpy
    import torch

    dtype = torch.from_numpy(numpy.empty(0, interface["typestr"])).dtype
    return torch.empty(tuple(interface["shape"]), dtype=dtype, device="cuda")
