"""A kernel of a file whose annotations are no strings: without the import of annotations from the future."""

import ptxtile.language as T


def plain_factory(N, scale):
    @T.prim_func
    def main(A: T.Tensor((N,), T.float32), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), T.float32)):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < N:
                    C[bx * 32 + i] = A[bx * 32 + i] * scale + B[bx * 32 + i]

    return main
