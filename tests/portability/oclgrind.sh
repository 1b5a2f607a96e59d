#!/usr/bin/env bash
# `ocaffe selftest` in both classes of kernels under Oclgrind, which imitates devices with small work-groups and little local memory.
#   tests/portability/oclgrind.sh FOLDER            makes a Debian system in FOLDER (700 MB) and writes results/oclgrind.json; 20 minutes on two cores
#   tests/portability/oclgrind.sh FOLDER 64 16384   one limit: work-items, bytes of local memory
set -euo pipefail
. "$(dirname "$(realpath "$0")")/debian.sh"
root="$(realpath -m "${1:?FOLDER is missing}")"
shift
unpack "$root" bookworm oclgrind=21.10-3
python_packages "$root" 3.11
echo /usr/lib/oclgrind/liboclgrind-rt-icd.so >"$root/etc/OpenCL/vendors/oclgrind.icd"
logs="$root/tmp/logs"
rm -rf "$logs"
mkdir -p "$logs"
try() {
  for kind in gpu cpu; do
    OCLGRIND_MAX_WGSIZE="$1" OCLGRIND_LOCAL_MEM_SIZE="$2" inside "$root" python3 -m ocaffe selftest --kind "$kind" --timeout 1200 |
      tee "$logs/selftest $kind $1 $2.log" || true
  done
}
if [ $# = 2 ]; then
  try "$@"
else
  for items in 256 128 64; do
    for bytes in 32768 16384; do
      try "$items" "$bytes"
    done
  done
fi
collect "$logs" "Oclgrind 21.10 (Debian bookworm)" $([ $# = 2 ] || echo "$here/results/oclgrind.json")
