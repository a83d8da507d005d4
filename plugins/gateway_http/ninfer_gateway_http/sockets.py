"""What is listened on: an address or a Unix socket, with or without TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ninfer_core.errors import NinferError


class CannotListen(NinferError):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a certificate chain and of its key; without ``key`` it is in the same file."""

    certificate: Path
    key: Path | None = None


def tls_of(certificate: Path | None, key: Path | None) -> Tls | None:
    """The two files, tried. Raises CannotListen when they cannot be used."""
    if certificate is None:
        if key is not None:
            raise CannotListen("--tls-key needs --tls-cert")
        return None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise CannotListen(
            f"cannot use --tls-cert {certificate}"
            + (f" with --tls-key {key}" if key else "")
            + f": {error}",
            hint="give a chain and its key, both PEM",
        ) from None
    return Tls(certificate, key)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket that does not accept yet; ``port`` 0 takes a free one. Raises CannotListen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            undo.pop_all()
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="choose another --host or --port",
        ) from None
    return sock


@contextlib.contextmanager
def listen_unix(path: Path) -> Iterator[socket.socket]:
    """A bound Unix socket, which is gone after the block. One that nobody listens on any more is
    replaced. Raises CannotListen."""
    try:
        _clear(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            sock.bind(str(path))
            undo.pop_all()
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {path}: {error.strerror or error}", hint="choose another --uds"
        ) from None
    with contextlib.closing(sock):
        try:
            yield sock
        finally:
            path.unlink(missing_ok=True)


def url_of(sock: socket.socket, tls: Tls | None = None) -> str:
    """``http://HOST:PORT``, or ``unix:PATH``."""
    name = sock.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{'https' if tls else 'http'}://{host}:{name[1]}"


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on. Raises OSError where somebody does."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(0, "there is a file of that name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(0, "another server listens there")
