"""The discrete Fourier transform of a field in a box that is cut into slabs, one per device.

    field                                         spectrum
    (n0, n1, n2), each device                     (n1, n2, n0), each device
    has n0 / P of the planes     ── fftn ──►      has n1 / P wavenumbers of axis 1
                                 ◄─ ifftn ──      and all of the other two

Each device transforms its planes along axes 1 and 2. An all-to-all exchange then gives it whole
columns along axis 0, and it transforms these. The spectrum keeps the resulting order of axes,
wavenumbers 1, 2 and 0: each transform runs along contiguous memory, and no second exchange is
needed only to restore the order of the axes. `wavenumbers` gives the frequencies of each axis, and
`ordered` returns the spectrum of `jnp.fft.fftn`.

The module is plain JAX: it runs under ``jit``, and JAX's own rules differentiate it.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def fftn(field, mesh, chunks=1):
    """Returns the spectrum of a field: `jnp.fft.fftn`, or `jnp.fft.rfftn` of a real field,
    transposed.

    Args:
        field: (n0, n1, n2), float32, float64, complex64 or complex128, sharded over its first axis
            (otherwise it is resharded first). The size of ``mesh`` divides n0 and n1.
        mesh: a ``jax.sharding.Mesh``; all its axes together cut the box into slabs.
        chunks: number of parts of the exchange; divides n1 / mesh.size. The transforms of one part
            can overlap the exchange of the next, if the compiler schedules them so.

    Returns:
        (n1, n2, n0), or (n1, n2 // 2 + 1, n0) for a real field, complex, sharded over its first
        axis.

    Raises:
        ValueError: the shape doesn't have three axes, or isn't divisible as above.
    """
    shape = _checked("fftn", "field", field, mesh, (0, 1))
    ranks, width = mesh.size, shape[1] // mesh.size
    if chunks < 1 or width % chunks:
        raise ValueError(
            f"fftn: chunks must divide the {width} wavenumbers of axis 1 that a device gets; "
            f"got chunks={chunks!r}"
        )

    def slab(planes):
        transform = jnp.fft.fftn if jnp.iscomplexobj(planes) else jnp.fft.rfftn
        planes = transform(planes, axes=(1, 2))
        # Splits axis 1 by destination device and by part of the exchange.
        planes = planes.reshape(len(planes), ranks, chunks, width // chunks, -1)
        return jnp.concatenate([columns(planes[:, :, c]) for c in range(chunks)])

    def columns(part):
        part = _exchange(part, mesh, split=1, concat=0)
        part = part.reshape(shape[0], width // chunks, -1)
        return jnp.fft.fft(part.transpose(1, 2, 0))

    return _on_slabs(slab, mesh)(field)


def ifftn(spectrum, mesh, n2=None):
    """Returns the field of a spectrum that `fftn` computed.

    Args:
        spectrum: (n1, n2, n0), or (n1, n2 // 2 + 1, n0) for a real field, complex, sharded over its
            first axis. The size of ``mesh`` divides n0 and n1.
        mesh: as for `fftn`.
        n2: length of the field's last axis for a real field; None for a complex one.

    Returns:
        (n0, n1, n2), sharded over its first axis; real if ``n2`` is given.

    Raises:
        ValueError: the shape doesn't have three axes, isn't divisible as above, or doesn't fit
            ``n2``.
    """
    shape = _checked("ifftn", "spectrum", spectrum, mesh, (0, 2))
    if n2 is not None and n2 // 2 + 1 != shape[1]:
        raise ValueError(
            f"ifftn: the spectrum of a real field with n2={n2} has {n2 // 2 + 1} wavenumbers along "
            f"its second axis; it has {shape[1]}"
        )

    def slab(columns):
        planes = jnp.fft.ifft(columns).transpose(2, 0, 1)
        planes = _exchange(planes, mesh, split=0, concat=1)
        if n2 is None:
            return jnp.fft.ifftn(planes, axes=(1, 2))
        return jnp.fft.irfftn(planes, s=(shape[0], n2), axes=(1, 2))

    return _on_slabs(slab, mesh)(spectrum)


def wavenumbers(shape, real=False):
    """Returns the frequencies of each axis as three integer arrays that broadcast with a spectrum.

    Args:
        shape: shape (n0, n1, n2) of the field.
        real: whether the field is real, so that its spectrum is half as large.

    Returns:
        m0, m1, m2 of shapes (1, 1, n0), (n1, 1, 1) and (1, n2, 1) or (1, n2 // 2 + 1, 1): periods
        along the box, from -n / 2 up, in the order of `jnp.fft.fftfreq`.
    """
    m0, m1, m2 = (jnp.fft.fftfreq(n, 1 / n).round().astype(int) for n in shape)
    if real:
        m2 = jnp.arange(shape[2] // 2 + 1)
    return m0[None, None, :], m1[:, None, None], m2[None, :, None]


def ordered(spectrum):
    """Returns the spectrum in `jnp.fft.fftn`'s order (k0, k1, k2), sharded over axis 1. No data
    move between devices."""
    return spectrum.transpose(2, 0, 1)


def _exchange(array, mesh, split, concat):
    """Sends the p-th part along axis ``split`` to rank p; joins the received parts along
    ``concat``."""
    return jax.lax.all_to_all(array, mesh.axis_names, split, concat, tiled=True)


def _on_slabs(function, mesh):
    slabs = P(mesh.axis_names)
    # JAX 0.6 can't infer over which mesh axes the derivative of a real transform varies.
    return jax.shard_map(function, mesh=mesh, in_specs=slabs, out_specs=slabs, check_vma=False)


def _checked(routine, argument, array, mesh, divided):
    """Returns the shape; raises ValueError unless it has three axes and the mesh divides the axes
    ``divided``."""
    shape = jnp.shape(array)
    if len(shape) != 3:
        raise ValueError(f"{routine}: {argument} must have three axes; it has shape {shape}")
    for axis in divided:
        if shape[axis] % mesh.size:
            raise ValueError(
                f"{routine}: the {mesh.size} devices of the mesh must divide axis {axis} of "
                f"{argument}, which has shape {shape}; use another grid, or a mesh of fewer devices"
            )
    return shape
