#!/usr/bin/env bash
# Installs what building, testing and running packjit needs and this machine lacks. Debian 12; root is needed only where
# a package is missing. Does nothing, and needs no network, where everything is there.
#
# NVRTC is looked for in PACKJIT_NVRTC (path of the library), in the CUDA toolkit, and in the Python wheel
# nvidia-cuda-nvrtc. Where none is found, the wheels are installed into build/nvrtc (PACKJIT_NVRTC_DIR).
# PACKJIT_IGNORE_CUDA=1 passes over toolkit and wheel, to try that last way.
#
# --torch installs PyTorch, NumPy and pytest into a virtual environment, build/python, for the tests of packjit.torch, and
# nothing else; where PACKJIT_PYTHON, that environment or python3 has them already that one is taken. build/python gets
# transformers and matplotlib too, for a part of these tests; of another interpreter that lacks them it is said.
set -euo pipefail
# Paths that the caller gave hold from the caller's folder.
for name in PACKJIT_NVRTC PACKJIT_NVRTC_DIR; do
  case ${!name:-} in
    "" | /*) ;;
    *) export "$name=$PWD/${!name}" ;;
  esac
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

say() { echo "bootstrap: $*"; }
die() {
  echo "bootstrap: $*" >&2
  exit 3
}

# --- PyTorch ---------------------------------------------------------------------------------------------------------
if [ "${1:-}" = --torch ]; then
  own=build/python/bin/python
  parts=("transformers==5.*" matplotlib)
  pip_install() { "$own" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
  # The first interpreter that has PyTorch, NumPy and pytest.
  find_torch() {
    for python in ${PACKJIT_PYTHON:+"$PACKJIT_PYTHON"} "$own" python3; do
      "$python" -c 'import numpy, pytest, torch' 2>/dev/null && return 0
    done
    return 1
  }
  # Prints those of `parts` that it has not.
  missing_parts() {
    "$python" -c '
import importlib.util, sys
print(*[name for name in sys.argv[1:] if not importlib.util.find_spec(name)], sep=" and ")' "${parts[@]%%=*}"
  }
  if ! find_torch; then
    say "installing PyTorch, NumPy and pytest with pip into build/python"
    rm -rf build/python
    mkdir -p build
    python3 -m venv build/python ||
      die "python3 cannot make a virtual environment; run scripts/bootstrap.sh, or set PACKJIT_PYTHON to an interpreter with PyTorch"
    pip_install torch numpy pytest || {
      rm -rf build/python
      die "pip could not install PyTorch (its reason stands above); set PACKJIT_PYTHON to an interpreter that has it"
    }
    python=$own
  fi
  missing=$(missing_parts)
  if [ "$python" = "$own" ] && [ -n "$missing" ]; then
    say "installing with pip into build/python: ${parts[*]}"
    pip_install "${parts[@]}" || say "pip could not (its reason stands above)"
    missing=$(missing_parts)
  fi
  # One line, the last: scripts/test.sh shows it.
  found=$("$python" -c 'import sys, torch; print(torch.__version__, "of", sys.executable)')
  say "PyTorch: $found${missing:+, without $missing, whose tests are skipped}"
  exit 0
fi
[ $# = 0 ] || die "unexpected arguments: $*; usage: scripts/bootstrap.sh [--torch]"

# --- Debian packages -------------------------------------------------------------------------------------------------
# package, and a file that it installs: looking for the file also accepts what came from elsewhere.
packages=(
  "cmake cmake"
  "ninja-build ninja"
  "g++ g++"
  "libfmt-dev /usr/include/fmt/format.h"
  "nlohmann-json3-dev /usr/include/nlohmann/json.hpp"
  "libcli11-dev /usr/include/CLI/CLI.hpp"
  "libboost-context-dev /usr/include/boost/context/fiber.hpp"
  "libxxhash-dev /usr/include/xxhash.h"
  "libgtest-dev /usr/include/gtest/gtest.h"
  "clang clang++"
  "libclang-rt-14-dev /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a"
  "clang-format clang-format"
  "clang-tidy clang-tidy"
  "python3 python3"
  "locales /usr/share/i18n/locales/de_DE"
  "python3-jsonschema /usr/lib/python3/dist-packages/jsonschema/__init__.py"
  "python3-numpy /usr/lib/python3/dist-packages/numpy/__init__.py"
  "python3-pytest /usr/lib/python3/dist-packages/pytest/__init__.py"
  "python3-venv /usr/lib/python3.*/ensurepip/__init__.py"
  "git git"
)
present() {
  case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}
missing=()
for entry in "${packages[@]}"; do
  present "${entry#* }" || missing+=("${entry%% *}")
done
install_packages() {
  [ "$(id -u)" = 0 ] || die "not root; install these packages, then run this again: $*"
  command -v apt-get >/dev/null || die "no apt-get here; docs/building.md says what each of these is for: $*"
  exec 8>/run/lock/packjit-bootstrap.lock && flock 8  # another tree may be at it
  say "installing with apt-get: $*"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; } ||
    die "apt-get could not install $* (its reason stands above)"
}
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"

