"""The decode route: a row's bits do not depend on its company, its place, or the batch size."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from ninfer_core.ops.contracts.values import DrawPurpose, TokenCounts
from ninfer_core.ops.reference import OPS
from ninfer_core.ops.rope import interleaved_axes, inverse_frequencies

ROWS = 8
LINEAR_SHAPES = [
    (512, 64), (96, 64), (768, 256), (256, 768), (2056, 256), (4096, 256), (1100, 320), (320, 896),
    (1024, 3584), (7168, 1024), (1, 64), (3, 128), (16, 2560), (33, 3584), (2048, 5120),
]  # fmt: skip
WIDTHS = [24, 64, 96, 1536, 3584, 4608, 17408]


def companies():
    """Row subsets: every prefix, every row alone, and shuffles of several sizes."""
    yield from (list(range(size)) for size in range(1, ROWS + 1))
    yield from ([row] for row in range(ROWS))
    shuffle = torch.Generator().manual_seed(3)
    for size in (2, 3, 5, 7, 8, 8):
        yield torch.randperm(ROWS, generator=shuffle)[:size].tolist()


def assert_invariant(compute):
    """``compute(rows)`` gives one result per row; each must equal the row's result alone."""
    alone = [compute([row])[0] for row in range(ROWS)]
    for rows in companies():
        for place, result in enumerate(compute(rows)):
            row = rows[place]
            assert torch.equal(result, alone[row]), f"row {row} at place {place} of {rows}"


def assert_rowwise(op, *operands):
    assert_invariant(lambda rows: op(*(operand[rows] for operand in operands)))


