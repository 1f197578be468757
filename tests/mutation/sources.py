"""The files that are changed, by room."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".mutation_cache"  # git ignores it

ROOMS = {
    "transform": "minitvm/transform",
    "lowering": "minitvm/lowering",
    "variants": "minitvm/variants",
    "tir": "minitvm/tir",
    "arith": "minitvm/arith",
    "te": "minitvm/te",
    "codegen": "codegen",
    "runtime": "runtime",
    "auto_scheduler": "minitvm/auto_scheduler",
}
