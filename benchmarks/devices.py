"""What the programs that compare calls in one process have in common: their devices."""

import os

import jax


def prepare(platform, count):
    """Double precision, and so many CPU devices where it is those; before JAX has looked. Connects
    the processes of a job that `jaxmg.launch` started."""
    jax.config.update("jax_enable_x64", True)
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)


def check_orders(parser, args):
    """That JAX can shard a matrix of every --n over --ranks by rows."""
    if any(n % args.ranks for n in args.n):
        parser.error(f"--n {args.n}: JAX shards multiples of {args.ranks} rows alone")
