"""Programs as classic TVM's users write them: functions, modules, texts, hashes, bounds."""

# They pass lists and numbers where constructors convert, and names that are found at run time.
# mypy: disable-error-code="arg-type,attr-defined,misc,operator,union-attr,index,untyped-decorator"

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import minitvm as tvm
import minitvm.testing
from minitvm import te, tir
from minitvm.runtime.errors import CompileError
from minitvm.tir import intrinsics, registered
from minitvm.tir.interpreter import interpret
from minitvm.tir.names import ATTRIBUTES

A = te.placeholder((10,), name="A")
B = te.compute((10,), lambda i: A[i] + 1.0, name="B")


def filled(value: float = 1.0) -> tir.PrimFunc:
    X, i = tir.decl_buffer((4,), name="X"), te.var("i")
    return tir.PrimFunc([X], tir.For(i, 0, 4, tir.ForKind.SERIAL, tir.BufferStore(X, value, [i])))


def programs() -> Iterator[tvm.IRModule]:
    """Made anew by each call, with other variables."""
    n = te.var("n")
    X = te.placeholder((n, 8), name="X")
    k = te.reduce_axis((0, 8), name="k")
    S = te.compute((n,), lambda i: te.sum(X[i, k] * X[i, k], axis=k), name="S")
    Y = te.compute((n,), lambda i: te.if_then_else(i > 0, te.exp(S[i]), float("inf")), name="Y")
    s = te.create_schedule(Y.op)
    yield tvm.lower(s, [X, Y])
    yield tvm.lower(s, [X, Y], simple_mode=True)
    outer, inner = s[Y].split(Y.op.axis[0], factor=4)
    s[Y].vectorize(inner)
    s[Y].parallel(outer)
    yield tvm.lower(s, [X, Y])
    s[S].compute_at(s[Y], outer)
    yield tvm.lower(s, [X, Y])


# -- Functions and modules ------------------------------------------------------------------------


def test_a_function_of_parameters_and_a_body() -> None:
    module = tvm.IRModule.from_expr(filled(3.0).with_attr("global_symbol", "fill"))
    assert [each.name_hint for each in module.get_global_vars()] == ["fill"]
    x = tvm.nd.empty((4,))
    tvm.build(module, target="llvm")(x)
    np.testing.assert_array_equal(x.numpy(), np.full(4, 3.0))


def test_attributes_that_a_function_has() -> None:
    func = filled()
    assert func.with_attr("tir.noalias", True) is func
    assert func.with_attr({"global_symbol": "f", "tir.noalias": True}).name == "f"
    with pytest.raises(CompileError, match=r"main: with_attr: expected an attribute among glob"):
        func.with_attr("target", "llvm")
    with pytest.raises(CompileError, match=r"global_symbol: expected a name, got int 3"):
        func.with_attr("global_symbol", 3)
    made = tir.PrimFunc(func.params, func.body, func.buffer_map, attrs={"global_symbol": "g"})
    assert made.name == "g"


def test_lower_without_an_output_allocates_it_and_build_refuses() -> None:
    s = te.create_schedule(B.op)
    assert "B = allocate(float32[10])" in str(tvm.lower(s, [A], simple_mode=True))
    with pytest.raises(CompileError, match="expected output B among the arguments"):
        tvm.build(s, [A])


def test_from_expr_refuses_others() -> None:
    with pytest.raises(CompileError, match=r"IRModule.from_expr: expected a PrimFunc, got x"):
        tvm.IRModule.from_expr(te.var("x"))


# -- Schedules ------------------------------------------------------------------------------------


def test_infer_bound_and_schedule_ops() -> None:
    C = te.compute((8,), lambda i: B[i] + B[i + 2], name="C")
    s = te.create_schedule(C.op)
    outer, inner = s[C].split(C.op.axis[0], factor=4)
    s[B].compute_at(s[C], outer)
    bounds = tvm.te.schedule.InferBound(s)
    assert [int(bounds[axis].extent) for axis in (outer, inner, B.op.axis[0])] == [2, 4, 6]
    body = tvm.te.schedule.ScheduleOps(s, bounds)
    assert str(body).startswith("for i.outer in range(2):")


