"""JSON Schema (draft 2020-12) as a grammar: lowered exactly, or refused with a JSON pointer."""

from ninfer_grammar_xgrammar.schema.emit import schema_rule

__all__ = ["schema_rule"]
