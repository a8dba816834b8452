#!/usr/bin/env bash
# The main job on real document lengths, from a clean clone to a table of results: sets up, builds, packs, compiles the
# four operators, runs them forward and backward and checks every output and gradient. Works without a GPU.
#
#   scripts/demo.sh            builds what is missing, then runs the job
#   scripts/demo.sh --fresh    repeats checks that an earlier run made with the same program on the same inputs
#
# Exit status: 2 bad usage, 3 the machine lacks something, 4 a check failed, 1 anything else. What each step printed
# stays in build/demo.
set -euo pipefail
# Paths that the caller gave hold from the caller's folder.
for name in PACKJIT_NVRTC PACKJIT_NVRTC_DIR; do
  case ${!name:-} in
    "" | /*) ;;
    *) export "$name=$PWD/${!name}" ;;
  esac
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

usage="usage: scripts/demo.sh [--fresh]"
fresh=
case "$#:${1:-}" in
  0:) ;;
  1:--fresh) fresh=1 ;;
  1:--help | 1:-h)
    echo "$usage"
    exit 0
    ;;
  *)
    echo "demo.sh: unexpected arguments: $*; $usage" >&2
    exit 2
    ;;
esac

lengths=bench/data/mixed_lengths.txt
pack_length=4096
results=build/demo
packjit=build/release/cli/packjit

step() { printf '\n== %s\n' "$*"; }
die() {
  local status=$1
  shift
  echo "demo.sh: $*" >&2
  exit "$status"
}
{ mkdir -p "$results" && [ -w "$results" ]; } ||
  die 3 "cannot write to $PWD/$results; the demo builds inside the tree: copy it to a folder that can be written"

# --- set-up and build ------------------------------------------------------------------------------------------------
step "1. Set-up: what building and running needs"
scripts/bootstrap.sh

step "2. Build the packjit program (release)"
build_start=$SECONDS
# The options of scripts/test.sh, so that neither script rebuilds what the other has built.
cmake --preset release -DPACKJIT_WERROR=ON >"$results/configure.log" 2>&1 || {
  tail -n 30 "$results/configure.log" >&2
  die 1 "configuring failed (whole output: $results/configure.log)"
}
build=(cmake --build --preset release --target packjit -j "$(nproc)")
if [ -t 1 ]; then
  "${build[@]}" || die 1 "the build failed, its message stands above"  # on a terminal ninja shows its progress
else
  "${build[@]}" >"$results/build.log" 2>&1 || {
    tail -n 60 "$results/build.log" >&2
    die 1 "the build failed (whole output: $results/build.log)"
  }
fi
echo "$packjit, $((SECONDS - build_start)) s"

# Runs packjit with --json and keeps the result; its messages and progress bars go to the terminal. A failing command
# ends the demo with packjit's own exit status.
keep() {
  local result=$results/$1 status=0
  shift
  "$packjit" "$@" --json >"$result.part" || status=$?
  if [ "$status" != 0 ]; then
    mv "$result.part" "$result.failed"
    die "$status" "this command failed, and its message stands above: $packjit $*"
  fi
  mv "$result.part" "$result"
}
show() { python3 scripts/demo_table.py "$1" "$results"; }

keep doctor.json doctor
# One line: "sm_90", or nothing without a GPU that can be used.
gpu=$(show gpu)

# --- the job ---------------------------------------------------------------------------------------------------------
step "3. Pack ${lengths#bench/data/} into rows of $pack_length tokens"
keep pack.json pack --lengths "$lengths" --pack-length "$pack_length" --compare
show pack

# Without --arch packjit takes the GPU's, or the nearest that NVRTC knows.
for_what="sm_80, sm_90, sm_100, sm_120" arch=(--arch sm_80,sm_90,sm_100,sm_120)
[ -z "$gpu" ] || for_what="the GPU here ($gpu)" arch=()
step "4. Generate and compile the four operators for $for_what"
for op in conv1d_pack_fwd conv1d_pack_bwd ssm_pack_fwd ssm_pack_bwd; do
  keep "compile-$op.json" compile "$op" "${arch[@]}"
done
show compile

# Full rows either way. The oracle is plain fp64 on the CPU, so on a GPU too a part of the channels is checked.
device=host rows=2 dim=4
[ -z "$gpu" ] || device=cuda rows=8 dim=64
step "5. Run forward and backward on those lengths, check every output and gradient"
verify=(verify --device "$device" --lengths "$lengths" --pack-length "$pack_length" --rows "$rows" --dim "$dim")
# What decides the outcome: the program, the lengths, the command, the machine's compilers and GPU.
made_with=$(cat "$packjit" "$lengths" "$results/doctor.json" scripts/demo.sh | sha256sum | cut -d' ' -f1)
if [ -z "$fresh" ] && [ "$(cat "$results/verify.made_with" 2>/dev/null)" = "$made_with" ]; then
  echo "Kept from the run before: same program, lengths and machine (--fresh repeats the checks)."
else
  rm -f "$results/verify.made_with"
  keep verify.json "${verify[@]}"
  echo "$made_with" >"$results/verify.made_with"
fi
show verify

rm -f "$results/bench.json"
if [ -n "$gpu" ]; then
  step "6. Time the four operators: 32,768 tokens, 4,096 channels"
  keep bench.json bench ops
  show bench
fi

step "Result"
show summary