@pytest.mark.parametrize(
    ("name", "inlined"),
    [
        ("AutoInlineElemWise", "same"),
        ("AutoInlineBroadcast", "same row"),
        ("AutoInlineInjective", "same row turned"),
    ],
)
def test_stages_that_are_inlined(name: str, inlined: str) -> None:
    M, V = te.placeholder((3, 3), name="M"), te.placeholder((3,), name="V")
    k = te.reduce_axis((0, 3), "k")
    same = te.compute((3, 3), lambda i, j: M[i, j] + 1.0, name="same")
    row = te.compute((3, 3), lambda i, j: V[j] + 0.0, name="row")
    turned = te.compute((3, 3), lambda i, j: M[j, i] * 2.0, name="turned")
    summed = te.compute((3,), lambda i: te.sum(M[i, k], axis=k), name="summed")
    out = te.compute(
        (3, 3), lambda i, j: same[i, j] + row[i, j] + turned[i, j] + summed[i], name="out"
    )
    s = te.create_schedule(out.op)
    getattr(tvm.te.schedule, name)(s)
    assert {stage.name for stage in s.stages if stage.inlined} == set(inlined.split())


# -- Texts and hashes -----------------------------------------------------------------------------


def test_a_program_comes_back_from_its_text_and_hashes_alike() -> None:
    hashes = set()
    for first, second in zip(programs(), programs(), strict=True):
        again = tvm.ir.load_json(tvm.ir.save_json(first))
        for other in (second, again):
            tvm.ir.assert_structural_equal(first, other)
            assert tvm.ir.structural_hash(first) == tvm.ir.structural_hash(other)
        assert str(again) == str(first)
        hashes.add(tvm.ir.structural_hash(first))
    assert len(hashes) == 4


def test_loops_beside_each_other_may_share_a_variable() -> None:
    """Equal programs, of which one has a variable less."""

    def twice(share: bool) -> tir.PrimFunc:
        X, i, last = tir.decl_buffer((4,), name="X"), te.var("i"), te.var("last")
        loops = []
        for var in (i, i if share else te.var("j"), last):
            store = tir.BufferStore(X, 1.0, [var])
            loops.append(tir.For(var, 0, 4, tir.ForKind.SERIAL, store))
        return tir.PrimFunc([X], tir.SeqStmt(loops))

    assert tvm.ir.structural_equal(twice(True), twice(False))
    assert tvm.ir.structural_hash(twice(True)) == tvm.ir.structural_hash(twice(False))


def test_what_is_shared_stays_shared_however_deep() -> None:
    x = te.var("x")
    deep: Any = x
    for _ in range(3000):
        deep = deep + x * x
    found, _ = tvm.ir.load_json(tvm.ir.save_json([deep, {"same": deep}]))
    loaded = tvm.ir.load_json(tvm.ir.save_json((x * 2, x * 2)))
    assert loaded[0].a is loaded[1].a
    assert found.dtype == "int32"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("{}", "no text of format"),
        ('{"format": "minitvm program 1", "nodes": [["Popen", 1]], "root": 1}', "'Popen'"),
        ('{"format": "minitvm program 1", "nodes": [["Var"]], "root": 1}', "4 values of a Var"),
        (
            '{"format": "minitvm program 1", "nodes": [["Not", {"node": 5}]], "root": 1}',
            "index out of range",
        ),
    ],
)
def test_texts_that_are_none(text: str, problem: str) -> None:
    with pytest.raises(CompileError, match=rf"load_json: expected a text .*{problem}"):
        tvm.ir.load_json(text)


def test_a_tensor_has_no_text() -> None:
    with pytest.raises(CompileError, match=r"found Tensor.* save the loops that lower makes"):
        tvm.ir.save_json(A[te.var("i")])


