"""The calls that inject.py makes fail: each routine with its arguments and the expected results.

Functions import JAX when they need it, since inject.py's driver has none.
"""

# name: (routine, order of the matrix, dtype, replicas of A)
CASES = {
    "potrs": ("potrs", 50, "float64", 1),
    "potrs_groups": ("potrs", 52, "complex128", 2),
    "refine": ("refine", 50, "complex128", 1),
    "potri": ("potri", 50, "complex64", 1),
    "syevd": ("syevd", 52, "complex128", 1),
    "syevd_groups": ("syevd", 50, "float64", 2),
    "eigh": ("eigh", 50, "float64", 1),
    "eigh_groups": ("eigh", 52, "complex64", 2),
    "sygvd": ("sygvd", 52, "float64", 1),
    "sygvd_groups": ("sygvd", 50, "complex128", 2),
    "cyclic_1d": ("cyclic_1d", 56, "float32", 1),
    "cho_factor": ("cho_factor", 50, "float64", 1),
    "cho_solve": ("cho_solve", 50, "complex128", 1),
    "solve_triangular": ("solve_triangular", 50, "float64", 1),
    "inv": ("inv", 50, "float64", 1),
    "diagonal": ("diagonal", 50, "float32", 1),
    "from_upper": ("from_upper", 50, "float64", 1),
    "upper": ("upper", 50, "complex64", 1),
    "update": ("update", 50, "float64", 1),
    "gesv": ("gesv", 50, "float64", 1),
    "getri": ("getri", 50, "complex64", 1),
    "lu_factor": ("lu_factor", 50, "float64", 1),
    "lu_solve": ("lu_solve", 50, "complex128", 1),
    "lu_inv": ("lu_inv", 50, "float64", 1),
    "slogdet": ("slogdet", 50, "float64", 1),
    "packed": ("packed", 50, "float64", 1),
    "from_packed": ("from_packed", 50, "float64", 1),
    "ldl_factor": ("ldl_factor", 50, "float64", 1),
    "inertia": ("inertia", 50, "complex128", 1),
    "geqrf": ("geqrf", 50, "complex64", 1),
    "least_squares": ("least_squares", 50, "float64", 1),
    "lstsq": ("lstsq", 50, "float64", 1),
    "svdvals": ("svdvals", 14, "complex128", 1),
    "polar": ("polar", 14, "float64", 1),
    "svd": ("svd", 14, "float64", 1),
    "svd_on_one": ("svd", 14, "complex128", 1),
    "svdvals_on_one": ("svdvals", 14, "float64", 1),
    "potrs_on_one": ("potrs", 50, "float64", 2),
    "gesv_on_one": ("gesv", 50, "complex64", 1),
    "potri_on_one": ("potri", 50, "complex128", 1),
    "getri_on_one": ("getri", 50, "float32", 1),
    "solve": ("solve", 50, "complex128", 1),
    "multiply": ("multiply", 50, "float64", 1),
    "product": ("product", 50, "complex128", 1),
}
_TILE, _LARGE_TILE = 7, 80
_SUBSET = 3, 21  # of eigh, which all ranks share
# Orders whose workspace exceeds the remaining address space.
_LARGE = {
    "potrs": 1400,
    "refine": 1400,
    "potri": 800,
    "syevd": 400,
    "eigh": 800,
    "sygvd": 400,
    "cyclic_1d": 2240,
    "cho_factor": 800,
}
# XLA moves rows before it calls native code. Its collectives wait without a limit for a device for
# which XLA finds no memory.
WITH_COLLECTIVES = (
    "ldl_factor", "geqrf", "lstsq", "svdvals", "polar", "svd", "svd_on_one", "svdvals_on_one",
)  # fmt: skip
_OF_A_FACTOR = ("cho_solve", "solve_triangular", "inv", "diagonal", "from_upper", "upper", "update")
_OF_LU = ("lu_solve", "lu_inv", "slogdet", "packed", "from_packed")
_OF_QR = ("solve", "multiply")
_OF_LDL = ("inertia",)
_LARGE |= dict.fromkeys((*_OF_A_FACTOR, *_OF_LU, *_OF_LDL, *_OF_QR), 800)
_LARGE |= dict.fromkeys(("getri", "lu_factor", "ldl_factor"), 800)
_LARGE |= {"gesv": 1400, "geqrf": 800, "least_squares": 800, "lstsq": 800, "product": 800}


