"""Two network namespaces with a cable between them, which represent two hosts."""

import os
import shutil
import subprocess

CABLE = "jaxmg0"  # the interface's name in both
HOST = "10.213.77.1"  # the first one's address


class Unavailable(Exception):
    """The reason why namespaces can't be made here."""


class Namespaces:
    """A context manager of two new namespaces; it returns the commands that enter them."""

    def __init__(self):
        self._names = [f"jaxmg-test-{os.getpid()}-{index}" for index in range(2)]
        if os.geteuid() or not (shutil.which("ip") and shutil.which("unshare")):
            raise Unavailable("needs root, and iproute2's ip")
        one, other = self._names
        commands = [["netns", "add", name] for name in self._names]
        cable = ["link", "add", CABLE, "netns", one, "type", "veth"]
        commands.append([*cable, "peer", "name", CABLE, "netns", other])
        for index, name in enumerate(self._names, 1):
            commands += [
                ["-n", name, "address", "add", f"10.213.77.{index}/24", "dev", CABLE],
                ["-n", name, "link", "set", CABLE, "up"],
                ["-n", name, "link", "set", "lo", "up"],
            ]
        for command in commands:
            result = self._ip(*command)
            if result.returncode:
                self.__exit__()
                raise Unavailable(f"ip {' '.join(command)}: {result.stderr.strip()}")

    def __enter__(self):
        return [("ip", "netns", "exec", name) for name in self._names]

    def __exit__(self, *_):
        for name in self._names:
            self._ip("netns", "del", name)

    @staticmethod
    def _ip(*arguments):
        return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
