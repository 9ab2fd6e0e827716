#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
# The decisions of jobs/run.sh, with stand-ins for Slurm, the launchers and the program; tests/slurm has the real ones.
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

# Nothing of this machine's MPI and Slurm: PATH is the stand-ins and the tools that the job files use.
for tool in bash basename cat chmod date dd dirname env find grep ln mkdir mkfifo mktemp mv rm sed sleep sort stat tail \
  timeout touch wc; do
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

EndsWithAReportThatChangesNothing() {
  with_mpirun
  local code end
  for code in 0 4 75 139; do
    stand_in programs/cifar_mpi_report <<<"echo told of \$1; exit $code"
    ends_with 0 job
    says 'told of run'
    says 'done.'
    [ "$code" = 0 ] || says "there is no report: cifar_mpi_report ended with $code"
  done
  grep -q '^cifar_mpi_report run$' "$calls" || fail "called: $(cat "$calls")"
  for end in '75 stopped' '8 diverged'; do  # it is made however the ranks end
    stand_in programs/cifar_mpi_train <<<"rm -f run/exit; echo '$end' >run/exit; exit ${end%% *}"
    ends_with "${end%% *}" job
    says 'told of run'
  done
  grep -q '^scontrol requeue 7' "$calls" || fail "it was not put back into the queue"
}

ChecksGpusAndNothingElse() {
  with_mpirun
  stand_in programs/cifar_mpi_report <<<''
  stand_in programs/cifar_mpi_train <<<'echo "rank 1 on node2: divergence"; exit 6'
  ends_with 6 bash "$root/jobs/self_check.slurm" --precision fp32
  says 'rank 1 on node2: divergence'
  says 'code 6, not starting again'
  grep -q '^cifar_mpi_train .*--self-check only --precision fp32' "$calls" || fail "called: $(cat "$calls")"
  ! grep -qE 'requeue|cifar_mpi_report' "$calls" || fail "called: $(cat "$calls")"
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

# Whoever can write the run directory must not so come to run or write anything as the one whose job it is.
stopped_run() { stand_in programs/cifar_mpi_train <<<'rm -f run/exit; echo "75 stopped" >run/exit; exit 75'; mkdir run; }

ExecutesNothingThatStandsInTheRunDirectory() {
  with_mpirun
  stopped_run
  local content
  for content in 'a[$(touch executed)0]' 'x[`touch executed`]+1' '1+1' '99999999999999999999' '-1' ''; do
    printf '%s\n' "$content" >run/starts_without_progress
    ends_with 75 job
    says 'back into the queue'
    [ "$(cat run/starts_without_progress)" = 1 ] || fail "'$content' counts as $(cat run/starts_without_progress)"
    [ ! -e executed ] || fail "'$content' was executed"
  done
  echo 2 >run/starts_without_progress
  ends_with 75 job
  says 'three starts without a new checkpoint'
  stand_in programs/cifar_mpi_train <<<'rm -f run/exit; echo "a[\$(touch executed)] x" >run/exit; exit 75'
  ends_with 75 job
  [ ! -e executed ] || fail "the record of the end was executed"
}

WritesThroughNoLinkInTheRunDirectory() {
  with_mpirun
  stopped_run
  local name
  echo mine >precious
  for name in layout starts_without_progress; do ln -s ../precious "run/$name"; done
  ln -s ../made run/starts_without_progress.new
  SLURM_RESTART_COUNT=1 ends_with 75 job
  says 'back into the queue'
  says_not 'before the restart'
  [ "$(cat precious)" = mine ] || fail "a link was written through: $(cat precious)"
  for name in layout starts_without_progress; do
    if [ ! -f "run/$name" ] || [ -L "run/$name" ]; then fail "$name is no file of its own"; fi
  done
}

WritesThroughNoLinkThatAppearsBeforeItWrites() {
  with_mpirun
  stopped_run
  local target
  echo mine >precious
  for target in precious made; do
    rm "$fake/mktemp"
    stand_in "$fake/mktemp" <<<"ln -sfn '$here/$target' run/planted; echo run/planted"
    ends_with 75 job
    says 'cannot overwrite existing file'
    [ "$(cat precious)" = mine ] || fail "the link was written through: $(cat precious)"
    [ ! -e made ] || fail "the link was written through: $(cat made)"
    [ ! -e run/layout ] || fail "the link became the file"
  done
}

WaitsForNoPipeInTheRunDirectory() {
  with_mpirun
  stand_in programs/cifar_mpi_train <<<'exit 75'
  mkdir run
  mkfifo run/layout run/starts_without_progress run/exit
  SLURM_RESTART_COUNT=1 ends_with 75 timeout 20 bash "$root/jobs/cifar10_1node.slurm" --run-dir run
}

CountsOnlyFilesNamedAsCheckpoints() {
  with_mpirun
  stopped_run
  mkdir run/checkpoints
  touch run/checkpoints/step_000000010.h5 run/checkpoints/step_good.h5 run/checkpoints/step_9.h5.h5
  ln -s /dev/null run/checkpoints/step_000000020.h5
  ends_with 75 job
  says 'to go on from step_000000010.'
  mv run/checkpoints elsewhere
  ln -s ../elsewhere run/checkpoints
  ends_with 75 job
  says 'to go on from .'
}

ShowsNoControlCharactersOfTheRunDirectory() {
  with_mpirun
  mkdir run
  stand_in programs/cifar_mpi_train <<<'printf "3 re\\033[31md, C1 \\302\\233 and gr\\303\\266\\303\\237er\\n" >run/exit; exit 3'
  ends_with 3 job
  says 're?[31md, C1 ? and größer'
}

"$1"
