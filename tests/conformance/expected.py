"""What each program of programs/*.ir leaves in its tensors, computed by plain Python and NumPy.

A function of a program's name takes its tensors and scalars by name (copies: they may be changed) and gives the tensors
that the program changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
EXPECTED: dict[str, Callable[..., Tensors]] = {}


def expects(function: Callable[..., Tensors]) -> Callable[..., Tensors]:
    EXPECTED[function.__name__] = function
    return function


def wrap(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor([wrap(v) for v in values], dtype=torch.int32)


# --- memory ---------------------------------------------------------------------------------------------------------


@expects
def vector_widths(A8, B8, A16, B16, A32, B32, A64, B64) -> Tensors:
    changed = {"B8": (A8, B8, 992), "B16": (A16, B16, 480), "B32": (A32, B32, 224), "B64": (A64, B64, 96)}
    for a, b, count in changed.values():
        b[:count] = a[:count]
    return {name: b for name, (_, b, _) in changed.items()}


@expects
def vector_dtypes(**tensors: torch.Tensor) -> Tensors:
    return {"B" + name[1:]: value for name, value in tensors.items() if name.startswith("A_")}


@expects
def vector_shared(A, B, C, H, K) -> Tensors:
    K[:256] = H.reshape(-1, 4).flip(0).reshape(-1)[:256]
    K[256:320] = H[:256].flip(0)[:64]
    K[320:448] = H[:128]
    return {"B": A.reshape(-1, 4).flip(0).reshape(-1), "C": A[:128].reshape(-1, 2).flip(0).reshape(-1), "K": K}


@expects
def registers(A, B, C, F) -> Tensors:
    first = A.reshape(32, 4)
    doubled = first.flip(1) * 2
    bits = torch.cat([first, doubled], dim=1).view(torch.int32) ^ torch.arange(8, dtype=torch.int32)
    return {"B": doubled.reshape(-1), "C": bits.reshape(-1), "F": A > 0}


@expects
def register_slots(A, B) -> Tensors:
    rows = A.reshape(6, 32).tolist()
    return {"B": int32([rows[i * 3 + 2 - k][t] + i * 100 for i in range(2) for k in range(3) for t in range(32)])}


@expects
def local_array(A, B, C) -> Tensors:
    tables = [[wrap(a * i) for i in range(8)] for a in A.tolist()]
    octets = [np.array(table, dtype=np.int32).view(np.uint8) for table in tables]
    return {
        "B": int32([table[a & 7] - table[t % 8] for t, (a, table) in enumerate(zip(A.tolist(), tables, strict=True))]),
        "C": torch.tensor([int(octets[t][t * 5 % 32]) for t in range(64)], dtype=torch.uint8),
    }


@expects
def local_scalar(A, B, N, F) -> Tensors:
    values, largest, counts = A.tolist(), [], []
    for start in values:
        best, count = start, 0
        for i, value in enumerate(values):
            if value > best:
                best, count = value, count + i * 10**10
        largest.append(best)
        counts.append(count)
    seen = torch.tensor([best != start for best, start in zip(largest, values, strict=True)])
    return {"B": torch.tensor(largest, dtype=torch.float16), "N": torch.tensor(counts), "F": seen}


@expects
def indices(A, B, C, D) -> Tensors:
    for i in range(64):
        B[i + 63] = A[i + 4]
        B[i + 128] = A[2 * i + 3]
        B[62 - i if i < 63 else 255] = A[2 * i]
        C[2 * i + 1] = D[255 - i]
    return {"B": B, "C": C}


# --- control flow ---------------------------------------------------------------------------------------------------


@expects
def for_serial(A, B, W) -> Tensors:
    values, rows, wide = A.tolist(), [[] for _ in range(6)], []
    for t, own in enumerate(values):
        total = 0
        for value in values:
            total = wrap(total * 3 + value)
        rows[0].append(total)
        for j in range(t, -3, -2):
            total = wrap(total + j * own)
        rows[1].append(total)
        for k in range(t % 7, t % 5):
            total ^= k + 77
        rows[2].append(total)
        rows[3].append(total)
        rows[4].append(33)
        rows[5].append(17)
        wide.append(wrap(sum(range(-5 * 10**9, 5 * 10**9, 3 * 10**9)) * t, 64))
    return {"B": int32([x for row in rows for x in row]), "W": torch.tensor(wide)}


@expects
def for_unrolled(A, B, C) -> Tensors:
    for k, t in itertools.product(range(8), range(32)):
        B[k * 32 + t] = sum(float(A[(s * 8 + k) * 8 % 256 + t % 8]) for s in range(4))
    return {"B": B, "C": int32([sum(m * (k - 3) for k in range(8) for m in range(k))] * 32)}


@expects
def while_loop(B) -> Tensors:
    counts = []
    for number in range(1, 129):
        steps = 0
        while number != 1:
            number = number // 2 if number % 2 == 0 else number * 3 + 1
            steps += 1
        counts.append(steps)
    return {"B": int32(counts)}


@expects
def break_continue(A, B) -> Tensors:
    values, rows = A.tolist(), [[], [], [], []]
    for t in range(64):
        total = 0
        for i in range(64):
            if wrap(values[i] + t) % 3 == 0:
                continue
            if i > t:
                break
            total += i
        rows[0].append(total)
        total = count = 0
        while True:
            count += 1
            if count > t + 2:
                break
            if count % 4 == 1:
                continue
            total = wrap(total * 2 + count)
        rows[1].append(count)
        rows[2].append(total)
        total = 0
        for j in range(10):
            for k in range(10):
                if k == t % 10:
                    if j % 2 == 0:
                        break
                    continue
                total += 10 * j + k
            if j == t % 8:
                break
        rows[3].append(total)
    return {"B": int32([x for row in rows for x in row])}


@expects
def if_divergent(A, B) -> Tensors:
    values = A.tolist()
    for t, value in enumerate(values):
        if value % 3 == 0:
            B[t] = t * 2
        elif value % 3 == 1:
            if t < 32:
                B[t] = -t
            elif value > 0:
                B[t] = value ^ t
        else:
            B[t] = values[63 - t]
    B[17] = 1717
    return {"B": B}


@expects
def let_once(A, B) -> Tensors:
    rows = zip(A.tolist(), B.tolist(), strict=True)
    # pair[1] is (A + 1) * 3, and B[tx] - old is 1 after the store
    return {"B": int32([(wrap(a + 1)) * 1000 + (a + 1) * 3 + (b + 1) - b for a, b in rows])}


@expects
def lazy_select(A, B, V, U) -> Tensors:
    a = A.tolist()
    first = [a[t] if t % 3 == 0 else -1.0 for t in range(64)]
    second = [-2.0 if t >= 32 else 2 * a[t] for t in range(64)]
    third = [a[t] if t < 20 else 5.0 for t in range(64)]
    pairs = V.reshape(64, 2).clone()
    pairs[1::2] = 7
    return {"B": torch.tensor(first + second + third), "U": pairs.reshape(-1)}


@expects
def lazy_logical(A, B, C) -> Tensors:
    a = A.tolist()
    first = [t < 20 and a[t] > 0 for t in range(64)]
    second = [t >= 20 or a[t] > 0 for t in range(64)]
    third = [t < 30 and t % 2 == 0 and (t >= 20 or a[t] % 2 == 0) for t in range(64)]
    return {
        "B": torch.tensor(first + second + third),
        "C": int32([1 if t < 20 and a[t] < 0 else 2 for t in range(64)]),
    }


@expects
def functions(A, B, X, Y) -> Tensors:
    def digits(value: int) -> int:
        table = [(value >> d * 8) & 255 for d in range(4)]
        return table[value & 3] * 10 + table[0]

    def rare(number: int, times: int) -> int:
        total = 1
        for t in range(times):
            total = wrap(total * number + t)
            if total > 1000000:
                total %= 1000003
        return digits(total)

    for t, a in enumerate(A.tolist()):
        B[t] = digits(a)
        if t % 2 == 0:
            B[64 + t] = rare(a, t % 5)
        B[128 + t] = rare(t, 3) if a > 0 else digits(77)
        B[192 + t] = digits(digits(t * 300))
        Y[t] = (X[t] if a > 0 else -X[t]) * (t - 30)
    return {"B": B, "Y": Y}


@expects
def scalars(i8, i16, i32, i64, u8, u16, u32, u64, h, b, f, d, yes, N, F, B) -> Tensors:
    return {
        "N": torch.tensor([i8, i16, i32, i64, u8, u16, u32, u64 % 1000000007]),
        "F": torch.tensor([h, b, f, d], dtype=torch.float64),
        "B": torch.tensor([bool(yes)]),
    }


@expects
def symbols(A, B, K) -> Tensors:
    return {"B": A.flip(0) * K}


@expects
def kernels(A, W) -> Tensors:
    for i in range(480):
        x, y, z = i // 16 % 5, i // 80 % 3, i // 240
        W[i] = wrap(wrap(int(A[i]) + x * 100 + y * 10 + z) * 2)
    return {"W": W, "C": W.flip(0)}


@expects
def bitcast_lanes(A, H, B, C, D, E) -> Tensors:
    words = H.view(torch.int32)
    return {
        "B": A.view(torch.uint8),
        "C": H.view(torch.int16),
        "D": H.view(torch.int64).repeat(2),
        "E": A + words,
    }


@expects
def print(A) -> Tensors:
    return {"A": A}


PRINTED = {
    "print": lambda A: [
        "numbers 100% 3 -1234567890123 18446744073709551615 4294967295",
        "more 0.1 1e+300 -2.5 1 3",
        "no values",
        f"{A[6]} {A[7]}",
        f"thread 62 {A[62]}",
        f"thread 63 {A[63]}",
    ]
}
"""Lines of programs that print, in any order between threads."""


# --- synchronization ------------------------------------------------------------------------------------------------


@expects
def bar_sync(A, B) -> Tensors:
    values = A.tolist()
    for i in range(5):
        values = [wrap(values[(t + 37) % 96] * 3 + i) for t in range(96)]
    return {"B": int32(values[::-1])}


@expects
def roles(A, B) -> Tensors:
    for base in (0, 128):
        s = A[base : base + 128].tolist()
        s[:64] = [wrap(s[63 - t] * 2) for t in range(64)]
        s[96:] = [wrap(s[96 + (t + 5) % 32] + 7) for t in range(96, 128)]
        for t in range(64):
            B[base + t] = s[(t + 1) % 64]
        for t in range(96, 128):
            B[base + t] = s[96 + (t + 9) % 32]
        for t in range(64, 96):
            B[base + t] = wrap(s[t - 64] + s[t + 32])
    return {"B": B}


@expects
def roles_everywhere(A, B) -> Tensors:
    a = A.tolist()
    products = [wrap(a[t] * 3 * (-1 if t % 2 == 0 else 1)) for t in range(32, 96)]
    return {"B": int32([sum(a[:t]) for t in range(32)] + products + [-(-t // 10) * 10 for t in range(96, 128)])}


@expects
def mbarrier_arrive(A, B) -> Tensors:
    return {"B": A.reshape(8, 32).flip(1).reshape(-1)}


@expects
def mbarrier_wait(B) -> Tensors:
    return {"B": int32([(63 - t) * 3 + (555 if t % 2 else 0) for t in range(64)])}


@expects
def mbarrier_init(A, B) -> Tensors:
    a = A.tolist()
    total = wrap(a[7] + 2 * a[9] + 3 * a[41] + 5 * a[73])
    return {"B": int32([total + t for t in range(96)])}


@expects
def mbarrier_arrive_expect_tx(A, B) -> Tensors:
    return {"B": torch.cat([A[16:], A[:16]]).reshape(-1)}


@expects
def fence_mbarrier_init(A, B) -> Tensors:
    return {"B": A.reshape(2, 128).flip(1).reshape(-1)}


@expects
def prefetch_tensor_map(A, B) -> Tensors:
    return {"B": A}


@expects
def bulk_commit_group(A, B) -> Tensors:
    B[:128], B[128:256], B[384:] = A, A * 2, A * 2
    return {"B": B}


@expects
def bulk_wait_group(A, B, C) -> Tensors:
    total = A + torch.arange(128, dtype=torch.int32)
    return {"B": total, "C": total.flip(0)}


@expects
def fence_proxy_async(A, W, B) -> Tensors:
    written = A.flip(0) * 5
    return {"W": written, "B": (written + 1).flip(0)}


@expects
def set_max_registers(A, B) -> Tensors:
    return {"B": (A + 1).reshape(-1)}


# --- atomic operations ----------------------------------------------------------------------------------------------


@expects
def atomic(A, H, F, B, S32, S16, V, P) -> Tensors:
    shared = [int(value) for value in S32]
    halves, single = S16.double(), V.double()
    for t in range(128):
        a, h = int(A[t]), H[t].double()
        shared[t % 3] = wrap(shared[t % 3] + a)
        shared[3 + t % 3] = max(shared[3 + t % 3], a)
        shared[6] = min(shared[6], a)
        shared[7 + t % 2] ^= a
        shared[9 + t % 7] &= a | t
        halves[8 + t % 8] = max(halves[8 + t % 8], h)
        halves[t % 8] += h if t < 16 else 0  # few enough for their sum to be exact
        if t < 4:
            halves[16 + t % 2 * 8 : 24 + t % 2 * 8] += H[t * 8 : t * 8 + 8].double()
        single[t % 4 * 4 : t % 4 * 4 + 4] += F[t // 4 * 4 : t // 4 * 4 + 4].double()
        single[16 + t % 8 * 2 : 18 + t % 8 * 2] += F[t // 2 * 2 : t // 2 * 2 + 2].double()
        B[t % 8] |= a & 0xFF
    after = int32([int(p) + int(a) for p, a in zip(P, A, strict=True)])
    return {"S32": int32(shared), "S16": halves.half(), "V": single.float(), "B": B, "A": P.clone(), "P": after}


@expects
def atomic_load(A, C, E, F, **_) -> Tensors:
    F[::3] = E[::3]
    return {"B": A.flip(0), "D": C[torch.arange(64) ^ 5], "F": F}


@expects
def atomic_store(A, C, E, F, **_) -> Tensors:
    F[1::3] = E[1::3]
    return {"B": A.flip(0), "D": C[torch.arange(64) ^ 9], "F": F}


# --- what only users write ------------------------------------------------------------------------------------------


@expects
def bar_arrive(A, B) -> Tensors:
    return {"B": int32([3 * int(a) for a in A.flip(0)])}


@expects
def bar_at(A, B, C) -> Tensors:
    backwards = A.reshape(3, 32).flip(1).flatten()
    return {"B": int32([3 * int(a) for a in backwards]), "C": int32([5 * int(a) for a in A[:64].flip(0)])}


def _lanes_like(values: list[int]) -> list[int]:
    """For each thread the lanes of its warp that have its value, as bits."""
    return [sum(1 << lane for lane in range(32) if values[t // 32 * 32 + lane] == values[t])
            for t in range(len(values))]  # fmt: skip


def _uint32(rows: list[list[int]]) -> torch.Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.uint32))


@expects
def match(A, L, F, B) -> Tensors:
    a, wide, bits = A.tolist(), L.tolist(), F.view(torch.int32).tolist()
    t = range(64)
    agree = [[0xFFFFFFFF] * 64, [0xFFFFFFFF if wide[0] == wide[1] or x < 32 else 0 for x in t], [0xFFFFFFFF] * 64]
    found = [[a[x] & 3 for x in t], [wide[x & 7] ^ wide[x & 2] for x in t], [bits[x & 5] for x in t]]
    return {"B": _uint32([*map(_lanes_like, found), *agree])}


@expects
def active_mask(A, B, C) -> Tensors:
    C[A % 3 == 0] = True
    return {"B": _uint32([[0xFFFFFFFF] * 64])[0], "C": C}


@expects
def warp_masks(A, B, C) -> Tensors:
    a, table = A.tolist(), C.numpy()
    for t in range(64):
        if t % 32 < 16:
            B[0, t] = a[t ^ 3]
            B[1, t] = wrap(a[t ^ 5] * 2)
        B[2, t] = a[t // 8 * 8 + 1]
        members = [lane for lane in range(32) if a[t // 32 * 32 + lane] % 3 == 0]
        if t % 32 in members:
            values = {lane: a[t // 32 * 32 + lane] for lane in members}
            table[0, t] = sum(1 << lane for lane, value in values.items() if value > 0)
            table[1, t] = all(value > 0 for value in values.values())
            table[2, t] = sum(1 << lane for lane, value in values.items() if value & 1 == a[t] & 1)
            agree = len({value & 1 for value in values.values()}) == 1
            table[3, t] = sum(1 << lane for lane in members) if agree else 0
    return {"B": B, "C": C}


@expects
def bar_reduce(A, B) -> Tensors:
    a, table = A.tolist(), B.numpy()
    for t in range(96):
        table[0, t] = sum(value > 0 for value in a) + (a[95 - t] & 1)
        table[1, t] = all(value != 0 for value in a) + 2
        if t < 64:
            table[2, t] = sum(value > 0 for value in a[:64])
            table[3, t] = 2 * any(value == 0 for value in a[:64])
    return {"B": B}


@expects
def grid_sync(A, B) -> Tensors:
    a = [[int(x) for x in row] for row in A]
    b = [[0] * 48 for _ in range(6)]
    for step in range(5):
        for me in range(6):
            for t in range(48):
                b[(me + 1) % 6][47 - t] = wrap(a[me][t] * 3 + step)
        a = [[wrap(value - me) for value in b[me]] for me in range(6)]
    return {"A": torch.tensor(a, dtype=torch.int32), "B": torch.tensor(b, dtype=torch.int32)}


@expects
def grid_dependency_wait(A, B, C) -> Tensors:
    B = A * 3 + torch.arange(4, dtype=torch.int32)[:, None]
    return {"B": B, "C": (B - A).flip(0, 1)}


@expects
def launch_dependents(A, B) -> Tensors:
    B = A + 1
    return {"A": B.flip(0) * 2, "B": B}


@expects
def mbarrier_expect_tx(A, B) -> Tensors:
    return {"B": torch.cat([A[16:], A[:16]])}


@expects
def device_assert(A, B) -> Tensors:
    return {"B": int32([int(a) + 1 for a in A])}


@expects
def inline_ptx(A, L, F, D, H) -> Tensors:
    added = [wrap(int(a) + t) for t, a in enumerate(A)]
    A = int32([~a if t % 3 == 1 else a for t, a in enumerate(added)])
    H[1::3] = -H[1::3]
    return {"A": A, "L": torch.tensor([wrap(int(x) * 10, 64) for x in L]), "F": F.clamp(max=2.5), "D": -D, "H": H}


# --- tensor memory accelerator --------------------------------------------------------------------------------------


@expects
def tma_load(A, B) -> Tensors:
    return {"B": A.reshape(-1)}


@expects
def tma_store(A, B) -> Tensors:
    flat = B.reshape(-1)
    for row in range(32):
        start = 48 + row * 32
        flat[start : start + 16] = A[row * 16 : row * 16 + 16]
    return {"B": B}


REDUCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "min": min, "max": max,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip
"""In the order in which the programs use them."""


@expects
def tma_reduce(A, **tensors) -> Tensors:
    """Box n of a tensor is combined with the 32 numbers of its rank in each CTA's row of A, by the n-th operator."""
    for rank in range(1, 6):
        flat = tensors[f"B{rank}"].reshape(-1)
        for number, combine in enumerate(REDUCTIONS.values()):
            for element in range(min(32, len(flat) - 32 * number)):
                place = 32 * number + element
                value = int(flat[place])
                for cta in range(2):
                    value = combine(value, int(A[cta * 160 + (rank - 1) * 32 + element]))
                flat[place] = value & 0xFFFFFFFF
    return tensors


