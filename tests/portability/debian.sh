# Sourced by rusticl.sh and oclgrind.sh: a Debian system in a folder, without root, container or debootstrap. It needs apt, dpkg, pip and util-linux,
# the network, and a kernel that allows user namespaces.
#
#   unpack ROOT SUITE PACKAGE=VERSION ...   downloads the packages and all that they depend on, and unpacks them
#   python_packages ROOT VERSION            ocaffe's dependencies from PyPI for the Python of ROOT, as versions of tests/portability/requirements.txt
#   inside ROOT COMMAND ...                 runs a command in ROOT; the working tree is /ocaffe there, and ocaffe's cache ROOT/tmp/cache
#   collect LOGS STACK [FILE.json]          summarises the logs of a folder (collect.py)
here="$(dirname "$(realpath "${BASH_SOURCE[0]}")")"
tree="$(realpath "$here/../..")"

unpack() {
  local root="$1" suite="$2" apt="$1/apt" wanted="${*:2}"
  shift 2
  [ "$(cat "$root/unpacked" 2>/dev/null)" != "$wanted" ] || return 0
  if [ -e "$root" ] && [ ! -e "$root/unpacked" ] && [ -n "$(ls -A "$root")" ]; then
    echo "$root is not empty, and no system that this script made: name another folder" >&2
    return 1
  fi
  rm -rf "$root"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  : >"$apt/status"
  echo unfinished >"$root/unpacked"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$apt/sources.list"
  cat >"$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
Debug::NoLocking "true";
CONF
  APT_CONFIG="$apt/apt.conf" apt-get -q update
  APT_CONFIG="$apt/apt.conf" apt-get -q -y --download-only install "$@" base-files bash coreutils libc-bin python3
  for folder in bin sbin lib lib64; do
    mkdir -p "$root/usr/$folder"
    ln -sf "usr/$folder" "$root/$folder"
  done
  for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink --no-same-owner
  done
  rm -r "$apt"
  mkdir -p "$root"/{ocaffe,proc,dev,tmp,etc/OpenCL/vendors}
  inside "$root" ldconfig
  echo "$wanted" >"$root/unpacked"
}

python_packages() {
  local root="$1" version="$2" wanted
  wanted="$version $(cat "$here/requirements.txt")"
  [ "$(cat "$root/python-packages" 2>/dev/null)" != "$wanted" ] || return 0
  rm -rf "$root/site"
  "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$root/site" --python-version "$version" --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -r "$here/requirements.txt"
  echo "$wanted" >"$root/python-packages"
}

collect() {
  (cd "$tree" && "${PYTHON:-python3}" -m tests.portability.collect "$@")
}

inside() {
  local root="$1"
  shift
  unshare --user --map-root-user --mount bash -c '
    mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --rbind "$2" "$1/ocaffe" && root="$1" && shift 2 && exec chroot "$root" "$@"
  ' - "$root" "$tree" /usr/bin/env --chdir=/ocaffe PYTHONPATH=/ocaffe:/site PYTHONDONTWRITEBYTECODE=1 HOME=/tmp OCAFFE_CACHE=/tmp/cache "$@"
}
