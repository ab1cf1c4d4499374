"""Attackers who have read JAX's key-value store and speak the protocol can join a job, unless it
has a secret outside of the store. tests/cc/strangers_test.cc has the other attacks by strangers."""

import hashlib
import hmac
import json
import os
import socket
import struct
import subprocess
import sys
import time

import pytest
from jobs import Job

_FORMAT = 6  # in frame.h
_HEADER = struct.Struct("<Iiqiiqiiq")  # type, lead, call, from, to, value, code, aux, bytes
_HELLO, _REFUSED, _PROOF = 0x68676D6A, 2, 3
_SECRET = "nobody can guess this one"

_SCRIPT = """
import os, sys
os.environ["JAX_ENABLE_X64"] = "1"
sys.path.insert(0, {folder!r})
import jax, worker
jax.distributed.initialize()
worker.meet_a_stranger({place!r})
"""


class Stranger:
    """Connects to process 1 as process 0 would, with the values of the store."""

    def __init__(self, known):
        self._known = known
        name = dict(line.split("=", 1) for line in known["1"].splitlines())["unix"]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(f"\0{name}")
        self._nonce = os.urandom(32)
        self._send(_HELLO, self._nonce)
        kind, body = self._receive()
        assert kind == _HELLO and len(body) == 64
        self._their_nonce, self.proof = body[:32], body[32:]

    def proof_of(self, process, key):
        """Returns the proof that the process sends if this is the job's key."""
        pieces = (self._nonce, self._their_nonce, self._known["0"], self._known["1"])
        pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
        message = f"jaxmg {_FORMAT} proof of {process} for 0 and 1 ".encode()
        message += b"".join(b"%d:%b" % (len(piece), piece) for piece in pieces)
        return hmac.new(key, message, hashlib.sha256).digest()

    def join(self, key):
        """Sends a proof; returns the kind and the text of the answering frame."""
        self._send(_PROOF, self.proof_of(0, key))
        return self._receive()

    def close(self):
        self._socket.close()

    def _send(self, kind, body):
        header = _HEADER.pack(kind, _FORMAT, 0, 0, 1, 60 * 10**9, 0, 0, len(body))
        self._socket.sendall(header + body)

    def _receive(self):
        kind, *_, size = _HEADER.unpack(self._read(_HEADER.size))
        return kind, self._read(size)

    def _read(self, size):
        found = b""
        while len(found) < size and (more := self._socket.recv(size - len(found))):
            found += more
        return found


def _known(folder):
    end = time.monotonic() + 60
    while not (folder / "known").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return json.loads((folder / "known").read_text())


def _key(token, secret):
    return hmac.new(secret, b"jaxmg job " + token, hashlib.sha256).hexdigest().encode()


def _is_refused(known):
    """Checks that process 1 refuses the store's token and keys of other secrets."""
    token = known["job"].encode()
    for key in (token, _key(token, b""), _key(token, b"a secret of another job"), b""):
        stranger = Stranger(known)
        assert stranger.proof != stranger.proof_of(1, key)
        kind, text = stranger.join(key)
        assert kind == _REFUSED and b"another secret" in text
        stranger.close()


@pytest.mark.parametrize("secret", [None, _SECRET])
def test_the_key_value_store_alone(tmp_path, secret):
    """Without a secret, the store has all that an attacker needs, as docs/processes.md says."""
    environment = {"JAXMG_SECRET": secret} if secret else {}
    with Job("meet_a_stranger", tmp_path, devices=1, **environment) as job:
        known = _known(tmp_path)
        token = known["job"].encode()
        if secret:
            _is_refused(known)
        stranger = Stranger(known)
        # The stranger stops before it takes the place of process 0.
        assert stranger.proof == stranger.proof_of(
            1, _key(token, secret.encode()) if secret else token
        )
        stranger.close()
        (tmp_path / "go").touch()
        for output in job.wait():
            assert "solved" in output


def test_the_launcher_s_jobs_have_a_secret(tmp_path):
    folder = os.path.dirname(__file__)
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(folder=folder, place=str(tmp_path)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTHONSAFEPATH", None)
    environment.pop("JAXMG_SECRET", None)
    with subprocess.Popen(
        [sys.executable, "-m", "jaxmg.launch", "-n", "2", script],
        env={**environment, "JAX_PLATFORMS": "cpu"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as launcher:  # fmt: skip
        try:
            _is_refused(_known(tmp_path))
            (tmp_path / "go").touch()
            output, _ = launcher.communicate(timeout=60)
        finally:
            launcher.kill()
    assert launcher.returncode == 0, output
    assert output.count("solved") == 2
