"""A hand-written Hopper GEMM, as LLVM text without this compiler: what its tile code is measured against.

C = A · Bᵀ, bfloat16 or e4m3 in, bfloat16 out. Persistent; one producer warpgroup and two consumer warpgroups; tiles of
128×256×128 bytes in a ring of four stages; stmatrix and TMA stores that overlap with the next tile; optionally clusters
of two CTAs that share B by multicast. Only for M a multiple of 128 (256 with clusters), N of 256, K of 128 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS, COLUMNS, DEPTH_BYTES, STAGES = 128, 256, 128, 4
A_BYTES, B_BYTES = ROWS * DEPTH_BYTES, COLUMNS * DEPTH_BYTES
STAGE_BYTES = A_BYTES + B_BYTES
CONSUMERS = 2
ACCUMULATORS = COLUMNS // 2
"""Registers of a consumer thread: 64×256 float32 over 128 threads."""
STAGING_BYTES = 16384
"""Of a consumer warpgroup: 64×128 bfloat16, half of its part of a tile."""
STAGING = STAGES * STAGE_BYTES
SHARED_BYTES = STAGING + CONSUMERS * STAGING_BYTES
THREADS = 128 * (1 + CONSUMERS)
DESCRIPTOR = 1 << 62 | 1024 >> 4 << 32 | 1 << 16
"""wgmma's matrix descriptor without its address: swizzle of 128 bytes, 1024 bytes from one group of 8 rows to the next
(PTX ISA 9.7.15.5.1)."""


@dataclass(frozen=True)
class Variant:
    """``group``: rows of tiles (of cluster tiles) that are gone through column by column."""

    cluster: int = 1
    group: int = 8
    dtype: str = "bfloat16"

    @property
    def step(self) -> int:
        """Elements of K in a stage."""
        return DEPTH_BYTES // (2 if self.dtype == "bfloat16" else 1)

    def fits(self, m: int, n: int, k: int) -> bool:
        return m % (ROWS * self.cluster) == 0 and n % COLUMNS == 0 and k % self.step == 0


VARIANTS = {"tma_c1_g8": (1, 8), "tma_c1_g16": (1, 16), "tma_c2_g8": (2, 8)}
"""Name → (cluster, group)."""


class Writer:
    """LLVM text, one instruction after another."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def value(self, instruction: str) -> str:
        self.values += 1
        self.line(f"  %t{self.values} = {instruction}")
        return f"%t{self.values}"

    def asm(self, text: str, constraints: str = "", arguments: str = "") -> None:
        self.line(f'  call void asm sideeffect "{text}", "{constraints}"({arguments}) #1')

    def asm_value(self, kind: str, text: str, constraints: str, arguments: str) -> str:
        return self.value(f'call {kind} asm sideeffect "{text}", "{constraints}"({arguments}) #1')

    def label(self, name: str) -> None:
        self.line(f"{name}:")

    def add(self, left: str, right: str | int, name: str | None = None) -> str:
        return self.binary("add", left, right, name)

    def multiply(self, left: str, right: str | int, name: str | None = None) -> str:
        return self.binary("mul", left, right, name)

    def binary(self, operation: str, left: str, right: str | int, name: str | None = None) -> str:
        if name is None:
            return self.value(f"{operation} i32 {left}, {right}")
        self.line(f"  %{name} = {operation} i32 {left}, {right}")
        return f"%{name}"

    def wait(self, barrier: str, parity: str) -> None:
        self.asm(
            "{ .reg .pred P; W_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 P, [$0], $1; @P bra D_${:uid}; "
            "bra W_${:uid}; D_${:uid}: }",
            "r,r,~{memory}", f"i32 {barrier}, i32 {parity}",
        )  # fmt: skip

    def load(self, target: str, tensor: str, barrier: str, x: str, y: str, ctas: int = 0) -> None:
        """A TMA load of the box at (x, y), into each CTA of the mask ``ctas``, or into this one."""
        suffix, constraint, argument = ("", "", "")
        if ctas:
            suffix, constraint, argument = (".multicast::cluster", "h,", f", i16 {ctas}")
        self.asm(
            f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{suffix} "
            f"[$0], [$1, {{$3, $4}}], [$2]{', $5' if ctas else ''};",
            f"r,l,r,r,r,{constraint}~{{memory}}",
            f"i32 {target}, i64 {tensor}, i32 {barrier}, i32 {x}, i32 {y}{argument}",
        )


