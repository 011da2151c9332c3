#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves and measures the engine on the one GPU of a machine that has a C and C++ compiler, CUDA and
# jansson (docs/performance.md). `bench/gpu/run.sh --help` says how.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
HERE=$ROOT/bench/gpu
PYTHON=${PYTHON:-python3}
NO_GPU=3
PROGRAMS=(workers/trainer/trainyard-trainer bench/gpu/bench-ceilings)
DEVICE=cuda OUT=gpu-results SECONDS_MAX=470 CHECK_SECONDS=300
QUICK="" TESTS=1 SANITIZER=1 MEASURE=1 PEER=1 ARCH="" PACK="" CASES=()

say() { printf '» %s\n' "$*" >&2; }
die() {
	printf 'bench/gpu/run.sh: %s\n' "$1" >&2
	exit "${2:-1}"
}

usage() {
	cat <<'TEXT'
usage: bench/gpu/run.sh [options] [CASE...]

  Builds the trainer alone (-Dtrainer_only=true), runs the tests of operations and of the engine on
  the GPU, the small ones under compute-sanitizer too, then measures: ceilings, and training steps
  beside PyTorch where python3 has it with CUDA.

  --quick            tiny models: a rehearsal, about a minute
  --device cuda|cpu  cpu: the same on the processor, to rehearse where there is no GPU (cuda)
  --out DIR          where results go (gpu-results): checks.jsonl, measured.jsonl, table.txt,
                     log.txt, machine.json
  --seconds N        for all that is measured (470)
  --check-seconds N  for all tests and sanitizers (300)
  --no-tests, --no-sanitizer, --no-measure, --no-peer
                     leave that out
  --arch N           kernels for this compute capability alone, 90 for Hopper (the GPU's own; with
                     --pack all that are usual, which is three times as much)
  --pack FILE.tar.xz only build, and put the programs into FILE, for a machine that cannot build them:
                     TRAINYARD_BUILD=FILE.tar.xz bench/gpu/run.sh uses them there
  CASE               only these (bench/gpu/cases.py)

environment: TRAINYARD_BUILD  a folder with programs that were built before, or what --pack made of
                              them; nothing is built
             PYTHON           the python3 to use
status: 0 done, 1 something failed, 2 wrong arguments, 3 no GPU that can be used
TEXT
}

parse() {
	while [ $# -gt 0 ]; do
		case $1 in
		-h | --help)
			usage
			exit 0
			;;
		--quick) QUICK=1 ;;
		--no-tests) TESTS= ;;
		--no-sanitizer) SANITIZER= ;;
		--no-measure) MEASURE= ;;
		--no-peer) PEER= ;;
		--device | --out | --seconds | --check-seconds | --arch | --pack)
			[ $# -gt 1 ] || die "$1 needs a value (--help)" 2
			case $1 in
			--device) DEVICE=$2 ;;
			--out) OUT=$2 ;;
			--seconds) SECONDS_MAX=$2 ;;
			--check-seconds) CHECK_SECONDS=$2 ;;
			--arch) ARCH=$2 ;;
			--pack) PACK=$2 ;;
			esac
			shift
			;;
		-*) die "unknown option $1 (--help)" 2 ;;
		*) CASES+=("$1") ;;
		esac
		shift
	done
	case $DEVICE in cuda | cpu) ;; *) die "--device is cuda or cpu, not $DEVICE" 2 ;; esac
	case $PACK in "" | *.tar.xz) ;; *) die "--pack is FILE.tar.xz" 2 ;; esac
	case $SECONDS_MAX$CHECK_SECONDS$ARCH in *[!0-9]*) die "--seconds, --check-seconds and --arch are whole numbers" 2 ;; esac
}

# ------------------------------------------------------------------ what the machine has

need_gpu() {
	[ "$DEVICE" = cuda ] || return 0
	command -v nvidia-smi >/dev/null ||
		die "no GPU: there is no nvidia-smi (NVIDIA's driver). Rehearse with --device cpu --quick" $NO_GPU
	nvidia-smi -L 2>&1 | grep -q '^GPU 0' ||
		die "no GPU: nvidia-smi -L shows none ($(nvidia-smi -L 2>&1 | head -n 1)). Rehearse with --device cpu --quick" $NO_GPU
}

