#!/bin/bash
# jobs_test.sh BUILD SENTENCE: one test of the unchanged job files on its own cluster (cluster.sh). If the machine
# cannot run a cluster, the test skips, with status 77.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
# shellcheck source=tests/slurm/cluster.sh
. "$root/tests/slurm/cluster.sh"
become_controller "$@"

here=$(mktemp -d)
trap 'cd / && umount -l "$here" && rmdir "$here"' EXIT
mount -t tmpfs -o mode=755 tmpfs "$here"  # in memory: a disk that others write to would stall the daemons and the runs
cd "$here"
export CIFAR_MPI_ROOT=$root CIFAR_MPI_BIN=$build CIFAR_MPI_DATA=$here/data.h5 CIFAR_MPI_LAUNCHER=auto
. "$root/tests/support/ranks.sh"
# settings of this cluster for all jobs: four nodes share two cores and /tmp
export OMPI_MCA_odls_base_sigkill_timeout=3 OMPI_MCA_orte_tmpdir_base=/run/openmpi PRTE_MCA_prte_tmpdir_base=/run/openmpi
ulimit -c 0
steps=240
# the GPUs of this cluster are device files; few samples and steps, many checkpoints
options=(--device cpu --steps "$steps" --input-size 8 --batch-size 8 --threads 1 --checkpoint-every 10 --log-every 5 --check-every 50 --lr 0.01)
"$build/cifar_mpi_pack" --synthetic 400 --image 8x8x3 --out "$here/data.h5" >"$here/pack.log" 2>&1

fail() {
  cat "$here"/*.log >&2
  cluster_state >&2
  echo "FAILED: $*" >&2
  exit 1
}

# submit JOB_FILE [SBATCH OPTION...] [-- TRAIN OPTION...]: sets job.
submit() {
  local file=$root/jobs/$1 before=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do before+=("$1"); shift; done
  job=$(sbatch --parsable --output=job.log "${before[@]}" "$file" "${options[@]}" "${@:2}") || fail "sbatch refused the job"
}

ended() { case $(squeue -h -j "$job" -o %T) in '' | COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) return 0 ;; esac; return 1; }
ends_with() {  # ends_with STATE CODE: waits for the job
  wait_for 300 "the end of job $job" ended
  local was
  was=$(scontrol show job "$job" | sed -n 's/^ *JobState=\([A-Z_]*\).*/\1/p; s/.* ExitCode=\([0-9]*\):.*/\1/p' | xargs)
  [ "$was" = "$1 $2" ] || fail "expected the job to end with '$1 $2', not '$was'"
}
log_says() { grep -qE -- "$1" job.log || fail "expected to read in the job's output: $1"; }
starts() { cat job.log 2>/dev/null | grep -c 'on each; run directory' || true; }
last_step() { find run/checkpoints -name 'step_*.h5' 2>/dev/null | sed 's/.*step_0*\([0-9]*\).h5/\1/' | sort -n | tail -n 1; }
trained_to() { [ "$(last_step | grep . || echo 0)" -ge "$1" ]; }
is_running() { [ "$(squeue -h -j "$job" -o %T)" = RUNNING ]; }
started_again() { [ "$(starts)" -ge 2 ]; }

# Compares the groups of the last checkpoint and the reported steps of two runs.
same_result() {
  local group last
  last=checkpoints/step_$(printf %09d "$steps").h5
  for group in model ema optimizer progress; do
    h5diff "$1/$last" "$2/$last" "/$group" "/$group" >h5diff.log 2>&1 || fail "/$group of $2 is not that of the undisturbed run"
  done
  reported "$1" >expected.txt
  reported "$2" >found.txt
  diff expected.txt found.txt >diff.log || fail "metrics.jsonl of $2 does not tell the same steps"
}
reported() { sed -n 's/.*\("step": *[0-9]*\).*\("cross_entropy": *[^,]*\).*/\1 \2/p' "$1/metrics.jsonl"; }

# The undisturbed run, made once per build: every test compares with it.
undisturbed() {
  local key kept
  key=$(cat "$build/cifar_mpi_train" <(echo "${options[@]}") | sha1sum | cut -c1-12)
  kept=$build/undisturbed-$key
  if [ ! -d "$kept" ]; then
    submit cifar10_4node.slurm --job-name=undisturbed -- --run-dir undisturbed
    ends_with COMPLETED 0
    [ "$(starts)" = 1 ] || fail "the undisturbed run was started $(starts) times"
    mv job.log undisturbed.txt
    rm -rf "$build"/undisturbed-*  # of earlier builds
    cp -r undisturbed "$kept.$$"
    mv -T "$kept.$$" "$kept" 2>/dev/null || rm -rf "$kept.$$"  # another test made it meanwhile
  fi
  reference=$kept
}

start_four_nodes() { nodes=4 start_cluster "$here/cluster"; undisturbed; }

