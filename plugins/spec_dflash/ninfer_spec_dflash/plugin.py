"""Plug-in `spec_dflash`: drafts from a DFlash block drafter."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import DraftBackendEntry


@hookimpl
def ninfer_draft_backends() -> Iterable[DraftBackendEntry]:
    """Offer the DFlash drafter."""
    yield DraftBackendEntry(
        name="dflash",
        summary="Draft a block of tokens at once with a DFlash model",
        max_drafts=16,
        load="ninfer_spec_dflash.drafter:open_drafter",
        unavailable="this version of ninfer-spec-dflash does not run DFlash drafts yet",
    )
