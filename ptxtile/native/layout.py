"""The memory that Python and the launcher's native code share: arrays of 64-bit words, and what each word holds.

Three kinds of arrays. The *table*, one for a process: functions and objects of the interpreter and of torch. A *block*,
one for each callable: its plans, the one used last first. A *plan*: all that a call's arguments are compared with and
all that is given to the driver; the words from :attr:`Plan.ARGUMENTS` on describe the call's arguments,
:attr:`Argument.COUNT` words each, and further words of a plan name the places of other arrays in it, counted in words
from its start.

The names are of plain classes: an enumeration takes a millisecond to make.
"""

from __future__ import annotations

WORD = 8
"""Bytes."""
MAX_ARGUMENTS = 64
"""Of one call. Also the largest number of tensors: the overlaps of one with those before it are bits of a word."""
MAX_ALLOCATIONS = 16
MAX_FRAME_WORDS = 4096
"""The parameters and tensor maps of a call lie on the stack of the calling thread."""
MAX_LAUNCHES = 16
PLANS_IN_A_BLOCK = 128


class Table:
    """Functions of the interpreter's C API by their purpose, then objects, then how torch's tensors are read."""

    GET_ATTRIBUTE = 0  # PyObject_GetAttr
    AS_ADDRESS = 1  # PyLong_AsVoidPtr
    CALL_METHOD = 2  # PyObject_VectorcallMethod
    VECTORCALL = 3  # PyObject_Vectorcall
    CALL = 4  # PyObject_Call
    CLEAR_ERROR = 5  # PyErr_Clear
    ERROR_OCCURRED = 6  # PyErr_Occurred
    AS_LONG_LONG = 7  # PyLong_AsLongLongAndOverflow
    AS_UNSIGNED_LONG_LONG = 8  # PyLong_AsUnsignedLongLong
    AS_DOUBLE = 9  # PyFloat_AsDouble
    COMPARE = 10  # PyObject_RichCompareBool
    NEW_TUPLE = 11  # PyTuple_New
    SET_ITEM = 12  # PyTuple_SetItem
    TUPLE_SIZE = 13  # PyTuple_Size
    GET_ITEM = 14  # PyTuple_GetItem
    SAVE_THREAD = 15  # PyEval_SaveThread
    RESTORE_THREAD = 16  # PyEval_RestoreThread
    INCREASE = 17  # Py_IncRef
    DECREASE = 18  # Py_DecRef
    FROM_LONG = 19  # PyLong_FromLong
    NONE = 20
    FALSE = 21
    BLOCK_NAME = 22  # the attribute of a callable that holds its block's address, a Python integer; 0: it has none
    CHECKED_NAME = 23  # the method of a callable that makes the call with all checks
    REFUSED_NAME = 24  # the method of a plan's owner that raises the error of a launch
    TENSOR_TYPE = 25  # torch.Tensor
    PARAMETER_TYPE = 26  # torch.nn.Parameter
    VIEW = 27  # int (PyObject* tensor, DLTensor* out), of torch's DLPack exchange table
    IS_NEGATIVE = 28  # torch.Tensor.is_neg, for where the three words below are 0
    TENSOR_AT = 29  # where a tensor object holds the address of its TensorImpl, bytes
    KEYS_AT = 30  # where a TensorImpl holds its dispatch keys, bytes
    NEGATIVE_KEY = 31  # the bit of the key Negative
    TYPE_AT = 32  # where an object holds its type, bytes
    COUNT = 33


class View:
    """What is read of an argument: a DLTensor (dlpack.h) of a tensor; of anything else only a DATA of 0."""

    DATA = 0
    DEVICE = 1  # type, index: two int32
    RANK_AND_DTYPE = 2  # int32, then code, bits and lanes
    SHAPE = 3
    STRIDES = 4
    BYTE_OFFSET = 5
    COUNT = 6


class Block:
    PLANS_COUNT = 0
    USES = 1  # calls that were made without Python
    PLANS = 2


class Plan:
    KEEPER = 0  # the Python object that owns this memory
    LATEST_AT = 1  # where NUMBER is written after a call
    NUMBER = 2
    POSITIONAL = 3
    TOTAL = 4  # arguments, with those that are given by name
    NAMES_AT = 5  # of the arguments that are given by name, interned strings
    TENSORS = 6  # arguments that are tensors
    OVERLAPS_AT = 7  # for each: bytes from its first to behind its last element, those before it that it overlaps
    CONTEXT = 8
    DEVICE_TYPE = 9
    DEVICE_INDEX = 10
    LAUNCH = 11  # cuLaunchKernelEx
    ENCODE = 12  # cuTensorMapEncodeTiled
    GET_CONTEXT = 13  # cuCtxGetCurrent
    PUSH_CONTEXT = 14  # cuCtxPushCurrent
    POP_CONTEXT = 15  # cuCtxPopCurrent
    STREAM = 16  # int (int32 device type, int32 index, void** out), of torch's DLPack exchange table
    ALLOCATIONS = 17
    ALLOCATIONS_AT = 18  # for each: a function, its positional and its keyword arguments
    RETURNS = 19
    RETURNS_AT = 20  # for each: the position of an argument, or ~ that of an allocation
    MAPS = 21
    MAPS_AT = 22
    FRAME_WORDS = 23  # the tensor maps (16 words each), the values, the pointers to the parameters
    VALUES = 24  # words
    VALUES_AT = 25  # what the values are before a call's own are written
    POINTERS = 26
    POINTERS_AT = 27  # for each parameter of each launch: where it lies in the frame, bytes
    LAUNCHES = 28
    LAUNCHES_AT = 29
    ARGUMENTS = 30


class Argument:
    """The words of one argument; see :class:`Kind` for those from FIRST on."""

    KIND = 0
    FIRST = 1
    SECOND = 2
    THIRD = 3
    FOURTH = 4
    FIFTH = 5
    SIXTH = 6
    SEVENTH = 7
    EIGHTH = 8
    COUNT = 9


class Kind:
    """TENSOR: device, rank and dtype (as in a View), address modulo 16, rank, where shape and strides are, position
    among the values. NUMBER: type, how it is written (:class:`Number`), byte among the values, bytes, smallest,
    largest, whether it must be the last word's value, that value. SAME: the object. EQUAL: an object of a type that is
    compared by value, its type."""

    TENSOR = 0
    NUMBER = 1
    SAME = 2
    EQUAL = 3


class Number:
    """How a Python number becomes bits, as :mod:`ptxtile.runtime.scalars` does it."""

    INTEGER = 0
    UNSIGNED64 = 1
    FLOAT32 = 2
    FLOAT64 = 3
    FLOAT16 = 4
    BFLOAT16 = 5


class Map:
    """The arguments of cuTensorMapEncodeTiled, whose addresses point into the plan."""

    DATA_TYPE = 0
    RANK = 1
    TENSOR = 2  # position among the values
    OFFSET = 3  # bytes from the tensor's address
    SIZES = 4
    STRIDES = 5
    BOX = 6
    ELEMENT_STRIDES = 7
    SWIZZLE = 8
    PROMOTION = 9
    COUNT = 10


MAP_WORDS = 16
ADDRESS_CLASS = 15
"""Of an address, the bits that a plan depends on."""


class Launch:
    """A CUlaunchConfig (cuda.h), the function, and which pointer is the first of its parameters."""

    CONFIG = 0
    STREAM = 4
    FUNCTION = 7
    POINTER = 8
    COUNT = 9


CONFIG_WORDS = 7
