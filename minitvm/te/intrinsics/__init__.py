"""Instructions of CPUs for products of small matrices and vectors, as tensor intrinsics."""
