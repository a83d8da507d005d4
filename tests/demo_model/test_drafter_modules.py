"""The drafters that training uses, against loops, hand arithmetic and transformers' own layer."""

from __future__ import annotations

import math

import pytest
import torch

pytestmark = pytest.mark.usefixtures("training")
WIDTH = 4


def config(kind: str = "dflash"):
    from train.geometry import drafter_configuration

    made = drafter_configuration(kind, 100)
    made["vocab_size"] = 120
    made["hidden_size"], made["intermediate_size"], made["sliding_window"] = 32, 48, 6
    return made


def drafter(kind: str = "dflash"):
    """With every parameter moved away from where it begins."""
    from train.drafting import DRAFTERS

    torch.manual_seed(1)
    made = config(kind)
    module = DRAFTERS[made["architectures"][0]](made)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module.double()


def inputs(anchors, tokens=12):
    from train.dflash import Blocks

    torch.manual_seed(2)
    blocks = Blocks(torch.tensor(anchors), WIDTH)
    rows = torch.randn(len(anchors), len(anchors[0]) * WIDTH, 32, dtype=torch.float64)
    return rows, torch.randn(len(anchors), tokens, 3 * 32, dtype=torch.float64), blocks


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_what_a_row_sees(causal, window):
    from train.dflash import Blocks

    anchors = [[2, 7, 9], [0, 5, 11]]
    seen = Blocks(torch.tensor(anchors), WIDTH).visible(12, causal, window)
    for batch, own in enumerate(anchors):
        for row in range(3 * WIDTH):
            block, step = divmod(row, WIDTH)
            at = own[block] + step
            for token in range(12):
                near = window is None or at - token < window
                assert seen[batch, row, token] == (token < own[block] and near)
            for other in range(3 * WIDTH):
                there = own[other // WIDTH] + other % WIDTH
                near = window is None or abs(at - there) < window
                same = other // WIDTH == block
                allowed = same and near and (there <= at or not causal)
                assert seen[batch, row, 12 + other] == allowed


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_blocks_beside_each_other_are_those_alone(kind):
    module = drafter(kind)
    rows, features, blocks = inputs([[3, 8], [5, 11]])
    together = module(rows, features, blocks)
    for batch, own in enumerate([[3, 8], [5, 11]]):
        for place, anchor in enumerate(own):
            cut = slice(place * WIDTH, (place + 1) * WIDTH)
            _, _, alone = inputs([[anchor]])
            # What stands at the anchor and behind it is not looked at.
            spoiled = features[batch : batch + 1].clone()
            spoiled[:, anchor:] = 1e3
            out = module(rows[batch : batch + 1, cut], spoiled, alone)
            torch.testing.assert_close(out[0], together[batch, cut])


def test_features_before_the_anchor_matter():
    module = drafter()
    rows, features, blocks = inputs([[5]])
    changed = features.clone()
    changed[:, 4] += 1
    assert not torch.allclose(module(rows, features, blocks), module(rows, changed, blocks))


def test_a_layer_without_context_is_that_of_transformers():
    """Of Qwen3, whose decoder layer a drafter's is; the rows see each other."""
    from transformers.models.qwen3 import modeling_qwen3 as theirs
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    made = config()
    own = drafter().layers[1]
    settings = Qwen3Config(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=made["num_attention_heads"],
        num_key_value_heads=made["num_key_value_heads"],
        head_dim=made["head_dim"],
        rms_norm_eps=made["rms_norm_eps"],
        num_hidden_layers=2,
        rope_parameters={"rope_type": "default", "rope_theta": float(made["rope_theta"])},
    )
    settings._attn_implementation = "eager"
    layer = theirs.Qwen3DecoderLayer(settings, 1).double()
    layer.load_state_dict(own.state_dict())
    rows, _, blocks = inputs([[7]])
    nothing = torch.zeros(1, 0, 32, dtype=torch.float64)
    ours = own(rows, nothing, blocks, blocks.visible(0, False, None))
    rotary = theirs.Qwen3RotaryEmbedding(settings)
    angles = rotary(rows, blocks.positions)
    expected = layer(rows, position_embeddings=angles, attention_mask=None)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def test_convolutions_that_do_nothing_leave_the_first_generation():
    from train.dflash2 import Drafter2

    made = config("dflash2")
    del made["is_causal"]
    first = drafter()
    second = Drafter2(made).double()
    missing, surplus = second.load_state_dict(first.state_dict(), strict=False)
    assert not surplus
    assert all("_conv." in name or "selector" in name for name in missing)
    rows, features, blocks = inputs([[3, 8]])
    torch.testing.assert_close(second(rows, features, blocks), first(rows, features, blocks))


def test_a_convolution_by_hand():
    """Two blocks of two rows; channels 0..15 and 16..31 share a dynamic weight each."""
    module = drafter("dflash2").layers[0].attention_conv
    torch.manual_seed(3)
    x = torch.randn(1, 4, 32, dtype=torch.float64)
    kernels = module.kernels(x)
    dynamic = x @ module.kernel_projection.weight.T
    for side in range(2):
        out = module.mixed(x, kernels, side, 2)
        for row in range(4):
            for channel in range(32):
                total = 0.0
                for tap in range(2):
                    if row % 2 >= tap:
                        place = side * 4 + tap * 2 + channel // 16
                        weight = module.base_kernel[side, tap, channel] + dynamic[0, row, place]
                        total = total + weight * x[0, row - tap, channel]
                torch.testing.assert_close(out[0, row, channel], total)


def test_the_walk_takes_the_best_of_its_candidates():
    selector = drafter("dflash2").candidate_selector
    selector.requires_grad_(False).top_k = 5
    after = selector.successor_codebook
    torch.manual_seed(4)
    logits = torch.randn(2, 3, 120, dtype=torch.float64)
    hidden = 3 * torch.randn(2, 3, 32, dtype=torch.float64)
    anchors = torch.tensor([17, 90])
    found = selector.walk(logits, hidden, anchors).tolist()
    plain = logits.argmax(-1).tolist()
    for batch in range(2):
        before, wanted = int(anchors[batch]), []
        for row in range(3):
            likely = sorted(range(120), key=lambda token: -float(logits[batch, row, token]))[:5]
            projected = selector.hidden_projection.weight @ hidden[batch, row]
            weighed = selector.predecessor_codebook[before] * projected
            scores = {
                token: float(logits[batch, row, token] + weighed @ after[token]) for token in likely
            }
            before = max(scores, key=scores.__getitem__)
            wanted.append(before)
        assert found[batch] == wanted
    assert found != plain


class Still:
    """Stands for a target whose features are given."""

    def __init__(self, table, features):
        self.model = self
        self.embed_tokens = torch.nn.Embedding.from_pretrained(table)
        self.features = lambda: features

    def __call__(self, *_args, **_more):
        return None


def test_the_loss_counts_tokens_of_the_turn_alone():
    """Rows past the end, blocks that are none and padding leave it as it is."""
    from train.drafting import Drafting

    torch.manual_seed(5)
    features, ids = torch.randn(2, 10, 96), torch.randint(0, 100, (2, 10))
    target = Still(torch.randn(120, 32), features)
    made = Drafting(target, target, drafter().float(), WIDTH, 100, 100)
    ends, anchors = torch.tensor([10, 7]), torch.tensor([[4, 8], [3, -1]])
    loss = made.loss(ids, ends, anchors)
    changed = ids.clone()
    changed[1, 7:] = 1
    torch.testing.assert_close(made.loss(changed, ends, anchors), loss)
    total, shares = 0.0, 0.0
    for batch, anchor in ((0, 4), (0, 8), (1, 3)):
        own = slice(batch, batch + 1)
        one = made.hidden(ids[own], features[own], torch.tensor([[anchor]]))
        logs = made.logits(one)[0, 0].log_softmax(-1).tolist()
        for step in range(1, WIDTH):
            if anchor + step < ends[batch]:
                share = math.exp(-(step - 1) / 4)
                total -= share * logs[step - 1][ids[batch, anchor + step]]
                shares += share
    assert float(loss.detach()) == pytest.approx(total / shares, rel=1e-4)
