#!/bin/bash
# install_deps.sh [--check] [--slurm | --simgrid | PACKAGE...]: installs the missing packages to build and run cifar_mpi.
#
# For Debian 12, 13 and Ubuntu 24.04. Needs root or passwordless sudo. Is non-interactive and safe to rerun.
# Uses no network if everything is installed.
#   --check      only list what is missing
#   --slurm      install what ctest -L slurm also needs; does not configure Slurm on this machine
#   --simgrid    install what the comparison with simulated ranks (tests/simgrid) also needs
#   PACKAGE...   install these packages instead of the project's list
# Exit status: 0 nothing is missing, 1 something is (--check), 2 usage, 69 cannot install here.
set -euo pipefail

list='g++              C++20 compiler, 12 or later
cmake            build system, 3.25 or later
ninja-build      build tool
libopenmpi-dev   MPI: headers and library
openmpi-bin      MPI: mpirun
libhdf5-dev      HDF5: headers and library, for datasets and checkpoints
hdf5-tools       h5dump and h5diff, to inspect them
libcli11-dev     command line options
libfmt-dev       fmt, text formatting
libtomlplusplus-dev  toml++, configuration files
libgtest-dev     GoogleTest, for the tests
libdnnl-dev      oneDNN, the kernels of the CPU backend
libpng-dev       reads PNG images, and CIFAR-10 from PNG strips
libjpeg-dev      reads JPEG images
ca-certificates  https
curl             downloads CIFAR-10'

slurm_list='slurmctld        SLURM: the controller
slurmd           SLURM: the daemon of a node
slurm-client     SLURM: sbatch, srun, squeue, scontrol
munge            authentication of SLURM messages
iproute2         connects the namespaces with a bridge
hdf5-tools       h5diff, to compare checkpoints
environment-modules  for the modulefile; Lmod works too'

check_only=
while [[ ${1-} == -* ]]; do case $1 in
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  --check) check_only=1; shift ;;
  --slurm) list=$slurm_list; shift ;;
  --simgrid) list='libsimgrid-dev   SimGrid: smpirun and its MPI'; shift ;;
  *) echo "install_deps: unknown option '$1'; see --help" >&2; exit 2 ;;
esac; done
[ $# = 0 ] || list=$(printf '%s\n' "$@")

give_up() {  # give_up REASON: prints REASON and the packages that the reader needs to install
  local needed=${missing:-$list}
  printf 'install_deps: %s\nNeeded, under the names Debian and Ubuntu give them:\n' "$1" >&2
  printf '  %s\n' "${needed//$'\n'/$'\n'  }" >&2
  echo "Without root, env/build_deps.sh builds the small libraries. If everything is installed in another way, set CIFAR_MPI_NO_INSTALL=1." >&2
  exit 69
}

for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null || give_up "this system has no $tool, so nothing was installed."
done

# dpkg-query fails for an unknown package, but still prints the others
mapfile -t names < <(cut -d' ' -f1 <<<"$list")
installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${names[@]}" 2>/dev/null || true)
missing=$(while read -r name purpose; do
  grep -qxF "$name installed" <<<"$installed" || printf '%-16s %s\n' "$name" "$purpose"
done <<<"$list")
[ -n "$missing" ] || exit 0
if [ -n "$check_only" ]; then
  printf 'install_deps: missing:\n%s\n' "$missing" | sed '2,$s/^/  /'
  exit 1
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || give_up "installing needs root: run  sudo $0  or ask your administrator."
  as_root=(sudo -n)
fi
mapfile -t names < <(cut -d' ' -f1 <<<"$missing")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {  # apt COMMAND...: waits for another apt to finish; non-interactive
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
    apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}
echo "install_deps: installing with apt (a minute or so): ${names[*]}" >&2
apt update || true  # one broken source among several is no reason to stop; install decides
if ! apt install -y --no-install-recommends "${names[@]}"; then
  tail -20 "$log" >&2
  give_up "apt-get could not install the packages (its last lines are above)."
fi
