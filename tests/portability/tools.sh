#!/bin/sh
# Fetch the compilers of AMD and Intel GPUs from Debian's packages into a folder: clang for amdgcn with ROCm's device libraries, and Intel's ocloc.
# Nothing is installed on the system, and no root is needed: apt-get resolves the packages with files of its own, dpkg-deb unpacks them, and the
# programs run with the libc that was unpacked beside them. It fetches 160 MB and takes 850 MB of disk.
#
#   tests/portability/tools.sh              # to /tmp/portability-tools, or to the folder PORTABILITY_TOOLS
#
# MIRROR names another mirror of Debian. The versions below are checked; when Debian has newer ones, take them from
# MIRROR=http://snapshot.debian.org/archive/debian/20261125T000000Z, or set VERSIONS=any and say in the results which ones they are.
set -eu
FOLDER="${PORTABILITY_TOOLS:-/tmp/portability-tools}"
MIRROR="${MIRROR:-http://deb.debian.org/debian}"
PACKAGES="clang-21=1:21.1.8-14 rocm-device-libs-21=7.0.2+dfsg-3 intel-ocloc=26.27.39122.14-1 libigc2=2.40.14-1 libigdfcl2=2.40.14-1"
[ "${VERSIONS:-pinned}" = pinned ] || PACKAGES="$(printf '%s\n' $PACKAGES | sed 's/=.*//')"
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f "$KEYRING" ] || { echo "$KEYRING is not there: install Debian's package debian-archive-keyring" >&2; exit 1; }

mkdir -p "$FOLDER/apt/lists/partial" "$FOLDER/apt/cache/archives/partial" "$FOLDER/root"
FOLDER="$(realpath "$FOLDER")"
echo "deb [signed-by=$KEYRING check-valid-until=no] $MIRROR sid main" > "$FOLDER/apt/sources.list"
: > "$FOLDER/apt/status" # no package is installed, so that all that are needed are fetched
cat > "$FOLDER/apt/apt.conf" <<END
Dir::Etc::SourceList "$FOLDER/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$FOLDER/apt";
Dir::State::status "$FOLDER/apt/status";
Dir::Cache "$FOLDER/apt/cache";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Debug::NoLocking "true";
END
export APT_CONFIG="$FOLDER/apt/apt.conf"
apt-get update -q
apt-get install -q -y --download-only $PACKAGES
for package in "$FOLDER"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$FOLDER/root"; done

LIBRARIES="$FOLDER/root/usr/lib/x86_64-linux-gnu"
LOADER="$LIBRARIES/ld-linux-x86-64.so.2 --library-path $LIBRARIES"
CLANG="$FOLDER/root/usr/lib/llvm-21"
printf '#!/bin/sh\nexec %s\n' "$LOADER $CLANG/bin/clang -resource-dir $CLANG/lib/clang/21 \"\$@\"" > "$FOLDER/clang-21"
printf '#!/bin/sh\nexec %s\n' "$LOADER $(ls "$FOLDER"/root/usr/bin/ocloc-*) \"\$@\"" > "$FOLDER/ocloc"
chmod +x "$FOLDER/clang-21" "$FOLDER/ocloc"
"$FOLDER/clang-21" --version | head -1
"$FOLDER/ocloc" compile --help > /dev/null && ls "$FOLDER"/root/usr/bin/ocloc-*
