# Sourced by other scripts: sets up a separate apt with its own lists, one suite, and a system on
# which nothing is installed. It uses this machine's mirror and proxy and changes nothing on the
# machine.
#
#   private_apt WORK SUITE CPU     in the folder WORK; later calls of apt use it; sets `arch`,
#                                  Debian's name of the CPU
#
# DEBIAN_MIRROR names the mirror, required on hosts other than Debian; DEBIAN_KEYRING names its
# keys.
private_apt() {
  local work=$1 suite=$2 mirror
  case $3 in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) echo "no CPU $3" >&2 && exit 2 ;; esac
  mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' |
    grep -m1 -E '/debian/?$' || true)}
  [ -n "$mirror" ] || {
    echo "no Debian mirror among this machine's apt sources: set DEBIAN_MIRROR" >&2
    exit 1
  }
  mkdir -p "$work"/etc/{apt.conf.d,preferences.d} "$work"/{lists,archives}/partial
  : >"$work/status"
  cp /etc/apt/apt.conf.d/99* "$work/etc/apt.conf.d/" 2>/dev/null || true # proxy and mirror settings
  local keyring=${DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
  echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/etc/sources.list"
  cat >"$work/apt.conf" <<END
Dir::Etc "$work/etc"; Dir::Etc::Parts "$work/etc/apt.conf.d"; Dir::Etc::SourceParts "-";
Dir::State "$work"; Dir::State::lists "$work/lists"; Dir::State::status "$work/status";
Dir::Cache "$work"; Dir::Cache::Archives "$work/archives";
APT::Architecture "$arch"; APT::Architectures {"$arch"; "amd64";}; APT::Install-Recommends "false";
Acquire::Languages "none"; Acquire::Retries "3"; APT::Sandbox::User "root";
END
  export APT_CONFIG=$work/apt.conf
  apt-get -qq update >&2
}