@expects
def tma_reduce_dtypes(**tensors) -> Tensors:
    """Rows 2n and 2n + 1 of B are combined with A by the n-th operator; float16 and bfloat16 sums are rounded once."""
    changed: Tensors = {}
    for name in (name.removeprefix("A_") for name in tensors if name.startswith("A_")):
        a, b = tensors[f"A_{name}"], tensors[f"B_{name}"]
        names = ["add"] if name in ("float32", "float64") else list(REDUCTIONS)[: len(b) // 2]
        for number, operator in enumerate(names):
            rows = b[2 * number : 2 * number + 2]
            if a.dtype.is_floating_point:
                function = {"add": torch.add, "min": torch.minimum, "max": torch.maximum}[operator]
                rows.copy_(function(rows.double(), a.double()).to(a.dtype))
            else:
                bits, words, given = 8 * a.element_size(), rows.numpy(), a.numpy()
                for place in itertools.product(range(2), range(32)):
                    value = REDUCTIONS[operator](int(words[place]), int(given[place]))
                    words[place] = value & ((1 << bits) - 1) if name.startswith("u") else wrap(value, bits)
        changed[f"B_{name}"] = b
    return changed


@expects
def tma_ring(A, B) -> Tensors:
    return {"B": A.reshape(-1)}


def swizzled(box_bytes: np.ndarray, swizzle: int) -> np.ndarray:
    """PTX ISA, «Swizzling modes»: the 16-byte chunk c of 128-byte line r lies at c XOR the low bits of r (as many bits
    as the swizzle has chunks)."""
    result = np.zeros_like(box_bytes)
    mask = swizzle // 16 - 1
    for chunk in range(len(box_bytes) // 16):
        line, column = divmod(chunk, 8)
        target = line * 8 + (column ^ (line & mask))
        result[target * 16 : target * 16 + 16] = box_bytes[chunk * 16 : chunk * 16 + 16]
    return result


def moved_box(box: tuple[int, ...], load: tuple[int, ...], store: tuple[int, ...], swizzle: int = 0):
    """A box (innermost first) loaded at ``load``, dumped to C as it lies in shared memory, and stored at ``store``."""

    def expect(A, B, C) -> Tensors:
        sizes = tuple(A.shape)[::-1]
        dense = torch.zeros(tuple(reversed(box)), dtype=A.dtype)
        for place in itertools.product(*map(range, box)):
            source = tuple(c + p for c, p in zip(load, place, strict=True))
            target = tuple(c + p for c, p in zip(store, place, strict=True))
            inside = lambda where: all(0 <= w < n for w, n in zip(where, sizes, strict=True))  # noqa: E731
            if inside(source):
                dense[place[::-1]] = A[source[::-1]]
            if inside(target):
                B[target[::-1]] = dense[place[::-1]]
        raw = dense.reshape(-1).view(torch.uint8).numpy()
        dump = torch.from_numpy(swizzled(raw, swizzle) if swizzle else raw.copy()).view(A.dtype)
        assert dump.numel() == prod(box)
        return {"B": B, "C": dump}

    return expect


EXPECTED |= {
    "tma_1d": moved_box((64,), (100,), (32,)),
    "tma_2d": moved_box((32, 16), (24, 9), (8, 20)),
    "tma_3d": moved_box((32, 4, 2), (16, 5, 3), (0, 1, 4)),
    "tma_4d": moved_box((4, 4, 2, 2), (2, 1, 3, 1), (4, 0, 1, 2)),
    "tma_5d": moved_box((4, 4, 2, 2, 2), (4, 1, 2, 1, 0), (0, 0, 1, 0, 1)),
    "tma_swizzle_32": moved_box((8, 32), (8, 3), (0, 5), 32),
    "tma_swizzle_64": moved_box((32, 16), (32, 3), (0, 5), 64),
    "tma_swizzle_128": moved_box((32, 32), (32, 3), (0, 5), 128),
    "tma_swizzle_128_bfloat16": moved_box((64, 20), (64, 11), (0, 7), 128),
    "tma_out_of_bounds_before": moved_box((16, 8), (-4, -3), (24, 12)),
    "tma_out_of_bounds_after": moved_box((32, 16), (24, 11), (16, 13)),
    "tma_out_of_bounds_all": moved_box((8, 8), (40, 2), (8, 9)),
    "tma_out_of_bounds_3d": moved_box((8, 8, 4), (8, -2, -1), (12, 1, 2)),
    "tma_out_of_bounds_swizzle": moved_box((16, 16), (8, -2), (8, 3), 64),
}


from tests.conformance import expected_tensor_cores as expected_tensor_cores  # noqa: E402 (adds to EXPECTED)
