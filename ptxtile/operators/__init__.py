"""Kernels as operators of torch: :func:`ptxtile.operators.register.torch_op`."""
