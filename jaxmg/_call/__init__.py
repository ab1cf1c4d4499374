"""A call, from its arguments to the native code and back."""