# Python packages bring NVIDIA's libraries and headers, in folders where nobody looks.
nvidia_folders() {
	"$PYTHON" - "$1" <<'PYTHON' 2>/dev/null || true
import glob, site, sys, sysconfig
places = {sysconfig.get_paths()["purelib"], *site.getsitepackages()}
for place in sorted(places):
    for folder in sorted(glob.glob(f"{place}/nvidia/*/{sys.argv[1]}")):
        print(folder)
PYTHON
}

# cuBLASLt, cuDNN and NCCL are loaded when the programs run.
set_library_path() {
	local folder found=
	[ "$DEVICE" = cuda ] || return 0
	for folder in /usr/local/cuda/lib64 $(nvidia_folders lib); do
		if ls "$folder"/libcublasLt.so.* "$folder"/libcudnn.so.* "$folder"/libnccl.so.* >/dev/null 2>&1; then
			found+=${found:+:}$folder
		fi
	done
	export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$found"
	say "libraries: ${LD_LIBRARY_PATH:-as the system has them}"
}

# The toolkit may be without the headers of cuBLASLt and NCCL.
set_header_path() {
	local folder
	for folder in $(nvidia_folders include); do
		if [ -e "$folder/cublasLt.h" ] || [ -e "$folder/nccl.h" ]; then
			export CPATH="${CPATH:+$CPATH:}$folder"
		fi
	done
}

# ------------------------------------------------------------------ the programs

# Sets MESON and NINJA.
need_tools() {
	local elsewhere='build on another machine (--pack FILE.tar.xz) and say TRAINYARD_BUILD=FILE.tar.xz here'
	command -v cc >/dev/null || command -v gcc >/dev/null || die "no C compiler: install gcc and g++, or $elsewhere"
	if command -v meson >/dev/null; then
		MESON=(meson)
	elif "$PYTHON" -c 'import mesonbuild' 2>/dev/null; then
		MESON=("$PYTHON" -m mesonbuild.mesonmain)
	else
		die "no meson: install it ($PYTHON -m pip install meson ninja), or $elsewhere"
	fi
	if command -v ninja >/dev/null; then
		NINJA=(ninja)
	elif "$PYTHON" -c 'import ninja' 2>/dev/null; then
		NINJA=("$PYTHON" -m ninja)
	else
		die "no ninja: install it ($PYTHON -m pip install ninja), or $elsewhere"
	fi
	[ "$DEVICE" = cpu ] || command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
		die "no nvcc: install the CUDA 13 toolkit, or $elsewhere"
}

build() {
	local cuda=auto targets=("${PROGRAMS[@]}") begin=$SECONDS
	BUILD=$ROOT/build-gpu
	need_tools
	set_header_path
	if [ "$DEVICE" = cuda ]; then
		cuda=enabled
		[ -z "$TESTS$SANITIZER" ] || targets+=(gpu-tests)
	fi
	[ -n "$ARCH$PACK" ] || ARCH=$(nvidia-smi --id=0 --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d .) || ARCH=
	if [ ! -f "$BUILD/build.ninja" ]; then
		say "configuring $BUILD"
		"${MESON[@]}" setup "$BUILD" "$ROOT" -Dtrainer_only=true -Dextras=disabled -Dgloo=disabled \
			-Dcuda=$cuda -Dbuildtype=release ${ARCH:+-Dgpu_archs=$ARCH} >&2 ||
			die "it cannot be configured: what is missing is said above; or build on another machine (--pack FILE.tar.xz) and say TRAINYARD_BUILD=FILE.tar.xz here"
	fi
	say "building"
	"${NINJA[@]}" -C "$BUILD" "${targets[@]}" >&2 || die "it does not compile: see above"
	say "built in $((SECONDS - begin)) s"
}

find_build() {
	local program
	if [ -z "${TRAINYARD_BUILD:-}" ]; then
		build
		return
	fi
	if [ -f "$TRAINYARD_BUILD" ]; then
		BUILD=$ROOT/build-gpu-packed
		rm -rf "$BUILD"
		"$PYTHON" -m tarfile -e "$TRAINYARD_BUILD" "$BUILD" || die "TRAINYARD_BUILD: $TRAINYARD_BUILD cannot be unpacked"
	else
		BUILD=$(cd "$TRAINYARD_BUILD" 2>/dev/null && pwd) || die "TRAINYARD_BUILD: there is no $TRAINYARD_BUILD"
	fi
	for program in "${PROGRAMS[@]}"; do
		[ -x "$BUILD/$program" ] ||
			die "TRAINYARD_BUILD: $BUILD has no $program (bench/gpu/run.sh --pack makes what is needed)"
	done
	say "programs of $BUILD"
}

