"""What is spelled differently in the JAX versions that this package supports (0.6.2 and up)."""

import contextlib

import jax

if hasattr(jax, "set_mesh"):
    _enter_mesh = jax.set_mesh
else:  # JAX 0.6
    _enter_mesh = jax.sharding.use_mesh

if hasattr(jax.sharding, "reshard"):
    reshard = jax.sharding.reshard
else:  # JAX 0.6
    from jax.experimental import shard

    reshard = shard.reshard


def context_mesh():
    """The concrete mesh of the enclosing ``jax.set_mesh`` (or ``use_mesh``), or None."""
    if hasattr(jax.sharding, "get_mesh"):
        mesh = jax.sharding.get_mesh()
    else:  # JAX 0.6: only the abstract mesh has a public name
        from jax._src.mesh import get_concrete_mesh

        mesh = get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


def abstract_platform(mesh):
    """The platform of an ``AbstractMesh``, where it knows one."""
    return getattr(getattr(mesh, "abstract_device", None), "platform", None)


def entered(mesh):
    """A context in which ``mesh`` is the context mesh, where another one is now.

    Without it ``shard_map`` refuses a mesh that isn't the context's. No context is entered where
    there is none: the mesh would be visible to what is traced inside, and cost a retrace.
    """
    current = jax.sharding.get_abstract_mesh()
    if current.empty or current == mesh.abstract_mesh:
        return contextlib.nullcontext()
    return _enter_mesh(mesh)


def varying_axes(array):
    """The manual axes that ``array`` is known to vary over; empty where JAX doesn't track it."""
    aval = jax.typeof(array)
    if hasattr(aval, "vma"):
        return frozenset(aval.vma)
    return frozenset(getattr(getattr(aval, "mat", None), "varying", ()))


def vary(array, axes):
    """``array``, marked as varying over ``axes`` too, where the enclosing shard_map tracks it."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(array)))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    return jax.lax.pvary(array, missing)