class Problem:
    """A routine with its arguments and the expected results."""

    def __init__(self, name, large=False):
        import cases
        import jax
        import numpy as np
        from jax.sharding import Mesh

        import jaxmg
        from jaxmg._plugin import plugins
        from jaxmg._svd import gesvd, svd

        routine, n, dtype, replicas = CASES[name]
        plugins.load("cpu").set_eigensolver("all" if routine == "eigh" else "auto")
        on_one = name.endswith("_on_one")
        plugins.load("cpu").set_whole_matrices(on_one)
        plugins.load("cpu").set_brief_wait(0)  # so that ranks start threads
        if routine in ("svdvals", "polar", "svd") and not on_one:
            svd.SMALL = svd.LARGE = 0  # all ranks share the work
            gesvd._WIDTHS = {"cpu": (4, 4)}  # in small steps, each of which allocates
        self.routine, self.n = routine, _LARGE[routine] if large else n
        self.tile = None if on_one else _LARGE_TILE if large else _TILE
        mesh = Mesh(np.array(jax.devices()).reshape(-1, replicas), ("r", "group"))
        if large:  # quick to make
            random = cases.normal(cases.rng(1), (self.n, self.n), dtype)
            self.matrix = random + random.conj().T + 4 * self.n**0.5 * np.eye(self.n, dtype=dtype)
        else:
            self.matrix = cases.positive_definite("well", self.n, dtype)
        self.b = cases.normal(cases.rng(2), (self.n, 3), dtype)
        divides = self.n % mesh.shape["r"] == 0
        self.rows = cases.shard(self.matrix, mesh, *(("r", None) if divides else ()))
        self.columns = cases.shard(self.b, mesh)
        if self.routine in _OF_A_FACTOR:
            self.factor = jaxmg.cho_factor(self.rows, self.tile)
            self.u = jax.block_until_ready(self.factor.upper())
        if self.routine in _OF_LU:
            self.factor = jaxmg.lu_factor(self.rows, self.tile)
            self.packed = jax.block_until_ready(self.factor.packed())
        if self.routine in _OF_LDL:
            factor = jaxmg.linalg.ldl_factor(self.rows, T_A=self.tile)
            self.factor = jax.block_until_ready(factor)
        if self.routine in _OF_QR:
            self.factor = jax.block_until_ready(jaxmg.geqrf(self.rows, self.tile))

    def call(self):
        import jax

        import jaxmg

        if self.routine == "potrs":
            result = jaxmg.potrs(self.rows, self.columns, self.tile, return_logdet=True)
        elif self.routine == "refine":
            result = jaxmg.potrs(self.rows, self.columns, self.tile, refine="auto")
        elif self.routine == "gesv":
            result = jaxmg.gesv(self.rows, self.columns, self.tile, return_logdet=True)
        elif self.routine == "lu_solve":
            result = jaxmg.lu_solve(self.factor, self.columns, trans=2)
        elif self.routine == "lu_factor":
            factor = jax.block_until_ready(jaxmg.lu_factor(self.rows, self.tile))
            result = factor.solve(self.columns)
        elif self.routine == "ldl_factor":
            factor = jax.block_until_ready(jaxmg.linalg.ldl_factor(self.rows, T_A=self.tile))
            result = factor.solve(self.columns)
        elif self.routine == "inertia":
            result = self.factor.inertia()
        elif self.routine == "geqrf":
            factor = jax.block_until_ready(jaxmg.geqrf(self.rows, self.tile))
            result = factor.solve(self.columns)
        elif self.routine == "svdvals":
            result = jaxmg.linalg.svdvals(self.rows)
        elif self.routine == "product":
            result = jaxmg.linalg.matrix_power(self.rows, 2)
        elif self.routine == "lstsq":
            result = jaxmg.linalg.lstsq(self.rows, self.columns)[0]
        elif self.routine == "polar":
            result = jaxmg.linalg.polar(self.rows)
        elif self.routine == "svd":
            result = jaxmg.linalg.svd(self.rows)
        elif self.routine == "least_squares":
            result = jaxmg.least_squares(self.rows, self.columns, self.tile)
        elif self.routine in _OF_QR:
            result = getattr(self.factor, self.routine)(self.columns, 2)
        elif self.routine == "slogdet":  # and its derivative, which solves for rows
            result = jax.jvp(self.log_determinant, (self.rows,), (self.rows,))
        elif self.routine == "from_packed":
            factor = jaxmg.LUFactor.from_packed(*self.packed, self.tile)
            result = jax.block_until_ready(factor).solve(self.columns)
        elif self.routine in ("lu_inv", "packed"):
            result = getattr(self.factor, self.routine.removeprefix("lu_"))()
        elif self.routine == "cho_solve":
            result = jaxmg.cho_solve(self.factor, self.columns)
        elif self.routine == "solve_triangular":  # and its derivative, which solves for rows
            result = jax.jvp(self.solved, (self.rows,), (self.rows,))
        elif self.routine == "cho_factor":  # its use shows whether it is right
            factor = jax.block_until_ready(jaxmg.cho_factor(self.rows, self.tile))
            result = factor.solve(self.columns)
        elif self.routine == "update":
            factor = jax.block_until_ready(self.factor.update(self.columns))
            result = factor.solve(self.columns)
        elif self.routine == "from_upper":
            factor = jaxmg.CholeskyFactor.from_upper(self.u, self.tile)
            result = jax.block_until_ready(factor).solve(self.columns)
        elif self.routine == "sygvd":
            result = jaxmg.sygvd(self.rows, self.rows, self.tile)
        elif self.routine == "eigh":
            result = jaxmg.eigh(self.rows, None, self.tile, subset_by_index=_SUBSET)
        elif self.routine in ("inv", "diagonal", "upper"):
            result = getattr(self.factor, self.routine)()
        else:
            result = getattr(jaxmg, self.routine)(self.rows, self.tile)
        return jax.block_until_ready(result)

    def solved(self, a):
        import jaxmg

        return jaxmg.cho_factor(a, self.tile).solve_triangular(self.columns)

    def log_determinant(self, a):
        import jaxmg

        return jaxmg.lu_factor(a, self.tile).slogdet()[1]

    def check(self, result):
        """Raises AssertionError unless the result is right and the arguments are unchanged."""
        import cases
        import numpy as np

        import jaxmg

        np.testing.assert_array_equal(self.rows, self.matrix, "A has changed")
        np.testing.assert_array_equal(self.columns, self.b, "b has changed")
        if self.routine in ("potrs", "gesv"):
            x, *_, logdet = result
            cases.check_potrs(self.matrix, np.asarray(x), self.b)
            np.testing.assert_allclose(logdet, np.linalg.slogdet(self.matrix)[1], rtol=1e-5)
        elif self.routine == "slogdet":  # of (1 + t) A at t = 0
            np.testing.assert_allclose(result[0], np.linalg.slogdet(self.matrix)[1], rtol=1e-10)
            np.testing.assert_allclose(result[1], self.n, rtol=1e-10)
        elif self.routine == "packed":
            for found, expected in zip(result, self.packed, strict=True):
                np.testing.assert_array_equal(found, expected)
        elif self.routine in (
            "refine", "cho_factor", "cho_solve", "from_upper", "lu_factor", "lu_solve",
            "from_packed", "geqrf", "least_squares", "lstsq", "solve", "ldl_factor",
        ):  # fmt: skip
            cases.check_potrs(self.matrix, np.asarray(result), self.b)
        elif self.routine == "update":
            updated = self.matrix + self.b @ self.b.conj().T
            cases.check_potrs(updated, np.asarray(result), self.b)
        elif self.routine == "solve_triangular":  # of (1 + t) A at t = 0
            x, x_dot = map(np.asarray, result)
            expected = np.linalg.solve(np.asarray(self.u).conj().T, self.b)
            np.testing.assert_allclose(x, expected, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(x_dot, -expected / 2, rtol=1e-8, atol=1e-10)
        elif self.routine == "inertia":
            assert tuple(map(int, result)) == (self.n, 0, 0)
        elif self.routine == "multiply":  # Q^H b is as long as b
            lengths = np.linalg.norm(self.b, axis=0)
            np.testing.assert_allclose(np.linalg.norm(result, axis=0), lengths, rtol=1e-12)
        elif self.routine == "product":
            np.testing.assert_allclose(result, self.matrix @ self.matrix, rtol=1e-10, atol=1e-10)
        elif self.routine == "diagonal":
            np.testing.assert_array_equal(result, np.diagonal(self.u).real)
        elif self.routine == "upper":
            np.testing.assert_array_equal(result, self.u)
        elif self.routine in ("potri", "inv", "getri", "lu_inv"):
            cases.check_potri(self.matrix, np.asarray(result))
        elif self.routine == "syevd":
            cases.check_syevd(self.matrix, *map(np.asarray, result))
        elif self.routine == "sygvd":  # A x = A x
            w, x = map(np.asarray, result)
            one = 100 * self.n * np.finfo(w.dtype).eps
            np.testing.assert_allclose(w, 1, rtol=one)
            product = x.conj().T @ self.matrix @ x
            np.testing.assert_allclose(product, np.eye(self.n), atol=one)
        elif self.routine == "polar":
            u, h = map(np.asarray, result)
            np.testing.assert_allclose(u @ h, self.matrix, atol=1e-12 * np.abs(h).max())
            np.testing.assert_allclose(u.conj().T @ u, np.eye(self.n), atol=1e-12)
        elif self.routine == "svd":
            u, s, vh = map(np.asarray, result)
            np.testing.assert_allclose(u * s @ vh, self.matrix, atol=1e-12 * s[0])
            for vectors in (u.conj().T, vh):
                identity = np.eye(self.n)
                np.testing.assert_allclose(vectors @ vectors.conj().T, identity, atol=1e-12)
        elif self.routine == "svdvals":
            exact = np.linalg.svd(self.matrix, compute_uv=False)
            np.testing.assert_allclose(result, exact, atol=1e-12 * exact[0])
        elif self.routine == "eigh":
            cases.check_subset(self.matrix, *_SUBSET, *map(np.asarray, result))
        else:
            jaxmg.verify_cyclic(self.matrix, result, self.tile)