# -- Operators and their rules --------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    tables: list[Any] = [ATTRIBUTES, intrinsics.CALLS, intrinsics.FUNCTIONS]
    tables += [intrinsics.IMPURE_CALLS, registered._own]
    before = [table.copy() for table in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


def built(function: Callable[[Any], Any], **options: Any) -> Any:
    C = te.compute((10,), lambda i: function(A[i]), name="C")
    return tvm.build(te.create_schedule(C.op), [A, C], **options)


def own(name: str) -> Callable[[Any], Any]:
    return lambda x: tir.call_intrin(x.dtype, name, x)


def test_an_operator_of_ones_own(registry: None) -> None:
    tvm.ir.register_op_attr("tir.test_cube", "TCallEffectKind", tir.CallEffectKind.Pure)
    with pytest.raises(CompileError, match=r"test_cube: expected a rule .* found it without one"):
        built(own("tir.test_cube"))

    @tvm.ir.register_intrin_lowering("tir.test_cube", target="llvm")
    def cube(op: Any) -> Any:
        assert op.op.name == "tir.test_cube"
        return op.args[0] * op.args[0] * op.args[0]

    a, c = np.arange(10, dtype="float32"), np.empty(10, "float32")
    for auto_schedule in (True, False):
        built(own("tir.test_cube"), auto_schedule=auto_schedule)(a, c)
        np.testing.assert_array_equal(c, a**3)
    assert tvm.ir.Op.get("tir.test_cube").get_attr("TCallEffectKind") == 1


def test_a_rule_for_a_function_of_the_language(registry: None) -> None:
    def halved(op: Any) -> Any:
        return te.exp(op.args[0]) * 0.5  # this exp is not replaced again

    tvm.ir.register_intrin_lowering("tir.exp", target="llvm", f=halved)
    tvm.ir.register_intrin_lowering("tir.exp", target="llvm", f=lambda op: None, level=5)
    a, c = np.arange(10, dtype="float32"), np.empty(10, "float32")
    built(te.exp)(a, c)
    np.testing.assert_allclose(c, np.exp(a) / 2, rtol=1e-6)


def test_wrong_rules(registry: None) -> None:
    register = tvm.ir.register_intrin_lowering
    register("tir.test_wrong", target="default", f=lambda op: op.args[0].astype("int8"))
    with pytest.raises(
        CompileError, match=r"rule of test_wrong: expected an expression of float32"
    ):
        built(own("tir.test_wrong"))
    register("tir.test_wrong", target="llvm", f=lambda op: op)
    with pytest.raises(CompileError, match=r"found it kept by its rule for llvm"):
        built(own("tir.test_wrong"))
    with pytest.raises(CompileError, match=r"exp: its effect is known"):
        tvm.ir.register_op_attr("tir.exp", "TCallEffectKind", tir.CallEffectKind.Opaque)
    with pytest.raises(CompileError, match=r"expected a member of tir.CallEffectKind, got int 9"):
        tvm.ir.register_op_attr("tir.test_wrong", "TCallEffectKind", 9)
    with pytest.raises(CompileError, match=r"expected a function, got int 3"):
        register("tir.test_wrong", target="llvm", f=3)


# -- Passes ---------------------------------------------------------------------------------------

GUARDED = [
    "Simplify", "LoopPartition", "UnrollLoop", "VectorizeLoop", "StorageRewrite", "InjectPrefetch",
    "InjectDoubleBuffer", "HoistIfThenElse", "SkipAssert", "InstrumentBoundCheckers", "LowerIntrin",
]  # fmt: skip


@pytest.mark.parametrize("name", GUARDED)
def test_each_pass_keeps_the_meaning(name: str) -> None:
    C = te.compute((10,), lambda i: te.if_then_else(i > 2, B[i] * 2.0, B[9 - i]), name="C")
    s = te.create_schedule(C.op)
    _, inner = s[C].split(C.op.axis[0], factor=4)
    s[C].vectorize(inner)
    seen: list[tir.PrimFunc] = []

    def keep(func: tir.PrimFunc) -> tir.PrimFunc:
        seen.append(func)
        return func

    look = tir.transform.Apply(keep)
    with tvm.transform.PassContext(config={"tir.add_lower_pass": [(0, look)]}):
        tvm.lower(s, [A, C])
    (func,) = getattr(tir.transform, name)()(tvm.IRModule.from_expr(seen[0])).functions.values()
    a, expected, c = (
        np.arange(10, dtype="float32"),
        np.empty(10, "float32"),
        np.empty(10, "float32"),
    )
    interpret(seen[0], a, expected)
    interpret(func, a, c)
    np.testing.assert_array_equal(c, expected)


def test_sequences_leave_out_what_the_context_says() -> None:
    ran = []

    def noting(name: str, level: int) -> Any:
        def note(mod: tvm.IRModule, ctx: Any) -> tvm.IRModule:
            ran.append(name)
            return mod

        return tvm.transform.module_pass(note, opt_level=level, name=name)

    passes = tvm.transform.Sequential([noting("a", 0), noting("b", 3), noting("c", 1)])
    module = tvm.IRModule.from_expr(filled())
    assert passes(module) is module
    with tvm.transform.PassContext(opt_level=3, disabled_pass=["a"]):
        passes(module)
    with tvm.transform.PassContext(opt_level=0, required_pass=["b"]):
        passes(module)
    assert ran == ["a", "c", "b", "c", "a", "b"]


def test_a_class_of_passes() -> None:
    @tir.transform.prim_func_pass(opt_level=1)
    class Rename:
        def __init__(self, name: str) -> None:
            self.called = name

        def transform_function(self, func: tir.PrimFunc, mod: Any, ctx: Any) -> tir.PrimFunc:
            return func.with_attr("global_symbol", self.called)

    rename = Rename("other")
    assert list(rename(tvm.IRModule.from_expr(filled())).functions) == ["other"]
    assert (rename.called, rename.info.opt_level, rename.info.name) == ("other", 1, "Rename")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tir.transform.prim_func_pass(lambda f, m, c: f), "expected an opt_level, got No"),
        (lambda: tir.transform.prim_func_pass(3, opt_level=0), "expected a function of .func, mod"),
        (lambda: tvm.transform.Sequential([tir.transform.Simplify]), "is called first, as in"),
        (lambda: tvm.transform.Sequential(3), "Sequential: expected a list of passes, got int 3"),
        (lambda: tir.transform.VectorizeLoop(filled()), "expected True or False, got PrimFunc"),
        (lambda: tir.transform.Simplify()(filled()), "expected an IRModule, got"),
        (
            lambda: tir.transform.Apply(lambda f: None)(tvm.IRModule.from_expr(filled())),
            "pass tir.Apply: expected a PrimFunc as its result, got None",
        ),
    ],
)
def test_what_is_no_pass(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        make()


def test_passes_that_are_not_here() -> None:
    with pytest.raises(AttributeError, match=r"tir.transform.StorageFlatten: not here: buffers"):
        _ = tir.transform.StorageFlatten
    with pytest.raises(AttributeError, match=r"has no attribute 'Simplfy'"):
        _ = tir.transform.Simplfy


def test_ir_transform() -> None:
    func = filled(1.0)
    twice = tir.stmt_functor.ir_transform(
        func.body, None, lambda node: tir.const(node.value * 2, node.dtype), ["tir.FloatImm"]
    )
    assert "= 2.0" in str(twice)
    stopped = tir.stmt_functor.ir_transform(func.body, lambda node: node, lambda node: 1 / 0)
    assert stopped is func.body
    with pytest.raises(CompileError, match=r"classes of nodes such as .*tir.For, .*got 'tir.Forr'"):
        tir.stmt_functor.ir_transform(func.body, None, None, ["tir.Forr"])
    with pytest.raises(CompileError, match=r"expected a statement or None in place of a For, got"):
        tir.stmt_functor.ir_transform(func.body, None, lambda node: tir.const(1), ["tir.For"])
    with pytest.raises(CompileError, match=r"expected an expression of float32 in place of 1.0"):
        tir.stmt_functor.ir_transform(func.body, None, lambda node: tir.const(1), ["tir.FloatImm"])


# -- Arithmetic -----------------------------------------------------------------------------------


def test_bounds_and_remainders() -> None:
    x, y, found = te.var("x"), te.var("y"), tvm.arith.Analyzer()
    found.update(x, tvm.arith.ConstIntBound(-9, 10))
    found.bind(y, tvm.ir.Range(4, 11))
    assert found.const_int_bound(x - y) == (-19, 6)
    assert found.const_int_bound(x * 20 - y).min_value == -190
    found.update(x, tvm.arith.ModularSet(12, 6))
    assert found.modular_set(x * 2 + 3) == (24, 15)
    assert found.modular_set(x // 3) == (4, 2)
    assert found.modular_set(te.min(x, x * 2)) == (6, 0)
    assert found.can_prove_equal(x + y, y + x)
    with pytest.raises(CompileError, match="say override=True"):
        found.update(x, tvm.arith.ModularSet(3, 1))


def test_remainders_are_those_of_the_values() -> None:
    """Each expression, at every value that the variables may have."""
    x, y = te.var("x"), te.var("y")
    found = tvm.arith.Analyzer()
    found.update(x, tvm.arith.ModularSet(6, 2))
    parts = [x, y * 4, x + y * 3, x * y, x * x - 4, (x - 2) // 3, (x + 4) // 2, x % 4, 7 - x]
    parts += [te.max(x, y * 2), te.if_then_else(y > 0, x, x + 3), tir.Select(y > 1, x, x - 12)]
    for part in parts:
        coeff, base = found.modular_set(part)
        for i in (-10, -4, 2, 8, 14):
            for j in range(-3, 4):
                value = int(found.simplify(tir.stmt_functor.substitute(part, {x: i, y: j})))
                assert (value % coeff if coeff else value) == base, (str(part), i, j)


def test_what_a_statement_touches() -> None:
    i, j, n = te.var("i"), te.var("j"), te.var("n")
    X = tir.decl_buffer((100, 100), name="X")
    store = tir.BufferStore(X, X[j, i * 2 + n + 1], [i, j])
    loops = tir.For(i, 0, 8, tir.ForKind.SERIAL, tir.For(j, 2, 4, tir.ForKind.SERIAL, store))
    read = tvm.arith.DomainTouched(loops, X, True, False)
    assert [str(each) for each in read] == ["range(min=2, ext=4)", "range(min=n + 1, ext=15)"]
    written = tvm.arith.DomainTouched(loops, X, False, True)
    assert [str(each) for each in written] == ["range(min=0, ext=8)", "range(min=2, ext=4)"]
    with pytest.raises(CompileError, match="expected an access in the statement, found none"):
        tvm.arith.DomainTouched(loops, tir.decl_buffer((4,), name="other"))


# -- Testing, files, and what isn't here ----------------------------------------------------------


def test_arrays_that_differ() -> None:
    with pytest.raises(AssertionError, match=r"expected an array of shape \(3,\), got \(\)"):
        tvm.testing.assert_allclose(1.0, np.ones(3))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        tvm.testing.assert_allclose(tvm.nd.array(np.ones(2)), [1.0, 1.1])


def test_gradients() -> None:
    point = {"x": np.array([1.0, 2.0]), "y": np.array([3.0])}
    right = {"x": 3 * point["x"] ** 2 * 3.0, "y": np.array([9.0])}
    function = lambda x, y: (x**3).sum() * y  # noqa: E731
    tvm.testing.check_numerical_grads(function, point, right)
    with pytest.raises(AssertionError, match="gradient of input y: expected it within"):
        tvm.testing.check_numerical_grads(function, point, {**right, "y": np.array([1.0])})


def test_conditions_that_hold() -> None:
    i = te.var("i")
    tvm.testing.check_bool_expr_is_true(i * i >= i, {i: tvm.ir.Range(-3, 4)})
    tvm.testing.check_bool_expr_is_true(i > 0, {i: tvm.ir.Range(-3, 4)}, cond=i * i * i > 0)
    with pytest.raises(AssertionError, match="found it false at i = 3"):
        tvm.testing.check_bool_expr_is_true(i < 3, {i: tvm.ir.Range(0, 4)})


def test_a_temporary_folder() -> None:
    from minitvm.contrib import utils

    with utils.tempdir() as temp:
        path = temp / "x.txt"
        path.write_text("x")
        assert temp.listdir() == ["x.txt"]
        assert temp.relpath("x.txt") == str(path)
    assert not path.parent.exists()


def test_without_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    from minitvm.contrib import clang

    monkeypatch.setenv("PATH", "")
    assert clang.find_clang(required=False) == []
    with pytest.raises(CompileError, match="expected clang on the PATH, found none"):
        clang.create_llvm("int f() { return 1; }")


@pytest.mark.parametrize(
    "name", ["relay", "autotvm", "rpc", "topi", "vulkan", "te.AXIS_SEPARATOR", "tir.Schedule",
             "tir.Layout", "arith.deduce_bound", "ir.Array", "runtime.String", "target.cuda"],
)  # fmt: skip
def test_parts_that_are_not_here(name: str) -> None:
    room, _, own = f"minitvm.{name}".rpartition(".")
    module = importlib.import_module(room)
    with pytest.raises(AttributeError, match=f"{room} has no '{own}' of TVM: "):
        getattr(module, own)
    assert not hasattr(module, own)
    with pytest.raises(AttributeError, match=f"module '{room}' has no attribute 'never_heard_of'"):
        getattr(module, "never_heard_of")  # noqa: B009


def test_names_for_passes_targets_and_questions(capsys: pytest.CaptureFixture[str]) -> None:
    i, j = te.var("i"), te.var("j")
    assert tir.analysis.expr_deep_equal(i + 1, i + 1)
    assert not tir.analysis.expr_deep_equal(i + 1, j + 1)
    assert tir.analysis.undefined_vars(i * j + i, [j]) == [i]
    with pytest.raises(CompileError, match="expected an expression or a statement"):
        tir.analysis.undefined_vars("i")
    assert "llvm" in tvm.target.Target.list_kinds()
    assert tvm.ir.IntImm is tir.IntImm
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
    module = tvm.IRModule.from_expr(te.create_prim_func([A, B]))
    both = tvm.transform.Sequential([tvm.transform.PrintIR("before"), tir.transform.Simplify()])
    tvm.ir.assert_structural_equal(both(module), module)
    assert capsys.readouterr().out == f"PrintIR(before):\n{module}\n"
    content = tvm.runtime.save_param_dict({"x": tvm.nd.array(np.arange(3))})
    assert tvm.runtime.load_param_dict(content)["x"].numpy().tolist() == [0, 1, 2]
