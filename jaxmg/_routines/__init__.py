"""The routines and the public functions.

A routine's module has its record, its public functions and its derivative rule; `table.py` has a
row for each record. Other modules have the functions of `jaxmg.linalg` (`jax_*.py`), of
`jaxmg.tree`, of optimizers, and of plans.
"""
