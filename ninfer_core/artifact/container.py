"""Byte framing of the ``.ninfer`` v3 container: headers, alignment and part names.

Entry file: 32-byte header, JSON directory (trailing blanks allowed), payload at the next multiple
of 4096. Continuation files ``<entry>.part-0001`` ...: 32-byte header, payload at 4096. Payload
offsets of objects count through the payloads of all files in order; no object crosses a file.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from ninfer_core.artifact.errors import ArtifactError

VERSION = 3
ENTRY_MAGIC = b"NINFER\x00"
PART_MAGIC = b"NINPRT\x00"
ID_BYTES = 16
PAGE_BYTES = 4096
TENSOR_ALIGNMENT = 256
MAX_DIRECTORY_BYTES = 64 << 20
MAX_PARTS = 9999
DEFAULT_PART_BYTES = 32_000_000_000
DAMAGED = "the file is damaged: copy or convert it again"

_HEADER = struct.Struct("<7sBQ16s")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class Header:
    """``number`` is the directory's byte count in an entry file, the part index in a part."""

    number: int
    artifact_id: bytes

    def pack(self, magic: bytes) -> bytes:
        return _HEADER.pack(magic, VERSION, self.number, self.artifact_id)


def parse_header(data: bytes, magic: bytes, file_name: str) -> Header:
    """Read the 32-byte header of ``file_name``; raises `ArtifactError` when it is not ours."""
    if len(data) < HEADER_BYTES:
        raise ArtifactError(file_name, f"has {len(data)} bytes, shorter than a header", DAMAGED)
    found, version, number, artifact_id = _HEADER.unpack(data[:HEADER_BYTES])
    if found != magic:
        raise ArtifactError(
            f"{file_name} magic",
            f"found {found!r}, expected {magic!r}",
            "give a .ninfer file; `ninfer convert` makes one from a checkpoint directory",
        )
    if version != VERSION:
        raise ArtifactError(
            f"{file_name} version",
            f"found {version}, this program reads version {VERSION}",
            "convert the checkpoint again with this version of ninfer",
        )
    return Header(number, artifact_id)


def artifact_id(directory: bytes) -> bytes:
    """Content id: the first 16 bytes of SHA-256 over the JSON directory without its blanks.

    The directory holds the SHA-256 of every object, so equal ids mean equal contents.
    """
    return hashlib.sha256(directory.rstrip(b" ")).digest()[:ID_BYTES]


def align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def payload_start(directory_bytes: int) -> int:
    """Where the entry file's payload begins, in bytes from its start."""
    return align_up(HEADER_BYTES + directory_bytes, PAGE_BYTES)


def part_path(entry: Path, index: int) -> Path:
    """Path of the continuation file ``index`` (1-based) beside ``entry``."""
    return entry.with_name(f"{entry.name}.part-{index:04d}")
