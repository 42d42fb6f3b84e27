"""An engine inside a Ray actor: it listens once, lets one caller in, and serves it until the connection ends.

    front                                      actor (a process that Ray places)
    listen(secret) ------- through Ray ------> a socket on a private address, port chosen by the system
    connect, send the secret ----------------> accepted once, then closed to everybody else
    orders, one frame per step <-------------> the engine's loop, as in a child process

Tokens never pass through Ray: a handle costs half a millisecond per item. This module does not import Ray, nor torch
before an engine is to be loaded.
"""

from __future__ import annotations

import hmac
import math
import os
import socket
import struct
import threading

from playhead.serve.contact import FRONT_SILENT_S, SILENT_S

ACCEPT_S = 60.0
SECRET_S = 2.0
"""For a caller to say the secret. One that says nothing keeps the front waiting behind it."""
CONNECT_S = 10.0
SECRET_BYTES = 32


class EngineActor:
    """What Ray makes an actor of. Its process ends with the connection."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def listen(self, host: str, secret: bytes) -> tuple[int, int]:
        """Listen on this address of this machine; gives the port and the process's id. The engine is served next."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = self._listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((host, 0))
        listener.listen(1)
        listener.settimeout(ACCEPT_S)
        threading.Thread(target=self._serve, args=(listener, secret), name="playhead engine").start()
        return int(listener.getsockname()[1]), os.getpid()

    def _serve(self, listener: socket.socket, secret: bytes) -> None:
        """Let in the first caller that knows the secret, and nobody after it."""
        try:
            connection = admitted(listener, secret)
        except OSError:  # nobody came
            os._exit(1)
        from playhead.serve.engine_process import serve_engine  # brings torch

        os._exit(serve_engine(connection.detach()))


def watch(connection: socket.socket, silent_s: float) -> None:
    """Have the kernel send at once, and end a connection whose other machine acknowledges nothing.

    The kernel asks each second, and waits a little less than `silent_s`: 3 s for 3.5. It answers for a process that is
    busy too, so a machine that is gone is noticed in that time whatever the process was doing.
    """
    gone_s = math.ceil(silent_s) - 1
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, gone_s - 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * gone_s),
    ):
        connection.setsockopt(level, option, value)


def reached(host: str, port: int, secret: bytes) -> socket.socket:
    """The front's end of the connection to an actor that listens there."""
    connection = socket.create_connection((host, port), timeout=CONNECT_S)
    try:
        connection.sendall(secret)
        watch(connection, SILENT_S)
    except BaseException:
        connection.close()
        raise
    return connection


def said_by(connection: socket.socket) -> bytes:
    """As many bytes as a secret has, or fewer if no more come in time."""
    # By the kernel: with a time-out of Python's, a read would give what has come so far, and not wait for the rest.
    seconds = struct.pack("@ll", int(SECRET_S), int(SECRET_S % 1 * 1e6))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    try:
        said = connection.recv(SECRET_BYTES, socket.MSG_WAITALL)
    except OSError:
        return b""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 0))
    return said


def admitted(listener: socket.socket, secret: bytes) -> socket.socket:
    """The first connection that begins with the secret. Others are closed."""
    with listener:
        while True:
            connection, _ = listener.accept()
            if hmac.compare_digest(said_by(connection), secret):
                watch(connection, FRONT_SILENT_S)
                return connection
            connection.close()
