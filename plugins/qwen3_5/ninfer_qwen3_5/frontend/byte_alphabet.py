"""The printable stand-ins that byte-level BPE vocabularies use for raw bytes."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    """Printable Latin-1 bytes stand for themselves, the other 68 follow from U+0100 in order.

    The mapping is the one of GPT-2's byte-level BPE.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


_BYTE_OF = _alphabet()
SYMBOLS = tuple(sorted(_BYTE_OF, key=_BYTE_OF.__getitem__))
"""The symbol of each byte."""


def decode_symbols(symbols: str) -> bytes:
    """The bytes that a vocabulary entry stands for.

    An entry with a character outside the alphabet is taken as ordinary text, as the byte-level
    decoder of ``tokenizers`` does.
    """
    try:
        return bytes([_BYTE_OF[symbol] for symbol in symbols])
    except KeyError:
        return symbols.encode()
