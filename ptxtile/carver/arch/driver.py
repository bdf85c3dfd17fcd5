"""What scripts ask about the card, such as how many blocks a persistent kernel launches.

Without a card ``get_num_sms`` gives :data:`SIMULATED_MULTIPROCESSORS`, for kernels that the simulator runs with CPU
tensors; every other question is an error there.
"""

from __future__ import annotations

from typing import Any

from ptxtile.errors import PtxtileError

SIMULATED_MULTIPROCESSORS = 8
"""Few, since the simulator runs the blocks one after another; no property of any card."""

_UNITS = {"bytes": 1, "kb": 1024, "mb": 1024**2}


def get_cuda_device_properties(device_id: int = 0) -> Any:
    """torch's properties of the card, None where there is none."""
    import torch

    return torch.cuda.get_device_properties(device_id) if torch.cuda.is_available() else None


def _card(device_id: int) -> Any:
    found = get_cuda_device_properties(device_id)
    if found is None:
        raise PtxtileError("this is asked of a card, and there is none", expected="a CUDA device that torch finds")
    return found


def _in_unit(size: int, unit: str) -> int:
    if unit not in _UNITS:
        raise PtxtileError("the unit of a size", expected=", ".join(_UNITS), got=repr(unit))
    return size // _UNITS[unit]


def get_num_sms(device_id: int = 0) -> int:
    """Multiprocessors of the card."""
    found = get_cuda_device_properties(device_id)
    return SIMULATED_MULTIPROCESSORS if found is None else found.multi_processor_count


def get_device_name(device_id: int = 0) -> str | None:
    """The card's name, None where there is none."""
    return getattr(get_cuda_device_properties(device_id), "name", None)


def get_shared_memory_per_block(device_id: int = 0, format: str = "bytes") -> int:
    """Shared memory of a block without opting in to more, in bytes, kb or mb."""
    return _in_unit(int(_card(device_id).shared_memory_per_block), format)


def get_max_dynamic_shared_size_bytes(device_id: int = 0, format: str = "bytes") -> int:
    """The most shared memory that a block can opt in to, in bytes, kb or mb."""
    return _in_unit(int(_card(device_id).shared_memory_per_block_optin), format)


def get_registers_per_block(device_id: int = 0) -> int:
    """Registers of 32 bits of a multiprocessor, which one block may have."""
    return int(_card(device_id).regs_per_multiprocessor)
