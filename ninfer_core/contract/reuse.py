"""What of an earlier context a request took over, and why no more."""

from __future__ import annotations

import enum


class RestoreKind(enum.StrEnum):
    """Why a frontier is worth keeping: where a later prompt is likely to part from this one.

    All but ``GENERATION_END``, where an output stopped, are places inside a prompt.
    """

    SYSTEM_AND_TOOLS = "system_and_tools"
    USER_MESSAGE = "user_message"
    RESPONSE_REPLAY = "response_replay"
    TURN_CLOSURE = "turn_closure"
    EXPLICIT = "explicit"
    GENERATION_END = "generation_end"


class Tier(enum.StrEnum):
    """Where a replica of a checkpoint lies."""

    DEVICE = "device"
    HOST = "host"


class ReuseReason(enum.StrEnum):
    """Why ``reused_tokens`` has its value.

    ``DISABLED``: the request or the policy keeps out of the cache. ``LIMITED_BY_SCORING``: scored
    prompts start at the root. ``TOO_SHORT``: no point can lie before the last token. ``EVICTED``: a
    point on this prompt's path was there and was given up. ``OTHER_TEMPLATE``: the same tokens were
    kept under another template or mode. ``NO_ROOM``: a point was found, and its adoption had no
    room or failed. ``NO_MATCH``: nothing on the path was ever kept, as far as is remembered.
    """

    DISABLED = "disabled"
    NO_MATCH = "no_match"
    TOO_SHORT = "too_short"
    EVICTED = "evicted"
    OTHER_TEMPLATE = "other_template"
    NO_ROOM = "no_room"
    PRIVATE_CHECKPOINT = "private_checkpoint"
    SHARED_CHECKPOINT = "shared_checkpoint"
    LIMITED_BY_SCORING = "limited_by_scoring"
