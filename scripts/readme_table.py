#!/usr/bin/env python3
"""Writes README.md's table of measurements from bench/results/*.json, the output of `packjit bench ops --json`.

    scripts/readme_table.py            writes it
    scripts/readme_table.py --check    exit status 1 where README.md has another one

Of several measurements of one operator, GPU and shape the latest counts. The official kernels' times beside them are
those of docs/official_kernels.json, shown where GPU and shape are the same.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- Measurements: written by scripts/readme_table.py -->"
END = "<!-- end of measurements -->"
DEFAULTS = {"tokens": 32768, "dim": 4096, "d_state": 16, "conv_width": 4, "dtype": "bf16"}


def command(report):
    """The command that makes such a report; one that used other options says itself how it was made."""
    if "command" in report:
        return report["command"]
    options = [f" --{name.replace('_', '-')} {report[name]}" for name in DEFAULTS if report[name] != DEFAULTS[name]]
    return "packjit bench ops" + "".join(options)


def label(row):
    """The operator, and where the backward's checkpoints come from if the row says so."""
    return f"`{row['operator']}`" + (f", checkpoints {row['checkpoints']}" if row.get("checkpoints") else "")


def reports():
    """Latest measurement of each operator, GPU and shape, by descending number of tokens."""
    latest = {}
    for path in sorted((ROOT / "bench/results").glob("*.json")):
        report = json.loads(path.read_text())
        # Other results lie here too; those with Config fields of the caller's choice are experiments.
        if not isinstance(report, dict) or not {"operators", "gpu", *DEFAULTS} <= set(report):
            continue
        if report.get("shape", "packed") != "packed":
            continue
        for row in report["operators"] + report.get("variants", []) + report.get("together", []):
            key = (report["gpu"], label(row), *(report[name] for name in DEFAULTS))
            if key not in latest or report["date"] >= latest[key][0]["date"]:
                latest[key] = (report, row)
    order = ["ssm_pack_fwd", "ssm_pack_bwd", "ssm_pack_fwd+bwd", "conv1d_pack_fwd", "conv1d_pack_bwd"]
    return sorted(latest.values(), key=lambda pair: (-pair[0]["tokens"], order.index(pair[1]["operator"]), label(pair[1])))


def official(report, row):
    reference = json.loads((ROOT / "docs/official_kernels.json").read_text())
    if report["gpu"] != reference["gpu"] or any(report[name] != value for name, value in reference["shape"].items()):
        return ""
    for entry in reference["times"]:
        if entry["operator"] == row["operator"] and entry["tokens"] == report["tokens"]:
            return f"{entry['ms']} ms" + (f" ({entry['remark']})" if entry["remark"] else "")
    return ""


def table():
    found = reports()
    if not found:
        return "Nothing measured is in this tree yet (`bench/results/`)."
    lines = ["| operator | tokens | median | 10 % to 90 % | reading and writing alone | official kernel | date, GPU, command |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for report, row in found:
        alone = f"{row['memory_limit_ms']:.3f} ms" if "memory_limit_ms" in row else ""
        lines.append(f"| {label(row)} | {report['tokens']:,} | {row['median_ms']:.3f} ms "
                     f"| {row['p10_ms']:.3f} to {row['p90_ms']:.3f} ms | {alone} "
                     f"| {official(report, row)} | {report['date']}, {report['gpu']}, `{command(report)}` |")
    return "\n".join(lines)


def main():
    text = README.read_text()
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        sys.exit(f"readme_table.py: README.md lacks the lines '{BEGIN}' and '{END}'")
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if sys.argv[1:] == ["--check"]:
        if text != wanted:
            sys.exit("readme_table.py: README.md does not show what bench/results holds; run scripts/readme_table.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        README.write_text(wanted)


if __name__ == "__main__":
    main()