# --- NVRTC and CUDA's headers ----------------------------------------------------------------------------------------
wheel_dir=${PACKJIT_NVRTC_DIR:-build/nvrtc}

# NVRTC's own file name holds the major version only, that of its companion library the minor one too. 12.8 is the first
# release that knows every architecture the project names (sm_120).
recent_enough() {
  local builtins version
  for builtins in "$1"/libnvrtc-builtins.so.*.*; do
    version=${builtins##*.so.}
    version=$(cut -d. -f1,2 <<<"$version")
    [ "$(printf '%s\n' 12.8 "$version" | sort -V | head -n 1)" = 12.8 ] && return 0
  done
  return 1
}
# Prints the first library in the given folders.
nvrtc_in() {
  local folder library
  for folder; do
    for library in "$folder"/libnvrtc.so.[0-9]*; do
      if [ -r "$library" ] && recent_enough "$folder"; then
        echo "$library"
        return 0
      fi
    done
  done
  return 1
}
find_nvrtc() {
  local folders=()
  if [ -z "${PACKJIT_IGNORE_CUDA:-}" ]; then
    local home=${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}
    folders+=("$home"/lib64 "$home"/lib "$home"/targets/*/lib /usr/local/cuda*/lib64 /usr/local/cuda*/lib)
    mapfile -t -O ${#folders[@]} folders < <(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null |
      sed -n 's|.*libnvrtc\.so\.[0-9]* .*=> \(.*\)/[^/]*$|\1|p')
    mapfile -t -O ${#folders[@]} folders < <(python3 -c '
import glob, site, sys
for folder in dict.fromkeys(sys.path + site.getsitepackages() + [site.getusersitepackages()]):
    print(*glob.glob(glob.escape(folder) + "/nvidia/*/lib"), sep="\n")' 2>/dev/null)
  fi
  folders+=("$wheel_dir"/nvidia/*/lib)
  nvrtc_in "${folders[@]}"
}
find_header() {
  local folders=("$wheel_dir"/nvidia/*/include)
  if [ -z "${PACKJIT_IGNORE_CUDA:-}" ]; then
    folders+=(${CUDA_HOME:+"$CUDA_HOME/include"} ${CUDA_PATH:+"$CUDA_PATH/include"} /usr/local/cuda*/include /usr/include)
  fi
  local folder
  for folder in "${folders[@]}"; do
    [ -r "$folder/$1" ] && return 0
  done
  return 1
}

# Sets nvrtc to the library, wheels to what has to be installed.
look_around() {
  wheels=()
  if [ -n "${PACKJIT_NVRTC:-}" ]; then
    [ -r "$PACKJIT_NVRTC" ] || die "PACKJIT_NVRTC names '$PACKJIT_NVRTC', which cannot be read; set it to the path of libnvrtc.so or unset it"
    nvrtc=$PACKJIT_NVRTC
  else
    nvrtc=$(find_nvrtc) || wheels+=("nvidia-cuda-nvrtc>=13.0,<13.1")
  fi
  # The wheel of NVRTC has nvrtc.h, that of the CUDA runtime has cuda.h.
  find_header nvrtc.h || wheels=("nvidia-cuda-nvrtc>=13.0,<13.1")
  find_header cuda.h || wheels+=("nvidia-cuda-runtime>=13.0,<13.1")
}

look_around
if [ ${#wheels[@]} -gt 0 ]; then
  { mkdir -p "$wheel_dir" && [ -w "$wheel_dir" ]; } ||
    die "cannot write to '$wheel_dir'; set PACKJIT_NVRTC_DIR to a folder that can be written"
  # One at a time; what another run has installed meanwhile is found.
  exec 9>"$wheel_dir/.lock"
  flock 9
  look_around
fi
if [ ${#wheels[@]} -gt 0 ]; then
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
  say "installing with pip into $wheel_dir: ${wheels[*]}"
  # Into a folder of its own first: an interrupted installation leaves nothing that looks complete.
  scratch=$(mktemp -d "$wheel_dir/.install-XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
    --only-binary=:all: --target "$scratch" "${wheels[@]}" ||
    die "pip could not install ${wheels[*]} (its reason stands above); docs/building.md says how to bring NVRTC otherwise"
  # Some file systems have no hard links. The first try may have made some, hence --remove-destination.
  cp -rlf "$scratch"/. "$wheel_dir"/ 2>/dev/null || cp -r --remove-destination "$scratch"/. "$wheel_dir"/ ||
    die "could not copy the wheels into $wheel_dir (the reason stands above)"
  nvrtc=${nvrtc:-$(find_nvrtc)} || die "the wheels were installed, but $wheel_dir/nvidia/*/lib has no libnvrtc.so"
fi

[ ${#missing[@]} != 0 ] || [ ${#wheels[@]} != 0 ] || say "nothing to install"
say "NVRTC: $nvrtc"
