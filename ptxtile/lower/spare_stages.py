"""Whether a ring has the stages that it costs to keep products in flight over an iteration.

A stage comes round again after as many iterations as the ring has stages. In that time its tile is used, released and
loaded anew, which takes about 1 µs on an H200, several iterations of small tiles. Where products are waited for one
iteration later, their stage is held by so much longer, and the ring must be longer too, or else the loop waits for
loads. How many stages must be free for loads meanwhile depends on what is won, as measured on an H200 (bfloat16):

- Between two products the tensor cores would only be idle for the moment from the wait to the next issue, a few per
  cent. Less than 2 free stages cost more: a gemm 4096³ with tiles of 128×128 (which holds 2, the one that is
  multiplied and the one behind it) gains 2 % with 4 stages and loses 9 % with 3; two products with a cast between them
  (which hold 1 stage of the second one) gain 4 % with 3 stages and lose 10 % with 2.
- Where the threads make the next operand meanwhile, most of that time is won. 1 free stage is enough: with a ring of
  3, of which the product and the threads hold one each, a gemm gains 16 % (scaled operand) to 30 % (4-bit weights).
"""

from __future__ import annotations

from ptxtile.records import record

FREE_FOR_A_GAP = 2
FREE_FOR_WORK = 1


@record
class Overlap:
    """A way to keep products in flight. ``held``: stages of a ring that are in use at a time; ``hides_work``: threads
    make an operand meanwhile."""

    held: int
    hides_work: bool

    @property
    def fewest_stages(self) -> int:
        return self.held + (FREE_FOR_WORK if self.hides_work else FREE_FOR_A_GAP)

    def lack_of_stages(self, stages: int) -> str:
        """Why a ring of ``stages`` stages is too short; empty if it is not."""
        if stages >= self.fewest_stages:
            return ""
        free = self.fewest_stages - self.held
        return f"a ring of {stages} stages has none to spare: {self.held} in use and {free} to load ahead are needed"


NEXT_PRODUCT_BEHIND = Overlap(held=2, hides_work=False)
"""The same product of the next iteration is issued before this one is waited for."""
OTHER_PRODUCT_BEHIND = Overlap(held=1, hides_work=False)
"""It is waited for together with a product on other tiles, early in the next iteration."""
NEXT_OPERAND_MADE = Overlap(held=2, hides_work=True)
"""The threads read the next stage and make an operand of it before this product is waited for."""
