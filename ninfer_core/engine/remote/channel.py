"""One end of the connection between the two processes: a thread that reads, one that writes."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from ninfer_core.engine.remote.frames import OUT_OF_BAND, Part, Truncated, decode, encode

_log: Final = logging.getLogger("ninfer.engine")


class Channel:
    """Messages in both directions over a stream socket. Thread safe.

    ``receive`` gets every message on the reading thread; ``lost`` is called there once, when the
    other end is gone or this one was closed. Sending never blocks: it hands over to the writing
    thread. ``pack`` turns the batches given to :meth:`post` into one message, on that thread.
    """

    def __init__(
        self,
        sock: socket.socket,
        receive: Callable[[Any], None],
        lost: Callable[[], None],
        pack: Callable[[list[Any]], bytes] | None = None,
    ) -> None:
        self._sock = sock
        self._receive = receive
        self._lost = lost
        self._pack = pack
        # SimpleQueue.put is re-entrant: a finaliser may send.
        self._outgoing: queue.SimpleQueue[list[Part] | _Batch | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="ninfer-read", daemon=True)
        self._writer = threading.Thread(target=self._write, name="ninfer-write", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._writer.start()

    def send(self, message: object) -> None:
        """Encode here, write later; on a lost channel nothing happens. Raises what pickling
        raises."""
        self._outgoing.put(encode(message))

    def post(self, batch: list[Any]) -> None:
        """Have the writing thread pack and write ``batch``, together with what else is waiting."""
        self._outgoing.put(_Batch(batch))

    def finish(self, timeout: float) -> None:
        """Write what was sent so far, then close; waits up to ``timeout`` seconds for that."""
        self._outgoing.put(None)
        if threading.current_thread() is not self._writer:
            self._writer.join(timeout)
        self.abort()

    def abort(self) -> None:
        """Close now. Both threads end, and ``lost`` is called if it was not yet."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def join(self, timeout: float) -> None:
        """Wait for the reading thread, and with it for the last message and ``lost``."""
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout)

    def _read(self) -> None:
        try:
            with self._sock, self._sock.makefile("rb") as stream:
                while True:
                    self._receive(decode(stream))
        except (EOFError, Truncated, OSError):
            pass
        except Exception:
            _log.exception("the connection between the serving and the engine process broke")
        finally:
            self._outgoing.put(None)
            self._lost()

    def _write(self) -> None:
        try:
            for part in self._parts():
                self._sock.sendall(part)
        except OSError:
            return
        except Exception:
            _log.exception("a message could not be written")
            self.abort()

    def _parts(self) -> Iterator[Part]:
        """What is to be written, small parts joined, until the None that ends it."""
        going = True
        while going:
            small: list[Part] = []
            items, going = self._waiting()
            for part in self._encoded(items):
                if len(part) < OUT_OF_BAND:
                    small.append(part)
                    continue
                yield b"".join(small)
                small.clear()
                yield part
            if small:
                yield b"".join(small)

    def _waiting(self) -> tuple[list[list[Part] | _Batch], bool]:
        """Everything that waits, after a wait for the first; False when nothing follows it."""
        items: list[list[Part] | _Batch] = []
        item = self._outgoing.get()
        while item is not None:
            items.append(item)
            if self._outgoing.empty():
                return items, True
            item = self._outgoing.get()
        return items, False

    def _encoded(self, items: list[list[Part] | _Batch]) -> Iterator[Part]:
        batch: list[Any] = []
        for item in items:
            if isinstance(item, _Batch):
                batch += item.entries
                continue
            if batch:
                yield self._packed(batch)
                batch = []
            yield from item
        if batch:
            yield self._packed(batch)

    def _packed(self, batch: list[Any]) -> bytes:
        assert self._pack is not None, "batches are posted by the engine's process alone"
        return self._pack(batch)


class _Batch:
    """Entries that the writing thread still has to pack."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries
