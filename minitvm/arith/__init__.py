"""What is known of integers: affine forms, proofs, simplification, and which elements are met."""
