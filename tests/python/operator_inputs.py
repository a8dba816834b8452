"""The batch on which packjit.torch's operators are tested, and tensors for it, and what results are held to."""

import torch

import packjit.torch as pt
from references import assert_close

# Two rows; the second begins inside a sequence and ends in padding.
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4], [7, 8, 0, 0, 1, 2, 3, 4, 5, 6, -1, -1]])
BATCH, SEQLEN, DIM, WIDTH, D_STATE, GROUPS = 2, 12, 8, 4, 4, 2
SEQUENCES = 6
SSM_NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def random(*shape, seed=0, dtype=torch.float32, device="cpu", scale=1.0):
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape))
    return (scale * torch.randn(*shape, generator=generator)).to(dtype).to(device)


def leaves(tensors):
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def in_double(tensors):
    return {name: tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64).requires_grad_()
            for name, tensor in tensors.items()}


def conv_inputs(device, dtype=torch.float32, states=False):
    given = {"x": random(BATCH, SEQLEN, DIM, seed=1, dtype=dtype, device=device),
             "weight": random(DIM, WIDTH, seed=2, dtype=dtype, device=device),
             "bias": random(DIM, seed=3, dtype=dtype, device=device)}
    if states:
        given["initial_states"] = random(SEQUENCES, DIM, WIDTH - 1, seed=4, dtype=dtype, device=device)
    return leaves(given)


def ssm_inputs(device, dtype=torch.float32, states=False):
    given = {"u": random(BATCH, SEQLEN, DIM, seed=1, dtype=dtype, device=device),
             "delta": random(BATCH, SEQLEN, DIM, seed=2, dtype=dtype, device=device, scale=0.5),
             "A": -random(DIM, D_STATE, seed=3, device=device).abs() - 0.1,
             "B": random(BATCH, SEQLEN, GROUPS, D_STATE, seed=4, dtype=dtype, device=device),
             "C": random(BATCH, SEQLEN, GROUPS, D_STATE, seed=5, dtype=dtype, device=device),
             "D": random(DIM, seed=6, device=device),
             "z": random(BATCH, SEQLEN, DIM, seed=7, dtype=dtype, device=device),
             "delta_bias": random(DIM, seed=8, device=device, scale=0.5)}
    if states:
        given["initial_states"] = random(SEQUENCES, DIM, D_STATE, seed=9, device=device)
    return leaves(given)


def seq_map_on(device, **limits):
    return pt.SequenceMap.from_position_indices(POSITIONS.to(device), **limits)


def check_against(reference, found, expected, given, given_double, dtype):
    """Outputs and, for the same random weights of their sums, gradients."""
    found = found if isinstance(found, tuple) else (found,)
    weights = [random(*out.shape, seed=50 + place) for place, out in enumerate(found)]
    sum((out.double().cpu() * weight.double()).sum() for out, weight in zip(found, weights)).backward()
    sum((out * weight.double().to(dtype).double()).sum() for out, weight in zip(expected, weights)).backward()
    for place, out in enumerate(found):
        assert_close(out, expected[place], f"{reference} output {place}", dtype)
    for name, tensor in given.items():
        assert tensor.grad.dtype == tensor.dtype
        assert_close(tensor.grad, given_double[name].grad, f"{reference} gradient of {name}", dtype)


def run_both(device, seq_map):
    """Outputs and gradients of both operators on the same inputs."""
    conv, scan = conv_inputs(device), ssm_inputs(device)
    outs = [pt.conv1d_pack(**conv, seq_map=seq_map), pt.ssm_pack(**scan, seq_map=seq_map)]
    sum(out.sum() for out in outs).backward()
    return [*outs, *[tensor.grad for tensor in (*conv.values(), *scan.values())]]
