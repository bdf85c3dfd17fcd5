"""What a kernel takes of a multiprocessor."""

from __future__ import annotations

from ptxtile.errors import CompileError
from ptxtile.launch_record import LaunchRecord
from ptxtile.records import record
from ptxtile.runtime.jit_log import JitLog


@record
class KernelResources:
    """Of one kernel. None where nobody has said: ptxas knows no constants and no largest CTA; the driver reports spills
    only when it assembles, not when it takes the code from a cache.

    registers: of a thread, as launched (setmaxnreg moves them between warpgroups later). local_bytes: local memory of a
    thread, for arrays and spilled registers. spill_stores, spill_loads: bytes of a thread that are written to and read
    from local memory because registers ran out. static_shared_bytes, dynamic_shared_bytes: of a CTA. threads: of a CTA
    as launched; max_threads: the most that it could have with these registers. ptx_isa: the version that the PTX asks
    for.
    """

    registers: int
    local_bytes: int
    spill_stores: int | None
    spill_loads: int | None
    static_shared_bytes: int
    dynamic_shared_bytes: int
    threads: int
    ptx_isa: tuple[int, int]
    constant_bytes: int | None = None
    max_threads: int | None = None

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA in bytes, static and dynamic."""
        return self.static_shared_bytes + self.dynamic_shared_bytes


def resources_of_log(log: JitLog, record: LaunchRecord, ptx_isa: tuple[int, int]) -> dict[str, KernelResources]:
    """By kernel, from what ``ptxas -v`` said. CompileError when it said nothing of a kernel of ``record``."""
    found = {}
    for launch in record.launches:
        figures = log.functions.get(launch.kernel)
        if figures is None or figures.registers is None:
            raise CompileError(f"ptxas gave no register count of {launch.kernel!r}", got=", ".join(log.functions))
        found[launch.kernel] = KernelResources(
            registers=figures.registers,
            local_bytes=figures.stack_bytes,
            spill_stores=figures.spill_stores,
            spill_loads=figures.spill_loads,
            static_shared_bytes=figures.shared_bytes,
            dynamic_shared_bytes=launch.shared_bytes,
            threads=launch.block[0] * launch.block[1] * launch.block[2],
            ptx_isa=ptx_isa,
        )
    return found
