"""Many matrices of a pytree: `jaxmg.tree`."""
