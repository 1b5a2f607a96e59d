#!/usr/bin/env bash
# Mesa's rusticl on llvmpipe: the OpenCL front end and the compiler passes of Mesa's drivers for AMD and Intel, on a CPU.
#   tests/portability/rusticl.sh FOLDER           makes a Debian system in FOLDER (1 GB), runs all and writes results/rusticl.json; 20 minutes on two cores
#   tests/portability/rusticl.sh FOLDER STEP ...  steps: selftest (3 minutes), golden (9 minutes), lenet (5 minutes)
set -euo pipefail
. "$(dirname "$(realpath "$0")")/debian.sh"
root="$(realpath -m "${1:?FOLDER is missing}")"
shift
unpack "$root" trixie mesa-opencl-icd=25.0.7-2+deb13u1
python_packages "$root" 3.13
export RUSTICL_ENABLE=llvmpipe OCAFFE_DEVICE=rusticl
logs="$root/tmp/logs"
rm -rf "$logs"
mkdir -p "$logs"
steps="${*:-selftest golden lenet}"
for step in $steps; do
  case "$step" in
    selftest)
      for kind in gpu cpu; do
        inside "$root" python3 -m ocaffe selftest --kind "$kind" | tee "$logs/selftest $kind.log" || true
      done
      ;;
    golden)
      OCAFFE_TEST_DEVICE=rusticl OCAFFE_TEST_KIND=gpu inside "$root" python3 -m pytest -p no:cacheprovider -q --tb=line -W ignore tests/test_golden.py |
        tee "$logs/golden gpu.log" || true
      ;;
    lenet)
      rm -rf "$root/tmp/digits"
      inside "$root" python3 -m ocaffe dataset digits /tmp/digits/examples/digits
      inside "$root" python3 -m ocaffe new lenet_digits --out /tmp/digits/net
      inside "$root" env --chdir=/tmp/digits python3 -m ocaffe train --solver net/solver.prototxt --kind gpu 2>&1 | tee "$logs/lenet gpu.log" || true
      ;;
    *)
      echo "no step '$step': selftest, golden or lenet" >&2
      exit 2
      ;;
  esac
done
collect "$logs" "Mesa 25.0.7 rusticl on llvmpipe (Debian trixie)" $([ "$steps" != "selftest golden lenet" ] || echo "$here/results/rusticl.json")
