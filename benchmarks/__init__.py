"""minitvm's benchmarks: ``python -m benchmarks --help``.

Everything is measured on one thread, but for the group that is about threads. BLAS libraries,
OpenMP, TVM and minitvm read how many they may use when they are loaded, so it is said here, before
anything imports numpy; what a caller has set stands. :func:`benchmarks.measure.interleaved` notes
how many cores were busy in fact.

OpenBLAS takes AMD's processors with AVX-512 for older ones, and runs at half of its speed. It is
told here to use the kernels that it has for such registers.
"""

import os

from llvmlite import binding

THREAD_VARIABLES = (
    "MINITVM_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TVM_NUM_THREADS",
    "NPROC",  # which JAX's compiler reads
)
for _variable in THREAD_VARIABLES:
    os.environ.setdefault(_variable, "1")
if binding.get_host_cpu_name().startswith("znver") and binding.get_host_cpu_features()["avx512f"]:
    os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