# The programs without what they were made of, at the same paths. The kernels are in each of them: what
# repeats costs nothing in an archive whose window is wider than a program.
pack() {
	local program place
	place=$(mktemp -d)
	for program in "${PROGRAMS[@]}" $(cd "$BUILD" && ls tests/gpu/gpu_*_test 2>/dev/null); do
		mkdir -p "$place/${program%/*}"
		strip -o "$place/$program" "$BUILD/$program"
	done
	say "packing"
	"$PYTHON" - "$place" "$PACK" <<'PYTHON' || die "$PACK cannot be written"
import lzma, sys, tarfile
window = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 128 << 20}]
with lzma.open(sys.argv[2], "wb", filters=window) as out, \
        tarfile.open(fileobj=out, mode="w|") as archive:
    archive.add(sys.argv[1], ".")
PYTHON
	rm -rf "$place"
	say "packed: $(du -h "$PACK" | cut -f1) in $PACK"
}

# Says what is missing before anything else fails of it.
need_device() {
	local told
	[ "$DEVICE" = cuda ] || return 0
	told=$("$BUILD/bench/gpu/bench-ceilings" --device cuda --seconds 0.001 --bytes 4096 2>&1 >/dev/null) ||
		die "the GPU cannot be used: $told" $NO_GPU
}

# ------------------------------------------------------------------ what is done

describe() {
	"$PYTHON" - "$DEVICE" >"$OUT/machine.json" <<PYTHON
import json, os, platform, subprocess, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, "$HERE")
import machine
def first(*command):
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=20, check=False)
        return (done.stdout.strip().splitlines() or [None])[-1]
    except OSError:
        return None
print(json.dumps({
    "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    "commit": first("git", "-C", "$ROOT", "rev-parse", "HEAD"),
    "card": machine.card() if sys.argv[1] == "cuda" else None,
    "nvcc": first("nvcc", "--version"), "processors": os.cpu_count(),
    "system": platform.platform()}, indent=1))
PYTHON
}

check() {
	local more=()
	[ -n "$TESTS$SANITIZER" ] || return 0
	[ -n "$TESTS" ] || more+=(--no-tests)
	[ -n "$SANITIZER" ] || more+=(--no-sanitizer)
	say "tests on the device, at most $CHECK_SECONDS s"
	"$PYTHON" "$HERE/checks.py" --build "$BUILD" --device "$DEVICE" --log "$OUT/log.txt" \
		--seconds "$CHECK_SECONDS" "${more[@]}" >"$OUT/checks.jsonl" || STATUS=1
}

measure() {
	local more=()
	[ -n "$MEASURE" ] || return 0
	[ -z "$QUICK" ] || more+=(--quick)
	[ -n "$PEER" ] || more+=(--no-peer)
	"$PYTHON" "$HERE/bench.py" --build "$BUILD" --device "$DEVICE" --python "$PYTHON" \
		--seconds "$SECONDS_MAX" "${more[@]}" "${CASES[@]}" >"$OUT/measured.jsonl" || STATUS=1
	{
		"$PYTHON" "$ROOT/bench/table.py" <"$OUT/measured.jsonl"
		"$PYTHON" "$HERE/operations.py" <"$OUT/measured.jsonl"
	} | tee "$OUT/table.txt" || STATUS=1
}

main() {
	STATUS=0
	parse "$@"
	if [ -n "$PACK" ]; then
		build
		pack
		return
	fi
	"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
		die "$PYTHON is missing or older than 3.9: name another in PYTHON"
	need_gpu
	find_build
	set_library_path
	need_device
	mkdir -p "$OUT"
	: >"$OUT/log.txt"
	describe
	check
	measure
	say "results in $OUT; to keep them: cp $OUT/measured.jsonl docs/performance/$(date -u +%F)-CARD.jsonl"
	[ "$STATUS" = 0 ] || say "something failed: see $OUT/log.txt and the lines above"
	return "$STATUS"
}

main "$@"
