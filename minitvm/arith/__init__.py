"""Arithmetic on integers: affine forms, facts, proofs, simplification, and memory accesses."""
