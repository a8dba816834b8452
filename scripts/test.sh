#!/usr/bin/env bash
# Everything that has to hold before a change lands: set-up, build without warnings, formatting, clang-tidy, all tests.
# The last line of output is ctest's closing line of the whole suite.
#
#   scripts/test.sh                 what continuous integration runs
#   scripts/test.sh --quick         the same without clang-tidy
#   scripts/test.sh --sanitizers    the tests labelled `sanitize` under the address and undefined-behaviour sanitizers,
#                                   and under the thread sanitizer, and what is slow of clang-tidy: for every night
#
# A second run on an unchanged tree repeats every test, but not clang-tidy and the sanitizers: their last clean run on the
# same contents counts, and the output says so.
set -euo pipefail
# Paths that the caller gave hold from the caller's folder.
for name in PACKJIT_NVRTC PACKJIT_NVRTC_DIR PACKJIT_PYTHON; do
  case ${!name:-} in
    "" | /*) ;;
    *) export "$name=$PWD/${!name}" ;;
  esac
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

usage="usage: scripts/test.sh [--quick | --sanitizers]"
quick=
sanitizers=
case "$#:${1:-}" in
  0:) ;;
  1:--quick) quick=1 ;;
  1:--sanitizers) sanitizers=1 ;;
  1:--help | 1:-h)
    echo "$usage"
    exit 0
    ;;
  *)
    echo "test.sh: unexpected arguments: $*; $usage" >&2
    exit 2
    ;;
esac

step() { printf '\n== %s (%d s so far)\n' "$*" "$SECONDS"; }
jobs=$(nproc)
logs=build/logs
{ mkdir -p "$logs" && [ -w "$logs" ]; } || {
  echo "test.sh: cannot write to $PWD/$logs; tests are built inside the tree: copy it to a folder that can be written" >&2
  exit 3
}
# Runs a command with its output in a log, which is shown only where it fails.
logged() {
  local log=$logs/$1.log
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 100 "$log"
    echo "test.sh: failed: $* (whole output: $log)" >&2
    exit 1
  fi
}
# The files git knows or would add, in a tree without git all files.
tree_files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard
  else
    find . -name build -prune -o \( -type f -o -type l \) -print0
  fi
}
# A digest of their names and contents; of a link its target, of a nested repository its commit and changes.
tree_digest() {
  local name files=()
  {
    while IFS= read -r -d '' name; do
      if [ -L "$name" ]; then
        printf 'link %q %q\n' "$name" "$(readlink "$name")"
      elif [ -f "$name" ]; then
        files+=("$name")
      elif [ -d "$name" ]; then
        printf 'repository %q %s\n' "$name" "$(git -C "$name" rev-parse HEAD && git -C "$name" diff HEAD | sha256sum)"
      else
        printf 'deleted %q\n' "$name"
      fi
    done < <(tree_files | LC_ALL=C sort -zu)
    [ ${#files[@]} = 0 ] || printf '%s\0' "${files[@]}" | xargs -0 sha256sum --
  } | sha256sum | cut -d' ' -f1
}

step "set-up"
scripts/bootstrap.sh

if [ -n "$sanitizers" ]; then
  digest=$(tree_digest) || {
    echo "test.sh: could not read every file of the tree (the reason stands above)" >&2
    exit 1
  }
  stamp=build/sanitized-$digest
  for preset in asan tsan; do
    step "sanitizer subset: $preset"
    if [ -e "$stamp.$preset" ]; then
      cat "$stamp.$preset"
      echo "(from the last run on these very contents; not repeated)"
      continue
    fi
    logged "$preset-configure" cmake --preset "$preset"
    logged "$preset-build" cmake --build --preset "$preset" -j "$jobs"
    logged "$preset-tests" ctest --preset "$preset" -j "$jobs"
    grep 'tests passed' "$logs/$preset-tests.log" | tee "$stamp.$preset"
  done
  step "clang-tidy, what takes longest"
  scripts/tidy.py build/asan \
    "--checks=-*,performance-unnecessary-value-param,clang-analyzer-core.*,clang-analyzer-cplusplus.*,clang-analyzer-unix.*"
  step "done, logs in $logs"
  exit 0
fi

# PyTorch comes over the network while the compiler works.
scripts/bootstrap.sh --torch >"$logs/torch.log" 2>&1 &
torch=$!
trap 'kill "$torch" 2>/dev/null || true' EXIT

step "build, warnings are errors"
logged configure cmake --preset release -DPACKJIT_WERROR=ON
grep -E '^-- (CUDA|NVRTC|Fuzz)' "$logs/configure.log" || true
logged build cmake --build --preset release -j "$jobs"

step "clang-format"
# Templates are left out: their text is printed for the reader of the generated source, whose branches it decides.
mapfile -d '' -t sources < <(find cmake packing oracle generator database runtime checking tuning api cli include \
  tests examples \( -name '*.cpp' -o -name '*.hpp' \) -print0)
if ! clang-format --dry-run -Werror "${sources[@]}" 2>"$logs/format.log"; then
  grep 'error:' "$logs/format.log" | cut -d: -f1 | sort -u
  echo "test.sh: these files are not formatted; run clang-format -i on them" >&2
  exit 1
fi
echo "clang-format: ${#sources[@]} files clean"

if [ -z "$quick" ]; then
  step "clang-tidy"
  # The analyzer follows calls less deep than by default, which would be four fifths of all time: that is for every night.
  scripts/tidy.py build/release --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=mode=shallow
fi

# After the cheap checks.
step "tests"
selection=()
if nvidia-smi -L >/dev/null 2>&1; then
  echo "GPU tests: run, on $(nvidia-smi -L | head -n 1)"
else
  echo "GPU tests: left out, no GPU found"
  selection=(-LE gpu)
fi
if wait "$torch"; then
  echo "PyTorch tests: run, $(tail -n 1 "$logs/torch.log" | sed 's/^bootstrap: //')"
else
  tail -n 3 "$logs/torch.log"
  echo "PyTorch tests: left out, there is no PyTorch and it could not be installed (whole output: $logs/torch.log)"
fi
ctest --preset release -j "$jobs" --no-tests=error "${selection[@]}" 2>&1 | tee "$logs/tests.log" |
  grep -vE '^ +Start +[0-9]+:|   Passed  '

step "done, logs in $logs"
grep 'tests passed' "$logs/tests.log"
