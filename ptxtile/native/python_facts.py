"""Where the interpreter's C functions are, and what native code needs of it, checked before it is used."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Any

from ptxtile.native.layout import Table

FUNCTIONS = {
    Table.GET_ATTRIBUTE: "PyObject_GetAttr",
    Table.AS_ADDRESS: "PyLong_AsVoidPtr",
    Table.CALL_METHOD: "PyObject_VectorcallMethod",
    Table.VECTORCALL: "PyObject_Vectorcall",
    Table.CALL: "PyObject_Call",
    Table.CLEAR_ERROR: "PyErr_Clear",
    Table.ERROR_OCCURRED: "PyErr_Occurred",
    Table.AS_LONG_LONG: "PyLong_AsLongLongAndOverflow",
    Table.AS_UNSIGNED_LONG_LONG: "PyLong_AsUnsignedLongLong",
    Table.AS_DOUBLE: "PyFloat_AsDouble",
    Table.COMPARE: "PyObject_RichCompareBool",
    Table.NEW_TUPLE: "PyTuple_New",
    Table.SET_ITEM: "PyTuple_SetItem",
    Table.TUPLE_SIZE: "PyTuple_Size",
    Table.GET_ITEM: "PyTuple_GetItem",
    Table.SAVE_THREAD: "PyEval_SaveThread",
    Table.RESTORE_THREAD: "PyEval_RestoreThread",
    Table.INCREASE: "Py_IncRef",
    Table.DECREASE: "Py_DecRef",
    Table.FROM_LONG: "PyLong_FromLong",
}
_FASTCALL, _KEYWORDS = 0x80, 0x02
"""METH_FASTCALL and METH_KEYWORDS (CPython, methodobject.h)."""


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)
    )  # fmt: skip


def unfit() -> str:
    """Why this interpreter takes the way of Python; empty when it need not."""
    if sys.implementation.name != "cpython":
        return f"the interpreter is {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the interpreter has no global lock"
    if sys.maxsize != 2**63 - 1 or sys.byteorder != "little":
        return "the machine is not one of 64 bits, little endian"
    return "" if _types_are_behind_counts() else "objects do not start with a reference count and a type"


TYPE_AT = 8
"""Where an object's type is: behind the reference count (CPython, «Common Object Structures», PyObject)."""


def _types_are_behind_counts() -> bool:
    things: tuple[Any, ...] = (None, 1, 1.5, "text", (), [], {}, object(), ctypes.c_int(3), type, len, sys)
    return object.__basicsize__ == 16 and all(
        ctypes.c_uint64.from_address(id(thing) + TYPE_AT).value == id(type(thing)) for thing in things
    )


def keep_for_ever(*things: Any) -> None:
    """Past the end of the interpreter, which throws away what modules hold."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def address_of(name: str) -> int:
    """Of a function of the C API."""
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    assert address is not None
    return address


def method(owner: type, name: str, address: int, doc: str) -> Any:
    """A method of ``owner`` in native code, in the form METH_FASTCALL | METH_KEYWORDS."""
    definition = _MethodDefinition(name.encode(), address, _FASTCALL | _KEYWORDS, doc.encode())
    keep_for_ever(definition)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.POINTER(_MethodDefinition))(
        ("PyDescr_NewMethod", ctypes.pythonapi)
    )
    return make(owner, ctypes.byref(definition))
