"""A function of native code as LLVM IR (:mod:`minitvm.runtime.native_language`)."""

from __future__ import annotations

import ast

from minitvm.runtime.native_names import TRUTH, VOID, WORD, Type, Value, refused
from minitvm.runtime.native_values import NativeValues, sign


class NativeFunction(NativeValues):
    """The lines of a function, statement by statement."""

    def lines(self) -> list[str]:
        node, function = self._node, self._function
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        stored = {each.id for each in names if isinstance(each.ctx, ast.Store)}
        parameters = []
        for argument, kind in zip(node.args.args, function.parameters, strict=True):
            value = Value(kind, f"%{argument.arg}")
            parameters.append(str(value))
            if argument.arg in stored:
                self._assign(argument.arg, value)
            else:
                self._fixed[argument.arg] = value
        self._body(node.body)
        if self._is_open and function.result != VOID:
            raise refused(node, "expected a return at the end")
        self._emit("ret void")
        marks = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
        linkage = "" if "export" in marks else "internal "
        notes = " alwaysinline" * ("inline" in marks) + " noinline" * ("noinline" in marks)
        head = f"{function.result.text} @{node.name}({', '.join(parameters)}){notes}"
        return [f"define {linkage}{head} {{", *self._slots, *self._lines, "}"]

    # ---- Statements ------------------------------------------------------------------------------
    def _body(self, body: list[ast.stmt]) -> None:
        for each in body:
            self.visit(each)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._expression(node.value)

    def visit_Global(self, node: ast.Global) -> None:
        self._globals.update(node.names)

    def visit_Return(self, node: ast.Return) -> None:
        self._emit(
            f"ret {self._of(self._function.result, node.value)}" if node.value else "ret void"
        )

    def visit_If(self, node: ast.If) -> None:
        yes, no, end = self._label(), self._label(), self._label()
        self._branch(node.test, yes, no)
        self._start(yes)
        self._body(node.body)
        self._go(end)
        self._start(no)
        self._body(node.orelse)
        self._start(end)

    def visit_While(self, node: ast.While) -> None:
        head, body, end = self._label(), self._label(), self._label()
        self._start(head)
        self._branch(node.test, body, end)
        self._loop(body, node.body, head, end)
        self._go(head)
        self._start(end)

    def visit_For(self, node: ast.For) -> None:
        """``for i in range(n)``, or ``range(first, n)``."""
        target, bounds = node.target, node.iter
        assert isinstance(target, ast.Name) and isinstance(bounds, ast.Call)
        *first, last = bounds.args
        start, last_value = self._alike(*(first or [ast.Constant(0)]), last)
        kind = start.type
        assert kind is not None
        self._assign(target.id, start)
        head, body, step, end = (self._label() for _ in range(4))
        self._start(head)
        less = "slt" if kind.is_signed else "ult"
        now = self._read(self._variables[target.id])
        self._split(self._value(TRUTH, f"icmp {less} {now}, {last_value.text}"), body, end)
        self._loop(body, node.body, step, end)
        self._start(step)
        now = self._read(self._variables[target.id])
        self._assign(target.id, self._value(kind, f"add nsw {now}, 1"))
        self._go(head)
        self._start(end)

    def _loop(self, label: str, body: list[ast.stmt], again: str, end: str) -> None:
        self._start(label)
        self._loops.append((again, end))
        self._body(body)
        self._loops.pop()

    def visit_Break(self, node: ast.Break) -> None:
        self._go(self._loops[-1][1])

    def visit_Continue(self, node: ast.Continue) -> None:
        self._go(self._loops[-1][0])

    def visit_Match(self, node: ast.Match) -> None:
        value = self._expression(node.subject)
        end = default = self._label()
        targets, bodies = [], []
        for case in node.cases:
            label = self._label()
            bodies.append((label, case.body))
            pattern = case.pattern
            if isinstance(pattern, ast.MatchAs):
                default = label
                continue
            for one in pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]:
                assert isinstance(one, ast.MatchValue)
                targets.append(
                    f"{self._typed(self._expression(one.value), value.type, node)}, label %{label}"
                )
        self._reached.update([default, *(label for label, _ in bodies)])
        self._emit(f"switch {value}, label %{default} [ {' '.join(targets)} ]")
        for label, body in bodies:
            self._start(label)
            self._body(body)
            self._go(end)
        self._start(end)

    def visit_Assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        if isinstance(target, ast.Tuple):
            self._set_pair(target, node.value)
        elif isinstance(target, ast.Name) and target.id not in self._globals | set(self._variables):
            value = self._expression(node.value)
            self._assign(target.id, self._typed(value, value.type or WORD, node))
        else:
            self._write(self._place(target), node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        assert isinstance(node.target, ast.Name) and node.value is not None
        self._assign(node.target.id, self._of(self._names.type(node.annotation), node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        whole = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
        self.visit_Assign(ast.copy_location(ast.Assign([node.target], whole), node))

    def _set_pair(self, target: ast.Tuple, node: ast.expr) -> None:
        """``value, is_over = add_overflow(a, b)``."""
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        values = self._alike(*node.args)
        kind = values[0].type
        assert kind is not None
        pair = Type(f"{{ {kind.text}, i1 }}")
        name = f"{sign(kind)}{node.func.id.partition('_')[0]}.with.overflow"
        both = self._intrinsic(name, pair, kind, values)
        for place, (each, part) in enumerate(zip(target.elts, (kind, TRUTH), strict=True)):
            assert isinstance(each, ast.Name)
            self._assign(each.id, self._value(part, f"extractvalue {both}, {place}"))
