"""The programs that the functions of `jaxmg.linalg` run."""
