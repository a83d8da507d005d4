"""What every op computes: one callable Protocol per op, one file per subject.

Shape letters, in every docstring: T rows (tokens) of one call; B sequences of a decode round and W
rows of each, so T = B * W with row ``t`` belonging to sequence ``t // W``; n rows of a prefill
chunk; V vocabulary rows; H hidden; nh query heads, kv key/value heads, D head size; nk key heads
and nv value heads of a gated delta net, dk and dv their sizes, C = 2 * nk * dk + nv * dv its
convolution channels; S state slots; P pages; L rows of a block table.

``x`` dtype is the activation dtype of the backend: fp32 on the CPU, bf16 on a GPU. Reductions,
norms, softmax, gates and recurrent state are fp32 everywhere. Tensors are contiguous unless a
docstring says otherwise. Token ids, positions, lengths and tables are i32; lanes, state slots,
key/value slots and seeds i64. Ops return new tensors; those that write into a pool or a table say
so under *Effect*, and write nothing else. Page ids, slots, positions and lengths are tensors: an op
reads them, nothing is specialised on them.

*Row-invariant* means: the bits of a row's result depend on that row's inputs alone, not on T, B,
the row's place in the batch, or what the other rows hold. Every op of the decode route is
row-invariant.
"""
