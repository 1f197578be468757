"""Types whose instances hold memory that compiled code reads: made through CPython's C API.

The memory of a *storage* type's instance begins at a known distance from the address of the object
(:data:`HEADER`), so that compiled code which is given the object finds it with one addition. A
*leaf* of a Python class is the same class to everybody, but calling its instances is a call of
compiled code (PEP 590).

Types live as long as the process. Their layout is CPython's: ``PyType_FromSpecWithBases``,
``PyType_Spec``, ``PyType_Slot``, ``PyMemberDef`` and ``PyMethodDef`` (object.h, structmember.h,
methodobject.h), which are the same from 3.10 on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from minitvm.runtime.native import increment_reference

HEADER = object.__basicsize__  # bytes of an object before its own fields

# object.h and typeslots.h
_TPFLAGS_DISALLOW_INSTANTIATION = 1 << 7
_TPFLAGS_DEFAULT = 1 << 18
_TPFLAGS_BASETYPE = 1 << 10
_TPFLAGS_HAVE_VECTORCALL = 1 << 11
_TPFLAGS_METHOD_DESCRIPTOR = 1 << 17
_SLOT_GET_BUFFER = 1
_SLOT_CALL = 50
_SLOT_DEALLOC = 52
_SLOT_MEMBERS = 72
# methodobject.h
_METH_KEYWORDS = 2
_METH_O = 8
_METH_FASTCALL = 128
# structmember.h
_MEMBER_PYSSIZET = 19
_MEMBER_READONLY = 1


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("function", ctypes.c_void_p))


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.c_void_p),
    )


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_from_spec = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object)(
    ("PyType_FromSpecWithBases", ctypes.pythonapi)
)
_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))
_new_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)(
    ("PyDescr_NewMethod", ctypes.pythonapi)
)
_set_attribute = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.py_object
)(("PyObject_GenericSetAttr", ctypes.pythonapi))
_forget_attributes = ctypes.PYFUNCTYPE(None, ctypes.py_object)(
    ("PyType_Modified", ctypes.pythonapi)
)
# A function of CPython that only raises TypeError for objects without a `fileno`, and returns -1.
_no_buffer = ctypes.cast(ctypes.pythonapi.PyObject_AsFileDescriptor, ctypes.c_void_p).value
_kept: list[object] = []  # memory that CPython goes on reading: names, members


def storage(name: str, size: int, *, shows_buffers: bool = False) -> Any:
    """A type to derive from, of a dotted name, whose instances have `size` bytes at :data:`HEADER`,
    zero at first. If it `shows_buffers`, :func:`show_buffers` makes it do so.

    >>> pair = storage("example.Pair", 16)()
    >>> ctypes.c_int64.from_address(id(pair) + HEADER).value
    0
    """
    slots: list[tuple[int, int | None]] = []
    if shows_buffers:
        slots.append((_SLOT_GET_BUFFER, _no_buffer))
    return _make(name, object, HEADER + size, _TPFLAGS_BASETYPE, slots)


def show_buffers(kind: type, get_buffer: int) -> None:
    """Lets compiled code show the memory of instances of a type whose base is a storage: ``int
    (PyObject*, Py_buffer*, int)``.

    The code takes a while to load, so this is done for the first instance. The type's slot gets
    this function in place of one that only raises an error.
    """
    metaclass: Any = type(kind)
    words = (ctypes.c_void_p * (metaclass.__basicsize__ // 8)).from_address(id(kind))
    places = [at for at, word in enumerate(words) if word == _no_buffer]
    if len(places) == 1:
        words[places[0]] = get_buffer


def leaf(base: type, vectorcall: int, *, is_method: bool = False) -> Any:
    """A type like `base`, which has Python code for everything. Calling its instances runs the
    compiled code at `vectorcall`: ``PyObject* (PyObject*, PyObject* const*, size_t, PyObject*)``.
    Nothing may derive from it.

    With `is_method`, instances that are attributes of a class are methods of the class's instances:
    CPython calls them without their ``__get__``, which must have the same meaning.

    The address lies in each instance, after the fields of `base`; :func:`enable` puts it there.
    The type's attribute ``__call__`` stays that of `base`, for programs that read Python code in
    place of running it, as torch.compile does.
    """
    at = base.__basicsize__
    members = (_Member * 2)()
    members[0] = _Member(b"__vectorcalloffset__", _MEMBER_PYSSIZET, at, _MEMBER_READONLY, None)
    call = ctypes.cast(ctypes.pythonapi.PyVectorcall_Call, ctypes.c_void_p).value
    slots = [(_SLOT_CALL, call), (_SLOT_MEMBERS, ctypes.addressof(members))]
    _kept.append(members)
    name = f"{base.__module__}.{base.__qualname__}"
    flags = _TPFLAGS_HAVE_VECTORCALL | (_TPFLAGS_METHOD_DESCRIPTOR if is_method else 0)
    made = _make(name, base, at + 8, flags, slots)
    made.__doc__ = base.__dict__["__doc__"]
    _show(made, "__call__", base.__call__)
    _vectorcalls[made] = vectorcall
    return made


def _show(kind: type, name: str, value: object) -> None:
    """Sets an attribute of a type without changing the slot that belongs to the attribute."""
    _set_attribute(kind, name, value)
    _forget_attributes(kind)


def holder(name: str, size: int, dealloc: int, members: Mapping[str, int]) -> Any:
    """A type, of a dotted name, whose instances have `size` bytes at :data:`HEADER`, and end in
    compiled code: ``void (PyObject*)``. Compiled code makes them. `members` maps the names of
    integers of 64 bits, which can be read, to their distances from the object's address."""
    array = (_Member * (len(members) + 1))()
    for index, (member, at) in enumerate(members.items()):
        array[index] = _Member(member.encode(), _MEMBER_PYSSIZET, at, _MEMBER_READONLY, None)
    _kept.append(array)
    slots: list[tuple[int, int | None]] = [
        (_SLOT_DEALLOC, dealloc),
        (_SLOT_MEMBERS, ctypes.addressof(array)),
    ]
    return _make(name, object, HEADER + size, _TPFLAGS_DISALLOW_INSTANTIATION, slots)


