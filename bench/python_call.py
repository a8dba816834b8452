#!/usr/bin/env python3
"""What a call of packjit.torch costs the host above the C++ runtime: python_call.py [--json] [--calls N]

Needs a GPU, since host execution computes within the call; exit status 3 without one. Shapes are small, so that the GPU
keeps up and only the host is timed. Hosts are shared, so what is compared is timed in turn, 50 calls of each a round,
and the numbers are medians of the rounds' medians, in microseconds a call:

  call      the Python function, outputs and scratch memory allocated by PyTorch
  runtime   the C function alone with everything prepared, reached through ctypes, less what ctypes takes for a function
            with as many arguments that does nothing
  above     call - runtime of the same round, with the 10th and the 90th percentile of rounds
  floor     (with gradients) a torch.autograd.Function with as many tensors that allocates as many and computes nothing
"""

import argparse
import ctypes
import json
import statistics
import sys
import time

CALLS_IN_ROUND = 50  # far below the driver's queue


def rounds_us(torch, functions, calls):
    """For each function, the median time of a call in each round; in every round all of them are timed."""
    for function in functions:
        for _ in range(200):
            function()
    medians = [[] for _ in functions]
    for _ in range(max(calls // CALLS_IN_ROUND, 3)):
        for function, of_function in zip(functions, medians):
            torch.cuda.synchronize()
            times = []
            for _ in range(CALLS_IN_ROUND):
                begin = time.perf_counter_ns()
                function()
                times.append(time.perf_counter_ns() - begin)
            of_function.append(statistics.median(times) / 1000)
    return medians


def bare(torch, operator, direction, seq_map, tensors, groups=1):
    """The C function with everything prepared, alone; what it reads and writes stays alive with it. `tensors`: by the
    names of the C struct."""
    from packjit import _c
    from packjit._library import check, library
    from packjit._tensors import tensor_of
    main = tensors.get("u", tensors.get("x"))
    shape = operator.shape(seq_map, main.shape[2], groups)
    scratch = torch.empty(max(operator.workspace_bytes(direction, shape), 1), dtype=torch.uint8, device="cuda")
    workspace = _c.packjit_workspace(data=scratch.data_ptr(), bytes=scratch.numel())
    described = {name: tensor_of(tensor, name, False) for name, tensor in tensors.items()}
    forward = direction == _c.FORWARD
    struct = (operator._forward_tensors if forward else operator._backward_tensors)(
        **{name: ctypes.pointer(tensor) for name, tensor in described.items()})
    function = getattr(library(), operator._forward_name if forward else operator._backward_name)
    address, workspace_address = ctypes.addressof(struct), ctypes.addressof(workspace)
    stream = torch.cuda.current_stream().cuda_stream
    check(function(operator.handle, stream, seq_map.handle, address, workspace_address))

    def again(keep=(described, struct, workspace, scratch)):
        function(operator.handle, stream, seq_map.handle, address, workspace_address)
    return again


def floor_of(torch, inputs):
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return torch.empty_like(tensors[0])

        @staticmethod
        def backward(ctx, dout):
            return tuple([torch.empty_like(tensor) for tensor in ctx.saved_tensors])
    return lambda: Nothing.apply(*inputs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--calls", type=int, default=2000, help="timed calls of each kind (default 2000)")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("python_call.py: PyTorch cannot be imported; install it with `pip install torch`", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("python_call.py: PyTorch finds no GPU; host execution computes within the call, so its cost cannot be "
              "told apart there", file=sys.stderr)
        return 3
    from packjit import _c
    from packjit._library import library
    import packjit
    import packjit.torch as pt
    from packjit.torch.sequence_map import live_map

    seqlen, dim, d_state, width = 64, 64, 16, 4
    torch.manual_seed(0)

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, dtype=dtype, device="cuda").requires_grad_()
    positions = torch.arange(seqlen, dtype=torch.int32, device="cuda")[None]
    shared = pt.SequenceMap.from_position_indices(positions, max_sequences=4, max_seqlen=seqlen)
    x, weight, bias = random(1, seqlen, dim), random(dim, width), random(dim)
    u, delta, z = (random(1, seqlen, dim) for _ in range(3))
    B, C = (random(1, seqlen, 1, d_state) for _ in range(2))
    A = (-torch.rand(dim, d_state, device="cuda")).requires_grad_()
    D, delta_bias = (random(dim, dtype=torch.float32) for _ in range(2))
    scan, conv = (u, delta, A, B, C, D, z, delta_bias), (x, weight, bias)
    dout = torch.ones_like(u)

    nothing = ctypes.CDLL(None).abs
    nothing.argtypes = library().packjit_ssm_forward.argtypes  # those of the others too
    rows = []
    seq_map = live_map(shared.handle)
    of_scan = dict(zip(("u", "delta", "A", "B", "C", "D", "z", "delta_bias"), scan))
    of_conv = dict(zip(("x", "weight", "bias"), conv))
    for name, operator, named, function in (
            ("ssm_pack", packjit.SsmPack(seq_map.device), of_scan, lambda: pt.ssm_pack(*scan, seq_map=shared)),
            ("conv1d_pack", packjit.Conv1dPack(seq_map.device), of_conv,
             lambda: pt.conv1d_pack(*conv, seq_map=shared))):
        inputs = tuple(named.values())
        # What kernels write in fp32 whatever the dtype.
        gradients = {"d" + each: torch.empty_like(tensor, dtype=torch.float32 if each in ("weight", "bias") else None)
                     for each, tensor in named.items()}
        forward = bare(torch, operator, _c.FORWARD, seq_map, {**named, "out": torch.empty_like(u)})
        backward = bare(torch, operator, _c.BACKWARD, seq_map, {**named, "dout": dout, **gradients})

        def both(call):
            return lambda: torch.autograd.grad(call(), inputs, dout)
        floor = floor_of(torch, inputs)
        for what, timed, own, least in (("forward, no gradients", function, (forward,), None),
                                        ("forward", function, (forward,), floor),
                                        ("forward and backward", both(function), (forward, backward), both(floor))):
            compared = [timed, lambda: nothing(1, 2, 3, 4, 5), *own, *([] if least is None else [least])]
            with torch.set_grad_enabled(least is not None):
                call, empty, *others = rounds_us(torch, compared, options.calls)
            runtime = [sum(times) - len(own) * nothing_us
                       for nothing_us, *times in zip(empty, *others[:len(own)])]
            above = [a - b for a, b in zip(call, runtime)]
            low, *_, high = statistics.quantiles(above, n=10)
            rows.append({"operator": name, "what": what, "call_us": round(statistics.median(call), 2),
                         "runtime_us": round(statistics.median(runtime), 2),
                         "above_us": round(statistics.median(above), 2),
                         "above_p10_us": round(low, 2), "above_p90_us": round(high, 2),
                         "empty_ctypes_call_us": round(statistics.median(empty), 2),
                         "floor_us": None if least is None else round(statistics.median(others[-1]), 2)})
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": sys.version.split()[0],
              "calls": rows}
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    print(f"{result['gpu']}, PyTorch {result['torch']}, Python {result['python']}; microseconds a call, medians")
    print(f"{'operator':12} {'what':22} {'call':>8} {'runtime':>8} {'above':>8} {'p10':>8} {'p90':>8} {'floor':>8}")
    for row in rows:
        least = "" if row["floor_us"] is None else f"{row['floor_us']:8.2f}"
        numbers = " ".join(f"{row[name]:8.2f}"
                           for name in ("call_us", "runtime_us", "above_us", "above_p10_us", "above_p90_us"))
        print(f"{row['operator']:12} {row['what']:22} {numbers} {least}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
