"""The layers, written once against the op table.

Shape letters: T rows of one call, H hidden, nh and kv query and key/value heads of size D, nk and
nv key and value heads of a gated delta net of sizes dk and dv, C its convolution channels.
"""
