"""The packed C function of a kernel: it checks its arguments, binds sizes, and calls the body.

::

    int f(TVMValue* args, int* type_codes, int num_args,
          TVMValue* ret, int* ret_type_code, void* resource)

returns 0, or -1 with a Python error set. Everything is checked before the body writes anything:
the number of arguments and their kinds; of each array the rank, dtype, device, shape, strides,
memory and alignment; and that no output shares memory with another argument, or, in the variant
for that, that it is the same array. Where another variant may take the arrays, and the caller asks
for it, the status is NEEDS_VARIANT (:mod:`minitvm.runtime.arrangement`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minitvm.arith.effects import written_buffers, written_parameters
from minitvm.arith.work import KnownWork
from minitvm.codegen.accesses import strides_of
from minitvm.codegen.alike import nests_alike
from minitvm.codegen.argument_checks import (
    Checks,
    bind_shape,
    check_memory,
    check_strides,
    read_scalar,
    read_tensor,
)
from minitvm.codegen.argument_errors import ArgumentErrors, asks, percent_escaped, raise_error
from minitvm.codegen.conversion import register_type
from minitvm.codegen.dltensor import Tensor
from minitvm.codegen.expression import expression_emitter
from minitvm.codegen.gil import pays_release, release_gil, take_gil, take_gil_anew
from minitvm.codegen.llvm_text import (
    AS_IT_IS,
    NULL,
    OWN_COPIES,
    FunctionText,
    ModuleText,
    Value,
    i32,
    i64,
    integer,
    symbol,
)
from minitvm.codegen.options import CodegenOptions
from minitvm.codegen.overlap import go_on_if_apart, own_elements_apart
from minitvm.codegen.statement import Assertion, StatementEmitter
from minitvm.codegen.tile_blocks import are_blocks_apart
from minitvm.runtime.arrangement import ASKS_TO_CHECK, FAILED_HOLDING, IS_WITHOUT_GIL
from minitvm.runtime.threads_text import MAX_FAILURE_VALUES
from minitvm.runtime.values import ArgTypeCode
from minitvm.tir import expr as e
from minitvm.tir.expr import PrimExpr, Var
from minitvm.tir.stmt import PrimFunc

PACKED_PARAMS = (
    "ptr args", "ptr type_codes", "i32 num_args", "ptr ret", "ptr ret_type_code", "ptr resource",
)  # fmt: skip


def emit_function(module: ModuleText, func: PrimFunc, options: CodegenOptions) -> None:
    """Adds `func` to `module`: its body, and its packed function under its own name."""
    sizes, work = bound_variables(func), KnownWork()
    assertions = _emit_body(module, func, sizes, options, work)
    pays = pays_release(func, options.release_gil, work)
    _emit_entry(module, func, sizes, assertions, options, pays)
    if func.attrs.has_plain_entry and not assertions:
        _emit_plain_entry(module, func, sizes)


def bound_variables(func: PrimFunc) -> tuple[Var, ...]:
    """The variables that the shapes, strides and offsets of the arguments bind, in order."""
    dims = [d for b in func.buffer_map.values() for d in b.sizes]
    parameters = set(func.params)
    found = (d for d in dims if isinstance(d, Var) and d not in parameters)
    return tuple(dict.fromkeys(found))


def packed_symbol(name: str) -> str:
    """The symbol of a function's packed entry; no C function can have such a name."""
    return f"packed.{_ascii(name)}"


def plain_symbol(name: str) -> str:
    """The symbol of a function's plain entry."""
    return f"plain.{_ascii(name)}"


def _body_symbol(name: str) -> str:
    return f"body.{_ascii(name)}"


def _ascii(name: str) -> str:
    """A name in ASCII: llvmlite looks functions up by such names only."""
    return name.encode("ascii", "backslashreplace").decode()


