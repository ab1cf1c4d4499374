"""The portable form of factors: self-describing arrays for any mesh and layout.

The form is a tree of four arrays: "header" (the kind of factor), "matrix" (m, n), "vector" (pivots,
or scale factors of reflectors; for other factors a single zero, as orbax saves no empty array) and
"status". `jaxmg.from_portable` recreates the factor.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import blocks, checks, programs
from jaxmg._kept import leaves
from jaxmg._layouts import layouts, meshes

KINDS = (
    "CholeskyFactor", "LUFactor", "QRFactor", "RefinedFactor", "RefinedLUFactor", "LDLFactor",
)  # fmt: skip
KEYS = ("header", "matrix", "status", "vector")
# Names of `precision` and `refine`. Headers have their indices: append only.
PRECISIONS = (
    "", "highest", "tf32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3", "float32",
)  # fmt: skip
# First entries of a header. Another layout of the arrays needs another version.
MAGIC, VERSION = 0x6A61786D, 1
_FIELDS = ("magic", "version", "kind", "dtype", "m", "n", "precision")


@dataclasses.dataclass(frozen=True)
class Form:
    """The keys of a tree and the fields of its header. Those of an `LDLFactor` are more."""

    keys: tuple = KEYS
    fields: tuple = _FIELDS

    def has(self, tree):
        return isinstance(tree, dict) and set(tree) == set(self.keys)


PLAIN = Form()
LDL = Form(
    (*KEYS, "band", "band_lu", "band_pivots", "determinant"), (*_FIELDS, "tile", "hermitian")
)


class Portable:
    """A factor with a portable form."""

    def portable(self) -> dict[str, jax.Array]:
        """Converts the factor to plain arrays that depend on no mesh and no tile width.

        `jaxmg.from_portable` recreates the factor on any number of devices.

        Returns:
            A dict of arrays: "header" (int32: kind of factor, version of the format, dtype, shape
            and precision), "matrix", "vector" and "status". The matrix is sharded like A, so orbax
            or NumPy can save it. It is U for a `CholeskyFactor`, the matrix of `packed` for an
            `LUFactor` or `QRFactor`, the transposed L for an `LDLFactor`, which has further small
            arrays, and A for a `RefinedFactor` or `RefinedLUFactor`, which `jaxmg.from_portable`
            factors again.

        Memory: one matrix, as for `upper` or `packed`.

        Raises:
            ValueError: The factor is a batch of factors, or the call is inside ``shard_map``.
        """
        return portable(self)


def portable(factor):
    name, (m, n) = type(factor).__name__, factor.shape
    meshes.refuse_manual_axes(f"{name}.portable")
    leaves.check(f"{name}.portable", factor, n)
    if getattr(factor, "count", None) is not None:
        raise ValueError(
            f"{name}.portable: the portable form has no capacity; pickle the factor, or save "
            "factor.upper() and factor.count"
        )
    vector = jnp.zeros(1, jnp.int32)
    if name == "CholeskyFactor":
        matrix = factor.upper()
    elif name == "LUFactor":
        matrix, vector = factor.packed()
    elif name == "QRFactor":
        matrix, vector = factor.packed()
    elif name == "LDLFactor":
        matrix, vector = factor._transposed_lower(), factor.pivots
    else:
        matrix = _matrix(f"{name}.portable", factor)
    precision = getattr(factor, "refine", None) or getattr(factor, "precision", None) or ""
    values: tuple[int, ...] = (
        MAGIC, VERSION, KINDS.index(name), checks.DTYPES.index(str(factor.dtype)), m, n,
        PRECISIONS.index(precision),
    )  # fmt: skip
    more: dict[str, jax.Array] = {}
    if name == "LDLFactor":
        values = (*values, factor.tile, factor.hermitian)
        names = ("band", "band_lu", "band_pivots")
        determinant = jnp.stack([factor._sign, factor._log_det.astype(factor.dtype)])
        more = {**{key: getattr(factor, key) for key in names}, "determinant": determinant}
    header = jnp.asarray(np.array(values, np.int32))
    return {"header": header, "matrix": matrix, "status": factor.status, "vector": vector, **more}


def read_header(caller, tree, form=PLAIN):
    """Returns (kind, precision, matrix, vector) of a portable form; raises if it isn't one."""
    if not form.has(tree):
        found = sorted(map(str, tree)) if isinstance(tree, dict) else type(tree).__name__
        raise ValueError(
            f"{caller}: tree must be the result of factor.portable(), a dict with the keys "
            f"{', '.join(KEYS)}; got {found}"
        )
    header, matrix, vector = tree["header"], tree["matrix"], tree["vector"]
    if layouts.traced((header,)):
        raise ValueError(
            f"{caller}: tree['header'] is traced, but must be concrete because it defines the kind "
            "of factor; close over it, or call outside of jit"
        )
    values = np.asarray(header)
    if values.shape != (len(form.fields),) or values.dtype != np.int32 or values[0] != MAGIC:
        raise ValueError(
            f"{caller}: tree['header'] is not the header of a jaxmg factor; it is {values.dtype} "
            f"of shape {values.shape}"
        )
    fields: dict[str, int] = dict(zip(form.fields, map(int, values), strict=True))
    if fields["version"] != VERSION:
        raise ValueError(
            f"{caller}: the factor is in version {fields['version']} of the portable form, but "
            f"this version of jaxmg reads version {VERSION}; load it with the version of jaxmg "
            "that saved it"
        )
    kinds = range(len(KINDS) - 1) if form == PLAIN else (len(KINDS) - 1,)
    dtypes, precisions = range(len(checks.DTYPES)), range(len(PRECISIONS))
    for field, known in (("kind", kinds), ("dtype", dtypes), ("precision", precisions)):
        if fields[field] not in known:
            raise ValueError(f"{caller}: tree['header'] has an unknown {field}, {fields[field]}")
    kind, dtype = KINDS[fields["kind"]], checks.DTYPES[fields["dtype"]]
    shape = (fields["m"], fields["n"])
    lengths = {"LUFactor": shape[:1], "LDLFactor": shape[:1], "QRFactor": (min(shape),)}
    of = dtype if kind == "QRFactor" else "int32"
    for key, array, needed, kept in (
        ("matrix", matrix, shape, dtype),
        ("vector", vector, lengths.get(kind, (1,)), of),
    ):
        if np.shape(array) != needed or str(getattr(array, "dtype", "")) != kept:
            raise ValueError(
                f"{caller}: tree[{key!r}] of a {kind} of shape {shape} must be {kept} of shape "
                f"{needed}; it is {getattr(array, 'dtype', type(array).__name__)} of shape "
                f"{np.shape(array)}"
            )
    return kind, PRECISIONS[fields["precision"]] or None, matrix, vector


def _matrix(name, factor):
    """Returns A of a factor that has it by rows, sharded as it was."""
    rows = factor.rows
    if factor.n == 0 or rows.shape[0] == factor.n:
        return rows
    layout = meshes.located(name, factor.layout, (rows,))
    specs = (layout.result_spec(factor.shape),)
    call = programs.Call("factor_matrix", _join, layout, factor.shape, 0, "", specs)
    return programs.runner(call, (rows,))(rows)[0]


def _join(call, rows):
    return (blocks.join_rows(rows, call.layout, call.shape[0]),)