# The first start of a job sleeps in its steps, so that a fault comes long before its end.
pace_first_start() {
  mkdir programs
  ln -s "$build/CMakeCache.txt" programs/
  # shellcheck disable=SC2016  # for a later sh
  printf '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || export LD_PRELOAD=%q FAULT_PACE_MS=5\nexec %q "$@"\n' \
    "$build/tests/libfault_preload.so" "$build/cifar_mpi_train" >programs/cifar_mpi_train
  chmod +x programs/cifar_mpi_train
  export CIFAR_MPI_BIN=$here/programs
}

# interrupted LAUNCHER FAULT...: a job with FAULT after its third checkpoint gives the result of an undisturbed run.
interrupted() {
  local launcher=$1
  shift
  start_four_nodes
  pace_first_start
  CIFAR_MPI_LAUNCHER=$launcher submit cifar10_4node.slurm -- --run-dir run
  wait_for 120 'the third checkpoint' trained_to 30
  "$@"
  wait_for 90 'the second start' started_again
  ends_with COMPLETED 0
  log_says 'resuming at step [1-9]'
  same_result "$reference" run
}

TrainsOnFourNodesThroughMpirun() {
  start_four_nodes
  submit cifar10_4node.slurm -- --run-dir run
  ends_with COMPLETED 0
  log_says 'all-reduce auto .*ring'  # shows that it sees four nodes with one rank each; one node would share a window
  same_result "$reference" run
}

TrainsToTheSameBitsThroughSrun() {
  start_four_nodes
  CIFAR_MPI_LAUNCHER=srun submit cifar10_4node.slurm -- --run-dir run
  ends_with COMPLETED 0
  same_result "$reference" run
}

AddsWithinNodesAndThenBetweenThem() {
  nodes=2 start_cluster "$here/cluster"
  options=(--device cpu --steps 2 --input-size 8 --batch-size 8 --threads 1)
  submit cifar10_4node.slurm --nodes=2 --ntasks-per-node=2
  ends_with COMPLETED 0
  log_says '2 nodes, 2 ranks and 1 GPUs on each'
  log_says 'all-reduce auto .*two-level'
}

TakesTheOtherLauncherWhenRanksDoNotFindEachOther() {
  nodes=2 start_cluster "$here/cluster"
  options=(--device cpu --steps 2 --input-size 8 --batch-size 8 --threads 1)
  mkdir programs
  ln -s "$build/cifar_mpi_train" programs/
  # shellcheck disable=SC2016  # for a later sh
  printf '#!/bin/sh\necho a launcher of another MPI\nexit 10\n' >programs/mpirun
  chmod +x programs/mpirun
  echo "MPIEXEC_EXECUTABLE:FILEPATH=$here/programs/mpirun" >programs/CMakeCache.txt
  CIFAR_MPI_BIN=$here/programs submit cifar10_4node.slurm --nodes=2
  ends_with COMPLETED 0
  log_says 'a launcher of another MPI'
  log_says '2 ranks on'
}

requeue() { wait_for 60 'Slurm to requeue the job' is_requeued; }
is_requeued() { scontrol requeue "$job" || not_running; }  # a busy controller may do it after scontrol has given up
GoesOnAfterARequeueUnderMpirun() { interrupted mpirun requeue; }
GoesOnAfterARequeueUnderSrun() { interrupted srun requeue; }

ask_to_stop() { scancel --batch --signal=USR1 "$job"; }
StopsWithACheckpointWhenAskedUnderSrun() { interrupted srun ask_to_stop; log_says 'stopped on request'; }

GoesOnAfterTheTimeLimit() {
  start_four_nodes
  pace_first_start
  # a limit below the file's --signal time requests the signal at once, but Slurm checks only every 30 s: here after 10 s
  while [ $(((SECONDS - cluster_started) % 30)) != 20 ]; do sleep 0.5; done
  submit cifar10_4node.slurm --time=1 -- --run-dir run
  wait_for 120 'the second start' started_again
  scontrol update "JobId=$job" TimeLimit=60  # else a slow machine would repeat this every 30 s
  ends_with COMPLETED 0
  log_says 'stopped on request'
  log_says 'resuming at step [1-9]'
  same_result "$reference" run
}

lose_a_node() { fail_node 4; wait_for 60 'Slurm to take the job back' not_running; boot_node 4; }
not_running() { ! is_running; }
GoesOnAfterANodeWentDown() { interrupted mpirun lose_a_node; }

lose_a_node_unseen() { kill_node 3; wait_for 90 'Slurm to mark the node down' is_down node3; boot_node 3; }
is_down() { [[ $(sinfo -h -N -n "$1" -o %T) == down* ]]; }
GoesOnAfterANodeDiedUnseenUnderMpirun() { interrupted mpirun lose_a_node_unseen; }
GoesOnAfterANodeDiedUnseenUnderSrun() { interrupted srun lose_a_node_unseen; }

unplug() { unplug_node 2; wait_for 90 'Slurm to take the job back' not_running; ip link set cable2 up; }
GoesOnAfterACableWasPulled() { interrupted mpirun unplug; }

