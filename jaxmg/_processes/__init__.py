"""Meshes whose devices belong to several processes, and the processes of ``jaxmg.launch``."""
