"""Values with their members in the declared order, as they are produced."""

from __future__ import annotations

from typing import Any

from ninfer_grammar_xgrammar.schema.document import Conj, Document, Node
from ninfer_grammar_xgrammar.schema.lower import Lowering
from ninfer_grammar_xgrammar.schema.terms import Arr, Const, Obj


def arranged(value: Any, schema: Any, *, closed: bool) -> Any:
    """``value`` with the members of its objects in the order in which ``schema`` declares them,
    undeclared ones last. Raises InvalidSchema as lowering does."""
    return _arranged(value, Lowering(Document(schema, "schema"), closed=closed), (Node(""),))


def _arranged(value: Any, lowering: Lowering, conj: Conj) -> Any:
    terms = lowering.conj(conj)
    fitting = [t for t in terms if lowering.values.term_holds(value, t)] or list(terms)
    for term in fitting:
        if isinstance(term, Const) and lowering.values.term_holds(value, term):
            return term.value
        if isinstance(value, list) and isinstance(term, Arr):
            return [_arranged(v, lowering, term.conj(i)) for i, v in enumerate(value)]
        if isinstance(value, dict) and isinstance(term, Obj):
            names = [n for n in term.names if n in value]
            names += [n for n in value if n not in names]
            return {
                n: _arranged(value[n], lowering, lowering.values.members(n, term)) for n in names
            }
    return value
