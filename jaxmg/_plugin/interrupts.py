"""Ctrl-C ends the running calls, and reaches the caller as KeyboardInterrupt.

The plugin counts SIGINT while calls are running. A thread of its own asks `_wanted` whether the
signal interrupts the calls: it does if the handler is Python's own. Any other handler is called as
without jaxmg, and the calls go on.
"""

import signal

from jaxmg import _internals


def watch(plugin):
    """Makes SIGINT interrupt the calls of a plugin, if the plugin can do so and Python handles
    SIGINT."""
    if hasattr(plugin, "watch_interrupts") and callable(signal.getsignal(signal.SIGINT)):
        plugin.watch_interrupts(_wanted)


def _wanted():
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    _internals.raise_signals_before_errors()
    return True
