#!/bin/bash
# machine.sh NAME: the first process of one node of the cluster, see cluster.sh; sourced, it only defines become_machine.
become_machine() {  # become_machine NAME: a mount namespace becomes that of a machine, with its own munge
  local name=$1
  hostname "$name"
  mount -t sysfs sysfs /sys 2>/dev/null || true
  mount -t tmpfs -o mode=755 tmpfs /run
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm  # machines share no memory
  mkdir -m 755 /run/munge /run/mungelog
  mkdir -m 1777 /run/pmix /run/openmpi
  [ "$device_files" = 0 ] || add_device_files
  mount --bind "$cluster/etc/hosts" /etc/hosts
  mount --bind "$cluster/etc/slurm" /etc/slurm
  munged --force --foreground --key-file="$cluster/etc/munge.key" --socket=/run/munge/munge.socket.2 \
    --pid-file=/run/munge/munged.pid --log-file=/run/mungelog/munged.log --seed-file=/run/mungelog/seed \
    >"$cluster/log/munged.$name" 2>&1 &
  for _ in {1..200}; do
    [ ! -S /run/munge/munge.socket.2 ] || return 0
    sleep 0.05
  done
  echo "munged did not start on $name" >&2
  return 1
}

add_device_files() {  # to its own /dev, since the host's is shared
  local g
  mkdir -m 755 /run/dev
  cp -a /dev/{null,zero,full,random,urandom,tty,ptmx,fd,stdin,stdout,stderr} /run/dev/
  for ((g = 0; g < device_files; ++g)); do mknod -m 666 "/run/dev/nvidia$g" c 1 3; done
  for g in pts shm; do
    mkdir "/run/dev/$g"
    mount --rbind "/dev/$g" "/run/dev/$g"
  done
  mount --rbind /run/dev /dev
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -eu
  name=$1
  mkdir -p "$cluster/spool/$name"
  ip link set lo up
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
  ip addr add "10.77.0.${name#node}/24" dev eth0
  ip link set eth0 up
  become_machine "$name"
  slurmd -D -N "$name" >>"$cluster/log/slurmd.$name.out" 2>&1 &
  while :; do
    wait -n || true  # reaps orphans of the jobs
    sleep 0.2
  done
fi
