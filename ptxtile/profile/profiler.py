"""``kernel.get_profiler()``: a kernel timed and tried with tensors of the profiler's making, as TileLang has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.profile import bench
from ptxtile.profile.comparison import copied, difference, results_of
from ptxtile.profile.supply import TensorSupplyType, make_arguments

if TYPE_CHECKING:
    import torch

    from ptxtile.kernel import JITKernel
    from ptxtile.profile.figures import Figures


class Profiler:
    """Of one kernel, whose sizes are known (or given as ``dynamic_symbolic_constraints``).

    A *reference* takes what the kernel takes; what it returns, or the arguments that it changes where it returns
    nothing, is compared with the kernel's. Neither sees the other's changes: each runs on copies.
    """

    def __init__(
        self,
        kernel: JITKernel,
        supply_type: TensorSupplyType | None = None,
        *,
        device: Any = None,
        seed: int = 0,
        scalars: Mapping[str, int | float] | None = None,
    ) -> None:
        """``scalars``: values of number arguments by name, 1 unless given; ``device``: the current card, or the CPU
        where there is none."""
        self.kernel = kernel
        self.supply_type = TensorSupplyType.Auto if supply_type is None else supply_type
        self.device = device
        self.seed = seed
        self.scalars = dict(scalars or {})

    def inputs(self, dynamic_symbolic_constraints: Mapping[str, int] | None = None) -> list[Any]:
        """Arguments of a call, the same at each call for the same seed."""
        sizes = {**self.kernel.constants, **(dynamic_symbolic_constraints or {})}
        return make_arguments(
            self.kernel.signature, sizes, self.supply_type, self.device, self.seed, self.scalars
        )  # fmt: skip

    def run_once(self, func: Callable[..., Any] | None = None) -> Any:
        """What one call gives, of the kernel or of ``func``."""
        return (func or self.kernel)(*self.inputs())

    def do_bench(
        self,
        func: Callable[..., Any] | None = None,
        warmup: float = 25,
        rep: float = 100,
        n_warmup: int = 0,
        n_repeat: int = 0,
        input_tensors: Sequence[Any] | None = None,
        backend: str = "event",
        quantiles: Sequence[float] | None = None,
        return_mode: str = "mean",
        dynamic_symbolic_constraints: Mapping[str, int] | None = None,
        device: Any = None,
        early_stop_baseline: float | None = None,
    ) -> Any:
        """Milliseconds of a call, of the kernel or of ``func`` with the same arguments: see
        :func:`ptxtile.profile.bench.do_bench`."""
        timed = func or self.kernel
        arguments = list(input_tensors) if input_tensors is not None else self.inputs(dynamic_symbolic_constraints)
        clock = None
        if device is None and _on_cpu(arguments):
            clock = bench.HostClock()
            bench.config.logger().warning("tensors are on the CPU: measured by wall time, of the simulator")
        return bench.do_bench(
            lambda: timed(*arguments), warmup, rep, n_warmup, n_repeat, quantiles, backend=backend,
            return_mode=return_mode, device=device, early_stop_baseline=early_stop_baseline, clock=clock,
        )  # fmt: skip

    def assert_allclose(
        self,
        reference_program: Callable[..., Any],
        input_tensors: Sequence[Any] | None = None,
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """AssertionError unless all but ``max_mismatched_ratio`` of the elements of each result are within
        ``atol + rtol · |reference|``."""
        arguments = list(input_tensors) if input_tensors is not None else self.inputs()
        got, wanted = results_of(self.kernel, arguments), results_of(reference_program, arguments)
        if not got:
            raise ArgumentError(
                f"{self.kernel.function.function.__name__} returned nothing and changed no argument",
                expected="a result to compare",
            )
        wrong = difference(got, wanted, rtol, atol, max_mismatched_ratio)
        if wrong is not None:
            raise AssertionError(f"{self.kernel.function.function.__name__}: {wrong}")

    def manual_assert_close(
        self,
        reference_program: Callable[..., Any],
        input_tensors: Sequence[Any] | None = None,
        manual_check_prog: Callable[..., Any] | None = None,
    ) -> None:
        """Hands the kernel's and the reference's results, two lists of tensors, to ``manual_check_prog``, which
        raises."""
        if manual_check_prog is None:
            raise ArgumentError("manual_assert_close needs manual_check_prog", expected="a function of two lists")
        arguments = list(input_tensors) if input_tensors is not None else self.inputs()
        manual_check_prog(results_of(self.kernel, arguments), results_of(reference_program, arguments))

    def assert_consistent(self, repeat: int = 10) -> None:
        """AssertionError unless ``repeat`` calls with equal arguments give the same bits."""
        arguments = self.inputs()
        first = results_of(self.kernel, arguments)
        for turn in range(1, repeat):
            wrong = difference(results_of(self.kernel, arguments), first, 0.0, 0.0, 0.0)
            if wrong is not None:
                raise AssertionError(f"{self.kernel.function.function.__name__}: call {turn} is not call 0: {wrong}")

    def figures(
        self,
        *,
        bytes: int | None = None,
        flops: int | None = None,
        input_tensors: Sequence[Any] | None = None,
        latency: float | None = None,
        **bench_arguments: Any,
    ) -> Figures:
        """Time, achieved bandwidth and rate, registers, spills and occupancy of a call.

        bytes: that the call has to move, counted from the tensors unless given (each argument read once, each result
        written once). flops: operations of a call; no rate without them. latency: milliseconds, measured unless given,
        with ``bench_arguments`` of :meth:`do_bench`.
        """
        from ptxtile.profile.figures import figures

        arguments = list(input_tensors) if input_tensors is not None else self.inputs()
        if latency is None:
            latency = float(self.do_bench(input_tensors=copied(arguments), return_mode="median", **bench_arguments))
        return figures(self.kernel, arguments, latency, bytes=bytes, flops=flops)


def _on_cpu(arguments: Sequence[Any]) -> bool:
    import torch

    tensors: list[torch.Tensor] = [value for value in arguments if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(tensor.device.type == "cpu" for tensor in tensors)