DoesNotStartAgainAfterARealError() {
  export OMPI_MCA_odls_base_sigkill_timeout=0  # nothing must be written before these ends
  nodes=2 start_cluster "$here/cluster"
  submit cifar10_4node.slurm --nodes=2 -- --run-dir run --data nowhere.h5
  ends_with FAILED 3
  [ "$(starts)" = 1 ] || fail "the job was started $(starts) times"
  log_says 'not starting again'
  rm job.log
  submit cifar10_4node.slurm --nodes=2 -- --run-dir run2 --no-such-option
  ends_with FAILED 2
  rm job.log
  options=(--device auto --steps 2 --input-size 8 --batch-size 8 --threads 1)
  submit cifar10_4node.slurm --nodes=2 -- --run-dir run3
  ends_with FAILED 6
  log_says 'this SLURM job has GPUs, and --device cpu leaves them idle on purpose'
}

# One rank for each of a node's two GPUs, for any way to request them, and each rank sees both.
GivesEachGpuARank() {
  local asked
  nodes=2 gpus_per_node=2 start_cluster "$here/cluster"
  options=(--device cpu --steps 2 --input-size 8 --batch-size 8 --threads 1)
  mkdir programs
  ln -s "$build/CMakeCache.txt" programs/
  # shellcheck disable=SC2016  # for a later sh
  printf '#!/bin/sh\necho "a rank sees GPUs ${CUDA_VISIBLE_DEVICES-all}"\nexec %q "$@"\n' "$build/cifar_mpi_train" >programs/cifar_mpi_train
  chmod +x programs/cifar_mpi_train
  export CIFAR_MPI_BIN=$here/programs
  for asked in '--gpus-per-task=1 --ntasks=4' 'srun --gpus-per-task=1 --ntasks=4' 'srun --gres=gpu:2 --gpu-bind=map_gpu:1'; do
    rm -f job.log
    # shellcheck disable=SC2086  # options
    CIFAR_MPI_LAUNCHER=$([[ $asked = srun* ]] && echo srun || echo mpirun) submit cifar10_4node.slurm --nodes=2 ${asked#srun }
    ends_with COMPLETED 0
    log_says '2 nodes, 2 ranks and 2 GPUs on each; run directory runs/cifar10_4node-'
    log_says 'cifar_mpi [0-9.]*: 4 ranks'
    [ "$(grep -cxE 'a rank sees GPUs (all|0,1)' job.log)" = 4 ] || fail "with '$asked' ranks see other GPUs"
  done
}

# From a folder that is not the checkout: the job file finds its own.
CountsTheGpusThatSlurmDoesNot() {
  nodes=1 gpus_per_node=0 device_files=2 start_cluster "$here/cluster"
  options=(--device cpu --steps 2 --input-size 8 --batch-size 8 --threads 1)
  unset CIFAR_MPI_ROOT
  local launcher
  for launcher in mpirun srun; do
    rm -f job.log
    CIFAR_MPI_LAUNCHER=$launcher submit cifar10_1node.slurm
    ends_with COMPLETED 0
    log_says '1 nodes, 2 ranks and 2 GPUs on each'
    log_says 'cifar_mpi [0-9.]*: 2 ranks'
  done
}

# studies LAUNCHER OPTION...: a short study of two nodes; too short to judge speeds, so that code 3 is allowed, but no launch fails.
studies() {
  command -v python3 >/dev/null || { echo 'skipped: there is no python3 here'; exit 77; }
  nodes=2 start_cluster "$here/cluster"
  job=$(CIFAR_MPI_LAUNCHER=$1 sbatch --parsable --nodes=2 --output=job.log "$root/jobs/study.slurm" --device cpu --threads 1 --ranks 1 \
    --seconds 0.02 --rounds 2 --repeats 1 --batch-size 4 --sizes 4K "${@:2}") || fail "sbatch refused the job"
  wait_for 300 "the end of job $job" ended
  log_says 'wrote .*/study.html and study.json'
  ! grep -E ' failed: |does not answer|other bits' job.log || fail "a measurement failed"
  grep -q '"node node2: images_per_s"' "study-$job/study.json" || fail "node2 was not measured"
  grep -q '"minutes": 55' "study-$job/study.json" || fail "the study may take longer than its job"
}
StudiesItsNodesThroughMpirun() {
  studies mpirun
  grep -q '"pair node1 - node2: bandwidth"' "study-$job/study.json" || fail "the link was not measured"
  grep -q '"weak scaling, 2 nodes"' "study-$job/study.json" || fail "the scaling was not measured"
}
StudiesItsNodesThroughSrun() { studies srun --parts nodes; }

TrainsOnTheCpuWhereThereIsNoGpu() {
  nodes=1 gpus_per_node=0 start_cluster "$here/cluster"
  options=(--device auto --steps 2 --input-size 8 --batch-size 8 --threads 1)
  submit cifar10_1node.slurm
  ends_with COMPLETED 0
  log_says '1 nodes, [0-9]+ ranks and 0 GPUs on each'
}

"$2"
