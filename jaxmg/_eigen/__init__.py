"""Eigenvalues and eigenvectors of Hermitian matrices.

"eigen" means Hermitian here, in `engine/eigen/`, `device/eigen/` and `handlers/eigen/`. A solver
for general matrices, whose eigenvalues are complex, belongs in a family of its own.
"""
