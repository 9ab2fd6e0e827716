#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
# The decisions of jobs/run.sh, with stand-ins for Slurm, the launchers and the program; tests/slurm has the real ones.
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

# Nothing of this machine's MPI and Slurm: PATH is the stand-ins and the tools that the job files use.
for tool in bash basename cat chmod date dirname env find grep head mkdir rm sed sleep sort stat tail timeout touch wc; do
  ln -s "$(command -v "$tool")" "$fake/$tool"
done
PATH=$fake
stand_in "$fake/squeue" <<<'echo RUNNING'
stand_in "$fake/scontrol" <<<''
stand_in "$fake/lscpu" <<<'echo 0'
stand_in "$fake/srun" <<<'case $* in *--mpi=list*) echo "none pmi2" ;; esac'
mkdir programs
stand_in programs/cifar_mpi_train <<<'echo "0 done" >run/exit'
export SLURM_JOB_ID=7 SLURM_JOB_NAME=job SLURM_JOB_NUM_NODES=1 CIFAR_MPI_ROOT=$root CIFAR_MPI_BIN=$here/programs
with_mpirun() { stand_in "$fake/mpirun" <<<'shift 4; exec "$@"'; }
# the job's process number is in the file `job`
job() { bash -c 'echo $$ >job; exec bash "$CIFAR_MPI_ROOT/jobs/cifar10_1node.slurm" --run-dir run'; }

TrainsThroughTheLauncherThatIsThere() {
  with_mpirun
  ends_with 0 job
  says 'done.'
  grep -q '^mpirun .*cifar_mpi_train --run-dir run' "$calls" || fail "called: $(cat "$calls")"
}

StopsWhereNoLauncherIsThere() {
  ends_with 10 job
  says 'there is no mpirun here'
  ! grep -q requeue "$calls" || fail "it was put back into the queue"
}

StopsWhereTheChosenLauncherIsNotThere() {
  CIFAR_MPI_LAUNCHER=mpirun ends_with 10 job
  says 'CIFAR_MPI_LAUNCHER is mpirun'
  with_mpirun
  CIFAR_MPI_LAUNCHER=srun ends_with 10 job
  says 'CIFAR_MPI_LAUNCHER is srun'
  ! grep -q requeue "$calls" || fail "it was put back into the queue"
  CIFAR_MPI_LAUNCHER=ssh ends_with 2 job
  says "not 'ssh'"
}

LeavesWhenItIsAskedToBeforeTheRanksStart() {
  with_mpirun
  stand_in "$fake/lscpu" <<<'kill -USR1 "$(cat job)"; echo 0'
  ends_with 75 job
  says 'back into the queue'
  grep -q '^scontrol requeue 7' "$calls" || fail "called: $(cat "$calls")"
  ! grep -q '^cifar_mpi_train' "$calls" || fail "the ranks were started"
}

LeavesWhenItIsAskedToWhileTheRanksRun() {
  with_mpirun
  stand_in programs/cifar_mpi_train <<<'trap "echo 75 stopped >run/exit; exit 75" USR1; kill -USR1 "$(cat job)"; for i in {1..200}; do sleep 0.05; done'
  ends_with 75 job
  says 'stopped on request: stopped'
}

"$1"
