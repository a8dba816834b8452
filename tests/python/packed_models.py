"""Batches, models and comparisons for the tests of Mamba models."""

import contextlib
import copy
import pathlib

import torch
import torch.nn.functional as F

from packjit.torch import MambaConfig, MambaLM, SequenceMap, next_token_targets

CONFIG = MambaConfig(d_model=16, n_layer=2, vocab_size=29)
LENGTHS = pathlib.Path(__file__).parents[2] / "bench" / "data" / "mixed_lengths.txt"


def model_of(seed=0):
    torch.manual_seed(seed)
    return MambaLM(CONFIG)


def positions_of(rows, seqlen):
    """(batch, seqlen) int64 from the lengths of each row's sequences; the rest is padding."""
    return torch.stack([torch.cat([torch.arange(length) for length in row] + [torch.full((seqlen - sum(row),), -1)])
                        for row in rows])


def random_rows():
    """Two rows of sequences of 1 to 11 tokens, padding at the end of the second."""
    return positions_of([[7, 1, 11, 5], [3, 9, 2, 6]], 24)


def real_rows():
    """The lengths of real documents, cut at 2,048 tokens and scaled to a sixty-fourth, as they come."""
    rows, seqlen = [[]], 48
    for length in map(int, LENGTHS.read_text().split()[:14]):
        length = max(1, min(length, 2048) // 64)
        if sum(rows[-1]) + length > seqlen:
            rows.append([])
        rows[-1].append(length)
    return positions_of(rows[:2], seqlen)


class Adapter(torch.nn.Module):
    """A Linear with another product of low rank beside it, as LoRA has: `weight` is that of the Linear alone."""

    def __init__(self, base_layer, seed=7):
        super().__init__()
        drawn = torch.Generator().manual_seed(seed)
        self.base_layer = base_layer
        self.down, self.up = (torch.nn.Parameter(torch.randn(shape, generator=drawn)) for shape in (
            (2, base_layer.in_features), (base_layer.out_features, 2)))

    weight = property(lambda self: self.base_layer.weight)
    bias = property(lambda self: self.base_layer.bias)

    def forward(self, given):
        return self.base_layer(given) + given @ self.down.t() @ self.up.t()

    def merged(self):
        """A plain Linear that computes the same."""
        linear = copy.deepcopy(self.base_layer)
        linear.weight = torch.nn.Parameter((self.weight + self.up @ self.down).detach())
        return linear


def tokens_of(positions):
    drawn = torch.randint(CONFIG.vocab_size, positions.shape, generator=torch.Generator().manual_seed(1))
    return drawn.to(positions.device)


def sequences_of(positions):
    """(row, begin, end) of each sequence."""
    found = []
    for row, places in enumerate(positions.tolist()):
        for column, place in enumerate(places):
            if place == 0:
                found.append([row, column, column + 1])
            elif place > 0:
                found[-1][2] = column + 1
    return found


def half(enabled, device):
    """bf16 arithmetic beside fp32 parameters, or none of it."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if enabled else contextlib.nullcontext()


def gradients_of(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def run_packed(model, ids, positions, bf16=False):
    """Logits (0 at padding), loss and gradients of all sequences in one call."""
    targets, weights = next_token_targets(ids, positions)
    model.zero_grad()
    with half(bf16, ids.device):
        seq_map = SequenceMap.from_position_indices(positions)
        loss = model(ids, seq_map, targets=targets, weights=weights) / weights.sum()
        loss.backward()
        with torch.no_grad():
            logits = model(ids, seq_map).float() * (positions >= 0)[..., None]
    return logits, loss.detach(), gradients_of(model)


def run_one_at_a_time(logits_of, model, ids, positions, bf16=False):
    """The same from a call for each sequence: logits_of(ids (1, length)) gives (1, length, vocabulary), and the
    loss is PyTorch's."""
    count = sum(end - begin - 1 for _, begin, end in sequences_of(positions))
    model.zero_grad()
    whole, total = None, 0.0
    for row, begin, end in sequences_of(positions):
        part = ids[row:row + 1, begin:end]
        with half(bf16, ids.device):
            logits = logits_of(part).float()
        if whole is None:
            whole = torch.zeros(*ids.shape, logits.shape[-1], device=ids.device)
        whole[row, begin:end] = logits[0].detach()
        loss = F.cross_entropy(logits[0, :-1], part[0, 1:], reduction="sum") / count
        if end - begin > 1:
            loss.backward()
            total += loss.item()
    return whole, torch.tensor(total, device=ids.device), gradients_of(model)


def own_logits(model):
    return lambda ids: model(ids, SequenceMap.rows(*ids.shape, ids.device))


def error(found, expected):
    """Relative error in the L2 norm."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def assert_close(found, expected, bound):
    """(logits, loss, gradients) against the same of another way; `bound` is for each tensor's relative L2 error."""
    assert found[2].keys() == expected[2].keys()
    errors = {"logits": error(found[0], expected[0]), "loss": error(found[1], expected[1])}
    errors.update({name: error(gradient, expected[2][name]) for name, gradient in found[2].items()})
    wrong = {name: value for name, value in errors.items() if not value <= bound}
    assert not wrong, f"relative L2 errors above {bound}: {wrong}"
