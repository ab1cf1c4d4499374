"""Meshes with devices of several processes, and the processes of ``jaxmg.launch``."""
