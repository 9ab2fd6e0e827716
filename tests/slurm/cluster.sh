# shellcheck shell=bash
# A SLURM cluster on one host, sourced by the tests in this folder: the caller becomes the controller, and each node is a
# process tree with its own network, host name, process ids, /run and /dev/shm, joined to the controller by a bridge.
#
#   become_controller "$@"   comes first: restarts the script inside its own namespaces, or skips if that is
#   impossible start_cluster            controller and nodes; returns when all nodes are idle kill_node N | fail_node
#   N | boot_node N | unplug_node N     faults and repairs
#
# Everything lives in namespaces below one process and ends with it: no address, host name or mount is visible
# outside, and two clusters do not interfere. Settings: nodes, gpus_per_node, cpus_per_node, device_files
# (/dev/nvidiaN without Slurm's knowledge).
nodes=${nodes:-4}
gpus_per_node=${gpus_per_node:-1}
cpus_per_node=${cpus_per_node:-4}
cluster_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

skip() { printf 'SKIPPED: %s\n' "$*" >&2; exit 77; }

become_controller() {
  [ -z "${CLUSTER_CONTROLLER-}" ] || return 0
  local tool
  for tool in slurmctld slurmd sbatch munged ip unshare; do
    command -v "$tool" >/dev/null || skip "no '$tool' here, so there is no cluster to test on; install with env/install_deps.sh --slurm"
  done
  [ "$(id -u)" = 0 ] || skip "the cluster of namespaces takes root"
  unshare --mount --net --uts --ipc --pid --fork --mount-proc ip link add probe type bridge 2>/dev/null ||
    skip "this machine refuses namespaces or bridges, so there is no cluster to test on"
  CLUSTER_CONTROLLER=1 exec unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc --propagation private \
    bash "$0" "$@"
}

start_cluster() {  # start_cluster FOLDER: configuration, logs and state go there
  cluster=$1
  export cluster device_files=${device_files:-0}
  mkdir -p "$cluster"/{etc/slurm,log,state,spool,dev}
  chmod 755 "$cluster" "$cluster"/*  # slurmd rejects spool folders that others may write
  (umask 077; head -c 128 /dev/urandom >"$cluster/etc/munge.key")
  write_hosts
  write_slurm_conf
  ip link set lo up
  ip link add br0 type bridge
  ip addr add 10.77.0.254/24 dev br0
  ip link set br0 up
  hostname slurmctl
  # shellcheck source=tests/slurm/machine.sh
  . "$cluster_folder/machine.sh"
  become_machine slurmctl
  export cluster_started=$SECONDS
  slurmctld -D >"$cluster/log/slurmctld.out" 2>&1 &
  local n
  for n in $(seq "$nodes"); do boot_node "$n"; done
  wait_for 60 'all nodes idle' all_idle
}

all_idle() { [ "$(sinfo -h -N -o %T 2>/dev/null | grep -cx idle)" = "$nodes" ]; }

# wait_for SECONDS WHAT COMMAND...: until COMMAND succeeds; otherwise the test fails, with the state of the cluster.
wait_for() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@"; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      cluster_state >&2
      echo "FAILED: waited $seconds s for: $what" >&2
      exit 1
    fi
    sleep 0.2
  done
}

cluster_state() {
  timeout 10 squeue -l
  timeout 10 sinfo -N -l
  tail -n 15 "$cluster/log/slurmctld.log"
  grep -hE 'error|fatal' "$cluster"/log/slurmd.*.log | tail -n 15 || true
  tail -n 30 job.log 2>/dev/null || true
}

write_hosts() {
  echo '127.0.0.1 localhost'
  echo '10.77.0.254 slurmctl'
  for n in $(seq "$nodes"); do echo "10.77.0.$n node$n"; done
} >"$cluster/etc/hosts"

write_slurm_conf() {
  local gres='' version g
  version=$(slurmctld -V | sed 's/[^0-9]*\([0-9]*\)\.\([0-9]*\).*/\1\2/')
  if [ "$gpus_per_node" -gt 0 ]; then
    gres=" Gres=gpu:$gpus_per_node"
    # a GPU counts only with a device file; these are copies of /dev/null
    for g in $(seq 0 $((gpus_per_node - 1))); do mknod -m 666 "$cluster/dev/gpu$g" c 1 3; done
    printf 'AutoDetect=off\nNodeName=node[1-%s] Name=gpu File=%s/dev/gpu[0-%s]\n' "$nodes" "$cluster" \
      "$((gpus_per_node - 1))" >"$cluster/etc/slurm/gres.conf"
  fi
  sed -e "s|@CLUSTER@|$cluster|g" -e "s|@NODES@|$nodes|g" -e "s|@CPUS@|$cpus_per_node|g" -e "s|@GRES@|$gres|g" \
    "$cluster_folder/slurm.conf.in" >"$cluster/etc/slurm/slurm.conf"
  # before 23.11 Slurm loads a cgroup plugin even if it is unused, and only this one has no requirements
  if [ "$version" -ge 2311 ]; then
    echo 'CgroupPlugin=disabled'
  else
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n'
  fi >"$cluster/etc/slurm/cgroup.conf"
  # the nodes share /tmp, where the files of srun --mpi=pmix would collide
  echo 'PMIxCliTmpDirBase=/run/pmix' >"$cluster/etc/slurm/mpi.conf"
}

declare -A machine_of  # node number -> process id of the machine's first process

boot_node() {
  local n=$1 outer first=''
  # the variables of sbatch must not reach the daemons
  env -u CLUSTER_CONTROLLER unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc \
    bash "$cluster_folder/machine.sh" "node$n" </dev/null >>"$cluster/log/machine.node$n" 2>&1 &
  outer=$!
  for _ in {1..200}; do
    first=$(tr -d ' ' <"/proc/$outer/task/$outer/children")
    [ -z "$first" ] || break
    sleep 0.02
  done
  machine_of[$n]=$first
  for _ in {1..200}; do  # the old cable of a node that was just killed may still exist
    ip link add "cable$n" type veth peer name eth0 netns "$first" 2>/dev/null && break
    sleep 0.05
  done
  ip link set "cable$n" master br0 up
}

kill_node() { kill -KILL "${machine_of[$1]}"; }  # power off: the kernel ends the whole machine
fail_node() {                                    # power off, and an administrator reports it at once
  kill_node "$1"
  scontrol update "NodeName=node$1" State=DOWN Reason=killed
}
unplug_node() { ip link set "cable$1" down; }
