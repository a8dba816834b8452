#!/usr/bin/env python3
"""What a call of packjit.torch costs the host above the C++ runtime: python_call.py [--json] [--calls N]

Needs a GPU, since host execution computes within the call; exit status 3 without one. Shapes are small, so that the GPU
keeps up and only the host is timed. Medians in microseconds a call:

  call      the Python function, outputs and scratch memory allocated by PyTorch
  runtime   the C function alone with everything prepared, reached through ctypes, less what an empty ctypes call takes
  above     call - runtime
  floor     (with gradients) a torch.autograd.Function with as many tensors that allocates as many and computes nothing
"""

import argparse
import json
import statistics
import sys
import time

CALLS_BETWEEN_WAITS = 50  # far below the driver's queue


def median_us(torch, function, calls):
    for _ in range(200):
        function()
    times = []
    while len(times) < calls:
        torch.cuda.synchronize()
        for _ in range(CALLS_BETWEEN_WAITS):
            begin = time.perf_counter_ns()
            function()
            times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1000


def bare(torch, run, options, direction, seq_map, tensors, outputs):
    """The C function with everything prepared; what it reads and writes stays alive with it."""
    from packjit.torch import calls
    call = calls.Call(options.options(run, tensors), direction, seq_map, options.names[direction], tensors + outputs)
    call.run(seq_map, tensors + outputs)
    scratch = torch.empty(max(call.bytes, 1), dtype=torch.uint8, device="cuda")
    call.workspace.data = scratch.data_ptr()
    stream = torch.cuda.current_stream().cuda_stream

    def again(keep=(call, scratch, tensors, outputs, seq_map)):
        call.function(call.operator, stream, seq_map.handle, call.address, call.workspace_address)
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
    import packjit.torch as pt
    from packjit.torch import calls
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

    nothing = library().packjit_task_ready
    empty_call = median_us(torch, lambda: nothing(None), options.calls)
    rows = []
    for name, operator, inputs, function, switches in (
            ("ssm_pack", calls.SSM_PACK, scan, lambda: pt.ssm_pack(*scan, seq_map=shared), (True, False, False)),
            ("conv1d_pack", calls.CONV1D_PACK, conv, lambda: pt.conv1d_pack(*conv, seq_map=shared), (True, False))):
        tensors = tuple([tensor.detach() for tensor in inputs]) + (None,)
        extra = (dout, None, None) if name == "ssm_pack" else (dout, None)
        fp32 = {1, 2} if name == "conv1d_pack" else set()
        gradients = tuple([torch.empty_like(tensor, dtype=torch.float32 if place in fp32 else None)
                           for place, tensor in enumerate(tensors[:-1])]) + (None,)
        seq_map = live_map(shared.handle)
        outputs = (torch.empty_like(u), None, None) if name == "ssm_pack" else (torch.empty_like(u), None)
        forward = bare(torch, switches, operator, _c.FORWARD, seq_map, tensors, outputs)
        backward = bare(torch, switches, operator, _c.BACKWARD, seq_map, tensors + extra, gradients)

        def without_gradients():
            with torch.no_grad():
                function()

        def both(call):
            return lambda: torch.autograd.grad(call(), inputs, dout)
        runtime = median_us(torch, forward, options.calls) - empty_call
        runtime_both = runtime + median_us(torch, backward, options.calls) - empty_call
        floor = floor_of(torch, inputs)
        for what, timed, own, least in (("forward, no gradients", without_gradients, runtime, None),
                                        ("forward", function, runtime, floor),
                                        ("forward and backward", both(function), runtime_both, both(floor))):
            call = median_us(torch, timed, options.calls)
            rows.append({"operator": name, "what": what, "call_us": round(call, 2), "runtime_us": round(own, 2),
                         "above_us": round(call - own, 2),
                         "floor_us": None if least is None else round(median_us(torch, least, options.calls), 2)})
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": sys.version.split()[0],
              "empty_ctypes_call_us": round(empty_call, 2), "calls": rows}
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    print(f"{result['gpu']}, PyTorch {result['torch']}, Python {result['python']}; microseconds a call, medians")
    print(f"{'operator':12} {'what':22} {'call':>8} {'runtime':>8} {'above':>8} {'floor':>8}")
    for row in rows:
        least = "" if row["floor_us"] is None else f"{row['floor_us']:8.2f}"
        numbers = " ".join(f"{row[name]:8.2f}" for name in ("call_us", "runtime_us", "above_us"))
        print(f"{row['operator']:12} {row['what']:22} {numbers} {least}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
