"""The text of expressions, statements and functions."""