def function(name: str, code: int) -> Any:
    """A function of one argument in compiled code: ``PyObject* (PyObject*, PyObject*)``, whose
    first argument is NULL."""
    return _new_function(_method(name, code, _METH_O, None), None, None)


def method(kind: type, name: str, code: int, doc: str) -> Any:
    """A method of a type in compiled code: ``PyObject* (PyObject* self, PyObject* const*,
    Py_ssize_t, PyObject* keywords)``."""
    return _new_method(kind, _method(name, code, _METH_FASTCALL | _METH_KEYWORDS, doc))


def _method(name: str, code: int, flags: int, doc: str | None) -> int:
    made = _MethodDef(name.encode(), code, flags, None if doc is None else doc.encode())
    _kept.append(made)
    return ctypes.addressof(made)


_vectorcalls: dict[type, int] = {}


def enable(instance: Any) -> None:
    """Lets calls of a leaf's new instance reach the compiled code; instances of other types stay as
    they are."""
    vectorcall = _vectorcalls.get(type(instance))
    if vectorcall is not None:
        at = id(instance) + type(instance).__basicsize__ - 8
        ctypes.c_void_p.from_address(at).value = vectorcall


def _make(name: str, base: type, size: int, flags: int, slots: list[tuple[int, int | None]]) -> Any:
    array = (_Slot * (len(slots) + 1))(*(_Slot(*slot) for slot in slots))
    text = name.encode()
    spec = _Spec(text, size, 0, _TPFLAGS_DEFAULT | flags, ctypes.addressof(array))
    _kept.extend((text, spec, array))
    made = _from_spec(ctypes.addressof(spec), (base,))
    increment_reference(made)
    return made
