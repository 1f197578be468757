"""Changes that change nothing, each with its reason.

A change is named by what stands in the results: file, function, the lines before, the lines after.
"""

from __future__ import annotations

# fmt: off
EQUAL: dict[tuple[str, str, str, str], str] = {
    (
        "minitvm/arith/coverage.py",
        "_Indices.comb",
        "ends = self._coverage.times(factor, low), self._coverage.times(factor, low + count"
         " - 1)",
        "ends = self._coverage.times(low, factor), self._coverage.times(factor, low + count"
         " - 1)",
    ): "a product is symmetric",
    (
        "minitvm/arith/linear.py",
        "_bounded_on_both_sides",
        "signs[atom] = signs.get(atom, 0) | (1 if coefficient > 0 else 2)",
        "signs[atom] = signs.get(atom, 1) | (1 if coefficient > 0 else 2)",
    ): "fewer constraints are dropped ahead: work, and the same answer",
    (
        "minitvm/arith/forms.py",
        "Forms._alternatives",
        "if len(left) * len(right) > _MAX_SYSTEMS:",
        "if len(left) * len(right) >= _MAX_SYSTEMS:",
    ): "where a budget ends, by one",
    (
        "minitvm/transform/widen_indices.py",
        "_Widen._is_exact",
        "if node.dtype.lanes > 1:",
        "if node.dtype.lanes > 0:",
    ): "data that surely fit are the same in 32 bits and in 64",
    (
        "codegen/conversion.py",
        "Conversions._float32_to_float16",
        "is_special = text.icmp(\"uge\", magnitude, integer(type, 0x47800000))",
        "is_special = text.icmp(\"ugt\", magnitude, integer(type, 0x47800000))",
    ): "65536 exactly is rounded to infinity by the other way too",
    (
        "codegen/conversion.py",
        "Conversions._float32_to_float16",
        "normal = text.binary(\"lshr\", text.binary(\"add\", magnitude, rebias), integer(type"
         ", 13))",
        "normal = text.binary(\"lshr\", text.binary('add', rebias, magnitude), integer(type"
         ", 13))",
    ): "a sum is symmetric",
    (
        "codegen/integers.py",
        "Integers.__init__",
        "\"bitwise_xor\": lambda dtype, args: text.binary(\"xor\", args[0], args[1]),",
        "\"bitwise_xor\": lambda dtype, args: text.binary('xor', args[1], args[0]),",
    ): "exclusive or is symmetric",
    (
        "codegen/integers.py",
        "Integers._clz",
        "return self._text.convert(\"zext\" if dtype.bits < 32 else \"trunc\", count, \"i32\")",
        "return self._text.convert(\"zext\" if dtype.bits < 64 else \"trunc\", count, \"i32\")",
    ): "of 32 bits nothing is to be converted",
    (
        "codegen/integers.py",
        "Integers._floor",
        "opposite = text.icmp(\"slt\", text.binary(\"xor\", remainder, b), zero)",
        "opposite = text.icmp(\"sle\", text.binary(\"xor\", remainder, b), zero)",
    ): "a remainder is equal to its divisor only where both are 0, and then not nonzero",
    (
        "minitvm/arith/atoms.py",
        "Atoms.shared",
        "if isinstance(term, Var): self._order.setdefault(term, len(self._order)) return "
         "term",
        "pass",
    ): "the key of a variable is its identity: the general way gives the same",
    (
        "minitvm/arith/forms.py",
        "Forms._upper_bounds",
        "return [form] + [row + form for row in rows if row.terms.get(atom) == -1]",
        "return [form] + [row + form for row in rows if True]",
    ): "a row is at least 0, so the form with it is an upper bound in any case",
    (
        "minitvm/arith/simplify.py",
        "Simplifier._balanced",
        "right = {a: -c // common for a, c in form.terms.items() if c < 0}",
        "right = {a: -c // common for a, c in form.terms.items() if c <= 0}",
    ): "no coefficient of a form is 0",
    (
        "minitvm/arith/simplify.py",
        "Simplifier._balanced",
        "to_left = constant if dtype.is_uint and constant > 0 else 0",
        "to_left = constant if dtype.is_uint and constant >= 0 else 0",
    ): "0 goes to neither side",
    (
        "minitvm/arith/simplify.py",
        "_is_equal",
        "return False",
        "return True",
    ): "both trees hold the same buffers; in another order they have the same value",
    (
        "minitvm/arith/simplify.py",
        "_is_equal",
        "stack += zip(mine, others, strict=True)",
        "stack += zip(others, mine, strict=True)",
    ): "equality is symmetric",
    (
        "minitvm/arith/simplify.py",
        "_matches",
        "isinstance(pattern, Call) and isinstance(node, Call) and pattern.op != node.op",
        "(isinstance(pattern, Call) and pattern.op != node.op)",
    ): "the node has the pattern's class by then",
    (
        "minitvm/transform/unroll_loops.py",
        "_Unroll.__init__",
        "self._plain = 0 # and those that are not",
        "pass # and those that are not",
    ): "the counts are set before each statement: the line declares the field",
    (
        "minitvm/te/hybrid/parser.py",
        "_loop_over",
        "span = extent if loop.step > 0 else loop.begin - loop.end",
        "span = extent if loop.step >= 0 else loop.begin - loop.end",
    ): "a step of 0 is refused before",
    (
        "minitvm/te/schedules/layout.py",
        "_inverse",
        "values[digit] = value if weight == 1 else e.floordiv(value, weight)",
        "values[digit] = value if weight == 0 else e.floordiv(value, weight)",
    ): "dividing by 1 is simplified away",
    (
        "minitvm/te/tensor.py",
        "broadcast_shapes",
        "dims = [_common_extent(a, b) for a, b in pairs]",
        "dims = [_common_extent(b, a) for a, b in pairs]",
    ): "where neither is 1 both are the same",
    (
        "runtime/foreign.py",
        "_Memory.integers",
        "return struct.unpack(f\"{count}q\", os.read(self._out, 8 * count) if count else b\""
         "\")",
        "return struct.unpack(f\"{count}q\", os.read(self._out, 9 * count) if count else b\""
         "\")",
    ): "the pipe holds no more than was written",
    (
        "runtime/foreign.py",
        "numpy_is_as_expected",
        "base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)",
        "base = np.arange(24, dtype=np.float32).reshape(3, 2, 4)",
    ): "a sample: any shape shows where the fields are",
}
# fmt: on
