#!/usr/bin/env python3
"""Prints what scripts/demo.sh found, from the JSON that packjit wrote: scripts/demo_table.py PART FOLDER

PART is gpu, pack, compile, verify, bench or summary. Every number is read from the files, none is worked out here beyond
adding, comparing and rounding.
"""

import json
import pathlib
import sys

OPERATORS = ["conv1d_pack_fwd", "conv1d_pack_bwd", "ssm_pack_fwd", "ssm_pack_bwd"]


class Results:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def __getitem__(self, name):
        return json.loads((self.folder / f"{name}.json").read_text())

    def has(self, name):
        return (self.folder / f"{name}.json").exists()


def gpu_arch(results):
    """The architecture of the first GPU, where NVRTC and the driver can use it; else nothing."""
    doctor = results["doctor"]
    return doctor["gpus"][0]["arch"] if doctor["can"]["run_on_gpu"] else ""


def percent(share):
    return f"{100 * share:.2f} %"


def rows_padded(pack):
    """Rows where every document has rows of its own, as many as its length needs."""
    padding = pack["padding_tokens"] + pack["padding_avoided"]["to_pack_length"]
    return (pack["tokens"] + padding) // pack["pack_length"]


def fill_padded(pack):
    return pack["tokens"] / (rows_padded(pack) * pack["pack_length"])


def arrival(pack):
    return next(method for method in pack["methods"] if method["method"] == "next-fit")


def show_pack(results):
    pack = results["pack"]
    print(f"{pack['documents']:,} documents, {pack['tokens']:,} tokens, the longest {pack['longest']:,}; "
          f"{pack['documents_cut']:,} are longer than a row and cut.\n")
    print(f"  {'one row of ' + format(pack['pack_length'], ',') + ' holds':<46} {'real tokens':>11} {'rows':>8}")
    print(f"  {'one document (or piece), padded':<46} {percent(fill_padded(pack)):>11} {rows_padded(pack):>8,}")
    for name, method in [("documents in order of arrival (next-fit)", arrival(pack)),
                         (f"documents chosen from a window ({pack['method']})", pack)]:
        print(f"  {name:<46} {percent(method['fill_rate']):>11} {method['rows']:>8,}")


def images(results):
    return [(op, image) for op in OPERATORS for image in results[f"compile-{op}"]["images"]]


def spilled(kernel):
    return kernel.get("spill_store_bytes", 0) + kernel.get("spill_load_bytes", 0)


def show_compile(results):
    print(f"NVRTC {results['compile-' + OPERATORS[0]]['nvrtc']}; {results['compile-' + OPERATORS[2]]['spec']}\n")
    print(f"  {'operator':<17} {'arch':<8} {'registers':>9} {'spilled':>8} {'seconds':>8}")
    for op, image in images(results):
        # An operator may be several kernels; the hungriest one sets the limits.
        registers = max(kernel["registers"] for kernel in image["kernels"])
        spills = sum(spilled(kernel) for kernel in image["kernels"])
        print(f"  {op:<17} {image['arch']:<8} {registers:>9} {spills:>8} {image['seconds']:>8.2f}")
    print("registers: a thread, of the kernel that needs most; spilled: bytes a thread")


def show_verify(results):
    verify = results["verify"]
    device = verify["device"]
    print(f"On {device['name']}, fp32 and bf16. Worst relative error of each operator's outputs or gradients:\n")
    print(f"  {'operator':<17} {'dtype':<5} {'tensors':<44} {'error':>9} {'bound':>9}")
    for op in OPERATORS:
        for dtype in ("fp32", "bf16"):
            rows = [row for row in verify["tensors"] if row["operator"] == op and row["dtype"] == dtype]
            worst = max(rows, key=lambda row: row["error"] / row["bound"])
            names = ", ".join(row["tensor"] for row in rows)
            print(f"  {op:<17} {dtype:<5} {names:<44} {worst['error']:>9.1e} {worst['bound']:>9.1e}")
    print("Compared with each sequence alone (in fp64), and with a padded run of the same kernels.")


def show_bench(results):
    bench = results["bench"]
    print(f"{bench['gpu']}, {bench['dtype']}, {bench['sequences']} sequences; medians of {bench['repeats']}\n")
    for row in bench["operators"]:
        print(f"  {row['operator']:<17} {row['median_ms']:>8.3f} ms   reading and writing alone {row['memory_limit_ms']:.3f} ms")


def summary_rows(results):
    pack, verify = results["pack"], results["verify"]
    yield "packed", (f"{percent(pack['fill_rate'])} of every row is real text; {percent(arrival(pack)['fill_rate'])} in arrival order, "
                     f"{percent(fill_padded(pack))} with padding")
    all_images = images(results)
    archs = list(dict.fromkeys(image["arch"] for _, image in all_images))
    spilling = [f"{op} {image['arch']}" for op, image in all_images if not image["spill_free"]]
    seconds = sum(image["seconds"] for _, image in all_images)
    spills = f"{len(spilling)} of {len(all_images)} spill ({', '.join(spilling)})" if spilling else "no register spills"
    yield "compiled", f"4 operators for {', '.join(archs)}: {spills}, {seconds:.1f} s"
    comparisons = sum(row["comparisons"] for row in verify["tensors"])
    failed = sum(row["failed"] for row in verify["tensors"])
    where = "the GPU" if verify["device"]["kind"] == "cuda" else "the CPU (host execution, no GPU here)"
    yield "ran", f"forward and backward, {len(verify['tensors'])} outputs and gradients, on {where}"
    yield "correct", (f"{comparisons - failed} of {comparisons} comparisons within bounds: each against single sequences in fp64, "
                      "and against a padded run")
    isolated = [row for row in verify["bits"] if row["check"] == "isolation"]
    compared, leaking = sum(row["comparisons"] for row in isolated), sum(row["failed"] for row in isolated)
    yield "isolated", (f"one sequence changed to other values, NaN, Inf: {compared - leaking} of {compared} comparisons show the "
                       "others unchanged to the bit")
    if results.has("bench"):
        times = {row["operator"]: row["median_ms"] for row in results["bench"]["operators"]}
        yield "timed", f"scan {times['ssm_pack_fwd']:.2f} ms forward, {times['ssm_pack_bwd']:.2f} ms backward, at 32,768 tokens"


def show_summary(results):
    for step, result in summary_rows(results):
        print(f"  {step:<9} {result}")
    print("""
Where to go next
  build/release/cli/packjit inspect ssm_pack_fwd   a kernel: source, registers, occupancy, and why this shape
  build/release/cli/packjit pack --help            your own document lengths
  README.md, docs/design.md, HACKING.md            use from C++; what is computed; a map of the tree""")


PARTS = {"gpu": lambda results: print(gpu_arch(results)), "pack": show_pack, "compile": show_compile,
         "verify": show_verify, "bench": show_bench, "summary": show_summary}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in PARTS:
        sys.exit(__doc__)
    PARTS[sys.argv[1]](Results(sys.argv[2]))
