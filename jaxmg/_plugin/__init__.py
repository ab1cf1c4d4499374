"""The native library of a platform."""