def _emit_body(
    module: ModuleText,
    func: PrimFunc,
    sizes: tuple[Var, ...],
    options: CodegenOptions,
    work: KnownWork,
) -> list[Assertion]:
    written = written_parameters(func)
    params: list[str] = []
    for position, param in enumerate(func.params):
        buffer = func.buffer_map.get(param)
        if buffer is None:
            params.append(f"{register_type(param.dtype)} p{position}")
        else:
            access = "" if buffer in written else " readonly"
            # Not nocapture: a packed call and a parallel region get the address through memory.
            params.append(f"ptr noalias{access} p{position}")
    params.extend(f"{register_type(var.dtype)} size{i}" for i, var in enumerate(sizes))
    params.append("ptr noalias failure")
    text = FunctionText(module, _body_symbol(func.name), "i32", params, linkage="internal",
                        attributes=OWN_COPIES)  # fmt: skip
    emitter = StatementEmitter(text, options, text.params[-1])
    for param, value in zip((*func.params, *sizes), text.params[:-1], strict=True):
        buffer = func.buffer_map.get(param)
        if buffer is None:
            emitter.expressions.variables[param] = value
        else:
            emitter.expressions.pointers[buffer] = value
    emitter.work = work
    emitter.apart = nests_alike(func.body)
    emitter.are_blocks_apart = are_blocks_apart(func.body)
    emitter.expressions.stored = frozenset(each.data for each in written_buffers(func.body))
    emitter.emit(func.body)
    emitter.finish()
    return emitter.assertions


def _emit_entry(
    module: ModuleText,
    func: PrimFunc,
    sizes: Sequence[Var],
    assertions: Sequence[Assertion],
    options: CodegenOptions,
    pays: PrimExpr,
) -> None:
    """The packed function: reads all arguments, binds their sizes, checks them, and calls the body,
    without the GIL where that `pays`.

    LLVM doesn't optimise it. Emitted as compares and branches, with the reports out of line, it is
    as fast as LLVM's optimised form, which took a third of the time of building a small kernel.
    """
    text = FunctionText(module, packed_symbol(func.name), "i32", PACKED_PARAMS,
                        attributes=AS_IT_IS)  # fmt: skip
    args, codes, count, ret, ret_code, _resource = text.params
    names = arg_names(func)
    emitter = expression_emitter(text, options)
    emitter.no_wrap = ""  # the sizes aren't checked yet
    errors = ArgumentErrors(text, func.name, names, ret_code)
    checks = Checks(text, func, names, emitter, errors, written_parameters(func))
    with checks.unless([text.icmp("eq", count, i32(len(func.params)))]):
        checks.errors.report_count(count)
    tensors: dict[int, Tensor] = {}
    for position, param in enumerate(func.params):
        code = text.load("i32", text.element_pointer("i32", codes, i64(position)), 4)
        where = text.element_pointer("i64", args, i64(position))
        buffer = func.buffer_map.get(param)
        if buffer is None:
            emitter.variables[param] = read_scalar(checks, position, param, code, where)
        else:
            tensors[position] = read_tensor(checks, position, buffer, code, where)
    for tensor in tensors.values():
        bind_shape(checks, tensor)
    for tensor in tensors.values():
        check_memory(checks, tensor)
        check_strides(checks, tensor)
    _check_overlaps(checks, tensors)
    _end_a_check(text, ret_code)
    arguments = [
        tensors[position].first if position in tensors else emitter.variables[param]
        for position, param in enumerate(func.params)
    ]
    arguments += [emitter.variables[var] for var in sizes]
    failure = text.alloca("i64", MAX_FAILURE_VALUES)
    body = Value("ptr", f"@{symbol(_body_symbol(func.name))}")
    releases = e.const_int(pays) != 0
    state = release_gil(text, _holds(text, ret_code, emitter.emit(pays))) if releases else NULL
    status = text.call(body, "i32", [*arguments, failure])
    if releases:
        take_gil(text, state)
    failed = text.block("failed")
    text.go_on_if(text.icmp("eq", status, i32(0)), failed)
    text.store(i32(ArgTypeCode.NULL), ret_code, 4)
    text.ret(i32(0))
    with text.aside(failed):
        result = _take_gil_to_fail(text, ret, ret_code)
        _report_failure(text, status, failure, assertions, result)
    text.finish()


def _emit_plain_entry(module: ModuleText, func: PrimFunc, sizes: Sequence[Var]) -> None:
    """The plain entry, for callers that are machine code of ours and have made all checks
    themselves::

        int plain(void** addresses, int64_t* sizes)

    `addresses` are the addresses of the arguments, all of them arrays, in order; `sizes` are the
    values of the variables in their shapes.
    """
    text = FunctionText(module, plain_symbol(func.name), "i32", ("ptr addresses", "ptr sizes"))
    addresses, values = text.params
    arguments = [text.word(addresses, i, "ptr") for i in range(len(func.params))]
    for i, var in enumerate(sizes):
        value, type = text.word(values, i), register_type(var.dtype)
        arguments.append(value if type == "i64" else text.convert("trunc", value, type))
    body = Value("ptr", f"@{symbol(_body_symbol(func.name))}")
    failure = text.alloca("i64", MAX_FAILURE_VALUES)
    text.ret(text.call(body, "i32", [*arguments, failure]))
    text.finish()


