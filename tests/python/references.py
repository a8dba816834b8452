"""The operators as plain PyTorch in fp64, from the formulas of docs/design.md: what autograd makes of them is the
oracle. Sequences come from positions; tokens that belong to none are padding."""

import torch


def sequences_of(positions):
    """Stretches (row, first, end) of positions (batch, seqlen), numbered as slots are; negative positions are
    padding."""
    found = []
    for row, line in enumerate(positions.tolist()):
        for token, position in enumerate(line):
            if position < 0:
                continue
            if position == 0 or token == 0:
                found.append([row, token, token])
            found[-1][2] = token + 1
    return [tuple(entry) for entry in found]


def conv1d(x, weight, bias, positions, activation, initial_states=None):
    """(out, final states), token by token. x: (batch, seqlen, dim)."""
    width = weight.shape[1]
    out = [[x.new_zeros(x.shape[2])] * x.shape[1] for _ in range(x.shape[0])]
    states = []
    for slot, (row, first, end) in enumerate(sequences_of(positions)):
        before = x.new_zeros(width - 1, x.shape[2]) if initial_states is None else initial_states[slot].t()
        history = torch.cat([before, x[row, first:end]])  # (width - 1 + length, dim)
        for token in range(first, end):
            window = history[token - first:token - first + width]
            y = (window * weight.t()).sum(0) + (0 if bias is None else bias)
            out[row][token] = torch.nn.functional.silu(y) if activation else y
        states.append(history[history.shape[0] - (width - 1):].t())
    return torch.stack([torch.stack(line) for line in out]), torch.stack(states)


def ssm(u, delta, A, B, C, D, z, delta_bias, positions, softplus, initial_states=None):
    """(out, final states), token by token. B, C: (batch, seqlen, groups, d_state) or (dim,
    d_state); complex where A is."""
    def of_tokens(tensor):  # (batch, seqlen, dim, d_state)
        if tensor.dim() == 2:
            return tensor.expand(*u.shape[:2], *tensor.shape)
        return tensor.repeat_interleave(u.shape[2] // tensor.shape[2], 2)

    B, C = of_tokens(B), of_tokens(C)
    dt = delta if delta_bias is None else delta + delta_bias
    dt = torch.nn.functional.softplus(dt) if softplus else dt
    out = [[u.new_zeros(u.shape[2])] * u.shape[1] for _ in range(u.shape[0])]
    states = []
    for slot, (row, first, end) in enumerate(sequences_of(positions)):
        h = torch.zeros_like(A) if initial_states is None else initial_states[slot]
        for token in range(first, end):
            step = dt[row, token, :, None]
            h = torch.exp(step * A) * h + step * B[row, token] * u[row, token, :, None]
            y = (C[row, token] * h).sum(1)
            y = (2 * y.real if A.is_complex() else y) + (0 if D is None else D * u[row, token])
            out[row][token] = y if z is None else y * torch.nn.functional.silu(z[row, token])
        states.append(h)
    return torch.stack([torch.stack(line) for line in out]), torch.stack(states)


BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}


def assert_close(found, expected, what, dtype=None, bound=None):
    """Error relative in the L2 norm within docs/design.md's bound for the dtype; absolute where the reference is 0."""
    dtype = {torch.complex64: torch.float32}.get(dtype or found.dtype, dtype or found.dtype)
    bound = BOUNDS[dtype] if bound is None else bound
    found, expected = [tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)
                       for tensor in (found, expected)]
    difference = (found - expected).norm().item()
    norm = expected.norm().item()
    error = difference / norm if norm > 0 else difference
    assert found.shape == expected.shape, f"{what}: {tuple(found.shape)}, expected {tuple(expected.shape)}"
    assert error <= bound, f"{what}: error {error:.2e}, bound {bound:.0e}"
