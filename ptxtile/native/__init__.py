"""The launcher in native code: repeated calls go from the caller's line to the driver without Python in between.

``layout`` is the memory that Python and the native code share, ``emit`` and ``emit_*`` write the code as LLVM IR,
``object_code`` makes it into bytes, ``code_memory`` makes those runnable, ``python_facts`` and ``torch_facts`` say
where the interpreter's and torch's functions are, ``launcher`` puts it together once for a process, and ``calls`` is
what kernels use.
"""
