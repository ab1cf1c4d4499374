"""The devices of benchmarks that compare calls in one process."""

import os

import jax


def prepare(platform, count):
    """Enables double precision and creates ``count`` CPU devices if the platform is "cpu". Must be
    called before JAX starts. Connects the processes of a job that `jaxmg.launch` started."""
    jax.config.update("jax_enable_x64", True)
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)


def check_orders(parser, args):
    """Raises an error unless JAX can shard the rows of a matrix of every --n over --ranks."""
    if any(n % args.ranks for n in args.n):
        parser.error(f"--n {args.n}: JAX shards multiples of {args.ranks} rows alone")
