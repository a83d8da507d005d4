"""Plug-in `spec_mtp`: drafts from the checkpoint's own MTP head."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import hookimpl
from ninfer_core.hookspecs import DraftBackendEntry, TargetFacts, Verdict

MOST_DRAFTS = 8


def _has_mtp_head(target: TargetFacts) -> Verdict:
    return Verdict.yes() if target.mtp_layers else Verdict.no("the checkpoint has no MTP layer")


@hookimpl
def ninfer_draft_backends() -> Iterable[DraftBackendEntry]:
    """Offer the MTP drafter."""
    yield DraftBackendEntry(
        name="mtp",
        summary="Draft with the checkpoint's multi-token-prediction head",
        max_drafts=MOST_DRAFTS,
        load="ninfer_spec_mtp.drafter:open_drafter",
        accepts=_has_mtp_head,
    )
