"""Collects the functions that the methods of nodes call; :mod:`minitvm.tir` hands them over."""

from __future__ import annotations

from minitvm.tir.admission import admit, bounds, with_attributes
from minitvm.tir.arithmetic import FUNCTIONS
from minitvm.tir.buffer import access_ptr, load, store
from minitvm.tir.node import Language
from minitvm.tir.numpy_functions import of_numpy, of_torch
from minitvm.tir.printer import text
from minitvm.tir.sizes import is_same_size

LANGUAGE = Language(
    functions=FUNCTIONS,
    of_numpy=of_numpy,
    of_torch=of_torch,
    text=text,
    admit=admit,
    is_same_size=is_same_size,
    load=load,
    store=store,
    access_ptr=access_ptr,
    bounds=bounds,
    with_attributes=with_attributes,
)
