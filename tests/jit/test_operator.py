"""Operators made by minitvm.jit: results, outputs, builds."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import threading
from typing import Annotated, Any

import numpy as np
import pytest

import minitvm as tvm
from minitvm import te
from minitvm.operators.operator import Operator
from tests.processes import *  # noqa
