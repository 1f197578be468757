"""Programs of torch that AOTInductor has compiled call our operators, in other processes too."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import minitvm as tvm

torch = pytest.importorskip("torch")

# What a user's module defines; each process that loads a package imports it.
MODULE = """
    import torch
    import minitvm as tvm
    from minitvm import te

    X = te.placeholder((te.var("n"), 8), name="X")
    Y = te.compute(X.shape, lambda i, j: X[i, j] * 2.0, name="Y")
    double = tvm.build(te.create_schedule(Y.op), [X, Y], name="double").torch_op("aoti::double")


    @tvm.jit(symbolic="m")
    def rms_norm(x: "m n", w: "n", eps: float = 1e-6):
        k = te.reduce_axis((0, x.shape[1]))
        s = te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * x[i, k], axis=k))
        scale = lambda i: te.rsqrt(s[i] / x.shape[1] + eps)
        return te.compute(x.shape, lambda i, j: x[i, j] * scale(i) * w[j])


    rms_norm(torch.empty(4, 8, device="meta"), torch.empty(8, device="meta"), 1e-5)


    class Layer(torch.nn.Module):
        def forward(self, x, w):
            return rms_norm(double(x) + 1, w, 1e-5).sin()
"""
LOAD = """
    import sys
    import torch
    import user_module as user

    package, w = torch._inductor.aoti_load_package(sys.argv[1]), torch.linspace(1, 2, 8)
    for rows in (2, 4, 11):
        x = torch.rand(rows, 8)
        wanted = torch.nn.functional.rms_norm(2 * x + 1, (8,), w, 1e-5).sin()
        torch.testing.assert_close(package(x, w), wanted)
"""


def _exported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (folder / "user_module.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(folder))
    import user_module as user  # type: ignore[import-not-found]  # written here

    x, rows = torch.rand(4, 8), torch.export.Dim("rows", min=2)
    program = torch.export.export(
        user.Layer(), (x, torch.ones(8)), dynamic_shapes=({0: rows}, None)
    )
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "aoti.double.default" in operators
    assert sum("minitvm.jit_rms_norm" in each for each in operators) == 1
    return program


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _exported(tmp_path, monkeypatch)
    package = str(tmp_path / "layer.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=package)
    script = tmp_path / "load.py"
    script.write_text(textwrap.dedent(LOAD))
    root = str(Path(tvm.__file__).parents[1])
    environment = {"PYTHONPATH": f"{root}:{tmp_path}", "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, str(script), package], env=environment, check=True)
