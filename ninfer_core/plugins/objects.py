"""Loader strings: ``"module:attribute"`` to the object, imported when it is asked for."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any


def load_object(spec: str) -> Any:
    """The object that ``spec`` names; dots after the colon walk attributes.

    Raises ValueError for a malformed spec, ImportError and AttributeError as Python does.
    """
    module, colon, attribute = spec.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"loader {spec!r} is not of the form 'module:attribute'")
    return reduce(getattr, attribute.split("."), import_module(module))
