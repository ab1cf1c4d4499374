#!/usr/bin/env bash
# Downloads bazelisk from its release on GitHub, checks its hash, and stores it as FILE. tools/bazel
# calls it. Fails within 5 s if GitHub can't be reached.
#
#   tools/install_bazelisk.sh FILE
set -euo pipefail

VERSION=1.28.1
# Hashes of the release's files; npm's package @bazel/bazelisk has the same files.
case $(uname -m) in
  x86_64) machine=amd64 sha256=22e7d3a188699982f661cf4687137ee52d1f24fec1ec893d91a6c4d791a75de8 ;;
  aarch64) machine=arm64 sha256=8ded44b58a0d9425a4178af26cf17693feac3b87bdcfef0a2a0898fcd1afc9f2 ;;
  *) echo "tools/bazel: no bazelisk is known for $(uname -m)" >&2 && exit 1 ;;
esac
url=https://github.com/bazelbuild/bazelisk/releases/download/v$VERSION/bazelisk-linux-$machine

# Uses curl, or Python, which all builds need. Both limit the name lookup and the connection to 5 s;
# the rest of the time is for the 7 MB.
download() {
  if command -v curl >/dev/null; then
    curl -fsSL --connect-timeout 5 --max-time 300 -o "$1" "$url"
  else
    python3 - "$1" "$url" <<'X'
import shutil, signal, sys, urllib.request

signal.alarm(5)  # ends the process, for nothing less ends the search for a name
try:
    with urllib.request.urlopen(sys.argv[2]) as source, open(sys.argv[1], "wb") as target:
        signal.alarm(300)
        shutil.copyfileobj(source, target)
except OSError as error:
    sys.exit(f"python3: {error}")
X
  fi
}

mkdir -p "$(dirname "$1")"
new=$(mktemp "$1.XXXXXX")
trap 'rm -f "$new"' EXIT
echo "tools/bazel: fetching bazelisk $VERSION from GitHub" >&2
download "$new" || { echo "tools/bazel: $url can't be fetched" >&2 && exit 1; }
found=$(sha256sum "$new")
[ "${found%% *}" = $sha256 ] ||
  { echo "tools/bazel: what $url gave has the sha256 ${found%% *}, not $sha256" >&2 && exit 1; }
chmod 755 "$new"
mv "$new" "$1"
