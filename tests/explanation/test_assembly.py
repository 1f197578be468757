"""The innermost loops of machine code: which there are, and what is in them."""

from __future__ import annotations

import pytest

import minitvm as tvm
from minitvm.explanation.assembly import InnerLoop, inner_loops
from tests.explanation.programs import AARCH64, HASWELL, ZNVER4, tiled_product


def hottest(module: tvm.runtime.Module, arch: str) -> InnerLoop:
    found = inner_loops(module.get_source("asm"), arch)
    return max(found, key=lambda each: each.multiply_adds)


@pytest.mark.parametrize(
    ("rows", "columns", "target", "sums", "bits"),
    [
        (8, 32, ZNVER4, 16, 512),
        (14, 32, ZNVER4, 28, 512),
        (6, 16, HASWELL, 12, 256),
        (8, 8, AARCH64, 16, 128),
    ],
)
def test_a_tile_that_fits_is_in_registers(
    rows: int, columns: int, target: str, sums: int, bits: int
) -> None:
    loop = hottest(tiled_product(rows, columns, target), "aarch64" if bits == 128 else "x86_64")
    there = tvm.Target(target).vector_registers
    assert loop.multiply_adds == loop.arithmetic == sums
    assert loop.bits == bits
    # The sums, a row of B, and a scalar of A unless it is a memory operand.
    row = columns * 32 // bits
    assert sums + row <= loop.registers <= there
    assert loop.loads >= row
    assert loop.stores == loop.spills == 0


def test_a_tile_that_does_not_fit_is_spilled() -> None:
    loop = hottest(tiled_product(16, 48, ZNVER4), "x86_64")
    assert loop.multiply_adds == 48
    assert loop.registers == 32
    assert loop.spills > 0


NEST = """
f:
	movq	%rsp, %rbp
.LBB0_1:
	vaddps	%zmm1, %zmm2, %zmm3
.LBB0_2:
	vfmadd231ps	(%rax){1to16}, %zmm1, %zmm2   # a comment (%rsp)
	vmovups	-64(%rbp), %zmm4                # 64-byte Reload
	vmovups	%zmm4, 64(%rsp)
	vmovups	%zmm4, (%rsp,%rax,4)
	jne	.LBB0_2
	jmp	.LBB0_1
"""


def test_the_innermost_loop_of_a_nest_counts() -> None:
    assert inner_loops(NEST, "x86_64") == (
        InnerLoop(
            "f",
            instructions=5,
            multiply_adds=1,
            arithmetic=1,
            loads=2,
            stores=2,
            registers=3,
            tiles=0,
            bits=512,
            spills=2,
        ),
    )


ROTATED = """
f:
	jmp	.LBB0_2
.LBB0_1:
	vmulsd	%xmm1, %xmm2, %xmm1
.LBB0_2:
	vmulsd	%xmm1, %xmm3, %xmm1
	cmpq	%rax, %rdx
	jl	.LBB0_1
	retq
"""


def test_a_loop_may_be_entered_in_its_middle() -> None:
    (loop,) = inner_loops(ROTATED, "x86_64")
    assert (loop.instructions, loop.arithmetic, loop.bits) == (4, 2, 64)


SHARED_END = """
f:
	vaddps	%ymm1, %ymm2, %ymm3
	testq	%rdi, %rdi
	je	.LBB0_3
.LBB0_1:
	vzeroupper
	retq
.LBB0_3:
	vmulps	%ymm1, %ymm2, %ymm3
	jmp	.LBB0_1
"""


def test_a_jump_back_to_a_common_end_is_no_loop() -> None:
    assert inner_loops(SHARED_END, "x86_64") == ()


AARCH64_LOOP = """
f:                                      // @f
.LBB0_1:
	ldr	q3, [sp, #16]                   // 16-byte Folded Reload
	ldp	q0, q1, [x1], #32
	fmla	v2.4s, v0.4s, v1.s[0]
	str	q2, [x2]
	subs	x3, x3, #1
	b.ne	.LBB0_1
	ret
"""


def test_aarch64() -> None:
    (loop,) = inner_loops(AARCH64_LOOP, "aarch64")
    assert loop == InnerLoop(
        "f", 6, 1, 1, loads=2, stores=1, registers=4, tiles=0, bits=128, spills=1
    )


DOT_PRODUCTS = """
f:
.LBB0_1:
	vpdpbusd	%zmm0, %zmm1, %zmm2
	{vex}	vpdpbusd	%ymm0, %ymm1, %ymm2
	jne	.LBB0_1
"""


def test_dot_products_are_as_wide_as_their_vectors() -> None:
    (loop,) = inner_loops(DOT_PRODUCTS, "x86_64")
    assert (loop.multiply_adds, loop.arithmetic, loop.bits) == (2, 2, 512)


TILES = """
f:
.LBB0_1:
	tileloadd	(%r13,%r10), %tmm4
	tdpbssd	%tmm6, %tmm4, %tmm3
	vpaddd	%zmm3, %zmm4, %zmm4
	jne	.LBB0_1
"""


def test_tile_registers_are_counted_apart() -> None:
    (loop,) = inner_loops(TILES, "x86_64")
    assert (loop.multiply_adds, loop.arithmetic) == (1, 2)
    assert (loop.registers, loop.tiles, loop.bits) == (2, 3, 8192)