class Kernel:
    """The text of one variant: prologue, producer, consumers with their epilogue."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.w = Writer()

    def text(self) -> str:
        self._head()
        self._initialise()
        self._produce()
        self._consume()
        self._end()
        return "\n".join(self.w.lines)

    def _head(self) -> None:
        line, cluster = self.w.line, self.variant.cluster
        line('target triple = "nvptx64-nvidia-cuda"')
        line("%acc_t = type {" + ", ".join(["float"] * ACCUMULATORS) + "}")
        line("@smem = external addrspace(3) global [0 x i8], align 1024")
        line(f"@bars = internal addrspace(3) global [{2 * STAGES} x i64] undef, align 8")
        for register in ("tid.x", "ctaid.x", "nctaid.x"):
            line(f"declare i32 @llvm.nvvm.read.ptx.sreg.{register}()")
        tensor_map = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
        line(f"define ptx_kernel void @gemm({tensor_map} %A, {tensor_map} %B, {tensor_map} %C,")
        line("    i32 %M, i32 %N, i32 %K) #0 {")
        self.w.label("entry")
        for name in "ABC":
            line(f"  %{name}i = ptrtoint ptr %{name} to i64")
        line("  %sm = ptrtoint ptr addrspace(3) @smem to i32")
        line("  %full = ptrtoint ptr addrspace(3) @bars to i32")
        self.w.add("%full", 8 * STAGES, "empty")
        for name, register in (("tid", "tid.x"), ("ctaid", "ctaid.x"), ("ctas", "nctaid.x")):
            line(f"  %{name} = call i32 @llvm.nvvm.read.ptx.sreg.{register}()")
        self.w.binary("and", "%ctaid", cluster - 1, "rank")
        self.w.binary("udiv", "%ctaid", cluster, "first")
        self.w.binary("udiv", "%ctas", cluster, "wave")
        self.w.binary("udiv", "%M", ROWS * cluster, "row_tiles")
        self.w.binary("udiv", "%N", COLUMNS, "column_tiles")
        self.w.multiply("%row_tiles", "%column_tiles", "tiles")
        self.w.binary("udiv", "%K", self.variant.step, "steps")

    def _initialise(self) -> None:
        w, cluster = self.w, self.variant.cluster
        w.line("  %leads = icmp eq i32 %tid, 0\n  br i1 %leads, label %init, label %sync")
        w.label("init")
        for stage in range(STAGES):
            for base, arrivals in (("%full", 1), ("%empty", CONSUMERS * cluster)):
                barrier = w.add(base, 8 * stage)
                w.asm(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", "r,~{memory}", f"i32 {barrier}")
        w.asm("fence.mbarrier_init.release.cluster;", "~{memory}")
        w.line("  br label %sync")
        w.label("sync")
        if cluster > 1:
            w.asm("barrier.cluster.arrive.release.aligned;", "~{memory}")
            w.asm("barrier.cluster.wait.acquire.aligned;", "~{memory}")
        else:
            w.asm("bar.sync 0;", "~{memory}")
        w.binary("lshr", "%tid", 7, "warpgroup")
        w.line("  %produces = icmp eq i32 %warpgroup, 0\n  br i1 %produces, label %prod, label %cons")

    def _origin(self, tile: str) -> tuple[str, str]:
        """The first row and column of this CTA's part of a tile."""
        w, group = self.w, self.variant.group
        per_group = w.multiply("%column_tiles", group)
        number, rest = w.binary("udiv", tile, per_group), w.binary("urem", tile, per_group)
        first = w.multiply(number, group)
        left = w.binary("sub", "%row_tiles", first)
        fewer = w.value(f"icmp ult i32 {left}, {group}")
        height = w.value(f"select i1 {fewer}, i32 {left}, i32 {group}")
        row = w.add(w.binary("urem", rest, height), first)
        row = w.add(w.multiply(row, self.variant.cluster), "%rank")
        return w.multiply(row, ROWS), w.multiply(w.binary("udiv", rest, height), COLUMNS)

    def _advance(self, role: str) -> None:
        """The next stage, and the parity that changes when the ring begins again."""
        w = self.w
        w.add(f"%{role}s", 1, f"{role}sx")
        w.line(f"  %{role}w = icmp eq i32 %{role}sx, {STAGES}\n  %{role}s2 = select i1 %{role}w, i32 0, i32 %{role}sx")
        w.binary("xor", f"%{role}p", 1, f"{role}px")
        w.line(f"  %{role}p2 = select i1 %{role}w, i32 %{role}px, i32 %{role}p")
        w.add(f"%{role}k", 1, f"{role}k1")
        w.line(f"  %{role}more = icmp ult i32 %{role}k1, %steps")

    def _stage(self, stage: str) -> tuple[str, str, str]:
        """The addresses of a stage's A and B, and the offset of its barriers."""
        start = self.w.add("%sm", self.w.multiply(stage, STAGE_BYTES))
        return start, self.w.add(start, A_BYTES), self.w.multiply(stage, 8)

    def _produce(self) -> None:
        w, cluster = self.w, self.variant.cluster
        w.label("prod")
        w.asm("setmaxnreg.dec.sync.aligned.u32 40;")
        w.line("  br i1 %leads, label %ptile, label %done")
        w.label("ptile")
        for name, start in (("pt", "%first"), ("ps0", "0"), ("pp0", "1")):
            after = {"pt": "%pt2", "ps0": "%ps2", "pp0": "%pp2"}[name]
            w.line(f"  %{name} = phi i32 [{start}, %prod], [{after}, %pnext]")
        w.line("  %pc = icmp ult i32 %pt, %tiles\n  br i1 %pc, label %pbody, label %done")
        w.label("pbody")
        row, column = self._origin("%pt")
        part = w.add(column, w.multiply("%rank", COLUMNS // cluster))
        part_bytes = w.multiply("%rank", B_BYTES // cluster)
        w.line("  br label %ploop")
        w.label("ploop")
        w.line("  %pk = phi i32 [0, %pbody], [%pk1, %ploop]")
        w.line("  %ps = phi i32 [%ps0, %pbody], [%ps2, %ploop]")
        w.line("  %pp = phi i32 [%pp0, %pbody], [%pp2, %ploop]")
        at_a, at_b, offset = self._stage("%ps")
        full, empty = w.add("%full", offset), w.add("%empty", offset)
        w.wait(empty, "%pp")
        w.asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r,~{memory}",
              f"i32 {full}, i32 {STAGE_BYTES}")  # fmt: skip
        x = w.multiply("%pk", self.variant.step)
        w.load(at_a, "%Ai", full, x, row)
        w.load(w.add(at_b, part_bytes), "%Bi", full, x, part, (1 << cluster) - 1 if cluster > 1 else 0)
        self._advance("p")
        w.line("  br i1 %pmore, label %ploop, label %pnext")
        w.label("pnext")
        w.add("%pt", "%wave", "pt2")
        w.line("  br label %ptile")

    def _release(self, stage: str) -> None:
        """Tells the producer, or those of the whole cluster (one lane for each), that a stage is free."""
        w = self.w
        empty = w.add("%empty", w.multiply(stage, 8))
        if self.variant.cluster > 1:
            w.asm("{ .reg .b32 R; mapa.shared::cluster.u32 R, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [R]; }",
                  "r,r,~{memory}", f"i32 {empty}, i32 %lane128")  # fmt: skip
        else:
            w.asm("mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}", f"i32 {empty}")

    def _consume(self) -> None:
        w = self.w
        w.label("cons")
        w.asm("setmaxnreg.inc.sync.aligned.u32 232;")
        w.binary("sub", "%warpgroup", 1, "consumer")
        w.binary("and", "%tid", 127, "lane128")
        w.line("  %stores = icmp eq i32 %lane128, 0")
        w.line(f"  %releases = icmp ult i32 %lane128, {self.variant.cluster}")
        w.multiply("%consumer", 64 * DEPTH_BYTES, "a_part")
        self._staging_addresses()
        w.line("  br label %ctile")
        w.label("ctile")
        for name, start in (("ct", "%first"), ("cs0", "0"), ("cp0", "0")):
            after = {"ct": "%ct2", "cs0": "%cs2", "cp0": "%cp2"}[name]
            w.line(f"  %{name} = phi i32 [{start}, %cons], [{after}, %cend]")
        w.line("  %cc = icmp ult i32 %ct, %tiles\n  br i1 %cc, label %cbody, label %cfin")
        w.label("cbody")
        row, column = self._origin("%ct")
        w.line("  br label %cloop")
        self._multiply()
        w.label("cout")
        total = self._wait_for_products(0, [f"%new{i}" for i in range(ACCUMULATORS)], "total")
        w.line("  br i1 %releases, label %clast, label %cstore")
        w.label("clast")
        self._release("%cs")
        w.line("  br label %cstore")
        w.label("cstore")
        self._store(total, row, column)
        w.line("  br label %cend")
        w.label("cend")
        w.add("%ct", "%wave", "ct2")
        w.line("  br label %ctile")
        w.label("cfin")
        w.line("  br i1 %stores, label %clastwait, label %done")
        w.label("clastwait")
        w.asm("cp.async.bulk.wait_group 0;", "~{memory}")
        w.line("  br label %done")

    def _staging_addresses(self) -> None:
        """Where a lane's rows go: 16 rows of a warp, 128-byte rows, 16-byte units XORed with the row's number mod 8."""
        w = self.w
        w.add("%consumer", 2, "named_barrier")
        w.add("%sm", w.add(w.multiply("%consumer", STAGING_BYTES), STAGING), "staging")
        w.binary("and", "%tid", 31, "lane")
        row = w.add(w.binary("and", "%lane", 7), w.multiply(w.binary("and", w.binary("lshr", "%lane", 3), 1), 8))
        row = w.add(row, w.multiply(w.binary("lshr", "%lane128", 5), 16))
        w.binary("lshr", "%lane", 4, "unit")
        w.add("%staging", w.multiply(row, 128), "staging_row")
        w.binary("and", row, 7, "swizzle")

    def _descriptor(self, address: str) -> str:
        w = self.w
        wide = w.value(f"zext i32 {w.binary('and', w.binary('lshr', address, 4), 0x3FFF)} to i64")
        return w.value(f"or i64 {wide}, {DESCRIPTOR}")

    def _wait_for_products(self, pending: int, registers: list[str], name: str) -> list[str]:
        """The accumulators once at most ``pending`` groups are under way; they go through the wait, so that nothing
        reads them before it."""
        outputs, ties = ",".join(["=f"] * ACCUMULATORS), ",".join(map(str, range(ACCUMULATORS)))
        result = self.w.asm_value(
            "%acc_t", f"wgmma.wait_group.sync.aligned {pending};", f"{outputs},{ties},~{{memory}}",
            ", ".join(f"float {register}" for register in registers),
        )  # fmt: skip
        for i in range(ACCUMULATORS):
            self.w.line(f"  %{name}{i} = extractvalue %acc_t {result}, {i}")
        return [f"%{name}{i}" for i in range(ACCUMULATORS)]

    def _multiply(self) -> None:
        """The loop over K; one group of wgmma stays under way, so the stage before is released."""
        w = self.w
        w.label("cloop")
        w.line("  %ck = phi i32 [0, %cbody], [%ck1, %crel]")
        w.line("  %cs = phi i32 [%cs0, %cbody], [%cs2, %crel]")
        w.line("  %cp = phi i32 [%cp0, %cbody], [%cp2, %crel]")
        w.line("  %cbefore = phi i32 [0, %cbody], [%cs, %crel]")
        for i in range(ACCUMULATORS):
            w.line(f"  %acc{i} = phi float [0.0, %cbody], [%new{i}, %crel]")
        at_a, at_b, offset = self._stage("%cs")
        w.wait(w.add("%full", offset), "%cp")
        a, b = self._descriptor(w.add(at_a, "%a_part")), self._descriptor(at_b)
        w.asm("wgmma.fence.sync.aligned;", "~{memory}")
        registers = [f"%acc{i}" for i in range(ACCUMULATORS)]
        for step in range(4):  # 32 bytes of K each; the address in a descriptor counts 16 bytes
            registers = self._wgmma(registers, w.value(f"add i64 {a}, {2 * step}"), w.value(f"add i64 {b}, {2 * step}"))
        w.asm("wgmma.commit_group.sync.aligned;", "~{memory}")
        self._wait_for_products(1, registers, "new")
        w.line("  %clater = icmp ne i32 %ck, 0\n  %cfrees = and i1 %clater, %releases")
        w.line("  br i1 %cfrees, label %crelease, label %crel")
        w.label("crelease")
        self._release("%cbefore")
        w.line("  br label %crel")
        w.label("crel")
        self._advance("c")
        w.line("  br i1 %cmore, label %cloop, label %cout")

    def _wgmma(self, registers: list[str], a: str, b: str) -> list[str]:
        w, count = self.w, ACCUMULATORS
        outputs, ties = ",".join(["=f"] * count), ",".join(map(str, range(count)))
        names = "{" + ",".join(f"${i}" for i in range(count)) + "}"
        bf16 = self.variant.dtype == "bfloat16"
        kind, orders = ("k16.f32.bf16.bf16", ", 0, 0") if bf16 else ("k32.f32.e4m3.e4m3", "")
        result = w.asm_value(
            "%acc_t",
            f"wgmma.mma_async.sync.aligned.m64n{COLUMNS}{kind} "
            f"{names}, ${2 * count}, ${2 * count + 1}, 1, 1, 1{orders};",
            f"{outputs},{ties},l,l",
            ", ".join(f"float {register}" for register in registers) + f", i64 {a}, i64 {b}",
        )
        return [w.value(f"extractvalue %acc_t {result}, {i}") for i in range(count)]

    def _store(self, total: list[str], row: str, column: str) -> None:
        """Two halves of 64×128 through the staging buffer, each stored by TMA while the next one is made."""
        w = self.w
        w.add(w.multiply("%consumer", 64), row, "c_row")
        for half in range(2):
            w.line(f"  br i1 %stores, label %ewait{half}, label %eready{half}")
            w.label(f"ewait{half}")
            w.asm("cp.async.bulk.wait_group.read 0;", "~{memory}")  # the staging buffer has been read
            w.line(f"  br label %eready{half}")
            w.label(f"eready{half}")
            w.asm("bar.sync $0, 128;", "r,~{memory}", "i32 %named_barrier")
            for pair in range(0, 16, 2):  # columns 8·pair to 8·pair + 15 of the half
                self._store_matrices(total, half * 16 + pair, pair)
            w.asm("fence.proxy.async.shared::cta;", "~{memory}")
            w.asm("bar.sync $0, 128;", "r,~{memory}", "i32 %named_barrier")
            w.line(f"  br i1 %stores, label %estore{half}, label %enext{half}")
            w.label(f"estore{half}")
            for box in range(2):
                x, source = w.add(column, half * 128 + box * 64), w.add("%staging", 8192 * box)
                w.asm("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$2, $3}], [$1];",
                      "l,r,r,r,~{memory}", f"i64 %Ci, i32 {source}, i32 {x}, i32 %c_row")  # fmt: skip
            w.asm("cp.async.bulk.commit_group;", "~{memory}")
            w.line(f"  br label %enext{half}")
            w.label(f"enext{half}")

    def _store_matrices(self, total: list[str], block: int, pair: int) -> None:
        """Two blocks of 8 columns of a warp's 16 rows, by one stmatrix of four 8×8 matrices."""
        w = self.w
        packed = [self._packed(total[4 * (block + d) + 2 * h], total[4 * (block + d) + 2 * h + 1])
                  for d in (0, 1) for h in (0, 1)]  # fmt: skip
        unit = w.binary("xor", w.add("%unit", pair % 8), "%swizzle")
        address = w.add(w.add("%staging_row", w.multiply(unit, 16)), 8192 * (pair // 8))
        w.asm("stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};", "r,r,r,r,r,~{memory}",
              f"i32 {address}, " + ", ".join(f"i32 {value}" for value in packed))  # fmt: skip

    def _packed(self, low: str, high: str) -> str:
        w = self.w
        pair = w.value(f"insertelement <2 x float> undef, float {low}, i32 0")
        pair = w.value(f"insertelement <2 x float> {pair}, float {high}, i32 1")
        return w.value(f"bitcast <2 x bfloat> {w.value(f'fptrunc <2 x float> {pair} to <2 x bfloat>')} to i32")

    def _end(self) -> None:
        w, cluster = self.w, self.variant.cluster
        w.label("done")
        if cluster > 1:  # no CTA may end while another one still arrives on its barriers
            w.asm("barrier.cluster.arrive.release;", "~{memory}")
            w.asm("barrier.cluster.wait.acquire;", "~{memory}")
        w.line("  ret void\n}")
        of_cluster = f'"nvvm.cluster_dim"="{cluster},1,1" ' if cluster > 1 else ""
        w.line(f'attributes #0 = {{ nounwind "nvvm.maxntid"="{THREADS},1,1" "nvvm.minctasm"="1" {of_cluster}}}')
        w.line("attributes #1 = { convergent nounwind }")


def ptx_of(variant: Variant) -> str:
    """The PTX of a variant, by LLVM without optimisation passes, which make no difference to this kernel."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(Kernel(variant).text())
    module.verify()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu="sm_90a", features="+ptx83", opt=3).emit_assembly(module)
