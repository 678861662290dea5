"""JAX finds its processes through Slurm."""

import jax

jax.distributed.initialize()
print(jax.process_index(), jax.local_device_count())