@pytest.mark.usefixtures("threads")
class TestDecodeRoute:
    @pytest.mark.parametrize(("rows", "columns"), LINEAR_SHAPES)
    def test_linear(self, operands, rows, columns):
        weight = OPS.prepare_linear(operands.weight(rows, columns))
        assert_rowwise(lambda x: OPS.linear_decode(x, weight), operands.normal(ROWS, columns))

    @pytest.mark.parametrize("count", [9, 16, 33, 64])
    def test_linear_of_many_rows(self, operands, count):
        weight = OPS.prepare_linear(operands.weight(520, 256))
        x = operands.normal(count, 256)
        product = OPS.linear_decode(x, weight)
        for row in range(count):
            assert torch.equal(product[row], OPS.linear_decode(x[row : row + 1], weight)[0])

    def test_head(self, operands):
        weight = OPS.prepare_linear(operands.weight(2100, 256))
        assert_rowwise(lambda x: OPS.lm_head(x, weight, 2077), operands.normal(ROWS, 256))

    @pytest.mark.parametrize("width", WIDTHS)
    def test_norms(self, operands, width):
        x, residual, scale = (operands.normal(*s) for s in [(ROWS, width)] * 2 + [(width,)])
        assert_rowwise(lambda x: OPS.rms_norm(x, scale, 1e-6), x)
        assert_rowwise(lambda x, r: OPS.add_rms_norm(x, r, scale, 1e-6)[0], x, residual)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_gating(self, operands, width):
        wide = operands.normal(ROWS, 2 * width) * 4
        assert_rowwise(OPS.swiglu, wide)
        x, gate = wide.view(ROWS, 2, width).unbind(1)
        assert_rowwise(OPS.sigmoid_gate, x, gate)

    @pytest.mark.parametrize(("heads", "size"), [(3, 16), (6, 128), (48, 128)])
    def test_gated_norm(self, operands, heads, size):
        x, gate = operands.normal(ROWS, heads, size), operands.normal(ROWS, heads, size) * 4
        scale = operands.normal(size)
        assert_rowwise(lambda x, g: OPS.gated_rms_norm(x, g, scale, 1e-6), x, gate)

    @pytest.mark.parametrize("section", [[2, 1, 1], [11, 11, 10]])
    def test_rope_angles(self, operands, section):
        frequencies = inverse_frequencies(2 * sum(section), 1e7)
        positions = operands.integers(30_000, 3, ROWS)

        def compute(rows):
            axes = interleaved_axes(section)
            cos, sin = OPS.rope_angles(positions[:, rows], frequencies, axes)
            return torch.cat([cos, sin], dim=1)

        assert_invariant(compute)

    def test_norm_rope_store(self, operands):
        q, k, v = (operands.normal(ROWS, heads, 256) for heads in (6, 2, 2))
        scale = operands.normal(256)
        angles = operands.normal(ROWS, 32)
        cos, sin = angles.cos(), angles.sin()

        def compute(rows):
            cache = operands.cache(2, 2, 256)
            slots = torch.tensor(rows) * 9
            queries = OPS.qk_norm_rope_store(
                q[rows], k[rows], v[rows], scale, scale, 1e-6, cos[rows], sin[rows], cache, slots
            )
            stored = cache.keys.flatten(0, 1)[slots]
            return torch.cat([queries, stored], dim=1)

        assert_invariant(compute)

    def test_attention(self, operands, paged):
        cache, q = operands.cache(40, 2, 256), operands.normal(ROWS, 6, 256)
        order = operands.permutation(40).tolist()
        tables = [order[5 * row : 5 * row + 5] for row in range(ROWS)]
        tables[3] = sorted(tables[3])
        starts = [0, 63, 64, 65, 100, 255, 300, 17]

        def compute(rows):
            where = paged([tables[r] for r in rows], [starts[r] for r in rows], [1] * len(rows), 1)
            return OPS.paged_decode_attention(q[rows], cache, where, 0.0625)

        assert_invariant(compute)

    @pytest.mark.parametrize("channels", [80, 128, 1152, 8192])
    def test_convolution(self, operands, channels):
        x, history = operands.normal(ROWS, channels), operands.normal(ROWS, 3, channels)
        weight = operands.normal(4, channels)

        def compute(rows):
            pool = history.clone()
            result = OPS.causal_conv_step(x[rows], weight, pool, *[torch.tensor(rows)] * 2)
            return torch.cat([result.unsqueeze(1), pool[rows]], dim=1)

        assert_invariant(compute)

    @pytest.mark.parametrize("heads", [3, 8, 48])
    def test_gates(self, operands, heads):
        fused = operands.normal(ROWS, 2 * heads) * 5
        rate, bias = operands.normal(heads).exp(), operands.normal(heads)

        def compute(rows):
            a, b = fused[rows].chunk(2, dim=1)
            return torch.cat(OPS.gdn_gates(a, b, rate, bias), dim=1)

        assert_invariant(compute)

    @pytest.mark.parametrize(("nk", "nv", "dk", "dv"), [(2, 6, 128, 128), (1, 3, 16, 16)])
    def test_delta_rule(self, operands, nk, nv, dk, dv):
        qkv, state = operands.normal(ROWS, 2 * nk * dk + nv * dv), operands.normal(ROWS, nv, dk, dv)
        decay, beta = (gate.float() for gate in operands.gates(ROWS, nv))

        def compute(rows):
            pool, slots = state.clone(), torch.tensor(rows)
            result = OPS.gdn_step(qkv[rows], decay[rows], beta[rows], pool, slots, slots, nk)
            return torch.cat([result.unsqueeze(2), pool[rows]], dim=2)

        assert_invariant(compute)

    def test_sampling(self, operands, settings):
        logits = operands.normal(ROWS, 2100) * 2
        counts = TokenCounts(operands.integers(2, ROWS, 2100), operands.integers(2, ROWS, 2100) > 0)
        kinds = [{"temperature": 0.0}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.1}, {"top_p": 0.5}]
        asked = [
            {"seeds": row, "repetition": 1.1, "presence": 0.2 * row} | kinds[row % 4]
            for row in range(ROWS)
        ]
        where = operands.integers(1000, ROWS)

        def compute(rows):
            chosen, lanes = settings(*[asked[row] for row in rows]), torch.tensor(rows)
            processed = OPS.process_logits(logits[rows], chosen, counts, lanes, where[rows])
            tokens = OPS.sample_tokens(processed, chosen, where[rows], DrawPurpose.DECODE)
            law = OPS.sampling_law(processed, chosen)
            scored = OPS.logprobs(logits[rows], tokens, 5)
            columns = [tokens, scored.chosen, *scored.top_values.unbind(1)]
            return torch.cat([processed, law, torch.stack(columns, dim=1)], dim=1)

        assert_invariant(compute)


@pytest.mark.slow
def test_the_route_holds_without_the_widest_vectors():
    """The same tests on the kernels that machines without AVX-512 run."""
    narrow = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    arguments = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(
        [*arguments, "-k", "TestDecodeRoute"],
        env=os.environ | narrow,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout[-2000:]
