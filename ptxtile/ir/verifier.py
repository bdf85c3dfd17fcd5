"""The invariants of the IR, and their checker. This list is the specification: what it does not forbid is legal.

*Names.*

1. Names of programs, kernels, functions, tensors, scalars, variables, buffers and tensor maps are Python identifiers
    and no keywords.
2. Names are unique in a program: a variable is bound once, a buffer is declared once, and none of them shares a name
    with another, with a kernel or with a function. (A symbol and a scalar parameter of one name are one variable, and
    so are a buffer and its storage. Tensor maps have names of their own.)
3. One name, one buffer: every use of a buffer is equal, in all its fields, to its declaration; so is every storage.
4. A variable is bound before it is used, and used only where it is in scope: a Let until the end of its Seq, a loop
    variable in its loop, block and thread indices in their kernel, symbols and scalar parameters everywhere but in
    functions.
5. A variable has the same dtype wherever it is used.
6. A buffer is declared before it is used and in scope, as a variable is. A View's storage exists already, an Allocate's
    does not. At the gpu stage, which has no Views, it is enough that the storage is in scope.

*Expressions.*

7. A constant's value is a Python int, bool or float as its dtype says, and in range.
8. The operands of a Binary have its dtype, and the operator is one for that kind: ``div`` for floats; ``floordiv``,
    ``floormod``, ``truncdiv``, ``truncmod``, ``mulhi``, ``shl``, ``shr`` for integers; ``and``, ``or``, ``xor`` for
    integers and bools; the others for integers and floats. Storage-only formats have no arithmetic.
9. A Compare has operands of one dtype and gives bools of as many lanes; bools are only compared with ``eq`` and ``ne``.
10. A Unary has its operand's dtype: ``neg`` and ``abs`` for numbers, ``not`` for integers and bools, the others for
    floats.
11. LogicalAnd, LogicalOr and a Select's condition take single bools; a Select's branches have its dtype.
12. Cast keeps the number of lanes, Bitcast the number of bits (no bools), Broadcast makes lanes of one scalar.
13. A Load's dtype is its buffer's with a whole multiple of the lanes; so is the dtype of a stored value.
14. An access has one index for each dimension (at the gpu stage: exactly one), each a single int32 or int64. A
    SharedAddress is the uint32 address of an element of a SHARED or BARRIER buffer.
15. A Call of a function of the program has its parameters' dtypes and its result's; one of HARDWARE_FUNCTIONS has that
    many arguments. Once the program has its launch record, there are no others. Functions do not call themselves,
    directly or not.

*Statements.*

16. The condition of an If or While is a single bool.
17. A For has a variable, start and stop of one integer dtype and a step other than 0; UNROLLED and VECTORIZED loops
    have constant bounds.
18. A ParallelFor has as many variables as positive extents, of integer dtype, and holds no other ParallelFor.
19. Break and Continue belong to a SERIAL or PIPELINED For or to a While of the same role: not to an UNROLLED,
    VECTORIZED or parallel loop, and not to a loop outside of the roles.
20. A Region has a start and a positive extent for each dimension. Both sides of a copy have equal extents, dimensions
    of extent 1 aside; one with an operator goes from shared to global memory and keeps the dtype, for which TMA has the
    operator; one by cp.async goes from global to shared memory, keeps the dtype and has a width of 4, 8 or 16 bytes
    that divides its rows; a Fill's value has its buffer's dtype. A Gemm's operands are shared tiles or fragments of its
    M, N and K, and its clear_if is a bool; one that does not commit is not waited for.

*Storage.*

21. Shape and strides have equal rank; the sizes of everything but global tensors are positive ints.
22. A buffer outside global memory has a storage of known size, and (before the gpu stage) lies inside it.
23. Only SHARED buffers have a SharedLayout or a MappedLayout, only FRAGMENT buffers a Fragment. A layout fits the
    buffer's shape and dtype, no two elements of a shared tile share an address, a formula depends on the coordinates
    alone and keeps its promises, and every element of a fragment has an owner.
24. Alignments are powers of two. A placed storage lies at a multiple of its alignment, and of the swizzle's if it has
    one, inside the kernel's shared bytes.
25. A BARRIER buffer has elements of 8 bytes.
26. A global buffer's storage is that of a tensor parameter or an allocation; sizes of global tensors and grids are
    expressions over symbols and integer scalar parameters, without loads.

*Stages.*

27. Each stage has its set of statements (:data:`STAGES`).
28. Each stage has its set of scopes and of loop kinds.
29. At the gpu stage an access of several lanes to global or shared memory is 2, 4, 8 or 16 bytes wide.
30. A function's body is made of Seq, Let, Allocate, Store, For, While, If, Break and Continue over LOCAL and REGISTER
    buffers.

*Roles and GPU ops.*

31. Roles stand directly in a Specialized, whole warps each, disjoint and within the kernel's threads, with distinct
    names; a Specialized is not inside another.
32. A setmaxnreg runs in roles of whole warpgroups, with a count that is a multiple of 8 from 24 to 256, and together
    the roles fit the registers that the launch got (else the kernel hangs).
33. A bar.sync, bar.arrive or bar.red has an id from 0 to 15, or an int32, and a number of threads that is a multiple of
    32, at most the kernel's; a bar.red counts or combines bools. A barrier of the grid stands in no role; from the
    async stage on a wait for the grids in front is one of the kernel's own statements, in no role, branch or loop.
34. An mbarrier op names a BARRIER buffer and one int32 index; arrivals are 1 to 2²⁰ − 1, bytes 0 to 2²⁰ − 1; a parity
    is an int32, 0 or 1 if constant.
35. A TMA op names a tensor map of the program and a SHARED buffer of its dtype, has an int32 coordinate for each
    dimension, the innermost a multiple of 16 bytes if constant, and its box lies inside the buffer's storage, 128-byte
    aligned, when the offset is constant. A store with an operator is one of
    :data:`~ptxtile.ir.atomic_ops.TMA_REDUCTIONS`, and its tensor map has the element type given there.
36. Groups left pending are not negative; a proxy fence is for ``shared`` or ``global``.

*Host.*

37. A tensor map has rank 1 to 5, a box of 1 to 256 a side, whose innermost side is a multiple of 16 bytes and no longer
    than the swizzle span; the swizzle is 0, 32, 64 or 128 bytes; constant strides and the offset are multiples of 16
    bytes.
38. A kernel has 1 to 1024 threads, a grid of three int32 or int64 sizes, positive clusters, int32 indices.
39. A launch record fits its program: the same arguments, allocations, returns and tensor maps in the same order, a
    launch for each kernel with its threads and shared bytes, parameters that exist, symbols that the program knows. A
    launch that need not come after the grids in front is of a kernel that waits for them, and not cooperative.
40. A kernel's parameters hold everything that its body uses: tensors, tensor maps, symbols and scalars.
41. Returned names are tensors of the program; facts are about known integers, with a positive divisor and lower ≤
    upper.
42. The program's stage is one of :data:`STAGES`.

*Tensor cores, asynchronous copies, clusters, warps.*

43. ldmatrix and stmatrix move 1, 2 or 4 matrices between a SHARED buffer and a REGISTER buffer of 8-, 16- or 32-bit
    elements, which holds 4 bytes of each. A matrix_store moves 2 or 4 between buffers of one dtype of 16 bits.
44. An mma.sync has a shape and element types of :data:`~ptxtile.ir.tensor_core_ops.MMA_SHAPES`; its fragments are
    REGISTER buffers of those types (float32 for tfloat32) and lie inside of them when the offset is constant.
45. wgmma ops stand in a kernel of whole warpgroups; a wgmma has a shape and element types of
    :data:`~ptxtile.ir.tensor_core_ops.WGMMA_SHAPES`, uint64 descriptors of SHARED buffers of elements as wide as the
    operand's, A either in registers or in shared memory, and transposes only 16-bit elements in shared memory. A wait
    passes REGISTER buffers.
46. A cp.async copies 4, 8 or 16 bytes (``cg``: 16) from a GLOBAL to a SHARED buffer; its valid bytes are an int32.
47. A multicast mask or a CTA's rank is an int32 and names CTAs of the kernel's cluster when it is constant.
48. A shuffle is of one value of 8 to 64 bits, in segments of a power of two up to 32, a match of one of 32 or 64 bits;
    a mask is a uint32 other than 0; the result of a shuffle, vote, match, election or active mask goes to a REGISTER or
    LOCAL buffer of its type, as does that of a bar.red.

*Atomic operations.*

49. An atomic operation is on GLOBAL or SHARED memory of whole bytes, with a memory order that it can have; ``add``,
``min`` and ``max`` are for numbers, ``and``, ``or`` and ``xor`` for integers and bools. Only additions of float32,
float16 and bfloat16 in global memory take vectors, of up to 16 bytes. The value from before goes to a LOCAL or REGISTER
buffer that holds it.

*What only users write.*

50. An assertion is of one bool. Inline PTX uses each of its operands and no others; they are numbers of 16, 32 or 64
bits, the results LOCAL buffers.

Sources: PTX ISA (mbarrier 9.7.13.15, bar 9.7.13.1, cp.async.bulk.tensor 9.7.9.27, setmaxnreg 9.7.20.5); CUDA driver
API, cuTensorMapEncodeTiled. mma 9.7.14.5, wgmma 9.7.15, cp.async 9.7.9.25, shfl 9.7.9.6.
"""

from __future__ import annotations

from ptxtile.ir.program import Program
from ptxtile.ir.verify_context import STAGES, Context, Stage
from ptxtile.ir.verify_host import verify_host, verify_program_header
from ptxtile.ir.verify_statements import StatementVerifier

__all__ = ["STAGES", "Stage", "verify"]


def verify(program: Program) -> None:
    """VerificationError, with the number of the invariant, the place and what was expected, unless ``program`` is
    legal."""
    context = Context(program)
    verify_program_header(context)
    statements = StatementVerifier(context)
    for function in program.functions:
        statements.function(function)
    for kernel in program.kernels:
        statements.kernel(kernel)
    verify_host(context)
