"""Typed values and Protocols between the floors: no logic, no tensor operations.

Legend used throughout: C max concurrency, B rows of a unit, K draft tokens, V vocabulary rows,
n prompt tokens. Classes marked *single use* derive from
:class:`~ninfer_core.contract.single_use.SingleUse`.
"""