def _end_a_check(text: FunctionText, ret_code: Value) -> None:
    """Ends the function here where the caller only wants its arguments checked."""
    asked, checked, go_on = text.blocks("asked", "checked", "go_on")
    code = text.load("i32", ret_code, 4)
    # The usual request has the lowest value.
    usual = text.icmp("ult", code, i32(ASKS_TO_CHECK))
    text.branch_if(usual, go_on, asked, likely=True)
    with text.aside(asked):
        text.branch_if(asks(text, code, ASKS_TO_CHECK), checked, go_on)
        text.place(checked)
        text.ret(i32(0))
    text.place(go_on)


def _holds(text: FunctionText, ret_code: Value, pays: Value) -> Value:
    """Whether the caller holds the GIL, and releasing it pays."""
    without = asks(text, text.load("i32", ret_code, 4), IS_WITHOUT_GIL)
    return text.select(without, integer("i1", 0), pays)


def _take_gil_to_fail(text: FunctionText, ret: Value, ret_code: Value) -> Value:
    """Takes the GIL, which the report of a failure needs, for a caller without it; returns the
    status of the failure."""
    before = text.current
    without = asks(text, text.load("i32", ret_code, 4), IS_WITHOUT_GIL)
    take, go_on = text.blocks("take_gil", "report")
    with text.when(without, take, go_on):
        text.store(take_gil_anew(text), ret, 4)
    return text.phi("i32", (i32(FAILED_HOLDING), take), (i32(-1), before))


def _report_failure(
    text: FunctionText,
    status: Value,
    failure: Value,
    assertions: Sequence[Assertion],
    result: Value,
) -> None:
    """Raises the error of assertion number `status`, and returns `result`; for a status of -1 the
    callee has set the error."""
    blocks = [text.block("assertion") for _ in assertions]
    gave_up = text.block("callee_failed")
    text.switch(status, gave_up, [(i + 1, block) for i, block in enumerate(blocks)])
    for block, assertion in zip(blocks, assertions, strict=True):
        with text.inside(block):
            values = [text.word(failure, i) for i in range(assertion.values)]
            message = percent_escaped(assertion.message).replace("{}", "%lld")
            raise_error(text, assertion.kind, text.module.string(message), values)
            text.ret(result)
    text.place(gave_up)
    text.ret(result)


# -- arrays that share memory --


def _check_overlaps(checks: Checks, tensors: Mapping[int, Tensor]) -> None:
    """Checks each output against each other argument, and against itself. The input of an in-place
    output has the output's memory, so only the output is compared."""
    text, same = checks.text, checks.func.attrs.in_place
    for output, before in sorted(same):
        holds = _are_same(checks, tensors[output], tensors[before])
        checks.require(holds, "same", output, before, checks.names[before])
    covered = {before for _, before in same}
    compared = [each for position, each in tensors.items() if position not in covered]
    for tensor in compared:
        tensor.strides = strides_of(checks.emitter, tensor.buffer)
    for tensor in compared:
        if tensor.is_output and not tensor.is_compact:
            for dim, holds in enumerate(own_elements_apart(text, tensor)):
                checks.require(holds, "own_overlap", tensor.position, dim)
    meeting, shared, apart = text.blocks("meeting", "shared", "apart")
    go_on_if_apart(text, compared, meeting)
    text.branch(apart)
    with text.aside(meeting):
        status = checks.errors.overlaps(compared)
        text.branch_if(text.icmp("eq", status, i32(0)), apart, shared)
        text.place(shared)
        text.ret(status)
    text.place(apart)


def _are_same(checks: Checks, output: Tensor, other: Tensor) -> Value:
    """Whether two arrays of one shape are one array."""
    text = checks.text
    same = text.icmp("eq", output.first, other.first)
    if not output.buffer.strides and not other.buffer.strides:
        return same
    strides = (strides_of(checks.emitter, each.buffer) for each in (output, other))
    for extent, *steps in zip(output.extents, *strides, strict=True):
        single = text.icmp("sle", extent, i64(1))
        agrees = text.binary("or", text.icmp("eq", *steps), single)
        same = text.binary("and", same, agrees)
    return same


def arg_names(func: PrimFunc) -> tuple[str, ...]:
    """The names of a function's parameters: a tensor's is its buffer's."""
    return tuple(
        func.buffer_map[param].name if param in func.buffer_map else param.name
        for param in func.params
    )
