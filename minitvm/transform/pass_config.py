"""The options of the pipeline, under the names of classic ``PassContext(config=...)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any, final

from minitvm.runtime.errors import CompileError
from minitvm.runtime.record import record
from minitvm.tir.stmt import PrimFunc
from minitvm.transform.inject_double_buffer import DoubleBufferOptions
from minitvm.transform.partition_loops import LoopPartitionOptions
from minitvm.transform.unroll_loops import UnrollOptions

PrimFuncPass = Callable[[PrimFunc], PrimFunc]


@final
@record()
class HoistOptions:
    """``tir.HoistIfThenElse``: accepted without effect, since conditions always move as far as they
    may."""

    support_block_scope_hosting: bool = False


@final
@record()
class SimplifyOptions:
    """``tir.Simplify``: accepted without effect, since the simplifier always does all of this."""

    transitively_prove_inequalities: bool = False
    convert_boolean_to_and_of_ors: bool = False
    apply_constraints_to_boolean_branches: bool = False


@final
@record()
class PassConfig:
    """The options of the passes, a field for each key with an effect."""

    partition: LoopPartitionOptions = field(default_factory=LoopPartitionOptions)
    unroll: UnrollOptions = field(default_factory=UnrollOptions)
    double_buffer: DoubleBufferOptions = field(default_factory=DoubleBufferOptions)
    vectorize: bool = True
    reuse_storage: bool = True
    program_assertions: bool = True
    keep_trivial_loops: bool = False
    check_accesses: bool = False
    added: tuple[tuple[int, PrimFuncPass], ...] = ()


def parse_config(config: Mapping[str, Any]) -> PassConfig:
    """The options that `config` sets.

    Raises
    ------
    CompileError
        When a key is unknown, or has no meaning here, or its value is not of the type expected.

    >>> parse_config({"tir.UnrollLoop": {"auto_max_step": 16}}).unroll.auto_max_step
    16
    >>> parse_config({"tir.noalias": False})
    Traceback (most recent call last):
        ...
    minitvm.runtime.errors.CompileError: PassContext: config 'tir.noalias': expected True, got \
False: a call refuses outputs that overlap other arguments, and code is compiled for that
    """
    made = PassConfig()
    for key, value in config.items():
        reason = next((why for start, why in _REFUSED.items() if key.startswith(start)), None)
        if reason is not None:
            raise CompileError(f"PassContext: config {key!r}: {reason}")
        if key not in _KEYS:
            raise CompileError(
                f"PassContext: expected an option among {', '.join(sorted(_KEYS))}, got {key!r}"
            )
        made = _KEYS[key](made, key, value)
    return made


Setter = Callable[[PassConfig, str, Any], PassConfig]


def _wrong(key: str, expected: str, value: object, why: str = "") -> CompileError:
    because = why and f": {why}"
    return CompileError(f"PassContext: config {key!r}: expected {expected}, got {value!r}{because}")


def _changed(config: PassConfig, name: str, value: Any) -> PassConfig:
    changes: dict[str, Any] = {name: value}
    return replace(config, **changes)


def _flag(name: str | None = None, negated: bool = False) -> Setter:
    """A bool that sets a field; without a name it is accepted without effect."""

    def set_flag(config: PassConfig, key: str, value: Any) -> PassConfig:
        if not isinstance(value, (bool, int)) or value not in (0, 1):
            raise _wrong(key, "True or False", value)
        return config if name is None else _changed(config, name, bool(value) != negated)

    return set_flag


def _options(name: str | None, options: type[Any]) -> Setter:
    """A mapping that gives the fields of a class of options."""
    defaults: dict[str, Any] = {each.name: each.default for each in fields(options)}

    def set_options(config: PassConfig, key: str, value: Any) -> PassConfig:
        if not isinstance(value, Mapping):
            raise _wrong(key, f"a dict of {', '.join(defaults)}", value)
        for member, given in value.items():
            where = f"{key}: {member}"
            if member not in defaults:
                raise _wrong(key, f"options among {', '.join(defaults)}", member)
            if isinstance(defaults[member], bool):
                if not isinstance(given, (bool, int)) or given not in (0, 1):
                    raise _wrong(where, "True or False", given)
            elif not isinstance(given, int) or isinstance(given, bool) or given < 0:
                raise _wrong(where, "an integer from 0 on", given)
        if name is None:
            return config
        given = {k: type(defaults[k])(v) for k, v in value.items()}
        return _changed(config, name, options(**given))

    return set_options


def _noalias(config: PassConfig, key: str, value: Any) -> PassConfig:
    if value is not True:
        why = "a call refuses outputs that overlap other arguments, and code is compiled for that"
        raise _wrong(key, "True", value, why)
    return config


_LAST_PHASE = 3


def _added_passes(config: PassConfig, key: str, value: Any) -> PassConfig:
    expected = f"a list of (phase from 0 to {_LAST_PHASE}, function of a PrimFunc)"
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong(key, expected, value)
    for each in value:
        pair = each if isinstance(each, (tuple, list)) and len(each) == 2 else (None, None)
        if pair[0] not in range(_LAST_PHASE + 1) or not callable(pair[1]):
            raise _wrong(key, expected, each)
    return replace(config, added=tuple((int(phase), added) for phase, added in value))


_KEYS: dict[str, Setter] = {
    "tir.LoopPartition": _options("partition", LoopPartitionOptions),
    "tir.UnrollLoop": _options("unroll", UnrollOptions),
    "tir.InjectDoubleBuffer": _options("double_buffer", DoubleBufferOptions),
    "tir.HoistIfThenElse": _options(None, HoistOptions),
    "tir.Simplify": _options(None, SimplifyOptions),
    "tir.disable_vectorize": _flag("vectorize", negated=True),
    "tir.disable_storage_rewrite": _flag("reuse_storage", negated=True),
    "tir.disable_assert": _flag("program_assertions", negated=True),
    "tir.debug_keep_trivial_loop": _flag("keep_trivial_loops"),
    "tir.add_lower_pass": _added_passes,
    "tir.noalias": _noalias,
    "tir.instrument_bound_checkers": _flag("check_accesses"),
    "tir.is_entry_func": _flag(),  # every function can be called
    "tir.detect_global_barrier": _flag(),  # of GPUs
    "tir.merge_static_smem": _flag(),  # of GPUs
}
# Prefixes of keys that would change the meaning of a program, and the reasons to refuse them.
_REFUSED = {
    "tir.usmp.": "expected none: memory planning for microcontrollers is not part of minitvm",
    "relay.": "expected none: there are no graphs of operators here, only tensor expressions",
}
