"""Gradients: the adjoints of tensors, as tensors of the expression language."""
