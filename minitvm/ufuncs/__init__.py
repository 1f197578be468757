"""Expressions and built functions as ufuncs of numpy: broadcasting, casts and `out=` by numpy"""
