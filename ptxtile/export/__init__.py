"""Kernels for programs without Python: files to load, a description of the launch, and a C header that does it."""
