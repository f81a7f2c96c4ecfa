"""Formulas of two variables, each written once: plain functions of arrays, without branches that depend on values.

torch runs them as they are. ``tools/translate.py`` prints them as C and Triton, for the kernels. So they keep to
assignments, arithmetic, comparisons, loops over constants, calls of each other and of the operations in ``ops``.
"""
